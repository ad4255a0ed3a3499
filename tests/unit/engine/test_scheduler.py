"""The scheduler on traces worked out by hand: a pool of 40 blocks of 4 tokens unless said otherwise."""

from __future__ import annotations

import pytest
from weir.engine.tenants import Tenant

from .harness import Simulation, make_scheduler, spec


def ids(requests: object) -> list[str]:
    return [r.request_id for r in requests]  # type: ignore[attr-defined]


# -- admission ----------------------------------------------------------------------------------------------------


def test_two_requests_whose_maxima_exceed_the_pool_run_together_when_their_peaks_do_not_meet() -> None:
    # A: prompt 80, 2 tokens. B: prompt 4, 81 tokens. Maxima: 21 + 21 = 42 blocks > 40.
    # Steps: A lives 1 prefill + 1 decode, B is at 2 blocks then; later B alone has 21.
    scheduler = make_scheduler(40, 4, max_running=8, max_batch_tokens=128)
    run = Simulation(scheduler)
    run.submit(spec("a", 80, 2))
    run.submit(spec("b", 4, 81))
    plan = run.step()
    assert ids(plan.admitted) == ["a", "b"]
    assert scheduler.reserved_peak() <= 40
    run.run()
    assert run.done == {"a": "done", "b": "done"}
    assert run.preemptions == 0


def test_the_same_two_wait_for_each_other_when_everything_is_reserved() -> None:
    run = Simulation(make_scheduler(40, 4, max_running=8, max_batch_tokens=128, admission="reserve"))
    run.submit(spec("a", 80, 2))
    run.submit(spec("b", 4, 81))
    assert ids(run.step().admitted) == ["a"]
    run.run()
    assert run.admitted_at["b"] == 2.0  # the step after a has ended


def test_a_request_that_fills_the_pool_exactly_is_admitted_alone_and_ends() -> None:
    run = Simulation(make_scheduler(40, 4, max_running=2, max_batch_tokens=200))
    run.submit(spec("whole", 100, 61))  # 100 + 61 - 1 = 160 = 40 * 4
    run.submit(spec("other", 4, 61))
    assert ids(run.step().admitted) == ["whole"]
    run.run()
    assert run.done == {"whole": "done", "other": "done"}


def test_one_token_more_than_the_pool_can_never_be_queued() -> None:
    with pytest.raises(ValueError, match="can never fit: 41 blocks"):
        make_scheduler(40, 4).submit(spec("too long", 100, 62), 0.0)


def test_slow_prefill_counts_in_how_long_a_request_lives() -> None:
    # 12 tokens a step minus 8 for decodes leave 4 for prefill: 40 prompt tokens take 10 steps.
    run = Simulation(make_scheduler(20, 4, max_running=8, max_batch_tokens=12))
    run.submit(spec("slow", 40, 1))  # 10 blocks, lives 10 steps
    run.submit(spec("long", 4, 44))  # 47 tokens: 12 blocks at its end, far after the other is gone
    admitted = ids(run.step().admitted)
    assert admitted == ["slow", "long"]
    run.run()
    assert run.preemptions == 0


# -- order and fairness -------------------------------------------------------------------------------------------


def test_a_head_that_does_not_fit_is_passed_a_bounded_number_of_times() -> None:
    scheduler = make_scheduler(10, 4, max_running=8, max_batch_tokens=64, bypass_limit=3)
    run = Simulation(scheduler)
    run.submit(spec("running", 4, 29))
    run.step()
    run.submit(spec("head", 4, 37))  # 40 tokens at its end: the whole pool, so it waits
    order: list[str] = []
    for number in range(8):
        run.submit(spec(f"small{number}", 3, 1))
        order += ids(run.step().admitted)
    assert order == ["small0", "small1", "small2"]  # three passed, then the pool drains for the head
    run.run()
    later = [name for name, at in run.admitted_at.items() if name != "head" and at >= run.admitted_at["head"]]
    assert sorted(later) == [f"small{number}" for number in range(3, 8)]


def test_a_head_older_than_the_bypass_age_is_not_passed_at_all() -> None:
    run = Simulation(make_scheduler(10, 4, max_running=8, max_batch_tokens=64, bypass_limit=99, bypass_age_s=3.0))
    run.submit(spec("running", 4, 29))
    run.step()
    run.submit(spec("head", 4, 37))
    order: list[str] = []
    for number in range(6):
        run.submit(spec(f"small{number}", 3, 1))
        order += ids(run.step().admitted)
    assert order == ["small0", "small1", "small2"]


