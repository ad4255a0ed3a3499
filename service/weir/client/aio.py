"""The client for asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Self, Unpack

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from weir.client import replies, requests
from weir.client.channel import (
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_MAX_MESSAGE_BYTES,
    READY_POLL_S,
    Metadata,
    channel_options,
    identity,
)
from weir.client.errors import DeadlineError, UnavailableError, from_call
from weir.client.requests import Message, Options
from weir.client.retry import Attempts
from weir.client.stream_facts import StreamFacts
from weir.client.values import Budget, Completion, Delta, ModelInfo
from weir.v1 import budget_pb2, budget_pb2_grpc, inference_pb2_grpc
from weir.v1 import inference_pb2 as pb


class AsyncTokenStream(StreamFacts, AsyncIterator[Delta]):
    """Iterates over deltas as they are made. Closing it, leaving its `async with`, or dropping it cancels the call."""

    def __init__(self, start: Callable[[float | None], Any], attempts: Attempts) -> None:
        super().__init__(replies.StreamState())
        self._start = start
        self._attempts = attempts
        self._closed = False
        self._call = start(attempts.timeout_s())

    async def __anext__(self) -> Delta:
        while not self._state.deltas:
            if self._closed:
                raise StopAsyncIteration
            await self._receive()
        return self._state.deltas.popleft()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # A call that failed to start has left nothing to close.
        if hasattr(self, "_call"):
            self.close()

    def close(self) -> None:
        """Cancel the call unless it has ended. Deltas that already arrived are dropped."""
        self._closed = True
        self._state.deltas.clear()
        self._call.cancel()

    async def aclose(self) -> None:
        """The same as close, for contextlib.aclosing."""
        self.close()

    async def _receive(self) -> None:
        try:
            message = await self._call.read()
            if message is grpc.aio.EOF:
                self._closed = True
            else:
                self._state.add(message)
            return
        except grpc.aio.AioRpcError as call:
            self._closed = True
            error = from_call(call)
        if self._state.answered:
            raise error
        await asyncio.sleep(self._attempts.pause_s(error))
        self._call = self._start(self._attempts.timeout_s())
        self._closed = False


class AsyncClient:
    """A connection to a server, or to several behind one name; for one event loop.

    Plaintext unless `credentials` are given. `tenant` says whose share of queue and budget the calls use; `token` goes
    along as a bearer token. A call that the server refuses with a pushback is made again after exactly that pause, at
    most `max_attempts` times in all. Every method raises a WeirError; `timeout_s` covers all attempts.
    """

    def __init__(
        self,
        target: str,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        tenant: str = "",
        token: str = "",
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    ) -> None:
        options = channel_options(max_message_bytes)
        self.target = target
        self._channel = (
            grpc.aio.insecure_channel(target, options)
            if credentials is None
            else grpc.aio.secure_channel(target, credentials, options)
        )
        self._identity = identity(tenant, token)
        self._max_attempts = max_attempts
        self._inference = inference_pb2_grpc.InferenceServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._budget = budget_pb2_grpc.BudgetServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._health = health_pb2_grpc.HealthStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; running calls are cancelled."""
        await self._channel.close()

    async def complete(
        self,
        prompt: str | None = None,
        *,
        token_ids: Sequence[int] | None = None,
        messages: Sequence[Message] | None = None,
        timeout_s: float | None = None,
        metadata: Metadata = (),
        **options: Unpack[Options],
    ) -> Completion:
        """Generate, and return everything at once."""
        request = requests.build_complete(requests.build_prompt(prompt, token_ids, messages), options)
        return replies.completion(await self._call(self._inference.Complete, request, timeout_s, metadata))

    def generate(
        self,
        prompt: str | None = None,
        *,
        token_ids: Sequence[int] | None = None,
        messages: Sequence[Message] | None = None,
        timeout_s: float | None = None,
        metadata: Metadata = (),
        **options: Unpack[Options],
    ) -> AsyncTokenStream:
        """Generate, and iterate over what is made as it is made."""
        request = requests.build_generate(requests.build_prompt(prompt, token_ids, messages), options)
        sent = (*self._identity, *metadata)
        generate = self._inference.Generate
        return AsyncTokenStream(
            lambda timeout_s: generate(request, timeout=timeout_s, metadata=sent),
            Attempts(self._max_attempts, timeout_s),
        )

    async def tokenize(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        timeout_s: float | None = None,
    ) -> list[int]:
        """The token ids that `generate` would compute for this prompt."""
        request = pb.TokenizeRequest(prompt=requests.build_prompt(prompt, None, messages))
        return list((await self._call(self._inference.Tokenize, request, timeout_s)).token_ids)

    async def cancel(self, request_id: str, *, timeout_s: float | None = None) -> bool:
        """Cancel a live request of this tenant by its id; whether there was one."""
        answer = await self._call(self._inference.Cancel, pb.CancelRequest(request_id=request_id), timeout_s)
        return bool(answer.found)

    async def model(self, *, timeout_s: float | None = None) -> ModelInfo:
        """The served model, and the limits of the server."""
        return replies.model_info(await self._call(self._inference.GetModel, pb.GetModelRequest(), timeout_s))

    async def budget(self, *, timeout_s: float | None = None) -> Budget:
        """The KV budget and the queue now."""
        answer = await self._call(self._budget.GetBudget, budget_pb2.GetBudgetRequest(), timeout_s)
        return replies.budget(answer.budget)

    async def watch_budget(self, min_interval_s: float = 1.0) -> AsyncIterator[Budget]:
        """The budget now and at each change, until the generator is closed or the server stops."""
        call = self._budget.WatchBudget(
            budget_pb2.WatchBudgetRequest(min_interval_s=min_interval_s),
            metadata=self._identity,
        )
        try:
            async for message in call:
                yield replies.budget(message.budget)
        except grpc.aio.AioRpcError as failed:
            raise from_call(failed) from None
        finally:
            call.cancel()

    async def health(self, service: str = "readiness", *, timeout_s: float | None = None) -> bool:
        """Whether the server says SERVING for `service`: `liveness` or `readiness`."""
        answer = await self._call(self._health.Check, health_pb2.HealthCheckRequest(service=service), timeout_s)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until the server takes work. Raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                if await self.health(timeout_s=min(left_s, 1.0)):
                    return
            except (UnavailableError, DeadlineError):
                # Not up yet; what follows is the same wait as for a server that still loads.
                pass
            await asyncio.sleep(READY_POLL_S)
        raise TimeoutError(f"{self.target} was not ready within {timeout_s:g} s")

    async def _call(self, method: Any, request: Any, timeout_s: float | None, metadata: Metadata = ()) -> Any:
        attempts = Attempts(self._max_attempts, timeout_s)
        sent = (*self._identity, *metadata)
        while True:
            try:
                return await method(request, timeout=attempts.timeout_s(), metadata=sent)
            except grpc.aio.AioRpcError as call:
                error = from_call(call)
            await asyncio.sleep(attempts.pause_s(error))
