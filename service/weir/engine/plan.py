"""What one step computes, and the limits that a plan keeps."""

from __future__ import annotations

from dataclasses import dataclass, replace

from weir.engine.request import Choice, Request


@dataclass(frozen=True, slots=True)
class Chunk:
    """Compute `length` tokens of a choice from position `start`; `samples`: its next token comes out of this step."""

    choice: Choice
    start: int
    length: int
    samples: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. The first `num_single` chunks have one token each (decodes, and last single tokens of prompts)."""

    chunks: tuple[Chunk, ...]
    num_single: int
    admitted: tuple[Request, ...]
    preempted: tuple[Request, ...]
    hit_tokens: int

    @property
    def num_tokens(self) -> int:
        """Tokens this step computes."""
        return sum(chunk.length for chunk in self.chunks)

    def after(self, unlaunched: StepPlan) -> StepPlan:
        """The same step with the decisions of one that was planned before it and had nothing to compute."""
        return replace(
            self,
            admitted=unlaunched.admitted + self.admitted,
            preempted=unlaunched.preempted + self.preempted,
            hit_tokens=unlaunched.hit_tokens + self.hit_tokens,
        )

    def without_ended(self) -> StepPlan:
        """The same step without the choices that ended after it was planned: they have no blocks any more."""
        kept = tuple(chunk for chunk in self.chunks if chunk.choice.is_live)
        if len(kept) == len(self.chunks):
            return self
        num_single = sum(chunk.choice.is_live for chunk in self.chunks[: self.num_single])
        return replace(self, chunks=kept, num_single=num_single)


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """See EngineSettings for the meaning of each; collect_lag is how many steps run before a step's tokens are seen."""

    max_running: int
    max_batch_tokens: int
    admission: str = "guaranteed"
    overcommit: float = 0.5
    preempt_lower_priority: bool = False
    bypass_scan: int = 16
    collect_lag: int = 0

    @property
    def prefill_tokens_per_step(self) -> int:
        """What every step has for prefill at least, since at most max_running tokens go to decodes."""
        return self.max_batch_tokens - self.max_running
