"""Compile csrc/ into one shared library: `python -m weir_kernels.cpu.build [FOLDER]`.

The library has a plain C interface and depends on the C++ and OpenMP runtimes only, so it fits every torch and Python
version. Its name holds a hash of the sources and flags: a library beside the package (made for an image) or in the
cache is used exactly when it was built from these sources. What lies in the cache is code that will be run, so it is
used only when nobody else could have put it there (`trust.py`).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from weir_kernels.cpu.trust import UntrustedError, is_recorded, open_trusted, own_folder, record

_SOURCES = Path(__file__).with_name("csrc")
_PREBUILT = Path(__file__).with_name("prebuilt")
_COMMON_FLAGS = ("-std=c++17", "-fPIC", "-fopenmp", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno")
_LIBRARY_FLAGS = ("-O2",)
_AVX512 = ("-O3", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma")
_ISA_FLAGS = {
    "avx512_bf16": (*_AVX512, "-mavx512bf16"),
    "avx512": _AVX512,
    "avx2": ("-O3", "-mavx2", "-mfma"),
}
_MACHINES = ("x86_64", "AMD64")
_COMPILE_TIMEOUT_S = 600


class BuildError(RuntimeError):
    """The library cannot be built here; the message says why."""


@contextmanager
def library_file() -> Iterator[str]:
    """The library for these sources, prebuilt, cached, or built now: a path to load it by within the block.

    Raises BuildError.
    """
    name = library_name()
    if (_PREBUILT / name).is_file():
        yield str(_PREBUILT / name)
        return
    folder = cache_folder()
    try:
        own_folder(folder)
        cached = open_trusted(folder / name) or open_trusted(build(folder))
    except (OSError, UntrustedError) as error:
        raise BuildError(f"cannot use {folder}: {error}") from error
    if cached is None:
        raise BuildError(f"{folder / name} was changed while it was built")
    try:
        # The very file that was looked at, whatever happens to its name meanwhile.
        yield f"/proc/self/fd/{cached}"
    finally:
        os.close(cached)


def library_name() -> str:
    """File name with a hash of everything the library is made from."""
    digest = hashlib.sha256(repr((_COMMON_FLAGS, _LIBRARY_FLAGS, _ISA_FLAGS)).encode())
    for source in sorted(_SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return f"libweir_cpu-{platform.machine().lower()}-{digest.hexdigest()[:16]}.so"


def cache_folder() -> Path:
    """WEIR_CACHE_DIR, else the user's cache folder. Raises BuildError for a user without a home."""
    if configured := os.environ.get("WEIR_CACHE_DIR"):
        return Path(configured)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weir"
    except RuntimeError as error:
        raise BuildError(f"no folder to build in ({error}): set WEIR_CACHE_DIR") from error


def build(folder: Path) -> Path:
    """Compile into `folder`, once even if several processes want it, and return the library. Raises BuildError."""
    if platform.machine() not in _MACHINES:
        raise BuildError(f"no kernels for {platform.machine()} processors")
    compiler = _compiler()
    target = folder / library_name()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / "build.lock"):
            if not is_recorded(target):
                with tempfile.TemporaryDirectory(dir=folder) as scratch:
                    # Renamed into place only when complete: a process that is killed leaves no half library.
                    compiled = _compile(compiler, Path(scratch))
                    compiled.chmod(0o644)
                    record(compiled, target)
                    compiled.replace(target)
    except OSError as error:
        raise BuildError(f"cannot write {folder}: {error}") from error
    return target


def _compiler() -> str:
    for name in (os.environ.get("CXX"), "g++", "c++"):
        if name and (path := shutil.which(name)):
            return path
    raise BuildError("no C++ compiler (CXX, g++, c++)")


def _compile(compiler: str, scratch: Path) -> Path:
    def compile_isa(isa: str) -> Path | None:
        out = scratch / f"{isa}.o"
        # -w: gcc 12's own AVX-512 headers leave vectors uninitialised on purpose, and it warns about each use.
        flags = (*_COMMON_FLAGS, *_ISA_FLAGS[isa], "-w")
        # A compiler too old for an instruction set still builds the others.
        done = _call(compiler, *flags, "-c", str(_SOURCES / f"isa_{isa}.cpp"), "-o", str(out))
        return out if done.returncode == 0 else None

    with ThreadPoolExecutor(max_workers=len(_ISA_FLAGS)) as pool:
        objects = {isa: out for isa, out in zip(_ISA_FLAGS, pool.map(compile_isa, _ISA_FLAGS), strict=True) if out}
    if not objects:
        raise BuildError(f"{compiler} compiles none of {', '.join(_ISA_FLAGS)}")
    library = scratch / "library.so"
    defines = [f"-DWEIR_HAVE_{isa.upper()}" for isa in objects]
    sources = [str(_SOURCES / "library.cpp"), *map(str, objects.values())]
    done = _call(compiler, *_COMMON_FLAGS, *_LIBRARY_FLAGS, *defines, "-shared", "-o", str(library), *sources)
    if done.returncode != 0:
        raise BuildError(f"{compiler} failed: {done.stderr.strip()[-2000:]}")
    return library


def _call(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{command[0]} took longer than {_COMPILE_TIMEOUT_S} s") from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(arguments: list[str]) -> int:
    """Build into the given folder, by default beside the package, and print the library's path."""
    try:
        print(build(Path(arguments[0]) if arguments else _PREBUILT))
    except BuildError as error:
        print(f"weir_kernels.cpu: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