def test_requests_that_fit_are_admitted_first_come_first_served() -> None:
    run = Simulation(make_scheduler(40, 4, max_running=2))
    for name in "abcd":
        run.submit(spec(name, 4, 3))
    run.run()
    assert list(run.admitted_at) == ["a", "b", "c", "d"]


def test_a_higher_priority_is_tried_first() -> None:
    run = Simulation(make_scheduler(40, 4, max_running=1, max_batch_tokens=32))
    run.submit(spec("low", 4, 2, priority=9))
    run.submit(spec("high", 4, 2, priority=0))
    run.submit(spec("middle", 4, 2, priority=5))
    run.run()
    assert list(run.admitted_at) == ["high", "middle", "low"]


def test_tenants_are_served_by_weight_not_by_who_asked_most() -> None:
    run = Simulation(make_scheduler(40, 4, max_running=1, tenants=(Tenant("gold", weight=3.0), Tenant("iron"))))
    for number in range(8):
        run.submit(spec(f"iron{number}", 4, 4, tenant="iron"))
    for number in range(8):
        run.submit(spec(f"gold{number}", 4, 4, tenant="gold"))
    run.run()
    first_eight = list(run.admitted_at)[:8]
    assert sum(name.startswith("gold") for name in first_eight) == 6  # 3 : 1


def test_a_tenant_never_holds_more_than_its_share_of_the_pool() -> None:
    scheduler = make_scheduler(40, 4, max_running=8, tenants=(Tenant("small", kv_share=0.25),))
    run = Simulation(scheduler)
    for number in range(4):
        run.submit(spec(f"s{number}", 16, 1, tenant="small"))  # 4 blocks each: two fit in 10
    run.submit(spec("other", 16, 1))
    assert sorted(ids(run.step().admitted)) == ["other", "s0", "s1"]


def test_a_full_house_of_low_priority_gives_way_only_to_strictly_higher_priority() -> None:
    run = Simulation(make_scheduler(40, 4, max_running=2, preempt_lower_priority=True))
    run.submit(spec("low1", 4, 20, priority=9))
    run.submit(spec("low2", 4, 20, priority=9))
    run.step()
    run.submit(spec("same", 4, 2, priority=9))
    assert ids(run.step().admitted) == []
    run.submit(spec("high", 4, 2, priority=0))
    plan = run.step()
    assert (ids(plan.admitted), ids(plan.preempted)) == (["high"], ["low2"])  # the latest admitted of the lowest
    run.run()
    assert run.admitted_at["same"] > run.now - 40
    assert set(run.done.values()) == {"done"}
    assert len(run.outputs["low2/0"]) == 24


# -- what a step computes -----------------------------------------------------------------------------------------


def test_decodes_come_first_and_prefill_takes_what_is_left() -> None:
    run = Simulation(make_scheduler(100, 4, max_running=8, max_batch_tokens=12))
    run.submit(spec("a", 4, 10))
    run.submit(spec("b", 4, 10))
    run.step()
    run.submit(spec("long", 25, 2))
    lengths = []
    for _ in range(3):
        plan = run.step()
        assert [c.length for c in plan.chunks[: plan.num_single]] == [1, 1]
        lengths += [c.length for c in plan.chunks[plan.num_single :]]
    assert lengths == [10, 10, 5]


def test_a_last_chunk_of_one_token_is_legal() -> None:
    run = Simulation(make_scheduler(100, 4, max_running=8, max_batch_tokens=32))
    run.submit(spec("odd", 33, 2))
    assert [c.length for c in run.step().chunks] == [32]
    assert [c.length for c in run.step().chunks] == [1]
    run.run()
    assert run.done == {"odd": "done"}


def test_max_tokens_one_ends_in_the_prefill_step_and_frees_its_blocks() -> None:
    scheduler = make_scheduler(40, 4)
    run = Simulation(scheduler)
    run.submit(spec("one", 8, 1))
    run.step()
    assert run.done == {"one": "done"}
    assert scheduler.pool.num_referenced == 0


def test_a_step_with_nothing_to_do_is_legal() -> None:
    run = Simulation(make_scheduler())
    assert run.step().chunks == ()


