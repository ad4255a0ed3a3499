"""Compile every shipped kernel for every chip, rewrite the bounds and the table: `python -m weir_kernels.aot DOCS`.

DOCS: a Markdown file with a `<!-- machine code -->` ... `<!-- end -->` pair, between which the table goes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import triton

from weir_kernels.aot.bounds import Bounds, violations, write_bounds
from weir_kernels.aot.machine_code import MachineCode, machine_code
from weir_kernels.aot.offline import TARGETS
from weir_kernels.aot.variants import shipped

START, END = "<!-- machine code -->", "<!-- end -->"


def table(bounds: Bounds) -> str:
    """One Markdown row a variant, one group of columns a chip: registers / spilled bytes / shared bytes."""
    names = list(dict.fromkeys(name for rows in bounds.by_arch.values() for name in rows))
    lines = [
        f"Triton {bounds.triton}; registers a thread / spilled bytes / shared bytes, matrix instruction.",
        "",
        "| kernel | " + " | ".join(bounds.by_arch) + " |",
        "| --- |" + " --- |" * len(bounds.by_arch),
    ]
    for name in names:
        cells = []
        for rows in bounds.by_arch.values():
            code = rows.get(name)
            cost = f"{code.registers} / {code.spilled_bytes} / {code.shared_bytes}" if code else ""
            cells.append(f"{cost} {code.matrix.split('.')[0]}".strip() if code else "not supported")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(docs: Path) -> int:
    """Returns the number of faults found, each printed."""
    by_arch: dict[str, dict[str, MachineCode]] = {}
    faults: list[str] = []
    for arch in TARGETS:
        by_arch[arch] = {}
        for variant in shipped(arch):
            if variant.name not in by_arch[arch]:
                code = machine_code(variant.launch, arch)
                by_arch[arch][variant.name] = code
                faults += violations(arch, variant.name, code, code)
    bounds = Bounds(triton.__version__, by_arch)
    write_bounds(bounds)
    text = docs.read_text()
    before, rest = text.split(START)
    docs.write_text(before + START + "\n" + table(bounds) + "\n" + END + rest.split(END)[1])
    print("\n".join(faults) or "no faults")
    return len(faults)


if __name__ == "__main__":
    sys.exit(min(1, main(Path(sys.argv[1]))))
