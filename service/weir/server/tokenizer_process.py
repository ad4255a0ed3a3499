"""The server's handle on one tokenizer process."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import socket
from array import array
from collections.abc import Sequence
from pathlib import Path

import psutil

from weir.models.errors import PromptError, TokenizerError
from weir.server.tokenizer_worker import HEADER, Kind, tokenizer_main

_REAP_S = 1.0


class ProcessEndedError(Exception):
    """The process ended in the middle. `exit_code` is negative for a signal, None for one that stands still."""

    def __init__(self, exit_code: int | None) -> None:
        super().__init__("it stands still" if exit_code is None else f"it ended with exit code {exit_code}")
        self.exit_code = exit_code


class TokenizerProcess:
    """Tokenises one prompt at a time. It may be killed at any moment, and started again."""

    def __init__(self, folder: Path, memory_bytes: int, niceness: int) -> None:
        self._arguments = (folder, memory_bytes, niceness)
        self._context = multiprocessing.get_context("spawn")
        self._writer: asyncio.StreamWriter | None = None

    def start(self) -> None:
        """Spawn it. Beside gRPC too: between vfork and exec, nothing of this process runs in the child."""
        folder, memory_bytes, niceness = self._arguments
        self._writer = None
        self._socket, theirs = socket.socketpair()
        self._process = self._context.Process(
            target=tokenizer_main, args=(folder, theirs, memory_bytes, niceness), name="tokenizer", daemon=True
        )
        self._process.start()
        theirs.close()

    async def ready(self) -> Sequence[bytes]:
        """Wait until the tokenizer is loaded; the bytes of each token. Raises TokenizerError or ProcessEndedError."""
        self._reader, self._writer = await asyncio.open_connection(sock=self._socket)
        kind, data = await self._receive()
        if kind is Kind.NOT_LOADED:
            raise TokenizerError(data.decode())
        table: list[bytes] = pickle.loads(data)
        return table

    async def encode(self, prompt: bytes) -> Sequence[int]:
        """Token ids of a serialised Prompt. Raises PromptError or ProcessEndedError; once cancelled, kill it."""
        assert self._writer is not None, "not ready"
        self._writer.write(HEADER.pack(Kind.PROMPT, len(prompt)) + prompt)
        kind, data = await self._receive()
        match kind:
            case Kind.IDS:
                ids = array("i")
                ids.frombytes(data)
                return ids
            case Kind.REFUSED:
                raise PromptError(data.decode())
            case _:
                raise RuntimeError(f"in a tokenizer process: {data.decode()}")

    def computed_s(self) -> float:
        """Seconds that it has kept a core busy since it started; 0 when it is gone."""
        try:
            times = psutil.Process(self._process.pid).cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)

    async def end(self) -> None:
        """Kill it, and wait until it is gone."""
        self.kill()
        await asyncio.to_thread(self._process.join, _REAP_S)

    def kill(self) -> None:
        """End it at once. Idempotent."""
        self._process.kill()
        if self._writer is None:
            self._socket.close()
        else:
            self._writer.close()

    async def _receive(self) -> tuple[Kind, bytes]:
        try:
            kind, size = HEADER.unpack(await self._reader.readexactly(HEADER.size))
            return Kind(kind), await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            # Its end of the socket is closed, so that it is ending by itself.
            await asyncio.to_thread(self._process.join, _REAP_S)
            raise ProcessEndedError(self._process.exitcode) from None
