"""The client for threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
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


class TokenStream(StreamFacts, Iterator[Delta]):
    """Deltas as they are made. Its call ends early when the stream is closed or dropped, or its `with` block is left.

    A `for` over the stream that is left, by break, return or an exception, closes it too, however long the stream
    itself lives: nobody forgets a request that goes on computing. `next(stream)` takes one delta and goes on.
    """

    def __init__(self, start: Callable[[Call], Any], call: Call) -> None:
        super().__init__(replies.StreamState(call.request_id))
        self._start = start
        self._call = call
        self._ended = False
        self._closed = False
        self._left = False
        self._rpc = self._started()

    def __iter__(self) -> Iterator[Delta]:
        return _Loop(self)

    def __next__(self) -> Delta:
        while not self._state.deltas:
            if self._left:
                raise RequestCancelledError.of_left_loop(self.request_id)
            if self._ended:
                raise StopIteration
            self._receive()
        return self._state.deltas.popleft()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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

    def _receive(self) -> None:
        try:
            self._state.add(next(self._rpc))
            return
        except StopIteration:
            self._ended = True
            return
        except grpc.RpcError as failed:
            self._ended = True
            error = self._call.error(failed, answered=self._state.answered)
            # The failed call is the exception, and would hold this frame, and the stream with it, in a cycle.
            failed.with_traceback(None)
        if self._closed:
            return
        if self._state.answered:
            raise error
        time.sleep(self._call.pause_s(error))
        self._rpc = self._started()
        # Another thread may have closed the stream in the pause.
        if self._closed:
            self._rpc.cancel()
        self._ended = self._closed

    def _started(self) -> Any:
        try:
            return self._start(self._call)
        except ValueError as error:  # what gRPC raises for a closed channel
            raise ClientStateError.of(str(error)) from None


class _Loop(Iterator[Delta]):
    """One `for` over a stream. It lives as long as the loop, so its end is the loop's."""

    def __init__(self, stream: TokenStream) -> None:
        self._stream = stream

    def __next__(self) -> Delta:
        return next(self._stream)

    def __del__(self) -> None:
        self._stream.leave()


class Client:
    """A connection to a server, or to several behind one name; safe to share between threads.

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
        options = channel_options(max_message_bytes, connect_timeout_s, where)
        self.target = where.address
        self._caller = Caller(tenant, token, max_attempts)
        self._channel = (
            grpc.insecure_channel(where.address, options)
            if checked_credentials(credentials) is None
            else grpc.secure_channel(where.address, credentials, options)
        )
        self._inference = inference_pb2_grpc.InferenceServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._budget = budget_pb2_grpc.BudgetServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._health = health_pb2_grpc.HealthStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; running calls are cancelled."""
        self._channel.close()

    def complete(
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
        return replies.completion(self._answer(self._inference.Complete, request, call))

    def generate(
        self,
        prompt: str | None = None,
        *,
        token_ids: Sequence[int] | None = None,
        messages: Sequence[Message] | None = None,
        timeout_s: float | None = None,
        metadata: Metadata = (),
        **options: Unpack[Options],
    ) -> TokenStream:
        """Generate, and iterate over what is made as it is made."""
        request = requests.build_generate(requests.build_prompt(prompt, token_ids, messages), options)
        generate = self._inference.Generate
        return TokenStream(
            lambda call: generate(request, timeout=call.timeout_s(), metadata=call.metadata),
            self._caller.call(timeout_s, metadata, request.request_id),
        )

    def tokenize(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        timeout_s: float | None = None,
    ) -> list[int]:
        """The token ids that `generate` would compute for this prompt."""
        request = pb.TokenizeRequest(prompt=requests.build_prompt(prompt, None, messages))
        return list(self._answer(self._inference.Tokenize, request, self._caller.call(timeout_s)).token_ids)

    def cancel(self, request_id: str, *, timeout_s: float | None = None) -> bool:
        """Cancel a live request of this tenant by its id; whether there was one."""
        request = checks.build(pb.CancelRequest, "", {"request_id": request_id})
        return bool(self._answer(self._inference.Cancel, request, self._caller.call(timeout_s)).found)

    def model(self, *, timeout_s: float | None = None) -> ModelInfo:
        """The served model, and the limits of the server."""
        answer = self._answer(self._inference.GetModel, pb.GetModelRequest(), self._caller.call(timeout_s))
        return replies.model_info(answer)

    def budget(self, *, timeout_s: float | None = None) -> Budget:
        """The KV budget and the queue now."""
        answer = self._answer(self._budget.GetBudget, budget_pb2.GetBudgetRequest(), self._caller.call(timeout_s))
        return replies.budget(answer.budget)

    def watch_budget(self, min_interval_s: float = 1.0) -> Iterator[Budget]:
        """The budget now and at each change, until the generator is closed or the server stops."""
        request = checks.build(budget_pb2.WatchBudgetRequest, "", {"min_interval_s": min_interval_s})
        call = self._caller.call()
        try:
            rpc = self._budget.WatchBudget(request, metadata=call.metadata)
        except ValueError as error:  # what gRPC raises for a closed channel
            raise ClientStateError.of(str(error)) from None
        try:
            for message in rpc:
                yield replies.budget(message.budget)
        except grpc.RpcError as failed:
            raise call.error(failed, answered=True) from None
        finally:
            rpc.cancel()

    def health(self, service: str = "readiness", *, timeout_s: float | None = None) -> bool:
        """Whether the server says SERVING for `service`: `liveness` or `readiness`."""
        request = checks.build(health_pb2.HealthCheckRequest, "", {"service": service})
        answer = self._answer(self._health.Check, request, self._caller.call(timeout_s))
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until the server takes work. Raises DeadlineError, which is a TimeoutError."""
        deadline = time.monotonic() + checks.number("timeout_s", timeout_s, at_least=0)
        why = NOT_READY
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                if self.health(timeout_s=min(left_s, 1.0)):
                    return
                why = NOT_READY
            except (UnavailableError, DeadlineError) as error:
                # Not up yet; what follows is the same wait as for a server that still loads.
                why = error.message
            time.sleep(READY_POLL_S)
        raise DeadlineError.of_wait(self.target, timeout_s, why)

    def _answer(self, method: Any, request: Any, call: Call) -> Any:
        while True:
            try:
                return method(request, timeout=call.timeout_s(), metadata=call.metadata)
            except grpc.RpcError as failed:
                error = call.error(failed)
            except ValueError as closed:  # what gRPC raises for a closed channel
                raise ClientStateError.of(str(closed)) from None
            time.sleep(call.pause_s(error))
