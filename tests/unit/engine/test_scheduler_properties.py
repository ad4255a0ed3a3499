"""Thousands of random traces through the torch-free core; the harness checks the invariants after every step."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from weir.engine.budget import blocks_needed
from weir.engine.demands import Demands
from weir.engine.tenants import Tenant

from .harness import Simulation, make_scheduler, spec


@dataclass(frozen=True)
class Arrival:
    after: int
    prompt: tuple[int, ...]
    max_tokens: int
    n: int
    ends: int
    priority: int
    deadline_in: int | None
    cancel_in: int | None
    tenant: str
    salt: str


# Prompts share prefixes on purpose: they are drawn from a few roots.
_prompts = st.builds(
    lambda root, shared, own: tuple(range(root * 1000 + 2, root * 1000 + 2 + shared)) + tuple(own),
    st.integers(0, 2),
    st.integers(1, 40),
    st.lists(st.integers(5000, 5003), max_size=6),
)
_arrivals = st.builds(
    Arrival,
    after=st.integers(0, 6),
    prompt=_prompts,
    max_tokens=st.integers(1, 40),
    n=st.sampled_from([1, 1, 1, 2, 3]),
    ends=st.integers(1, 60),
    priority=st.sampled_from([0, 5, 5, 9]),
    deadline_in=st.none() | st.integers(0, 60),
    cancel_in=st.none() | st.none() | st.integers(0, 40),
    tenant=st.sampled_from(["", "gold", "half"]),
    salt=st.sampled_from(["", "", "s"]),
)
_policies = st.sampled_from(["guaranteed", "guaranteed", "optimistic", "reserve"])
TENANTS = (Tenant("gold", weight=4.0), Tenant("half", kv_share=0.5))


@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    arrivals=st.lists(_arrivals, min_size=1, max_size=14),
    num_blocks=st.integers(1, 40),
    block_size=st.sampled_from([1, 2, 4, 16]),
    max_running=st.integers(1, 8),
    spare_tokens=st.integers(1, 40),
    admission=_policies,
    overcommit=st.sampled_from([0.1, 0.5, 0.9]),
    preempt=st.booleans(),
    prefix_cache=st.booleans(),
    bypass_limit=st.integers(0, 5),
    lag=st.sampled_from([0, 0, 1]),
)
def test_every_request_ends_exactly_once_and_the_invariants_hold_after_every_step(
    arrivals: list[Arrival],
    num_blocks: int,
    block_size: int,
    max_running: int,
    spare_tokens: int,
    admission: str,
    overcommit: float,
    preempt: bool,
    prefix_cache: bool,
    bypass_limit: int,
    lag: int,
) -> None:
    scheduler = make_scheduler(
        num_blocks,
        block_size,
        max_running=max_running,
        max_batch_tokens=max_running + spare_tokens,
        admission=admission,
        overcommit=overcommit,
        preempt_lower_priority=preempt,
        prefix_cache=prefix_cache,
        bypass_limit=bypass_limit,
        bypass_age_s=30.0,
        tenants=TENANTS,
        collect_lag=lag,
    )
    run = Simulation(scheduler)
    cancels: list[tuple[float, str]] = []
    expected: dict[str, Arrival] = {}
    for number, arrival in enumerate(arrivals):
        for _ in range(arrival.after):
            run.step()
            _cancel_due(run, cancels)
        usable = int((0.5 if arrival.tenant == "half" else 1.0) * num_blocks)
        needed = blocks_needed(len(arrival.prompt), arrival.max_tokens, arrival.n, block_size)
        if needed > usable or arrival.n > max_running:
            continue  # refused by validation, before the scheduler
        name = f"r{number}"
        run.ends[name] = arrival.ends
        expected[name] = arrival
        run.submit(
            spec(
                name,
                arrival.prompt,
                arrival.max_tokens,
                n=arrival.n,
                priority=arrival.priority,
                deadline=None if arrival.deadline_in is None else run.now + arrival.deadline_in,
                tenant=arrival.tenant,
                cache_salt=arrival.salt,
            )
        )
        if arrival.cancel_in is not None:
            cancels.append((run.now + arrival.cancel_in, name))
    for _ in range(20_000):
        if not scheduler.has_work:
            break
        run.step()
        _cancel_due(run, cancels)
    while run._in_flight:
        run.step()
    assert run.done.keys() == expected.keys()
    assert scheduler.pool.num_referenced == 0
    assert len(scheduler.waiting) == 0
    assert scheduler.waiting.tokens == 0
    for name, arrival in expected.items():
        if run.done[name] == "done":
            for index in range(arrival.n):
                made = len(run.outputs[f"{name}/{index}"]) - len(arrival.prompt)
                assert made == min(arrival.max_tokens, arrival.ends)


def _cancel_due(run: Simulation, cancels: list[tuple[float, str]]) -> None:
    for item in [c for c in cancels if c[0] <= run.now]:
        cancels.remove(item)
        run.close(item[1], "cancelled")


_tight = st.builds(
    Arrival,
    after=st.integers(0, 2),
    prompt=st.builds(
        lambda shared, own: (*range(2, 2 + shared), *range(900, 900 + own)), st.integers(1, 10), st.integers(0, 2)
    ),
    max_tokens=st.integers(1, 10),
    n=st.sampled_from([1, 1, 2, 3]),
    ends=st.just(10**9),
    priority=st.just(5),
    deadline_in=st.none(),
    cancel_in=st.none(),
    tenant=st.just(""),
    salt=st.just(""),
)


@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    arrivals=st.lists(_tight, min_size=3, max_size=10),
    num_blocks=st.integers(5, 24),
    block_size=st.sampled_from([1, 2]),
    max_running=st.integers(2, 8),
    spare_tokens=st.integers(1, 12),
    lag=st.sampled_from([0, 1]),
)
def test_shared_blocks_are_never_promised_twice_in_a_tight_pool_where_everyone_runs_to_the_end(
    arrivals: list[Arrival], num_blocks: int, block_size: int, max_running: int, spare_tokens: int, lag: int
) -> None:
    scheduler = make_scheduler(
        num_blocks, block_size, max_running=max_running, max_batch_tokens=max_running + spare_tokens, collect_lag=lag
    )
    run = Simulation(scheduler)
    for number, arrival in enumerate(arrivals):
        needed = blocks_needed(len(arrival.prompt), arrival.max_tokens, arrival.n, block_size)
        if needed <= num_blocks and arrival.n <= max_running:
            run.submit(spec(f"r{number}", arrival.prompt, arrival.max_tokens, n=arrival.n))
        for _ in range(arrival.after):
            run.step()
    run.run()
    assert run.preemptions == 0


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    arrivals=st.lists(_arrivals, min_size=4, max_size=20),
    num_blocks=st.integers(6, 40),
    max_running=st.integers(2, 6),
    spare_tokens=st.integers(4, 24),
    admission=st.sampled_from(["guaranteed", "reserve"]),
    bypass_limit=st.integers(0, 4),
    bypass_age_s=st.sampled_from([0.0, 5.0, 20.0]),
)
def test_no_wait_is_longer_than_the_documented_bound(
    arrivals: list[Arrival],
    num_blocks: int,
    max_running: int,
    spare_tokens: int,
    admission: str,
    bypass_limit: int,
    bypass_age_s: float,
) -> None:
    scheduler = make_scheduler(
        num_blocks,
        4,
        max_running=max_running,
        max_batch_tokens=max_running + spare_tokens,
        admission=admission,
        bypass_limit=bypass_limit,
        bypass_age_s=bypass_age_s,
        tenants=TENANTS,
    )
    run = Simulation(scheduler)
    ahead: dict[str, int] = {}
    longest_life = 0

    def step() -> None:
        nonlocal longest_life
        run.step()
        demands = Demands(scheduler.limits, scheduler.pool).of_running(scheduler.running)
        longest_life = max([longest_life, *(demand.steps for demand in demands)])

    for number, arrival in enumerate(arrivals):
        for _ in range(arrival.after):
            step()
        share = 0.5 if arrival.tenant == "half" else 1.0
        needed = blocks_needed(len(arrival.prompt), arrival.max_tokens, arrival.n, 4)
        if needed <= int(share * num_blocks) and arrival.n <= max_running:
            ahead[f"r{number}"] = len(scheduler.waiting)
            run.submit(
                spec(
                    f"r{number}",
                    arrival.prompt,
                    arrival.max_tokens,
                    n=arrival.n,
                    priority=arrival.priority,
                    tenant=arrival.tenant,
                )
            )
    while scheduler.has_work:
        step()
    for name, before in ahead.items():
        waited = run.admitted_at[name] - run.submitted_at[name]
        # A life counts the steps after the one that was just planned, so a drain takes one step more.
        assert waited <= bypass_age_s + (before + 1) * 2 * (longest_life + 1)
