"""64 requests under eight budgets: no token is computed in vain, and every running decode advances in every step."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest
from weir.config import EngineSettings, ModelSettings, Settings
from weir.engine.load import load_engine
from weir.engine.request import Delta, Done, GenerateRequest, SamplingParams

from tests.contract.server_process import CONFIG

BUDGETS = [(2, 3), (4, 16), (8, 9), (8, 64), (16, 33), (32, 48), (64, 65), (64, 512)]


@pytest.mark.parametrize(("max_running", "max_batch_tokens"), BUDGETS)
def test_64_requests(tmp_path: Path, max_running: int, max_batch_tokens: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    core = load_engine(
        Settings(
            model=ModelSettings(model=str(tmp_path), load_format="dummy", kernels="reference", max_model_len=256),
            engine=EngineSettings(
                kv_memory_bytes=2**20,
                threads=1,
                max_running=max_running,
                max_batch_tokens=max_batch_tokens,
            ),
        )
    )
    dice = random.Random(max_batch_tokens)
    lengths = {}
    for number in range(64):
        prompt, max_tokens = tuple(dice.choices(range(256), k=dice.randint(1, 90))), dice.randint(1, 24)
        lengths[str(number)] = len(prompt), max_tokens
        params = SamplingParams(max_tokens, temperature=0.0, ignore_eos=True)
        core.submit(GenerateRequest(str(number), prompt, params, arrival=time.monotonic()))

    computed = hits = 0
    outputs = dict.fromkeys(lengths, 0)
    done: set[str] = set()
    while core.has_work:
        decoding = {name for name, made in outputs.items() if made and name not in done}
        output = core.step()
        record = output.record
        assert record is not None
        assert decoding == {chunk.request_id for chunk in record.decodes}
        assert record.decode_tokens + record.prefill_tokens <= max_batch_tokens
        assert record.kv_reserved_peak_tokens <= record.kv_total_tokens
        computed += record.decode_tokens + record.prefill_tokens
        hits += record.prefix_hit_tokens
        for event in output.events:
            if isinstance(event, Delta):
                outputs[event.request_id] += len(event.token_ids)
            elif isinstance(event, Done):
                done.add(event.request_id)
    assert outputs == {name: max_tokens for name, (_, max_tokens) in lengths.items()}
    assert computed == sum(prompt + max_tokens - 1 for prompt, max_tokens in lengths.values()) - hits
