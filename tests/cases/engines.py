"""Whole engines for tests: an exact made-up model under the real scheduler, runner and sampler; and a tiny real one."""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from weir.engine.blocks import BlockHasher, BlockPool
from weir.engine.core import EngineCore, StepOutput
from weir.engine.detokenizer import TokenTable
from weir.engine.errors import RequestError
from weir.engine.plan import SchedulerLimits
from weir.engine.random_numbers import choice_seed, stream_key, uniform
from weir.engine.records import EngineInfo
from weir.engine.request import (
    Admitted,
    ChoiceFinish,
    Delta,
    Done,
    Event,
    Failed,
    GenerateRequest,
    Preempted,
    SamplingParams,
    TokenLogprobs,
)
from weir.engine.runner import Runner, StepRunner
from weir.engine.sampler import Sampler
from weir.engine.scheduler import Scheduler
from weir.engine.tenants import Tenants
from weir.engine.validation import RequestLimits
from weir.engine.waiting import WaitingQueue
from weir_kernels.ragged import RaggedBatch

from tests.unit.sampling.rows import expected_token

VOCAB = 64
_CPU = torch.device("cpu")


class ExactModel:
    """Logits are a function of every token before them, and of nothing else, bit for bit.

    Its KV cache holds token ids, which it reads back through the block tables: a wrong, recycled or missing block
    changes the logits. `says` makes it continue a prompt with given tokens, whatever the logits would be.
    """

    def __init__(self, vocab_size: int = VOCAB, says: Mapping[tuple[int, ...], Sequence[int]] | None = None) -> None:
        self.vocab_size = vocab_size
        self._says = {prompt: tuple(tokens) for prompt, tokens in (says or {}).items()}
        self.computed = 0

    def allocate_kv(self, num_blocks: int, block_size: int) -> torch.Tensor:
        """One token id for each slot; block 0 is the null block."""
        return torch.full((num_blocks + 1, block_size), -1, dtype=torch.int64)

    def forward(self, batch: RaggedBatch, kv: torch.Tensor) -> torch.Tensor:
        """[R, V] float32."""
        self.computed += len(batch.token_ids)
        kv.flatten()[batch.slot_mapping] = batch.token_ids
        bounds = batch.cu_seqlens.tolist()
        owner = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
        rows = []
        for row in batch.logit_rows.tolist():
            held = kv[batch.block_tables[owner[row]].long()].flatten()
            rows.append(self.logits_after(held[: int(batch.positions[row]) + 1].tolist()))
        return torch.stack(rows) if rows else torch.zeros(0, self.vocab_size)

    def logits_after(self, tokens: Sequence[int]) -> torch.Tensor:
        """[V] float32."""
        for prompt, said in self._says.items():
            done = len(tokens) - len(prompt)
            if 0 <= done < len(said) and tuple(tokens) == prompt + said[:done]:
                return torch.nn.functional.one_hot(torch.tensor(said[done]), self.vocab_size).float() * 30.0
        seed = hashlib.blake2b(np.array(tokens, dtype=np.int64).tobytes(), digest_size=8).digest()
        noise = np.random.default_rng(int.from_bytes(seed, "little")).standard_normal(self.vocab_size, np.float32)
        return torch.from_numpy(noise * 2.0)

    def continuation(self, prompt: Sequence[int], count: int, params: SamplingParams, choice: int = 0) -> list[int]:
        """The tokens that the definition of sampling gives, one at a time and without an engine."""
        tokens = list(prompt)
        for _ in range(count):
            logits = self.logits_after(tokens)
            if params.temperature == 0:
                tokens.append(int(logits.argmax()))
            else:
                assert params.seed is not None
                u = uniform(stream_key(choice_seed(params.seed, choice)), len(tokens))
                tokens.append(expected_token(logits.tolist(), params, u))
        return tokens[len(prompt) :]


def make_core(
    model: ExactModel | None = None,
    *,
    num_blocks: int = 40,
    block_size: int = 4,
    max_model_len: int | None = None,
    max_running: int = 8,
    max_batch_tokens: int = 32,
    admission: str = "guaranteed",
    overcommit: float = 0.5,
    preempt_lower_priority: bool = False,
    prefix_cache: bool = True,
    eos: tuple[int, ...] = (),
    table: TokenTable | None = None,
    run_by: Callable[[ExactModel, torch.Tensor, BlockPool], StepRunner] | None = None,
    tenants: Tenants | None = None,
) -> EngineCore:
    """An engine over the exact model; its model length is the whole pool unless said otherwise.

    run_by: makes the runner from the model, its KV cache and the pool; by default, the one of a CPU.
    """
    model = model or ExactModel()
    length = max_model_len or num_blocks * block_size
    info = EngineInfo(
        model_name="exact",
        model_path="",
        architecture="",
        dtype="float32",
        device="cpu",
        kernels="none",
        vocab_size=model.vocab_size,
        max_model_len=length,
        block_size=block_size,
        kv_total_tokens=num_blocks * block_size,
        kv_bytes_per_token=8,
        max_batch_tokens=max_batch_tokens,
        max_running=max_running,
        default_max_tokens=length,
        eos_token_ids=eos,
    )
    limits = RequestLimits(
        vocab_size=model.vocab_size,
        max_model_len=length,
        block_size=block_size,
        kv_blocks=num_blocks,
        max_running=max_running,
        max_choices=8,
        max_logprobs=20,
        max_stop_strings=16,
        max_stop_string_chars=256,
        max_logit_bias=1024,
    )
    tenants = tenants or Tenants()
    pool, kv = BlockPool(num_blocks, block_size, prefix_cache), model.allocate_kv(num_blocks, block_size)
    runner = run_by(model, kv, pool) if run_by else cpu_runner(model, kv, pool)
    scheduler = Scheduler(
        SchedulerLimits(
            max_running,
            max_batch_tokens,
            admission,
            overcommit,
            preempt_lower_priority,
            collect_lag=runner.steps_ahead,
        ),
        pool,
        BlockHasher(block_size, key=b"test", tenants=tenants),
        WaitingQueue(tenants, bypass_limit=4, bypass_age_s=1000.0),
        tenants,
    )
    return EngineCore(info, limits, scheduler, runner, table or TokenTable([]), tenants)


