"""What one scheduling step did, and what the budget is now: plain values that cross the process boundary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class ChunkRecord(NamedTuple):
    """`length` tokens of a request's choice were computed from position `start`."""

    request_id: str
    choice: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """Seconds spent in each phase of one step."""

    plan_s: float
    launch_s: float
    device_s: float
    collect_s: float
    emit_s: float


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One scheduling step, complete: made by the engine, read by telemetry. Token counts are of KV slots.

    start_ns, end_ns: by time.monotonic_ns(), which all processes of a machine share and nobody sets.
    """

    step: int
    start_ns: int
    end_ns: int
    phases: PhaseTimes
    decodes: tuple[ChunkRecord, ...]
    prefills: tuple[ChunkRecord, ...]
    prefix_hit_tokens: int
    running: int
    queued: int
    queued_tokens: int
    oldest_queued_s: float
    admitted: tuple[str, ...]
    finished: tuple[str, ...]
    preempted: tuple[str, ...]
    rejected: int
    kv_total_tokens: int
    kv_free_tokens: int
    kv_used_tokens: int
    kv_cached_tokens: int
    kv_reserved_peak_tokens: int

    @property
    def decode_tokens(self) -> int:
        """Tokens computed by single-token decode rows."""
        return len(self.decodes)

    @property
    def prefill_tokens(self) -> int:
        """Tokens computed by prompt chunks (and by recomputation after a preemption)."""
        return sum(chunk.length for chunk in self.prefills)


@dataclass(frozen=True, slots=True)
class BudgetSnapshot:
    """The KV budget and the queue at one moment. free + used + cached = total. The last three count from the start."""

    kv_total_tokens: int
    kv_free_tokens: int
    kv_used_tokens: int
    kv_cached_tokens: int
    kv_reserved_peak_tokens: int
    running: int
    queued: int
    queued_tokens: int
    estimated_wait_s: float
    step: int
    computed_tokens: int = 0
    prefix_hit_tokens: int = 0


class QueueExit(NamedTuple):
    """At this time of time.monotonic() a waiting request of the tenant starts, and its tokens leave the queue."""

    at: float
    tenant: str
    tokens: int


@dataclass(frozen=True, slots=True)
class QueueOutlook:
    """What is to come, as far as it can be told: when a newcomer of `default_max_tokens` starts, and who before it."""

    newcomer_at: float = 0.0
    exits: tuple[QueueExit, ...] = ()

    def wait_s(self, now: float) -> float:
        """Seconds from now until a request that arrives now starts."""
        return max(0.0, self.newcomer_at - now)

    def room_in_s(self, now: float, requests: int, tokens: int, tenant: str | None = None) -> float:
        """Seconds until this much has left the queue (of one tenant). Beyond the known exits: at their pace."""
        left_requests = left_tokens = 0
        at = now
        for exit_ in self.exits:
            if tenant is not None and exit_.tenant != tenant:
                continue
            at, left_requests, left_tokens = exit_.at, left_requests + 1, left_tokens + exit_.tokens
            if left_requests >= requests and left_tokens >= tokens:
                return max(0.0, at - now)
        if not left_requests:
            return self.wait_s(now)
        return max(0.0, at - now) * max(requests / left_requests, tokens / left_tokens)


@dataclass(frozen=True, slots=True)
class LoadStage:
    """What is being loaded, and how far: MiB done of a total, 0 where that is not known."""

    what: str
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the engine serves; known once the model is loaded."""

    model_name: str
    model_path: str
    architecture: str
    dtype: str
    device: str
    kernels: str
    vocab_size: int
    max_model_len: int
    block_size: int
    kv_total_tokens: int
    kv_bytes_per_token: int
    max_batch_tokens: int
    max_running: int
    default_max_tokens: int
    eos_token_ids: tuple[int, ...]