def test_chunked_prefill_admits_on_the_whole_request_not_on_its_first_chunk() -> None:
    # Two prompts of 30 blocks in a pool of 40: the second must wait, not start and be thrown out.
    run = Simulation(make_scheduler(40, 4, max_running=4, max_batch_tokens=16, prefix_cache=False))
    run.submit(spec("first", 120, 2))
    run.submit(spec("second", 119, 2))
    run.run()
    assert run.preemptions == 0
    assert run.admitted_at["second"] == 9.0  # eight chunks of 16, one decode


# -- prefix cache -------------------------------------------------------------------------------------------------

SIXTEEN = tuple(range(500, 516))


@pytest.mark.parametrize(("length", "hit"), [(3, 0), (4, 0), (5, 4), (15, 12), (16, 12)])
def test_a_full_prefix_hit_still_computes_one_token(length: int, hit: int) -> None:
    run = Simulation(make_scheduler(40, 4))
    run.submit(spec("cold", SIXTEEN, 2))
    run.run()
    run.submit(spec("hot", SIXTEEN[:length], 2))
    plan = run.step()
    assert plan.hit_tokens == hit
    assert [(c.start, c.length) for c in plan.chunks] == [(hit, length - hit)]


def test_other_salts_never_hit() -> None:
    run = Simulation(make_scheduler(40, 4))
    run.submit(spec("a", SIXTEEN, 2, cache_salt="a"))
    run.run()
    run.submit(spec("b", SIXTEEN, 2, cache_salt="b"))
    assert run.step().hit_tokens == 0
    run.submit(spec("a again", SIXTEEN, 2, cache_salt="a"))
    assert run.step().hit_tokens == 12


def test_output_blocks_are_found_by_the_next_turn_of_a_conversation() -> None:
    run = Simulation(make_scheduler(40, 4))
    run.submit(spec("turn1", SIXTEEN, 9))
    run.run()
    said = tuple(run.outputs["turn1/0"])
    run.submit(spec("turn2", (*said, 7, 8, 9), 2))
    assert run.step().hit_tokens == 24  # 16 + 9 tokens, of which 24 were written: six full blocks


def test_two_running_requests_hold_a_common_prefix_once() -> None:
    scheduler = make_scheduler(40, 4)
    run = Simulation(scheduler)
    run.submit(spec("a", SIXTEEN, 20))
    run.step()
    run.submit(spec("b", SIXTEEN, 20))
    run.step()
    assert len(scheduler.pool.shared) == 3
    # 16 tokens and growing: a has 5 blocks, b 4 of which 3 are a's.
    assert scheduler.pool.num_referenced == 5 + 1


def test_a_preempted_request_is_resumed_from_what_is_still_cached() -> None:
    run = Simulation(make_scheduler(40, 4, max_running=1, preempt_lower_priority=True))
    run.submit(spec("low", SIXTEEN, 20, priority=9))
    for _ in range(6):
        run.step()
    run.submit(spec("high", 4, 2, priority=0))
    assert ids(run.step().preempted) == ["low"]
    run.step()
    plan = run.step()
    assert ids(plan.admitted) == ["low"]
    assert plan.hit_tokens == 20
    run.run()
    assert len(run.outputs["low/0"]) == 36


# -- n > 1 --------------------------------------------------------------------------------------------------------


def test_choices_share_full_prompt_blocks_and_compute_the_tail_themselves() -> None:
    scheduler = make_scheduler(40, 4, max_running=4, max_batch_tokens=64)
    run = Simulation(scheduler)
    run.submit(spec("n3", 10, 4, n=3))
    first = run.step()
    assert [(c.choice.index, c.start, c.length) for c in first.chunks] == [(0, 0, 10)]
    second = run.step()
    assert sorted((c.choice.index, c.start, c.length) for c in second.chunks) == [(0, 10, 1), (1, 8, 2), (2, 8, 2)]
    assert len(scheduler.pool.shared) == 2
    run.run()
    assert {name: len(tokens) for name, tokens in run.outputs.items()} == {f"n3/{i}": 14 for i in range(3)}


def test_a_leader_that_ends_before_its_siblings_start_leaves_them_its_prompt_blocks_in_the_promise() -> None:
    # Block size 1. d's first choice ends in the prefill step; its second then holds the prompt alone, for one step.
    scheduler = make_scheduler(16, 1, max_running=5, max_batch_tokens=9)
    run = Simulation(scheduler)
    run.submit(spec("a", 1, 1))
    run.submit(spec("b", 1, 3))
    run.submit(spec("c", 1, 3))
    run.submit(spec("d", 9, 1, n=2))
    run.submit(spec("e", 1, 2))
    run.step()
    # Two steps on: b and c hold 3 each, d's second choice 9. With e's 2 that would be 17.
    assert ids(run.step().admitted) == []
    run.run()
    assert run.preemptions == 0