def cpu_runner(model: ExactModel, kv: torch.Tensor, pool: BlockPool) -> Runner:
    """What a CPU gets."""
    return Runner(model, kv, Sampler(model.vocab_size), pool.block_size, _CPU)


class Engine:
    """Drives an engine core and keeps what it said, checking that every request ends exactly once."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.events: dict[str, list[Event]] = defaultdict(list)

    def submit(
        self,
        request_id: str,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        n: int = 1,
        priority: int = 5,
        deadline: float | None = None,
        temperature: float = 0.0,
        tenant: str = "",
        **params: Any,
    ) -> SamplingParams:
        """Queue a request, greedy unless said otherwise; its parameters."""
        chosen = SamplingParams(max_tokens, temperature=temperature, **params)
        now = time.monotonic()
        self.core.submit(
            GenerateRequest(
                request_id,
                tuple(prompt),
                chosen,
                n=n,
                priority=priority,
                arrival=now,
                deadline=deadline,
                tenant=tenant,
            )
        )
        return chosen

    def cancel(self, request_id: str) -> None:
        """Cancel, and take in what the engine says at once."""
        self.core.cancel(request_id)
        self._take(self.core.take_events())

    def step(self) -> StepOutput:
        """One step."""
        output = self.core.step()
        self._take(output.events)
        return output

    def run(self) -> None:
        """Step until there is nothing to do; then nothing may be held."""
        for _ in range(10_000):
            if not self.core.has_work:
                break
            self.step()
        budget = self.core.snapshot()
        assert not self.core.has_work, "still working after 10,000 steps"
        assert (budget.kv_used_tokens, budget.running, budget.queued, budget.queued_tokens) == (0, 0, 0, 0)
        assert budget.kv_free_tokens + budget.kv_cached_tokens == budget.kv_total_tokens
        unfinished = [name for name in self.events if not self.ended(name)]
        assert not unfinished

    def _take(self, events: Sequence[Event]) -> None:
        for event in events:
            assert not self.ended(event.request_id), f"{event} after the end"
            self.events[event.request_id].append(event)

    def ended(self, request_id: str) -> bool:
        """Whether a request got its terminal event."""
        return any(isinstance(event, Done | Failed) for event in self.events[request_id])

    def deltas(self, request_id: str, choice: int = 0) -> list[Delta]:
        """The deltas of one choice."""
        return [e for e in self.events[request_id] if isinstance(e, Delta) and e.choice == choice]

    def tokens(self, request_id: str, choice: int = 0) -> list[int]:
        """The tokens of one choice."""
        return [token for delta in self.deltas(request_id, choice) for token in delta.token_ids]

    def text(self, request_id: str, choice: int = 0) -> str:
        """The text of one choice."""
        return "".join(delta.text for delta in self.deltas(request_id, choice))

    def finish(self, request_id: str, choice: int = 0) -> ChoiceFinish | None:
        """How a choice ended; it must ride with its last delta and with no other."""
        deltas = self.deltas(request_id, choice)
        assert all(delta.finish is None for delta in deltas[:-1])
        return deltas[-1].finish

    def prompt_logprobs(self, request_id: str) -> tuple[TokenLogprobs | None, ...]:
        """They come once, with the first delta of choice 0."""
        found = [e.prompt_logprobs for e in self.events[request_id] if isinstance(e, Delta) and e.prompt_logprobs]
        assert len(found) == 1
        assert self.deltas(request_id)[0].prompt_logprobs == found[0]
        return found[0]

    def admitted(self, request_id: str) -> Admitted:
        """Its admission, of which there is one."""
        (event,) = (e for e in self.events[request_id] if isinstance(e, Admitted))
        return event

    def preemptions(self, request_id: str) -> int:
        """How often it lost its blocks."""
        return sum(isinstance(e, Preempted) for e in self.events[request_id])

    def error(self, request_id: str) -> RequestError:
        """Why it failed."""
        (event,) = (e for e in self.events[request_id] if isinstance(e, Failed))
        return event.error


def some_tokens(count: int, seed: int = 0, vocab_size: int = VOCAB) -> tuple[int, ...]:
    """A prompt."""
    return tuple(int(token) for token in np.random.default_rng(seed).integers(0, vocab_size, count))
