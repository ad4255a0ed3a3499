"""What a process with the engine takes: the weights once, the KV pool, and a bounded rest."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MIB = 2**20
REST = 400 * MIB  # interpreter, torch, tokenizer, and the intermediate results of the largest step

SERVE_32 = """
import json, sys, time
from pathlib import Path
from weir.config import EngineSettings, ModelSettings, Settings
from weir.engine.load import load_engine
from weir.engine.request import GenerateRequest, SamplingParams

core = load_engine(
    Settings(model=ModelSettings(model=sys.argv[1], dtype="bfloat16"), engine=EngineSettings(kv_memory_bytes=256 << 20))
)
for number in range(32):
    prompt = tuple((number * 7 + i) % 1000 for i in range(200))
    params = SamplingParams(8, temperature=0.0, ignore_eos=True)
    core.submit(GenerateRequest(str(number), prompt, params, arrival=time.monotonic()))
while core.has_work:
    core.step()
status = Path("/proc/self/status").read_text()
peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
print(json.dumps({"peak": peak, "kv": core.info.kv_total_tokens * core.info.kv_bytes_per_token}))
"""


def test_peak_memory_is_the_weights_and_the_pool_and_a_bounded_rest(model_dir: Path) -> None:
    weights = sum(file.stat().st_size for file in model_dir.glob("*.safetensors"))
    done = subprocess.run(
        [sys.executable, "-c", SERVE_32, str(model_dir)], capture_output=True, text=True, check=True, timeout=300
    )
    figures = json.loads(done.stdout.splitlines()[-1])
    assert 255 * MIB < figures["kv"] <= 256 * MIB
    assert weights > 250 * MIB
    assert figures["peak"] <= weights + figures["kv"] + REST
