"""Environments for the peers, each from its own pins, and the model in each peer's format. Made once, kept."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.peers.engines import Engine
from benchmarks.peers.gguf_model import convert

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "peers"
PINS = ROOT / "requirements" / "peers"
_INSTALL_S, _CONVERT_S = 3600, 900


class PeerError(Exception):
    """A peer that cannot be installed, prepared or run; the message is the reason that the table gives."""


def version(engine: Engine) -> str:
    """The version that is pinned; weir's is the tree's own."""
    if engine.environment is None:
        return "this tree"
    pins = (PINS / f"{engine.environment}.txt").read_text().splitlines()
    return next(line.split("==")[1] for line in pins if line.startswith(f"{engine.package}=="))


def install(engine: Engine) -> Path:
    """The interpreter of the engine's environment, which is made when its pins have changed. Raises PeerError.

    The pins are complete, so nothing is resolved: a dependency that would bring a GPU build of torch cannot.
    """
    if engine.environment is None:
        return Path(sys.executable)
    folder, pins = CACHE / engine.environment, PINS / f"{engine.environment}.txt"
    python, stamp = folder / "bin" / "python", folder / ".pins"
    digest = hashlib.sha256(pins.read_bytes()).hexdigest()
    if python.exists() and stamp.exists() and stamp.read_text() == digest:
        return python
    print(f"installing {engine.title} into {folder.relative_to(ROOT)}", file=sys.stderr)
    if not python.exists():
        _run([sys.executable, "-m", "venv", str(folder)], _INSTALL_S)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-deps"]
    _run([*pip, "-r", str(pins)], _INSTALL_S)
    if "torch==" in pins.read_text():
        cuda = _run([str(python), "-c", "import torch; print(torch.version.cuda)"], _CONVERT_S).strip()
        if cuda != "None":
            raise PeerError(f"torch came as a CUDA {cuda} build; the comparison needs the CPU build")
    stamp.write_text(digest)
    return python


def prepare(engine: Engine, python: Path, model: Path) -> Path:
    """The model as the engine reads it, from the same bf16 weights. Raises PeerError."""
    target = CACHE / "models" / model.name
    if engine.name == "llama_cpp":
        file = target / "bf16.gguf"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            convert(model, file)
        return file
    if engine.name != "openvino":
        return model
    folder = target / "openvino"
    if not (folder / "openvino_model.bin").exists():
        shutil.rmtree(folder, ignore_errors=True)
        export = [str(python.with_name("optimum-cli")), "export", "openvino", "--model", str(model)]
        _run([*export, "--task", "text-generation-with-past", "--weight-format", "fp16", str(folder)], _CONVERT_S)
    return folder


def _run(command: list[str], limit_s: float) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, cwd=CACHE.parent, check=False)
    except subprocess.TimeoutExpired:
        raise PeerError(f"{Path(command[0]).name} {command[1]} took more than {limit_s:.0f} s") from None
    if done.returncode:
        raise PeerError(last_line(done.stderr or done.stdout) or f"{command[0]} returned {done.returncode}")
    return done.stdout


def last_line(text: str) -> str:
    """The line that says why, in what a failed command printed."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or [""])[-1][:200]
