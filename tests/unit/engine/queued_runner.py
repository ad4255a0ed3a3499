"""A device that computes nothing until it must: steps queue up in the order of their launch, one ahead of the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from weir.engine.blocks import BlockPool
from weir.engine.plan import Chunk, StepPlan
from weir.engine.request import Choice, SamplingParams
from weir.engine.runner import Launched, StepTokens

from tests.cases.engines import ExactModel, cpu_runner
from tests.unit.sampling.rows import expected_token


@dataclass(frozen=True)
class Row:
    """What the device got for a chunk at launch. tokens: those the host knew; u: for the draw, None when greedy."""

    choice: Choice
    start: int
    tokens: tuple[int, ...]
    length: int
    samples: bool
    table: tuple[int, ...]
    params: SamplingParams
    u: float | None


@dataclass(frozen=True)
class QueuedStep:
    """A launched step; `slow` is one that the runner of a CPU ran."""

    rows: tuple[Row, ...]
    slow: Launched | None = None
    build_s: float = 0.0


class QueuedRunner:
    """Runs the exact model one step ahead.

    Checks that the host never has more than one step on the way, and that no step is launched that writes to a block
    its choice does not hold, or that another request holds.
    """

    steps_ahead = 1

    def __init__(self, model: ExactModel, kv: torch.Tensor, pool: BlockPool) -> None:
        self._model = model
        self._kv = kv
        self._pool = pool
        self._plain = cpu_runner(model, kv, pool)
        self._queue: list[QueuedStep] = []
        self._sampling: set[int] = set()
        self._on_device: dict[int, int] = {}
        self._results: dict[int, StepTokens] = {}
        self._uncollected = 0
        self.launched_ahead = 0

    def follows(self, plan: StepPlan) -> bool:
        """Plain rows only, each of whose input is known to the host or comes from the step before."""
        return all(
            _is_plain(chunk.choice) and (chunk.start < len(chunk.choice.tokens) or id(chunk.choice) in self._sampling)
            for chunk in plan.chunks
        )

    def launch(self, plan: StepPlan) -> QueuedStep:
        """Queue the step, or run it at once when it needs more than its logits."""
        assert plan.chunks, "an empty step was launched"
        assert self._uncollected <= 1, "more than one step was on the way"
        self.launched_ahead += self._uncollected
        self._uncollected += 1
        for chunk in plan.chunks:
            self._check_writes(chunk)
        if not self.follows(plan):
            assert self._uncollected == 1, "a step that needs the host was launched ahead"
            self._drain()
            self._sampling = set()
            return QueuedStep((), self._plain.launch(plan))
        step = QueuedStep(tuple(_row(chunk) for chunk in plan.chunks))
        self._sampling = {id(chunk.choice) for chunk in plan.chunks if chunk.samples}
        self._queue.append(step)
        return step

    def collect(self, launched: QueuedStep) -> StepTokens:
        """Let the device work until this step is done."""
        self._uncollected -= 1
        if launched.slow is not None:
            return self._plain.collect(launched.slow)
        while id(launched) not in self._results:
            self._compute(self._queue.pop(0))
        return self._results.pop(id(launched))

    def _check_writes(self, chunk: Chunk) -> None:
        size = self._pool.block_size
        first, last = chunk.start // size, (chunk.start + chunk.length - 1) // size
        written = chunk.choice.blocks[first : last + 1]
        assert len(written) == last - first + 1, "a step writes to blocks that its choice gave back"
        for block in written:
            # Siblings may hold the prompt's blocks already, to read them in later steps.
            holders = sum(block in choice.blocks for choice in chunk.choice.request.choices)
            assert self._pool.refs(block) == holders, "a step writes to a block of another request"

    def _drain(self) -> None:
        while self._queue:
            self._compute(self._queue.pop(0))

    def _compute(self, step: QueuedStep) -> None:
        before, self._on_device = self._on_device, {}
        for row in step.rows:
            tokens = row.tokens or (before[id(row.choice)],)
            assert len(tokens) == row.length
            for position, token in enumerate(tokens, row.start):
                block, offset = divmod(position, self._pool.block_size)
                self._kv[row.table[block], offset] = token
        chosen = []
        for row in step.rows:
            if row.samples:
                held = self._kv[list(row.table)].flatten()[: row.start + row.length].tolist()
                logits = self._model.logits_after(held)
                token = int(logits.argmax()) if row.u is None else expected_token(logits.tolist(), row.params, row.u)
                self._on_device[id(row.choice)] = token
                chosen.append((row.choice, token))
        choices, token_ids = tuple(choice for choice, _ in chosen), [token for _, token in chosen]
        self._results[id(step)] = StepTokens(choices, token_ids, [None] * len(chosen), [])


def _row(chunk: Chunk) -> Row:
    choice, end = chunk.choice, chunk.start + chunk.length
    params = choice.request.spec.params
    return Row(
        choice,
        chunk.start,
        tuple(choice.tokens[chunk.start : end]),
        chunk.length,
        chunk.samples,
        tuple(choice.blocks),
        params,
        None if params.temperature == 0 else choice.sampling.random(end),
    )


def _is_plain(choice: Choice) -> bool:
    params = choice.request.spec.params
    return not choice.sampling.processed and params.logprobs is None and params.prompt_logprobs is None
