"""A sequence attends to its own tokens and no others, however its blocks were shared, cached, evicted or cut."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from weir.engine.blocks import BlockHasher, BlockPool
from weir.engine.request import SamplingParams, TokenLogprobs
from weir.engine.tenants import Tenant, Tenants

from tests.cases.conftest import TinyModel
from tests.cases.engines import Engine, ExactModel, make_core, some_tokens
from tests.unit.engine.harness import Simulation, make_scheduler, spec

GREEDY = SamplingParams(100, temperature=0.0)


def expect(engine: Engine, request_id: str, prompt: Sequence[int], count: int) -> None:
    assert engine.tokens(request_id) == ExactModel().continuation(prompt, count, GREEDY)


# -- full hits and block boundaries -------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "cached"), [(7, 4), (8, 4), (9, 8), (12, 8), (13, 12)])
def test_a_prompt_that_is_cached_whole_gives_the_same_tokens(length: int, cached: int) -> None:
    """nano-vllm#114: a prompt of whole blocks, all cached, left nothing to compute, and the launch was invalid."""
    engine = Engine(make_core())
    prompt = some_tokens(length)
    for name in ("cold", "hot", "hotter"):
        engine.submit(name, prompt, 6)
        engine.run()
        expect(engine, name, prompt, 6)
    assert [engine.admitted(name).cached_tokens for name in ("cold", "hot", "hotter")] == [0, cached, cached]


def test_recomputing_the_last_block_of_a_full_hit_leaves_the_chain_whole() -> None:
    """vllm#11186: the block that was computed again had no hash, and nothing after it was ever found."""
    engine = Engine(make_core())
    first = some_tokens(16)
    for name in ("cold", "hot"):
        engine.submit(name, first, 1)
        engine.run()
    for name, length, cached in (("longer", 24, 16), ("longest", 33, 24), ("again", 33, 32)):
        prompt = (*first, *some_tokens(17, seed=1)[: length - 16])
        engine.submit(name, prompt, 2)
        engine.run()
        assert engine.admitted(name).cached_tokens == cached
        expect(engine, name, prompt, 2)


@pytest.mark.parametrize("length", [3, 4, 5, 7, 8, 9])
def test_a_sequence_grows_by_a_block_exactly_when_it_enters_it(length: int) -> None:
    """nano-vllm#66: appending to a prompt of exactly a block met an assertion. By hand: ceil(computed / 4)."""
    run = Simulation(make_scheduler(40, 4))
    run.submit(spec("a", length, 8))
    held = []
    for _ in range(7):
        run.step()
        (choice,) = next(iter(run.scheduler.running)).choices
        held.append(len(choice.blocks))
    # After the prefill `length` tokens are computed, and one more after each decode.
    ceiling = {3: 1, 4: 1, 5: 2, 6: 2, 7: 2, 8: 2, 9: 3, 10: 3, 11: 3, 12: 3, 13: 4, 14: 4, 15: 4}
    assert held == [ceiling[length + step] for step in range(7)]


def test_a_recycled_block_is_not_found_under_its_old_content() -> None:
    """MinivLLM#87: the hash of an evicted block still led to it, and another sequence read its KV."""
    pool, hashes = BlockPool(1, 4), list[bytes]()
    BlockHasher(4, key=b"k").extend(hashes, range(8), "", "", 2)
    for digest in hashes:
        block = pool.take(1)
        assert pool.find([digest]) == []
        pool.publish(block[0], digest)
        pool.release(block)
        pool.check()
    assert [pool.find([digest]) for digest in hashes] == [[], [1]]


def test_prompts_that_agree_in_the_low_byte_of_their_tokens_share_nothing() -> None:
    """openvino.genai#3722: token ids were hashed as bytes, and 65 found the KV of 321."""
    model = ExactModel(vocab_size=400)
    engine = Engine(make_core(model))
    for name, tokens in (("low", range(60, 72)), ("high", range(60 + 256, 72 + 256))):
        engine.submit(name, tokens, 3)
        engine.run()
        assert engine.admitted(name).cached_tokens == 0
        assert engine.tokens(name) == model.continuation(tokens, 3, GREEDY)


# -- tenants ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("admission", ["guaranteed", "optimistic", "reserve"])
def test_a_prompt_that_another_tenant_has_cached_is_computed_as_if_it_were_new(admission: str) -> None:
    """Cached tokens and the time they save told whoever asked what other tenants had asked."""
    model, prompt = ExactModel(), some_tokens(33)
    tenants = Tenants([Tenant("gold"), Tenant("batch")])
    engine = Engine(make_core(model, num_blocks=80, admission=admission, tenants=tenants))
    computed = {}
    for name, tenant in (("first", "gold"), ("again", "gold"), ("other", "batch"), ("none", ""), ("unknown", "x")):
        before = model.computed
        engine.submit(name, prompt, 3, tenant=tenant)
        engine.run()
        computed[name] = model.computed - before
        assert engine.tokens(name) == model.continuation(prompt, 3, GREEDY)
    cached = {name: engine.admitted(name).cached_tokens for name in computed}
    # 33 tokens in blocks of 4: 8 whole blocks. The last of 3 output tokens is never computed.
    assert cached == {"first": 0, "again": 32, "other": 0, "none": 0, "unknown": 32}
    assert computed == {name: 35 - hit for name, hit in cached.items()}


