"""What a compiled kernel costs a chip: registers, spills, shared memory, and which instructions do the work."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weir_kernels.aot.offline import TARGETS, compiling_for
from weir_kernels.launch import Launch

# Bytes of shared memory one program may use: CUDA C++ programming guide, "Technical Specifications per Compute
# Capability" (99 KB less in older parts), and the 64 KiB LDS of CDNA 3.
SHARED_LIMIT = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "sm_100": 227 * 1024, "gfx942": 64 * 1024}


@dataclass(frozen=True, slots=True)
class MachineCode:
    """registers: a thread; spilled_bytes: stores to local memory a thread; shared_bytes: a program.

    async_copies: 16-byte copies from global to shared memory that bypass registers; matrix: the matrix instruction
    used, `` where none is.
    """

    registers: int
    spilled_bytes: int
    shared_bytes: int
    async_copies: int
    matrix: str


def machine_code(launch: Launch, arch: str) -> MachineCode:
    """Compiles a launch for `arch` (a key of TARGETS) and reads the result. Needs no device."""
    with compiling_for(arch):
        compiled = launch.compile()
    return _read_cuda(compiled, arch) if TARGETS[arch].backend == "cuda" else _read_hip(compiled)


def _read_cuda(compiled: Any, arch: str) -> MachineCode:
    ptx: str = compiled.asm["ptx"]
    log = _assemble(ptx, arch)
    registers = re.search(r"Used (\d+) registers", log)
    spills = re.search(r"(\d+) bytes spill stores", log)
    if registers is None or spills is None:
        raise ValueError(f"ptxas says nothing about registers or spills: {log}")
    instructions = ("tcgen05.mma", "wgmma.mma_async", "mma.sync")
    return MachineCode(
        registers=int(registers[1]),
        spilled_bytes=int(spills[1]),
        shared_bytes=compiled.metadata.shared,
        async_copies=len(re.findall(r"cp\.async\.cg", ptx)),
        matrix=next((name for name in instructions if name in ptx), ""),
    )


def _assemble(ptx: str, arch: str) -> str:
    from triton.backends.nvidia.compiler import get_ptxas

    target = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)
    if target is None:
        raise ValueError("the PTX names no target")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        # A file of its own: ptxas removes its output when it fails, and root could lose /dev/null that way.
        command = [get_ptxas(TARGETS[arch].arch).path, "-v", f"--gpu-name={target[1]}", str(source)]
        command += ["-o", str(Path(folder, "kernel.cubin"))]
        return subprocess.run(command, check=True, capture_output=True, text=True).stderr


def _read_hip(compiled: Any) -> MachineCode:
    assembly: str = compiled.asm["amdgcn"]

    def value(name: str) -> int:
        found = re.search(rf"\.{name}:\s+(\d+)", assembly)
        if found is None:
            raise ValueError(f"the assembly says nothing about {name}")
        return int(found[1])

    matrix = re.search(r"v_mfma_\w+?_\d+x\d+x\d+", assembly)
    return MachineCode(
        registers=value("vgpr_count"),
        spilled_bytes=4 * value("vgpr_spill_count"),
        shared_bytes=compiled.metadata.shared,
        async_copies=0,
        matrix=matrix[0] if matrix else "",
    )
