"""What every RPC shares: messages that do not parse, exceptions to statuses, and the load report at the end."""

from __future__ import annotations

import asyncio
import inspect
import logging
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from weir.config import ServerSettings
from weir.engine.errors import AnswerTooLargeError, InvalidRequestError, RequestError, Violation
from weir.server.errors import StatusError, status_of
from weir.server.load_report import LoadReporter
from weir.server.messages import MessageParser
from weir.server.metadata import REQUEST_ID_KEY, given_id, text_metadata
from weir.server.observer import Observer
from weir.server.sending import begin_stream, write_in_time

# Probes and watches are no load.
_INFERENCE_PREFIX = "/weir.v1.InferenceService/"
_OBSERVED = (f"{_INFERENCE_PREFIX}Generate", f"{_INFERENCE_PREFIX}Complete")

_log = logging.getLogger(__name__)


class RpcInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Wraps the handler of every method, once. Servicers raise; only this file aborts."""

    def __init__(self, load: LoadReporter, parser: MessageParser, observer: Observer, settings: ServerSettings) -> None:
        self._load = load
        self._parser = parser
        self._observer = observer
        self._settings = settings
        self._wrapped: dict[str, grpc.RpcMethodHandler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        """The wrapped handler; None for a method that does not exist, which gRPC answers with UNIMPLEMENTED."""
        wrapped = self._wrapped.get(details.method)
        if wrapped is None:
            handler = await continuation(details)
            if handler is None:
                return None
            wrapped = self._wrapped[details.method] = self._wrap(details.method, handler)
        return wrapped

    def _wrap(self, name: str, handler: grpc.RpcMethodHandler) -> grpc.RpcMethodHandler:
        kind = ("stream" if handler.request_streaming else "unary") + "_"
        kind += "stream" if handler.response_streaming else "unary"
        method = getattr(handler, kind)
        run = self._stream_to_end if handler.response_streaming else self._answer
        is_work = name.startswith(_INFERENCE_PREFIX)
        deserialize, is_stream = handler.request_deserializer, handler.request_streaming

        async def call(requests: Any, context: grpc.aio.ServicerContext) -> Any:
            _name(context, is_work)
            if is_work:
                self._load.count_request()
            try:
                request = requests
                if not is_stream:
                    request = await self._request(name, deserialize, context)
                response = await run(method, request, context)
            except grpc.aio.AbortError:
                raise
            except grpc.aio.BaseError as error:
                # The call ended while something was sent or received: by its client, its deadline or its connection.
                raise asyncio.CancelledError from error
            except Exception as error:
                await self._abort(context, error)
                raise
            context.set_trailing_metadata((*(context.trailing_metadata() or ()), self._load.trailer()))
            return response

        # On the wire, a call with one request is a stream of one. Taken as a stream, its message is read here, where
        # there is a limit on how long that takes, and parsed where there is one on its parts. A true stream of requests
        # is parsed message by message inside the handler.
        make = getattr(grpc, f"stream_{kind.partition('_')[2]}_rpc_method_handler")
        return make(
            call,
            request_deserializer=deserialize if is_stream else None,
            response_serializer=handler.response_serializer,
        )

    async def _request(self, name: str, deserialize: Callable[[bytes], Any], context: grpc.aio.ServicerContext) -> Any:
        try:
            return await self._parser.parse(name, deserialize, await self._received(context))
        except (RequestError, StatusError) as error:
            if name in _OBSERVED:
                # It never reaches the servicer, which observes the calls that do.
                call = self._observer.request_started(name.removeprefix("/"), text_metadata(context))
                call.finished(status_of(error).code.name, error)
            raise

    async def _received(self, context: grpc.aio.ServicerContext) -> bytes:
        """The one request message, as it was sent.

        Raises InvalidRequestError when there is none, and StatusError when it does not come in time.
        """
        timeout_s = self._settings.receive_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                request = await context.read()
        except TimeoutError:
            message = f"the request message did not come within {timeout_s:g} s"
            raise StatusError(grpc.StatusCode.DEADLINE_EXCEEDED, message, reason="REQUEST_INCOMPLETE") from None
        if request is grpc.aio.EOF:
            raise InvalidRequestError((Violation("request", "the call has no message"),))
        data: bytes = request
        return data

    async def _answer(self, method: Callable[..., Any], request: Any, context: grpc.aio.ServicerContext) -> Any:
        response = await method(request, context)
        if (size := response.ByteSize()) > self._settings.max_message_bytes:
            raise AnswerTooLargeError(size, self._settings.max_message_bytes)
        return response

    async def _stream_to_end(self, method: Callable[..., Any], request: Any, context: grpc.aio.ServicerContext) -> None:
        """Run a streaming method of either style: a coroutine that writes, or an async generator."""
        running = method(request, context)
        if not inspect.isasyncgen(running):
            await running
            return
        try:
            await begin_stream(context)
            async for message in running:
                await write_in_time(context, message, self._settings.unread_timeout_s)
        finally:
            await running.aclose()

    async def _abort(self, context: grpc.aio.ServicerContext, error: Exception) -> None:
        status = status_of(error)
        if status.code is grpc.StatusCode.INTERNAL:
            _log.error("a call failed by an internal error", exc_info=error)
        trailers = (*(context.trailing_metadata() or ()), *status.trailers, self._load.trailer())
        try:
            await context.abort(status.code, status.message, trailers)
        except grpc.aio.AbortError:
            raise
        except grpc.aio.BaseError as over:
            raise asyncio.CancelledError from over


def _name(context: grpc.aio.ServicerContext, always: bool) -> None:
    """Let the trailers say which call this was, whatever becomes of it."""
    request_id = given_id(context) or (uuid.uuid4().hex if always else "")
    if request_id:
        context.set_trailing_metadata(((REQUEST_ID_KEY, request_id),))
