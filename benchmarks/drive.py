"""Runs a workload on an engine in this process and keeps every step record, which `weir bench` only sums up."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from weir.bench.report import Percentiles, RequestTimes
from weir.bench.workload import Workload, arrival_times
from weir.engine.core import EngineCore
from weir.engine.records import StepRecord
from weir.engine.request import Delta, Failed, GenerateRequest, SamplingParams

from benchmarks.cost import CostModel
from benchmarks.machine import Peaks

_IDLE_S = 0.0005


@dataclass(frozen=True, slots=True)
class Trace:
    """One run: when each request was sent and each of its tokens came, and what every step did."""

    work: Workload
    wall_s: float
    times: Sequence[RequestTimes]
    records: Sequence[StepRecord]
    token_ids: Sequence[Sequence[int]]

    @property
    def ttft_s(self) -> Percentiles:
        """From the time at which a request was due to its first token."""
        return Percentiles.of([times.token_times[0] - times.sent for times in self.times])

    @property
    def itl_s(self) -> Percentiles:
        """Between two tokens of a request."""
        return Percentiles.of([b - a for times in self.times for a, b in itertools.pairwise(times.token_times)])

    @property
    def computed_tokens(self) -> int:
        """Tokens that the model computed."""
        return sum(record.decode_tokens + record.prefill_tokens for record in self.records)

    @property
    def padding_tokens(self) -> int:
        """Computed tokens that belong to no request; the last output token is never computed."""
        hits = sum(record.prefix_hit_tokens for record in self.records)
        needed = self.work.prompt_tokens + self.work.output_tokens - len(self.work.items) - hits
        return self.computed_tokens - needed

    def least_s(self, cost: CostModel, peaks: Peaks) -> float:
        """The sum of the steps' rooflines: seconds below which this machine cannot run these steps."""
        prompts = {str(number): len(item.prompt_token_ids) for number, item in enumerate(self.work.items)}
        return sum(cost.step(record, prompts).least_s(peaks) for record in self.records)

    @property
    def busy_s(self) -> float:
        """Time in steps; an open loop also waits for requests."""
        return sum(record.end_ns - record.start_ns for record in self.records) / 1e9

    def pure_decode(self) -> Trace:
        """The steps in which every request decodes, with their own time as wall time.

        Raises ValueError when there is no such step: outputs are too short.
        """
        full = [r for r in self.records if r.decode_tokens == len(self.work.items) and not r.prefill_tokens]
        if not full:
            raise ValueError(f"{self.work.name}: the requests never all decode at once; make outputs longer")
        part = replace(self, records=full)
        return replace(part, wall_s=part.busy_s)


def drive(core: EngineCore, work: Workload, rate: float | None = None) -> Trace:
    """Run to the end; `rate` requests a second in Poisson arrivals, or all at once. Raises a failed request's error."""
    due = arrival_times(len(work.items), rate)
    times: list[RequestTimes] = []
    records: list[StepRecord] = []
    token_ids: list[list[int]] = [[] for _ in due]
    began = time.monotonic()
    while len(times) < len(due) or core.has_work:
        while len(times) < len(due) and began + due[len(times)] <= time.monotonic():
            item, sent = work.items[len(times)], began + due[len(times)]
            params = SamplingParams(item.max_tokens, temperature=0.0, ignore_eos=True)
            core.submit(GenerateRequest(str(len(times)), item.prompt_token_ids, params, arrival=sent))
            times.append(RequestTimes(sent))
        if not core.has_work:
            time.sleep(_IDLE_S)
            continue
        output = core.step()
        now = time.monotonic()
        if output.record is not None:
            records.append(output.record)
        for event in output.events:
            if isinstance(event, Delta):
                times[int(event.request_id)].add(now, len(event.token_ids))
                token_ids[int(event.request_id)] += event.token_ids
            elif isinstance(event, Failed):
                raise event.error
    return Trace(work, time.monotonic() - began, times, records, token_ids)
