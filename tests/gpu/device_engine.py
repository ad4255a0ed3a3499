"""The whole engine on a device, with recorded graphs and a step ahead, against one that runs in order without them.

Run by `check.py`; under Triton's interpreter the same tests run on the CPU, so that they are known to work.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "kernels"), str(ROOT / "service")]

from weir.engine.blocks import BlockHasher, BlockPool, blocks_for  # noqa: E402
from weir.engine.core import EngineCore  # noqa: E402
from weir.engine.detokenizer import TokenTable  # noqa: E402
from weir.engine.gpu_batch import StepShape  # noqa: E402
from weir.engine.gpu_load import gpu_runner, step_bytes  # noqa: E402
from weir.engine.plan import SchedulerLimits  # noqa: E402
from weir.engine.records import EngineInfo  # noqa: E402
from weir.engine.request import Delta, GenerateRequest, SamplingParams  # noqa: E402
from weir.engine.runner import Runner  # noqa: E402
from weir.engine.sampler import Sampler  # noqa: E402
from weir.engine.scheduler import Scheduler  # noqa: E402
from weir.engine.tenants import Tenants  # noqa: E402
from weir.engine.validation import RequestLimits  # noqa: E402
from weir.engine.waiting import WaitingQueue  # noqa: E402
from weir.models.decoder import Decoder  # noqa: E402
from weir.models.loader import dummy_weights  # noqa: E402
from weir.models.spec import ModelSpec  # noqa: E402
from weir_kernels.attention import FLOAT8  # noqa: E402
from weir_kernels.dispatch import pick  # noqa: E402

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
CACHES = [None, *([FLOAT8] if GPU and torch.cuda.get_device_capability() >= (8, 9) else [])]
SPEC = ModelSpec.from_config(
    {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 96,
        "hidden_size": 64,
        "intermediate_size": 112,
        "num_hidden_layers": 2 if GPU else 1,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 64 if GPU else 16,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "eos_token_id": 95,
        "bos_token_id": 94,
    }
)
MAX_LEN, BLOCK_SIZE, NUM_BLOCKS = 256, 16, 40
SHAPE = StepShape(max_tokens=24, max_rows=4, max_blocks=blocks_for(MAX_LEN, BLOCK_SIZE), block_size=BLOCK_SIZE)


def new_decoder(kv_dtype: torch.dtype | None) -> Decoder:
    return Decoder(SPEC, dummy_weights(SPEC, torch.float32, DEVICE), pick(DEVICE, "triton"), kv_dtype)


def engine(decoder: Decoder, ahead: bool) -> EngineCore:
    """ahead: through the runner of a GPU; otherwise the plain one, over the same kernels."""
    kv = decoder.allocate_kv(NUM_BLOCKS, BLOCK_SIZE)
    plain = Runner(decoder, kv, Sampler(SPEC.vocab_size, DEVICE), BLOCK_SIZE, DEVICE)
    runner = gpu_runner(decoder, kv, SHAPE, cuda_graphs=True) if ahead else plain
    info = EngineInfo(
        model_name="device",
        model_path="",
        architecture=SPEC.architecture,
        dtype="float32",
        device=str(DEVICE),
        kernels=decoder.kernels,
        vocab_size=SPEC.vocab_size,
        max_model_len=MAX_LEN,
        block_size=BLOCK_SIZE,
        kv_total_tokens=NUM_BLOCKS * BLOCK_SIZE,
        kv_bytes_per_token=decoder.kv_bytes_per_block(BLOCK_SIZE) // BLOCK_SIZE,
        max_batch_tokens=SHAPE.max_tokens,
        max_running=SHAPE.max_rows,
        default_max_tokens=MAX_LEN,
        eos_token_ids=(95,),
    )
    limits = RequestLimits(SPEC.vocab_size, MAX_LEN, BLOCK_SIZE, NUM_BLOCKS, SHAPE.max_rows, 4, 20, 16, 256, 1024)
    tenants = Tenants()
    scheduler = Scheduler(
        SchedulerLimits(SHAPE.max_rows, SHAPE.max_tokens, collect_lag=runner.steps_ahead),
        BlockPool(NUM_BLOCKS, BLOCK_SIZE),
        BlockHasher(BLOCK_SIZE, key=b"device"),
        WaitingQueue(tenants, bypass_limit=4, bypass_age_s=1000.0),
        tenants,
    )
    return EngineCore(info, limits, scheduler, runner, TokenTable([]), tenants)


def request(name: str, prompt: tuple[int, ...], max_tokens: int, **params: Any) -> GenerateRequest:
    return GenerateRequest(name, prompt, SamplingParams(max_tokens, **({"temperature": 0.0} | params)))


def prompt(length: int) -> tuple[int, ...]:
    return tuple((length * 31 + 7 * i) % 90 for i in range(length))


def run(core: EngineCore, *requests: GenerateRequest) -> dict[str, list[int]]:
    """The tokens of each request."""
    for wanted in requests:
        core.submit(wanted)
    tokens: dict[str, list[int]] = {wanted.request_id: [] for wanted in requests}
    while core.has_work:
        for event in core.step().events:
            if isinstance(event, Delta):
                tokens[event.request_id].extend(event.token_ids)
    return tokens


def serve(core: EngineCore) -> dict[str, list[int]]:
    """Decodes in batches of every size, chunks beside them, rows that need the host, and a prefix hit at the end."""
    first = run(
        core,
        request("decodes", prompt(3), 20, ignore_eos=True),
        request("chunks", prompt(60), 12, ignore_eos=True),
        request("seeded", prompt(9), 6, temperature=0.9, top_p=0.9, seed=3),
        request("penalised", prompt(5), 5, repetition_penalty=1.6),
        request("stops", prompt(2), 9, min_tokens=2),
    )
    return first | run(core, request("cached", prompt(60), 4, ignore_eos=True))


@pytest.mark.parametrize("kv_dtype", CACHES)
def test_graphs_and_a_step_ahead_change_no_token(kv_dtype: torch.dtype | None) -> None:
    decoder = new_decoder(kv_dtype)
    expected = serve(engine(decoder, ahead=False))
    assert {name: len(expected[name]) for name in ("decodes", "chunks", "cached")} == {
        "decodes": 20,
        "chunks": 12,
        "cached": 4,
    }
    core = engine(decoder, ahead=True)
    assert serve(core) == expected
    assert core.snapshot().kv_used_tokens == 0


if GPU:

    def test_what_steps_need_is_measured_and_given_back() -> None:
        decoder = new_decoder(None)
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated(DEVICE)
        assert step_bytes(decoder, SHAPE, cuda_graphs=True) > 0
        assert torch.cuda.memory_allocated(DEVICE) == before
