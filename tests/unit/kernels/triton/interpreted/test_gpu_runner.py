"""The GPU runner, step by step on the CPU: padded, fed and sampled as on a device, with the Triton kernels."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from test_triton_engine import QWEN3, triton_kernels
from weir.engine.blocks import BlockHasher, BlockPool
from weir.engine.gpu_batch import StepShape
from weir.engine.gpu_graphs import EagerGraphs, graph_sizes
from weir.engine.gpu_memory import largest_step
from weir.engine.gpu_runner import GpuRunner
from weir.engine.plan import SchedulerLimits, StepPlan
from weir.engine.request import ChoiceFinish, FinishReason, GenerateRequest, SamplingParams
from weir.engine.runner import Runner
from weir.engine.sampler import Sampler
from weir.engine.sampling_state import SamplingState
from weir.engine.scheduler import Scheduler
from weir.engine.tenants import Tenants
from weir.engine.waiting import WaitingQueue
from weir.models.decoder import Decoder
from weir.models.loader import dummy_weights
from weir.models.spec import ModelSpec
from weir_kernels.dispatch import pick
from weir_kernels.sampling import sample

CPU = torch.device("cpu")
BLOCK_SIZE, NUM_BLOCKS, MAX_ROWS, MAX_TOKENS = 16, 24, 4, 24
SPEC = ModelSpec.from_config(QWEN3)
PLAIN = SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True)
SEEDED = SamplingParams(max_tokens=5, temperature=0.9, top_k=20, top_p=0.9, min_p=0.01, seed=3, ignore_eos=True)
PENALISED = SamplingParams(max_tokens=5, temperature=0.0, repetition_penalty=1.5, ignore_eos=True)


def new_scheduler(lag: int) -> Scheduler:
    tenants = Tenants(())
    limits = SchedulerLimits(MAX_ROWS, MAX_TOKENS, collect_lag=lag)
    pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE, True)
    return Scheduler(limits, pool, BlockHasher(BLOCK_SIZE, key=b"test"), WaitingQueue(tenants, 4, 1000.0), tenants)


def new_runner(on_gpu_path: bool) -> Runner | GpuRunner:
    kernels = triton_kernels() if on_gpu_path else pick(CPU, "reference")
    decoder = Decoder(SPEC, dummy_weights(SPEC, torch.float32, CPU), kernels)
    kv = decoder.allocate_kv(NUM_BLOCKS, BLOCK_SIZE)
    plain = Runner(decoder, kv, Sampler(SPEC.vocab_size, CPU), BLOCK_SIZE, CPU)
    if not on_gpu_path:
        return plain
    shape = StepShape(MAX_TOKENS, MAX_ROWS, max_blocks=16, block_size=BLOCK_SIZE)
    runner = GpuRunner(decoder, kv, plain, sample, EagerGraphs(), shape, CPU)
    runner.warm_up()
    return runner


def serve(runner: Runner | GpuRunner, params: Sequence[SamplingParams], ahead: bool) -> dict[str, list[int]]:
    """Output tokens of one request for each of `params`. ahead: launch each step before the last one is collected."""
    scheduler = new_scheduler(lag=1 if ahead else 0)
    for index, (wanted, length) in enumerate(zip(params, (3, 40, 1), strict=True)):
        prompt = tuple((7 * index + 5 * i) % 90 for i in range(length))
        scheduler.submit(GenerateRequest(str(index), prompt, wanted), 0.0)
    outputs: dict[str, list[int]] = {}
    launched: list[tuple[StepPlan, object]] = []

    def collect() -> None:
        plan, step = launched.pop(0)
        tokens = runner.collect(step)
        scheduler.collect(plan)
        for choice, token_id in zip(tokens.choices, tokens.token_ids, strict=True):
            if choice.finish is None:
                scheduler.append(choice, token_id)
                choice.sampling.append(token_id)
                outputs.setdefault(choice.request.request_id, []).append(token_id)
                if choice.num_output - choice.in_flight >= choice.request.spec.params.max_tokens:
                    scheduler.finish(choice, ChoiceFinish(FinishReason.LENGTH))

    while scheduler.has_work or launched:
        plan = scheduler.plan(0.0)
        for request in plan.admitted:
            for choice in request.choices:
                spec = request.spec
                choice.sampling = SamplingState(spec.params, spec.prompt_token_ids, (), SPEC.vocab_size, choice.index)
        if launched and isinstance(runner, GpuRunner) and not (plan.chunks and runner.follows(plan)):
            collect()
        launched.append((plan, runner.launch(plan)))
        while len(launched) > (1 if ahead and plan.chunks else 0):
            collect()
    return outputs


@pytest.mark.parametrize("ahead", [False, True], ids=["in order", "one step ahead"])
@pytest.mark.parametrize(
    "params", [(PLAIN, SEEDED, PLAIN), (PENALISED, PLAIN, SEEDED)], ids=["plain", "with penalties"]
)
def test_the_gpu_path_gives_the_tokens_of_the_plain_runner(params: Sequence[SamplingParams], ahead: bool) -> None:
    expected = serve(new_runner(on_gpu_path=False), params, ahead=False)
    assert {name: len(tokens) for name, tokens in expected.items()} == {"0": 5, "1": 5, "2": 5}
    assert serve(new_runner(on_gpu_path=True), params, ahead) == expected


def test_recorded_sizes_cover_every_batch_with_little_padding() -> None:
    assert graph_sizes(5) == (1, 2, 4, 5)
    assert graph_sizes(100) == (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 100)
    graphs = EagerGraphs()
    graphs.record(graph_sizes(5), lambda size: torch.full((size,), size))
    assert [graphs.fitting(rows) for rows in (1, 3, 5, 6)] == [1, 4, 5, None]
    assert graphs.replay(4).tolist() == [4, 4, 4, 4]


def test_the_largest_step_needs_no_cache_of_its_size_and_writes_nothing() -> None:
    decoder = Decoder(SPEC, dummy_weights(SPEC, torch.float32, CPU), triton_kernels())
    kv = decoder.allocate_kv(1, BLOCK_SIZE)
    shape = StepShape(max_tokens=40, max_rows=6, max_blocks=16, block_size=BLOCK_SIZE)
    logits = decoder.forward(largest_step(shape, CPU), kv)
    assert logits.shape == (6, SPEC.vocab_size)
    assert logits.isfinite().all()
    assert not any(layer.any() for layer in (*kv.keys, *kv.values))
