"""Which kernels a device gets."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from weir_kernels.dispatch import Backend, KernelError, pick

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(("wanted", "name"), [("auto", "torch"), ("cpu", "torch"), ("reference", "reference")])
def test_kernels_of_a_cpu(wanted: Backend, name: str) -> None:
    assert pick(CPU, wanted).name == name


def test_a_gpu_gets_triton_unless_the_reference_is_wanted() -> None:
    assert pick(GPU).name == "triton"
    assert pick(GPU, "reference").name == "reference"


@pytest.mark.parametrize(("device", "wanted"), [(CPU, "triton"), (GPU, "cpu")])
def test_kernels_that_do_not_run_on_the_device_are_refused(device: torch.device, wanted: Backend) -> None:
    with pytest.raises(KernelError, match=f"the {wanted} kernels need"):
        pick(device, wanted)


@pytest.mark.parametrize(("capability", "name"), [((7, 5), "reference"), ((8, 0), "triton"), ((9, 0), "triton")])
def test_a_gpu_that_triton_does_not_compile_for_gets_the_reference(
    capability: tuple[int, int], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert pick(GPU).name == name


def test_without_triton_a_gpu_gets_the_reference_and_asking_for_triton_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert pick(GPU).name == "reference"
    with pytest.raises(KernelError, match="package triton, which is not installed"):
        pick(GPU, "triton")


def test_the_interpreter_runs_the_triton_kernels_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert pick(CPU, "triton").name == "triton"
    assert pick(CPU).name == "torch"
