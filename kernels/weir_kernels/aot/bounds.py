"""What the machine code of each kernel may cost: committed, compared by a test, rewritten by the module's script.

They hold for one release of Triton, the pinned one, which the file names. A row is [registers, spilled bytes, shared
bytes, 16-byte async copies, matrix instruction].
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass
from pathlib import Path

from weir_kernels.aot.machine_code import SHARED_LIMIT, MachineCode

PATH = Path(__file__).with_name("bounds.json")
# Compilers differ a little in registers from version to version; a regression that matters costs more.
REGISTER_SLACK = 16


# By architecture and variant: bytes a thread that the pinned release spills, at launch parameters that another release
# compiles without (docs/kernels.md). Nothing else may spill.
KNOWN_SPILLS = {
    ("sm_90", "decode_kernel (head 80, block 16, group 4, bfloat16, cache bfloat16, window, soft cap, sinks)"): 4,
    ("sm_90", "decode_kernel (head 96, block 16, group 4, bfloat16, cache bfloat16, window, soft cap, sinks)"): 4,
    ("sm_90", "prefill_kernel (head 256, block 16, group 4, bfloat16, cache float8_e4m3fn)"): 52,
    ("sm_100", "decode_kernel (head 80, block 16, group 4, bfloat16, cache bfloat16, window, soft cap, sinks)"): 4,
    ("sm_100", "decode_kernel (head 96, block 16, group 4, bfloat16, cache bfloat16, window, soft cap, sinks)"): 4,
    ("sm_100", "prefill_kernel (head 64, block 16, group 4, bfloat16, cache bfloat16, window, soft cap, sinks)"): 24,
    ("sm_100", "prefill_kernel (head 64, block 64, group 4, bfloat16, cache bfloat16)"): 8,
}


@dataclass(frozen=True, slots=True)
class Bounds:
    """triton: the release they were measured with; by_arch: by architecture and variant name."""

    triton: str
    by_arch: dict[str, dict[str, MachineCode]]


def read_bounds() -> Bounds:
    """The committed ones."""
    stored = json.loads(PATH.read_text())
    by_arch = {
        arch: {name: MachineCode(*row) for name, row in rows.items()} for arch, rows in stored["by_arch"].items()
    }
    return Bounds(stored["triton"], by_arch)


def write_bounds(bounds: Bounds) -> None:
    """One line a variant, so that a change reads as a diff."""
    blocks = []
    for arch, rows in bounds.by_arch.items():
        lines = [f"      {json.dumps(name)}: {json.dumps(astuple(code))}" for name, code in rows.items()]
        blocks.append(f"    {json.dumps(arch)}: {{\n" + ",\n".join(lines) + "\n    }")
    by_arch = ",\n".join(blocks)
    PATH.write_text(f'{{\n  "triton": {json.dumps(bounds.triton)},\n  "by_arch": {{\n{by_arch}\n  }}\n}}\n')


def violations(arch: str, name: str, code: MachineCode, bound: MachineCode | None) -> list[str]:
    """In words, what is wrong with a compiled kernel: rules that hold for all, then its own bound."""
    faults = []
    known_spill = KNOWN_SPILLS.get((arch, name), 0)
    if code.spilled_bytes > known_spill:
        faults.append(f"spills {code.spilled_bytes} bytes{f', {known_spill} before' if known_spill else ''}")
    if code.shared_bytes > SHARED_LIMIT[arch]:
        faults.append(f"needs {code.shared_bytes} bytes of shared memory of {SHARED_LIMIT[arch]}")
    attends = name.startswith(("decode_kernel", "prefill_kernel"))
    if attends and arch != "gfx942" and not code.async_copies:
        faults.append("loads keys and values without cp.async")
    if attends and not code.matrix:
        faults.append("uses no matrix instruction")
    if name.startswith("prefill_kernel") and arch == "sm_90" and code.matrix != "wgmma.mma_async":
        faults.append(f"multiplies with {code.matrix}, not wgmma")
    if bound is None:
        faults.append("has no bound")
    else:
        if code.registers > bound.registers + REGISTER_SLACK:
            faults.append(f"uses {code.registers} registers, {bound.registers} before")
        if code.shared_bytes > bound.shared_bytes:
            faults.append(f"uses {code.shared_bytes} bytes of shared memory, {bound.shared_bytes} before")
        if code.async_copies < bound.async_copies:
            faults.append(f"has {code.async_copies} async copies, {bound.async_copies} before")
        if code.matrix != bound.matrix:
            faults.append(f"multiplies with {code.matrix or 'no matrix instruction'}, {bound.matrix or 'none'} before")
    return [f"{arch} {name}: {fault}" for fault in faults]
