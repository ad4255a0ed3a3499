"""A launched step until its tokens are there, and the record that is made of it then."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from weir.engine.plan import Chunk, StepPlan
from weir.engine.records import ChunkRecord, PhaseTimes, StepRecord
from weir.engine.runner import LaunchedStep
from weir.engine.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class StepInFlight:
    """A step on its way. began, launch_began: when planning and launching it began, by time.perf_counter().

    began_ns: the same moment, by time.monotonic_ns().
    """

    plan: StepPlan
    launched: LaunchedStep
    began_ns: int
    began: float
    plan_s: float
    launch_began: float

    def phases(self, collect_began: float, collected: float, ended: float) -> PhaseTimes:
        """Where its time went; with a step ahead, `device_s` is also time in which the host did other things."""
        build_s = self.launched.build_s
        device_s = collect_began - self.launch_began - build_s
        return PhaseTimes(self.plan_s, build_s, device_s, collected - collect_began, ended - collected)

    def end_ns(self, ended: float) -> int:
        """`ended` as nanoseconds of the monotonic clock."""
        return self.began_ns + int((ended - self.began) * 1e9)


def step_record(
    number: int,
    step: StepInFlight,
    phases: PhaseTimes,
    end_ns: int,
    finished: Sequence[str],
    rejected: int,
    scheduler: Scheduler,
) -> StepRecord:
    """What the step did, and the queue and the pool as it left them."""
    plan, pool, waiting = step.plan, scheduler.pool, scheduler.waiting
    decodes: list[ChunkRecord] = []
    prefills: list[ChunkRecord] = []
    for chunk in plan.chunks:
        (decodes if _is_decode(chunk) else prefills).append(
            ChunkRecord(chunk.choice.request.request_id, chunk.choice.index, chunk.start, chunk.length)
        )
    return StepRecord(
        step=number,
        start_ns=step.began_ns,
        end_ns=end_ns,
        phases=phases,
        decodes=tuple(decodes),
        prefills=tuple(prefills),
        prefix_hit_tokens=plan.hit_tokens,
        running=scheduler.num_running,
        queued=len(waiting),
        queued_tokens=waiting.tokens,
        oldest_queued_s=waiting.oldest_age_s(time.monotonic()),
        admitted=tuple(r.request_id for r in plan.admitted),
        finished=tuple(finished),
        preempted=tuple(r.request_id for r in plan.preempted),
        rejected=rejected,
        kv_total_tokens=pool.num_blocks * pool.block_size,
        kv_free_tokens=pool.num_free * pool.block_size,
        kv_used_tokens=pool.num_referenced * pool.block_size,
        kv_cached_tokens=pool.num_idle * pool.block_size,
        kv_reserved_peak_tokens=scheduler.reserved_peak() * pool.block_size,
    )


def _is_decode(chunk: Chunk) -> bool:
    return chunk.length == 1 and chunk.samples and chunk.start >= len(chunk.choice.request.spec.prompt_token_ids)
