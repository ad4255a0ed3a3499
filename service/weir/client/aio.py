"""The client for asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Self, Unpack

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from weir.client import checks, replies, requests
from weir.client.calls import Call, Caller
from weir.client.channel import (
    DEFAULT_CONNECT_TIMEOUT_S,
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_MAX_MESSAGE_BYTES,
    NOT_READY,
    READY_POLL_S,
    channel_options,
    checked_credentials,
)
from weir.client.checks import Metadata
from weir.client.errors import ClientStateError, DeadlineError, RequestCancelledError, UnavailableError
from weir.client.requests import Message, Options
from weir.client.stream_facts import StreamFacts
from weir.client.target import Target
from weir.client.values import Budget, Completion, Delta, ModelInfo
from weir.v1 import budget_pb2, budget_pb2_grpc, inference_pb2_grpc
from weir.v1 import inference_pb2 as pb


class AsyncTokenStream(StreamFacts, AsyncIterator[Delta]):
    """Deltas as they are made. Its call ends early when the stream is closed or dropped, or its block is left.

    An `async for` over the stream that is left, by break, return or an exception, closes it too, however long the
    stream itself lives: gRPC never collects a call that was forgotten. `anext(stream)` takes one delta and goes on.
    """

    def __init__(self, start: Callable[[Call], Any], call: Call) -> None:
        super().__init__(replies.StreamState(call.request_id))
        self._start = start
        self._call = call
        self._ended = False
        self._closed = False
        self._left = False
        self._rpc = self._started()

    def __aiter__(self) -> AsyncIterator[Delta]:
        return _Loop(self)

    async def __anext__(self) -> Delta:
        while not self._state.deltas:
            if self._left:
                raise RequestCancelledError.of_left_loop(self.request_id)
            if self._ended:
                raise StopAsyncIteration
            await self._receive()
        return self._state.deltas.popleft()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # A call that failed to start has left nothing to close.
        if hasattr(self, "_rpc"):
            self.close()

    def close(self) -> None:
        """Cancel the call unless it has ended. Deltas that already arrived are dropped."""
        self._closed = self._ended = True
        self._state.deltas.clear()
        if self._state.usage is None:
            self._rpc.cancel()

    def leave(self) -> None:
        """Close; and if that cut the answer short, say so to whoever reads on."""
        self._left = self._left or not (self._ended or self._state.usage is not None)
        self.close()

    async def aclose(self) -> None:
        """The same as close, for contextlib.aclosing."""
        self.close()

    async def _receive(self) -> None:
        try:
            message = await self._rpc.read()
            if message is grpc.aio.EOF:
                self._ended = True
            else:
                self._state.add(message)
            return
        except grpc.aio.AioRpcError as failed:
            self._ended = True
            error = self._call.error(failed, answered=self._state.answered)
        except asyncio.CancelledError:
            self._ended = True
            if _is_cancelled_itself():
                raise
            if not self._closed:
                raise RequestCancelledError.of_closed_client(self.request_id) from None
        if self._closed:
            return
        if self._state.answered:
            raise error
        await asyncio.sleep(self._call.pause_s(error))
        # Another task may have closed the stream in the pause.
        if not self._closed:
            self._rpc = self._started()
            self._ended = False

    def _started(self) -> Any:
        try:
            return self._start(self._call)
        except grpc.aio.UsageError as error:
            raise ClientStateError.of(str(error)) from None


class _Loop(AsyncIterator[Delta]):
    """One `async for` over a stream. It lives as long as the loop, so its end is the loop's."""

    def __init__(self, stream: AsyncTokenStream) -> None:
        self._stream = stream

    def __anext__(self) -> Coroutine[Any, Any, Delta]:
        return self._stream.__anext__()

    def __del__(self) -> None:
        self._stream.leave()


