"""A lane: one tokenizer process that takes one prompt after another, and what happens when it does not come back."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from weir.engine.errors import UnavailableError
from weir.models.errors import ModelError, PromptError
from weir.server.tokenizer_process import ProcessEndedError, TokenizerProcess

# What a prompt may still take when its caller has gone: about as much as starting a process again.
ABANDONED_S = 1.0
_LEAST_WAIT_S = 0.2
START_TIMEOUT_S = 60.0
RETRY_S = 1.0
# Times the limit: a process that is not done by then computes nothing, because somebody has stopped it.
_HANGS_AFTER = 10
# Others end or stop processes by these; by anything else, the prompt did.
_FOREIGN_EXITS = (None, -signal.SIGKILL, -signal.SIGTERM)
_ATTEMPTS = 2

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    """A serialised prompt, and where its token ids are awaited; cancelled when nobody does any more."""

    prompt: bytes
    answer: asyncio.Future[Sequence[int]]


class TokenizerLane:
    """Serves a queue of prompts. A process that dies, or that takes too long, is replaced; only its prompt is lost.

    The limit is in seconds of computing, because on a busy machine a process waits for a core through no fault of its
    prompt.
    """

    def __init__(self, process: TokenizerProcess, queue: asyncio.Queue[Job], limit_s: float) -> None:
        self._process = process
        self._queue = queue
        self._limit_s = limit_s
        self._running = True

    async def serve(self) -> None:
        """Tokenise what comes, for ever. The process must be ready."""
        while True:
            job = await self._queue.get()
            if job.answer.done():
                continue
            try:
                ids = await self._encode(job)
            except Exception as error:  # whoever awaits the answer says what it means
                if not job.answer.done():
                    job.answer.set_exception(error)
            else:
                if not job.answer.done():
                    job.answer.set_result(ids)
            await self._recovered()

    async def _encode(self, job: Job) -> Sequence[int]:
        for _ in range(_ATTEMPTS):
            if not await self._recovered():
                raise UnavailableError("TOKENIZER_FAILED", RETRY_S)
            try:
                return await self._reply(job)
            except TimeoutError:
                await self._replace("it takes too long", len(job.prompt))
                raise PromptError(f"takes more than {self._limit_s:g} s to tokenise") from None
            except ProcessEndedError as error:
                await self._replace(str(error), len(job.prompt))
                if error.exit_code not in _FOREIGN_EXITS:
                    break
        raise PromptError("takes more memory to tokenise than it may, or breaks the tokenizer: its process ended")

    async def _reply(self, job: Job) -> Sequence[int]:
        process, loop = self._process, asyncio.get_running_loop()
        reply = asyncio.ensure_future(process.encode(job.prompt))
        awaited: set[asyncio.Future[Sequence[int]]] = {reply, job.answer}
        ends_at, hangs_at = process.computed_s() + self._limit_s, loop.time() + _HANGS_AFTER * self._limit_s
        try:
            while not reply.done():
                # It cannot compute for longer than it is waited for.
                left_s = ends_at - process.computed_s()
                if left_s <= 0:
                    raise TimeoutError
                if loop.time() > hangs_at:
                    raise ProcessEndedError(None)
                await asyncio.wait(awaited, timeout=max(left_s, _LEAST_WAIT_S), return_when=asyncio.FIRST_COMPLETED)
                if job.answer in awaited and job.answer.done():
                    awaited.remove(job.answer)
                    ends_at = min(ends_at, process.computed_s() + ABANDONED_S)
            return reply.result()
        finally:
            reply.cancel()

    async def _replace(self, reason: str, prompt_bytes: int) -> None:
        _log.warning("a tokenizer process is replaced: %s, with a prompt of %d bytes", reason, prompt_bytes)
        self._running = False
        await self._process.end()

    async def _recovered(self) -> bool:
        """Whether the process runs, started again when it does not."""
        if self._running:
            return True
        try:
            self._process.start()
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._process.ready()
        except (ModelError, ProcessEndedError, OSError) as error:  # TimeoutError is an OSError
            _log.error("a tokenizer process cannot be started again: %s", error)
            await self._process.end()
            return False
        self._running = True
        return True
