"""A workload on an engine in this process: the engine alone, without transport."""

from __future__ import annotations

import time
from collections.abc import Callable

from weir.bench.report import EngineCounts, Report, RequestTimes, make_report
from weir.bench.workload import WorkItem, Workload, arrival_times
from weir.engine.core import EngineCore
from weir.engine.errors import RequestError
from weir.engine.records import StepRecord
from weir.engine.request import Delta, Failed, GenerateRequest, SamplingParams

_IDLE_S = 0.0005


class _Counts:
    """Sums over step records."""

    def __init__(self) -> None:
        self.steps = 0
        self.computed = 0
        self.hits = 0
        self.peak = 0
        self.phases = dict.fromkeys(("plan", "launch", "device", "collect", "emit"), 0.0)

    def add(self, record: StepRecord) -> None:
        self.steps += 1
        self.computed += record.decode_tokens + record.prefill_tokens
        self.hits += record.prefix_hit_tokens
        self.peak = max(self.peak, record.kv_used_tokens)
        for name in self.phases:
            self.phases[name] += getattr(record.phases, f"{name}_s")


def run_in_process(
    core: EngineCore,
    workload: Workload,
    rate: float | None = None,
    count_tokens: Callable[[int], None] = lambda tokens: None,
) -> Report:
    """Run the workload to its end; `count_tokens` is told of each token. Raises the RequestError of one that fails."""
    due = arrival_times(len(workload.items), rate)
    times: list[RequestTimes] = []
    counts = _Counts()
    began = time.monotonic()
    while len(times) < len(due) or core.has_work:
        while len(times) < len(due) and began + due[len(times)] <= time.monotonic():
            number = len(times)
            sent = began + due[number]
            core.submit(_request(str(number), workload.items[number], sent))
            times.append(RequestTimes(sent))
        if not core.has_work:
            time.sleep(_IDLE_S)
            continue
        output = core.step()
        now = time.monotonic()
        if output.record is not None:
            counts.add(output.record)
        for event in output.events:
            if isinstance(event, Delta):
                times[int(event.request_id)].add(now, len(event.token_ids))
                count_tokens(len(event.token_ids))
            elif isinstance(event, Failed):
                raise event.error
    wall_s = time.monotonic() - began
    needed = workload.prompt_tokens + workload.output_tokens - len(times) - counts.hits
    engine = EngineCounts(counts.steps, counts.computed, needed, counts.peak, core.info.kv_total_tokens, counts.phases)
    return make_report(workload, "in process" + ("" if rate is None else f" at {rate:g}/s"), times, wall_s, engine)


def warm_up(core: EngineCore, workload: Workload) -> None:
    """Run a short mixed batch once, so that first-use costs (page faults, compiled shapes) are not measured."""
    for number, item in enumerate(workload.items[:8]):
        core.submit(_request(f"warm-up {number}", WorkItem(item.prompt_token_ids, 4), time.monotonic()))
    while core.has_work:
        for event in core.step().events:
            if isinstance(event, Failed):
                raise RequestError(str(event.error))
    core.flush_prefix_cache()


def _request(request_id: str, item: WorkItem, arrival: float) -> GenerateRequest:
    params = SamplingParams(item.max_tokens, temperature=0.0, ignore_eos=True)
    return GenerateRequest(request_id, item.prompt_token_ids, params, arrival=arrival)