def test_n_choices_are_admitted_all_or_nothing() -> None:
    run = Simulation(make_scheduler(40, 4, max_running=4))
    run.submit(spec("a", 4, 5, n=2))
    run.submit(spec("b", 4, 5, n=3))
    assert ids(run.step().admitted) == ["a"]
    run.run()
    assert set(run.done.values()) == {"done"}


def test_choices_fork_even_when_the_first_ends_in_the_prefill_step() -> None:
    run = Simulation(make_scheduler(40, 4, max_running=4))
    run.submit(spec("n2", 10, 1, n=2))
    run.run()
    assert {name: len(tokens) for name, tokens in run.outputs.items()} == {"n2/0": 11, "n2/1": 11}


# -- the end of a request -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 2, 8])
def test_cancelling_frees_everything_at_once_in_every_state(steps: int) -> None:
    scheduler = make_scheduler(40, 4, max_running=1, max_batch_tokens=8)
    run = Simulation(scheduler)
    run.submit(spec("a", 20, 9))
    for _ in range(steps):
        run.step()
    run.submit(spec("queued", 4, 2))
    run.close("a", "cancelled")
    assert scheduler.pool.num_referenced == 0
    run.close("queued", "cancelled")
    assert not scheduler.has_work


def test_closing_twice_is_harmless() -> None:
    scheduler = make_scheduler()
    request = scheduler.submit(spec("a", 4, 4), 0.0)
    assert scheduler.close(request)
    assert not scheduler.close(request)


def test_a_request_cancelled_in_the_queue_is_never_computed() -> None:
    run = Simulation(make_scheduler(40, 4, max_running=1))
    run.submit(spec("a", 4, 3))
    run.submit(spec("b", 4, 3))
    run.step()
    run.close("b", "cancelled")
    run.run()
    assert "b" not in run.admitted_at


def test_a_deadline_ends_a_request_in_the_queue_and_while_running() -> None:
    run = Simulation(make_scheduler(40, 4, max_running=1))
    run.submit(spec("running", 4, 30, deadline=5.0))
    run.submit(spec("queued", 4, 3, deadline=3.0))
    run.run()
    assert run.done == {"queued": "deadline", "running": "deadline"}


# -- overcommitment -----------------------------------------------------------------------------------------------


def test_optimistic_admission_runs_more_at_once_and_recomputes_what_it_evicts() -> None:
    def trace(admission: str) -> Simulation:
        run = Simulation(make_scheduler(20, 4, max_running=8, max_batch_tokens=64, admission=admission, overcommit=0.1))
        for number in range(4):
            run.submit(spec(f"r{number}", 8, 40))
        run.step()
        return run

    assert len(trace("guaranteed").scheduler.running) == 1
    run = trace("optimistic")
    assert len(run.scheduler.running) == 4
    run.run()
    assert run.preemptions > 0
    assert {name: len(tokens) for name, tokens in run.outputs.items()} == {f"r{i}/0": 48 for i in range(4)}


def test_a_block_shared_behind_one_that_is_not_is_charged_once() -> None:
    """r1 and r2 compute equal blocks in one step, so r3 holds its first block from r1 and its second from r2."""
    run = Simulation(make_scheduler(21, 2, max_running=7, max_batch_tokens=8))
    run.submit(spec("r1", (2, 3), 8))
    run.submit(spec("r2", (2, 3, 4, 5, 6, 7, 8, 900, 901), 5, n=2))
    run.step()
    run.step()
    run.submit(spec("r3", (2, 3, 4, 5, 900), 5, n=3))
    run.step()
    (r2, r3) = (next(r for r in run.scheduler.running if r.request_id == name) for name in ("r2", "r3"))
    assert r3.choices[0].blocks[0] not in r2.choices[1].blocks
    assert r3.choices[0].blocks[1] == r2.choices[1].blocks[1]
    promised = run.scheduler.reserved_peak()
    while len(r2.live) == 2:
        run.step()
    # The first choice of r2 took its part of the promise with it; nobody came.
    assert run.scheduler.reserved_peak() <= promised
    run.run()
