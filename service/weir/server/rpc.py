"""What every RPC shares: messages that do not parse, exceptions to statuses, and the load report at the end."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from weir.engine.errors import RequestError
from weir.server.errors import status_of
from weir.server.load_report import LoadReporter
from weir.server.messages import MessageParser
from weir.server.metadata import REQUEST_ID_KEY, text_metadata
from weir.server.observer import Observer

# Probes and watches are no load.
_INFERENCE_PREFIX = "/weir.v1.InferenceService/"
_OBSERVED = (f"{_INFERENCE_PREFIX}Generate", f"{_INFERENCE_PREFIX}Complete")

_log = logging.getLogger(__name__)


class RpcInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Wraps the handler of every method, once. Servicers raise; only this file aborts."""

    def __init__(self, load: LoadReporter, parser: MessageParser, observer: Observer) -> None:
        self._load = load
        self._parser = parser
        self._observer = observer
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
        run = _stream_to_end if handler.response_streaming else _answer
        is_work = name.startswith(_INFERENCE_PREFIX)
        deserialize = handler.request_deserializer
        # A stream of requests is parsed message by message inside the handler.
        is_stream = handler.request_streaming

        async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
            _echo_request_id(context)
            if is_work:
                self._load.count_request()
            try:
                if not is_stream:
                    request = await self._parsed(name, deserialize, request, context)
                response = await run(method, request, context)
            except grpc.aio.AbortError:
                raise
            except Exception as error:
                await self._abort(context, error)
                raise
            context.set_trailing_metadata((*(context.trailing_metadata() or ()), self._load.trailer()))
            return response

        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(
            call,
            request_deserializer=deserialize if is_stream else None,
            response_serializer=handler.response_serializer,
        )

    async def _parsed(
        self, name: str, deserialize: Callable[[bytes], Any], data: bytes, context: grpc.aio.ServicerContext
    ) -> Any:
        try:
            return await self._parser.parse(name, deserialize, data)
        except RequestError as error:
            if name in _OBSERVED:
                # It never reaches the servicer, which observes the calls that do.
                call = self._observer.request_started(name.removeprefix("/"), text_metadata(context))
                call.finished(status_of(error).code.name, error)
            raise

    async def _abort(self, context: grpc.aio.ServicerContext, error: Exception) -> None:
        status = status_of(error)
        if status.code is grpc.StatusCode.INTERNAL:
            _log.error("a call failed by an internal error", exc_info=error)
        trailers = (*(context.trailing_metadata() or ()), *status.trailers, self._load.trailer())
        await context.abort(status.code, status.message, trailers)


async def _answer(method: Callable[..., Any], request: Any, context: grpc.aio.ServicerContext) -> Any:
    return await method(request, context)


async def _stream_to_end(method: Callable[..., Any], request: Any, context: grpc.aio.ServicerContext) -> None:
    """Run a streaming method of either style: a coroutine that writes, or an async generator."""
    running = method(request, context)
    if inspect.isasyncgen(running):
        try:
            async for message in running:
                await context.write(message)
        finally:
            await running.aclose()
    else:
        await running


def _echo_request_id(context: grpc.aio.ServicerContext) -> None:
    given = [(key, value) for key, value in context.invocation_metadata() or () if key == REQUEST_ID_KEY]
    if given:
        context.set_trailing_metadata(tuple(given[:1]))