def test_running_requests_of_two_tenants_share_no_block() -> None:
    engine = Engine(make_core(num_blocks=80, tenants=Tenants([Tenant("gold"), Tenant("batch")])))
    prompt = some_tokens(32)
    for name in ("gold", "batch"):
        engine.submit(name, prompt, 8, tenant=name)
        for _ in range(3):
            engine.step()
    assert engine.core.snapshot().running == 2
    held = engine.core.snapshot().kv_used_tokens
    assert held >= 2 * 32
    engine.run()


def test_tenants_that_share_the_cache_find_each_others_prompts() -> None:
    engine = Engine(make_core(num_blocks=80, tenants=Tenants([Tenant("gold"), Tenant("batch")], shares_cache=True)))
    for name in ("gold", "batch"):
        engine.submit(name, some_tokens(33), 3, tenant=name)
        engine.run()
    assert [engine.admitted(name).cached_tokens for name in ("gold", "batch")] == [0, 32]


# -- preemption and eviction --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("other", "hit"), [(4, 24), (28, 12), (36, 4), (40, 0)])
def test_a_preempted_request_resumes_from_those_of_its_blocks_that_were_not_evicted(other: int, hit: int) -> None:
    """nano-vllm#211: it met its own orphaned blocks after the number of cached ones had been read: IndexError.

    Of 10 blocks it leaves 6 full ones idle and 4 free; the other takes its blocks from the free ones first.
    """
    run = Simulation(make_scheduler(10, 4, max_running=1, max_batch_tokens=64, preempt_lower_priority=True))
    run.submit(spec("low", 20, 12, priority=9))
    for _ in range(5):
        run.step()
    run.submit(spec("high", other, 1, priority=0))
    assert [r.request_id for r in run.step().preempted] == ["low"]
    plan = run.step()
    assert ([r.request_id for r in plan.admitted], plan.hit_tokens) == (["low"], hit)
    run.run()
    assert len(run.outputs["low/0"]) == 32


def test_choices_of_a_preempted_request_go_on_as_if_nothing_had_been() -> None:
    engine = Engine(make_core(num_blocks=20, max_running=4, preempt_lower_priority=True))
    prompt = some_tokens(9)
    params = engine.submit("forks", prompt, 12, n=3, priority=9, temperature=1.0, seed=5)
    for _ in range(4):
        engine.step()
    engine.submit("high", some_tokens(30, seed=1), 20, priority=0)
    engine.run()
    assert engine.preemptions("forks") == 1
    for choice in range(3):
        assert engine.tokens("forks", choice) == ExactModel().continuation(prompt, 12, params, choice)


def test_a_request_that_is_found_not_to_fit_leaves_the_pool_as_it_was() -> None:
    """vllm#31857: what a waiting request had taken when it was skipped was never given back."""
    scheduler = make_scheduler(20, 4)
    run, pool = Simulation(scheduler), scheduler.pool
    cached = tuple(range(500, 516))
    run.submit(spec("warm", cached, 1))
    run.run()
    run.submit(spec("runs", 30, 40))
    run.step()
    run.submit(spec("waits", (*cached, 7, 8), 30))
    before = ([pool.refs(block) for block in range(21)], list(pool._idle), list(pool._free))
    plan = run.step()  # one decode, within its last block
    assert (plan.num_tokens, plan.admitted) == (1, ())
    assert ([pool.refs(block) for block in range(21)], list(pool._idle), list(pool._free)) == before
    run.run()
    assert run.done["waits"] == "done"


# -- chunks -------------------------------------------------------------------------------------------------------


def workload() -> dict[str, tuple[int, ...]]:
    """Prompts around block and chunk boundaries, some with common prefixes."""
    root = some_tokens(21)
    lengths = (1, 4, 5, 16, 17, 40)
    return {f"own {n}": some_tokens(n, seed=n) for n in lengths} | {
        f"shared {n}": (*root, *some_tokens(n, seed=100 + n)) for n in (0, 1, 11, 30)
    }


