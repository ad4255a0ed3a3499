"""The tokenizer processes, and the prompts that wait for them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path

from weir.config import ServerSettings
from weir.models.errors import TokenizerError
from weir.server.tokenizer_lane import Job, TokenizerLane
from weir.server.tokenizer_process import ProcessEndedError, TokenizerProcess
from weir.v1 import inference_pb2 as pb

# Tokenised in tens of milliseconds. What is longer waits apart, so that nobody with a question waits for a book.
SHORT_BYTES = 16 * 2**10
# Long prompts give way to short ones and to the engine's steps.
_LONG_NICENESS = 10


class TokenizerPool:
    """Owns the processes. Every second one takes the long prompts; when there is but one, it takes all."""

    def __init__(self, folder: Path, settings: ServerSettings) -> None:
        self._folder = folder
        self._short: asyncio.Queue[Job] = asyncio.Queue()
        self._long: asyncio.Queue[Job] = asyncio.Queue() if settings.tokenizer_processes > 1 else self._short
        self._timeout_s = settings.tokenizer_timeout_s
        self._processes = [
            (TokenizerProcess(folder, settings.tokenizer_memory_bytes, _LONG_NICENESS if index % 2 else 0), queue)
            for index, queue in zip(range(settings.tokenizer_processes), itertools.cycle((self._short, self._long)))
        ]
        self._lanes: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Spawn the processes. Call it before any gRPC object exists, as for the engine."""
        for process, _ in self._processes:
            process.start()

    async def load(self) -> Sequence[bytes]:
        """Wait until all are loaded; the bytes of each token. Raises TokenizerError."""
        try:
            tables = await asyncio.gather(*(process.ready() for process, _ in self._processes))
        except ProcessEndedError as error:
            raise TokenizerError(f"the tokenizer process could not load {self._folder}: {error}") from None
        lanes = [TokenizerLane(process, queue, self._timeout_s) for process, queue in self._processes]
        self._lanes = [asyncio.create_task(lane.serve()) for lane in lanes]
        return tables[0]

    async def encode(self, prompt: pb.Prompt) -> Sequence[int]:
        """Token ids of a text or a chat. Raises PromptError, or UnavailableError when no process can be started."""
        job = Job(prompt.SerializeToString(), asyncio.get_running_loop().create_future())
        (self._short if len(job.prompt) <= SHORT_BYTES else self._long).put_nowait(job)
        return await job.answer

    def close(self) -> None:
        """End the processes, whatever they are at."""
        for lane in self._lanes:
            lane.cancel()
        for process, _ in self._processes:
            process.kill()
