"""The machine code of the kernels, for chips that need not be here, stays within committed bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import triton
from weir_kernels.aot.bounds import KNOWN_SPILLS, read_bounds, violations
from weir_kernels.aot.machine_code import MachineCode, machine_code
from weir_kernels.aot.offline import TARGETS
from weir_kernels.aot.variants import attention_variants, other_variants, shipped


def test_the_bounds_are_those_of_the_installed_compiler() -> None:
    assert read_bounds().triton == triton.__version__, "make venv installs the pinned Triton; its bounds are committed"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", list(TARGETS))
def test_kernels_neither_spill_nor_regress(arch: str) -> None:
    """The layouts most models have; the script behind docs/kernels.md compiles all of them."""
    bounds = read_bounds().by_arch[arch]
    variants = [*attention_variants(arch, 128, 16), *attention_variants(arch, 128, 16, features=True)]
    if arch == "sm_90":
        variants += [*attention_variants(arch, 64, 64), *attention_variants(arch, 256, 16)]
        variants += attention_variants(arch, 128, 16, cache_dtype=torch.float8_e4m3fn)
        variants += other_variants()
    faults = [
        fault
        for variant in variants
        for fault in violations(arch, variant.name, machine_code(variant.launch, arch), bounds.get(variant.name))
    ]
    assert faults == []


@pytest.mark.parametrize("arch", list(TARGETS))
def test_every_shipped_variant_has_a_bound_that_keeps_the_rules(arch: str) -> None:
    bounds = read_bounds().by_arch[arch]
    assert {variant.name for variant in shipped(arch)} == set(bounds)
    assert [fault for name, code in bounds.items() for fault in violations(arch, name, code, code)] == []


def test_the_known_spills_are_exactly_those_of_the_bounds() -> None:
    spills = {
        (arch, name): code.spilled_bytes
        for arch, rows in read_bounds().by_arch.items()
        for name, code in rows.items()
        if code.spilled_bytes
    }
    assert spills == KNOWN_SPILLS


def test_a_known_spill_may_not_grow() -> None:
    (arch, name), known = next(iter(KNOWN_SPILLS.items()))
    code = read_bounds().by_arch[arch][name]
    assert violations(arch, name, code, code) == []
    worse = replace(code, spilled_bytes=known + 4)
    assert violations(arch, name, worse, code) == [f"{arch} {name}: spills {known + 4} bytes, {known} before"]


def test_a_regression_is_reported_in_words() -> None:
    bound = MachineCode(registers=100, spilled_bytes=0, shared_bytes=1000, async_copies=8, matrix="wgmma.mma_async")
    worse = MachineCode(registers=128, spilled_bytes=4, shared_bytes=240_000, async_copies=0, matrix="mma.sync")
    assert violations("sm_90", "prefill_kernel (x)", worse, bound) == [
        "sm_90 prefill_kernel (x): spills 4 bytes",
        "sm_90 prefill_kernel (x): needs 240000 bytes of shared memory of 232448",
        "sm_90 prefill_kernel (x): loads keys and values without cp.async",
        "sm_90 prefill_kernel (x): multiplies with mma.sync, not wgmma",
        "sm_90 prefill_kernel (x): uses 128 registers, 100 before",
        "sm_90 prefill_kernel (x): uses 240000 bytes of shared memory, 1000 before",
        "sm_90 prefill_kernel (x): has 0 async copies, 8 before",
        "sm_90 prefill_kernel (x): multiplies with mma.sync, wgmma.mma_async before",
    ]
    assert violations("sm_90", "prefill_kernel (x)", bound, bound) == []
