"""What a server must bear besides requests: floods, clients killed or stopped, streams that nobody reads."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import signal
import sys
from collections import Counter
from pathlib import Path

import grpc
from weir.client import AsyncClient, BudgetExhaustedError, UnauthenticatedError, WeirError
from weir.v1 import inference_pb2 as pb

from benchmarks.hostile import SERVICE, attacks
from tests.contract.raw_client import RawClient
from tests.soak.traffic import Ledger

_FLOOD = 300
_STREAMS = 4
_CLIENT = """
import asyncio, os, sys
from weir.client import AsyncClient
async def read(client):
    while True:
        try:
            async for delta in client.generate("Once upon a time", max_tokens=200, ignore_eos=True, logprobs=20): pass
        except Exception: await asyncio.sleep(0.1)
async def main():
    os.nice(10)  # the machine is the server's
    async with AsyncClient(sys.argv[1], token=sys.argv[2], tenant="batch") as client:
        await asyncio.gather(*(read(client) for _ in range(int(sys.argv[3]))))
asyncio.run(main())
"""


class Mischief:
    """counts: what was done. Each method goes on until `until` is set."""

    def __init__(self, target: str, token: str, ledger: Ledger, until: asyncio.Event) -> None:
        self._target, self._token, self._ledger, self._until = target, token, ledger, until
        self._dice = random.Random(2)
        self.counts: Counter[str] = Counter()

    async def flood(self) -> None:
        """Several hundred requests at once, more than the queue takes."""
        async with AsyncClient(self._target, token=self._token, tenant="batch", max_attempts=1) as client:
            while await self._pause(20):
                self.counts["floods"] += 1
                await asyncio.gather(*(self._flooding(client) for _ in range(_FLOOD)))

    async def kill_clients(self) -> None:
        """Processes with running streams, killed at a random moment, or stopped first."""
        while await self._pause(6):
            command = [sys.executable, "-c", _CLIENT, self._target, self._token, str(_STREAMS)]
            client = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
            try:
                await asyncio.sleep(2 + 3 * self._dice.random())
                if self._dice.random() < 0.4:
                    client.send_signal(signal.SIGSTOP)
                    self.counts["stopped clients"] += 1
                    await self._pause(12)
            finally:
                client.kill()
                await client.wait()
            self.counts["killed clients"] += 1

    async def leave_unread(self) -> None:
        """Streams with a window of zero: the server may send nothing, and must end them by itself."""
        request = pb.GenerateRequest(prompt=pb.Prompt(text="Why?"))
        request.params.max_tokens, request.params.ignore_eos, request.params.logprobs = 400, True, 20
        headers = (("authorization", f"Bearer {self._token}"), ("x-tenant-id", "batch"))
        while await self._pause(10):
            async with RawClient(int(self._target.rpartition(":")[2]), window=0) as client:
                streams = [client.call(f"{SERVICE}Generate", request.SerializeToString(), *headers) for _ in range(4)]
                self.counts["unread streams"] += len(streams)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(30):
                        while not client.closed.is_set() and not all(_is_over(client, stream) for stream in streams):
                            client.ping()
                            await asyncio.sleep(2)
                if not client.closed.is_set() and not all(_is_over(client, stream) for stream in streams):
                    self._ledger.wrong.append("an unread stream was not ended within 30 s")

    async def send_hostile_requests(self) -> None:
        """Every request of benchmarks/hostile.py in turn, legal and not."""
        metadata = (("authorization", f"Bearer {self._token}"), ("x-tenant-id", "batch"))
        async with grpc.aio.insecure_channel(
            self._target, [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            for attack in itertools.cycle(list(attacks())):
                if not await self._pause(1.5):
                    return
                self.counts["hostile requests"] += 1
                try:
                    await channel.unary_unary(SERVICE + attack.method)(attack.message, timeout=20, metadata=metadata)
                except grpc.aio.AioRpcError as error:
                    if error.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED):
                        self._ledger.wrong.append(f"{attack.name}: {error.code().name} {error.details()}")

    async def reload_tokens(self, file: Path, kept: str) -> None:
        """A token that comes and goes; the others stay."""
        async with AsyncClient(self._target, token="guest", max_attempts=1) as guest:
            for is_known in itertools.cycle((True, False)):
                if not await self._pause(7):
                    return
                fresh = file.with_suffix(".new")
                fresh.write_text(kept + ("guest\n" if is_known else ""))
                fresh.chmod(0o600)
                fresh.replace(file)
                self.counts["token reloads"] += 1
                if not await self._sees(guest, is_known):
                    self._ledger.wrong.append(
                        f"a token was {'not accepted' if is_known else 'accepted'} after a reload"
                    )

    async def _sees(self, guest: AsyncClient, is_known: bool) -> bool:
        for _ in range(100):
            try:
                await guest.model()
                known = True
            except UnauthenticatedError:
                known = False
            if known == is_known:
                return True
            await asyncio.sleep(0.1)
        return False

    async def _flooding(self, client: AsyncClient) -> None:
        self._ledger.begun += 1
        try:
            await client.complete("x", max_tokens=2)
            self._ledger.end("OK")
        except BudgetExhaustedError as error:
            if error.retry_after_s is None:
                self._ledger.wrong.append("refused without a time to come back")
            self._ledger.end("RESOURCE_EXHAUSTED KV_BUDGET_EXHAUSTED")
        except WeirError as error:
            self._ledger.wrong.append(f"in a flood: {error!r}")
            self._ledger.end(f"{error.code} {error.reason or ''}".strip())

    async def _pause(self, seconds: float) -> bool:
        """Whether to go on."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._until.wait(), seconds)
        return not self._until.is_set()


def _is_over(client: RawClient, stream: int) -> bool:
    return stream in client.ended or stream in client.reset
