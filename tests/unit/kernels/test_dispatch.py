"""Which kernels a device gets."""

from __future__ import annotations

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
