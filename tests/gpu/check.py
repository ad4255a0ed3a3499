"""Everything there is to know about the kernels on this GPU, in one command under nine minutes: `make gpu-check`.

Needs torch, Triton, transformers, safetensors, tokenizers, numpy and pytest. Runs the device tests, measures
attention and whole models against the device's own copy and matrix rates, and writes docs/gpu.md and docs/gpu.json.
"""

from __future__ import annotations

import argparse
import datetime
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "kernels"), str(ROOT / "service"), str(Path(__file__).parent)]

import torch  # noqa: E402
import triton  # noqa: E402
from end_to_end import MODELS, Load, transformers_rows, weir_row  # noqa: E402
from measure import FULL, REHEARSAL, attention_rows, roofs  # noqa: E402
from report import write  # noqa: E402
from weir_kernels.dispatch import Kernels, pick  # noqa: E402

LIMIT_S = 540.0
TEST_LIMIT_S = 240.0


def device_tests(limit_s: float) -> int:
    """Runs the tests of `device_kernels.py` and `device_engine.py`; 0 when all pass."""
    files = ["device_kernels.py", "device_engine.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files]
    return subprocess.run(command, cwd=Path(__file__).parent, timeout=limit_s, check=False).returncode


def sanitizer(limit_s: float) -> str:
    """Runs one small case under compute-sanitizer; says so when there is none."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        return "compute-sanitizer is not installed: not run"
    case = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "device_kernels.py", "-k", "mixed_batch"]
    command = [tool, "--error-exitcode", "9", *case]
    try:
        finished = subprocess.run(command, cwd=Path(__file__).parent, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return f"compute-sanitizer did not finish in {limit_s:.0f} s"
    return "compute-sanitizer: no error" if finished.returncode == 0 else f"compute-sanitizer: rc {finished.returncode}"


def measure(device: torch.device, kernels: Kernels, rehearsal: bool, deadline: float) -> dict[str, Any]:
    """All tables. What the deadline leaves no time for is listed as not measured."""
    sizes = REHEARSAL if rehearsal else FULL
    dtype = torch.float32 if rehearsal else torch.bfloat16
    dtypes = [(dtype, dtype)]
    if not rehearsal and torch.cuda.get_device_capability(device) >= (8, 9):
        dtypes.append((dtype, torch.float8_e4m3fn))
    roof = roofs(sizes, dtype, device)
    results: dict[str, Any] = {
        "Device": [{"copy GB/s": roof[0], "matmul TFLOP/s": roof[1]}],
        "Attention": list(attention_rows(sizes, dtypes, device, roof)),
        "Whole models": [],
        "Not measured": [],
    }
    loads = [Load(2, 5, 4)] if rehearsal else [Load(1, 512, 128), Load(64, 512, 128)]
    for name, config in MODELS.items():
        for load in loads:
            shape = config | ({"num_hidden_layers": 1, "hidden_size": 64, "vocab_size": 96} if rehearsal else {})
            shape |= {"intermediate_size": 96} if rehearsal else {}
            if time.monotonic() > deadline:
                results["Not measured"].append({"model": name, "batch": load.batch, "why": "out of time"})
                continue
            results["Whole models"].append(weir_row(name, shape, load, kernels, device, roof[0]))
            results["Whole models"] += transformers_rows(name, shape, load, device)
            if device.type == "cuda":
                torch.cuda.empty_cache()
    return results


def main() -> int:
    """0 when every device test passes."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--page", type=Path, default=ROOT / "docs" / "gpu.md", help="where the tables go")
    page: Path = arguments.parse_args().page
    if not torch.cuda.is_available():
        print("there is no GPU that this torch can use", file=sys.stderr)
        return 2
    deadline = time.monotonic() + LIMIT_S
    failed = device_tests(TEST_LIMIT_S)
    if failed:
        return failed
    sanitized = sanitizer(60.0)
    device = torch.device("cuda", 0)
    today = datetime.datetime.now(datetime.UTC).date()
    about = (
        f"Measured on {torch.cuda.get_device_name(device)}, {today}, torch {torch.__version__}, "
        f"Triton {triton.__version__}. All device tests pass; {sanitized}."
    )
    write(page, {"about": about} | measure(device, pick(device, "triton"), False, deadline - 120.0))
    print(page.read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
