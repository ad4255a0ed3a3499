"""What the machine code of each kernel may cost: committed, compared by a test, rewritten by the module's script.

A row is [registers, spilled bytes, shared bytes, 16-byte async copies, matrix instruction].
"""

from __future__ import annotations

import json
from dataclasses import astuple
from pathlib import Path

from weir_kernels.aot.machine_code import SHARED_LIMIT, MachineCode

PATH = Path(__file__).with_name("bounds.json")
# Compilers differ a little in registers from version to version; a regression that matters costs more.
REGISTER_SLACK = 16


def read_bounds() -> dict[str, dict[str, MachineCode]]:
    """By architecture and variant name."""
    stored = json.loads(PATH.read_text())
    return {arch: {name: MachineCode(*row) for name, row in rows.items()} for arch, rows in stored.items()}


def write_bounds(bounds: dict[str, dict[str, MachineCode]]) -> None:
    """One line a variant, so that a change reads as a diff."""
    blocks = []
    for arch, rows in bounds.items():
        lines = [f"    {json.dumps(name)}: {json.dumps(astuple(code))}" for name, code in rows.items()]
        blocks.append(f"  {json.dumps(arch)}: {{\n" + ",\n".join(lines) + "\n  }")
    PATH.write_text("{\n" + ",\n".join(blocks) + "\n}\n")


def violations(arch: str, name: str, code: MachineCode, bound: MachineCode | None) -> list[str]:
    """In words, what is wrong with a compiled kernel: rules that hold for all, then its own bound."""
    faults = []
    if code.spilled_bytes:
        faults.append(f"spills {code.spilled_bytes} bytes")
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