@pytest.mark.parametrize(("chunk", "prefix_cache"), list(itertools.product([200, 9], [False, True])))
def test_chunked_or_whole_cached_or_not_the_tokens_are_the_same(chunk: int, prefix_cache: bool) -> None:
    """sglang#2255: chunked prefill without the prefix cache met an assertion. All four combinations, twice over."""
    engine = Engine(make_core(num_blocks=80, max_batch_tokens=chunk, prefix_cache=prefix_cache))
    for turn in range(2):
        for name, prompt in workload().items():
            engine.submit(f"{name}/{turn}", prompt, 8)
        engine.run()
        for name, prompt in workload().items():
            expect(engine, f"{name}/{turn}", prompt, 8)
    found = sum(engine.admitted(f"{name}/1").cached_tokens for name in workload())
    # Turn 1 finds every full block of every prompt but for the one its last token is in.
    assert found == (sum((len(p) - 1) // 4 * 4 for p in workload().values()) if prefix_cache else 0)


@pytest.mark.parametrize(("chunk", "prefix_cache"), list(itertools.product([200, 9], [False, True])))
def test_chunked_or_whole_cached_or_not_the_tokens_are_those_of_transformers(
    tiny_model: TinyModel, chunk: int, prefix_cache: bool
) -> None:
    prompts = {name: [token + 200 for token in prompt] for name, prompt in workload().items()}
    engine = tiny_model.engine(max_batch_tokens=chunk, prefix_cache=prefix_cache)
    for turn in range(2):
        for name, prompt in prompts.items():
            engine.submit(f"{name}/{turn}", prompt, 6, ignore_eos=True)
        engine.run()
    for name, prompt in prompts.items():
        tokens = list(prompt)
        for _ in range(6):
            tokens.append(int(logits_of(tiny_model, tokens)[-1].argmax()))
        for turn in range(2):
            assert engine.tokens(f"{name}/{turn}") == tokens[len(prompt) :]


def logits_of(tiny_model: TinyModel, tokens: list[int]) -> torch.Tensor:
    from tests.unit.models.tiny import reference_logits

    return reference_logits(tiny_model.reference, tokens)


def test_a_request_that_may_not_read_the_cache_advances_in_chunks_like_any_other() -> None:
    """sglang#36855: progress was counted when a chunk was put into the cache, so an uncached one ate the whole pool."""
    run = Simulation(make_scheduler(20, 4, max_running=2, max_batch_tokens=10))
    uncached = spec("scored", 50, 2)
    run.submit(replace(uncached, params=replace(uncached.params, prompt_logprobs=0)))
    held = []
    for _ in range(5):
        plan = run.step()
        held.append(run.scheduler.pool.num_referenced)
        assert [(chunk.start, chunk.length) for chunk in plan.chunks] == [(10 * (len(held) - 1), 10)]
    assert held == [3, 5, 8, 10, 13]
    run.run()
    assert run.done == {"scored": "done"}


# -- prompt_logprobs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [200, 13])
def test_prompt_logprobs_are_a_log_softmax_of_the_reference_with_a_hot_cache_and_in_chunks(
    tiny_model: TinyModel, chunk: int
) -> None:
    """vllm#8268: with more than a block cached they had the wrong number, or were those of another request."""
    engine = tiny_model.engine(max_batch_tokens=chunk)
    prompt = [token + 200 for token in some_tokens(47)]
    engine.submit("warms the cache", prompt, 9, ignore_eos=True)
    engine.run()
    engine.submit("scored", prompt, 3, ignore_eos=True, prompt_logprobs=4, logprobs=2)
    engine.submit("beside it", prompt[:30], 5, ignore_eos=True)
    engine.run()
    assert engine.admitted("beside it").cached_tokens == 28
    tokens = [*prompt, *engine.tokens("scored")]
    expected = torch.log_softmax(logits_of(tiny_model, tokens), dim=-1)

    none, *scores = engine.prompt_logprobs("scored")
    assert none is None
    assert len(scores) == 46
    for position, score in enumerate(scores):
        check(score, expected[position], prompt[position + 1], num_top=4)
    outputs = [score for delta in engine.deltas("scored") for score in delta.logprobs]
    assert len(outputs) == 3
    for position, score in enumerate(outputs):
        check(score, expected[46 + position], tokens[47 + position], num_top=2)


def check(score: TokenLogprobs | None, expected: torch.Tensor, token: int, num_top: int) -> None:
    assert score is not None
    assert score.token_id == token
    assert score.logprob == pytest.approx(float(expected[token]), abs=1e-3)
    assert [value for _, value in score.top] == pytest.approx(expected.topk(num_top).values.tolist(), abs=1e-3)
    assert [float(expected[token]) for token, _ in score.top] == pytest.approx([v for _, v in score.top], abs=1e-3)


def test_prompt_logprobs_are_whole_when_their_request_was_preempted_in_its_prefill() -> None:
    model = ExactModel()
    engine = Engine(make_core(model, max_running=1, max_batch_tokens=10, preempt_lower_priority=True))
    prompt = some_tokens(35)
    engine.submit("scored", prompt, 2, priority=9, prompt_logprobs=0)
    engine.step()
    engine.step()
    engine.submit("high", some_tokens(4, seed=1), 2, priority=0)
    engine.run()
    assert engine.preemptions("scored") == 1
    none, *scores = engine.prompt_logprobs("scored")
    assert none is None
    for position, score in enumerate(scores):
        row = torch.log_softmax(model.logits_after(prompt[: position + 1]), dim=-1)
        assert score is not None
        assert score.logprob == pytest.approx(float(row[prompt[position + 1]]), abs=1e-5)
    assert len(scores) == 34


def test_the_choices_of_a_scored_request_carry_its_prompt_logprobs_once() -> None:
    engine = Engine(make_core())
    engine.submit("scored", some_tokens(10), 2, n=3, prompt_logprobs=1)
    engine.run()
    assert len(engine.prompt_logprobs("scored")) == 10