class AsyncClient:
    """A connection to a server, or to several behind one name; for one event loop, the first that uses it.

    Plaintext unless `credentials` are given. `tenant` says whose share of queue and budget the calls use; `token` goes
    along as a bearer token. A call that the server refuses with a pushback is made again after exactly that pause, at
    most `max_attempts` times in all. A server that does not answer within `connect_timeout_s` counts as unreachable.
    Every method raises a WeirError; `timeout_s` covers all attempts.
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
        connect_timeout_s: float = DEFAULT_CONNECT_TIMEOUT_S,
    ) -> None:
        where = Target.parse(target)
        self.target = where.address
        self._options = channel_options(max_message_bytes, connect_timeout_s, where)
        self._credentials = checked_credentials(credentials)
        self._caller = Caller(tenant, token, max_attempts)
        self._link: _Link | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; running calls are cancelled."""
        self._closed = True
        if self._link is not None:
            await self._link.channel.close()

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
        call = self._caller.call(timeout_s, metadata, request.request_id)
        return replies.completion(await self._answer(self._connected().inference.Complete, request, call))

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
        generate = self._connected().inference.Generate
        return AsyncTokenStream(
            lambda call: generate(request, timeout=call.timeout_s(), metadata=call.metadata),
            self._caller.call(timeout_s, metadata, request.request_id),
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
        answer = await self._answer(self._connected().inference.Tokenize, request, self._caller.call(timeout_s))
        return list(answer.token_ids)

    async def cancel(self, request_id: str, *, timeout_s: float | None = None) -> bool:
        """Cancel a live request of this tenant by its id; whether there was one."""
        request = checks.build(pb.CancelRequest, "", {"request_id": request_id})
        answer = await self._answer(self._connected().inference.Cancel, request, self._caller.call(timeout_s))
        return bool(answer.found)

    async def model(self, *, timeout_s: float | None = None) -> ModelInfo:
        """The served model, and the limits of the server."""
        call = self._caller.call(timeout_s)
        return replies.model_info(await self._answer(self._connected().inference.GetModel, pb.GetModelRequest(), call))

    async def budget(self, *, timeout_s: float | None = None) -> Budget:
        """The KV budget and the queue now."""
        call = self._caller.call(timeout_s)
        answer = await self._answer(self._connected().budget.GetBudget, budget_pb2.GetBudgetRequest(), call)
        return replies.budget(answer.budget)

    async def watch_budget(self, min_interval_s: float = 1.0) -> AsyncIterator[Budget]:
        """The budget now and at each change, until the generator is closed or the server stops."""
        request = checks.build(budget_pb2.WatchBudgetRequest, "", {"min_interval_s": min_interval_s})
        call = self._caller.call()
        rpc = self._connected().budget.WatchBudget(request, metadata=call.metadata)
        try:
            async for message in rpc:
                yield replies.budget(message.budget)
        except grpc.aio.AioRpcError as failed:
            raise call.error(failed, answered=True) from None
        except asyncio.CancelledError:
            if _is_cancelled_itself():
                raise
            raise RequestCancelledError.of_closed_client(call.request_id) from None
        finally:
            rpc.cancel()

    async def health(self, service: str = "readiness", *, timeout_s: float | None = None) -> bool:
        """Whether the server says SERVING for `service`: `liveness` or `readiness`."""
        request = checks.build(health_pb2.HealthCheckRequest, "", {"service": service})
        answer = await self._answer(self._connected().health.Check, request, self._caller.call(timeout_s))
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until the server takes work. Raises DeadlineError, which is a TimeoutError."""
        deadline = time.monotonic() + checks.number("timeout_s", timeout_s, at_least=0)
        why = NOT_READY
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                if await self.health(timeout_s=min(left_s, 1.0)):
                    return
                why = NOT_READY
            except (UnavailableError, DeadlineError) as error:
                # Not up yet; what follows is the same wait as for a server that still loads.
                why = error.message
            await asyncio.sleep(READY_POLL_S)
        raise DeadlineError.of_wait(self.target, timeout_s, why)

    def _connected(self) -> _Link:
        """The channel, opened by the first call: a client can be made before an event loop runs.

        Raises ClientStateError.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise ClientStateError.of("an AsyncClient is used inside a running event loop") from None
        if self._closed:
            raise ClientStateError.of("the client is closed")
        if self._link is None:
            self._link = _Link.open(self.target, self._credentials, self._options, loop)
        if self._link.loop is not loop:
            raise ClientStateError.of("the client belongs to another event loop; each needs one of its own")
        return self._link

    async def _answer(self, method: Any, request: Any, call: Call) -> Any:
        while True:
            try:
                return await method(request, timeout=call.timeout_s(), metadata=call.metadata)
            except grpc.aio.AioRpcError as failed:
                error = call.error(failed)
            except grpc.aio.UsageError as closed:
                raise ClientStateError.of(str(closed)) from None
            except asyncio.CancelledError:
                if _is_cancelled_itself():
                    raise
                raise RequestCancelledError.of_closed_client(call.request_id) from None
            await asyncio.sleep(call.pause_s(error))


@dataclass(frozen=True, slots=True)
class _Link:
    """An open channel, what is called over it, and the event loop that it belongs to."""

    channel: grpc.aio.Channel
    inference: Any
    budget: Any
    health: Any
    loop: asyncio.AbstractEventLoop

    @classmethod
    def open(
        cls,
        address: str,
        credentials: grpc.ChannelCredentials | None,
        options: list[tuple[str, int | str]],
        loop: asyncio.AbstractEventLoop,
    ) -> _Link:
        channel = (
            grpc.aio.insecure_channel(address, options)
            if credentials is None
            else grpc.aio.secure_channel(address, credentials, options)
        )
        return cls(
            channel,
            inference_pb2_grpc.InferenceServiceStub(channel),  # type: ignore[no-untyped-call]
            budget_pb2_grpc.BudgetServiceStub(channel),  # type: ignore[no-untyped-call]
            health_pb2_grpc.HealthStub(channel),
            loop,
        )


def _is_cancelled_itself() -> bool:
    """Whether the running task was asked to end, and not just the call that it waits for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
