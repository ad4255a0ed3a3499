"""InferenceService: a request in, admitted tokens out, and everything given back however it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc

import weir
from weir.engine.errors import InvalidRequestError, Violation
from weir.engine.request import Admitted, Delta, Event, GenerateRequest
from weir.engine.unread import held_bytes
from weir.server.answer_size import StreamPieces, check_stream, check_unary, stream_pieces
from weir.server.backlog import Backlog, Backlogs
from weir.server.deadline import Deadline
from weir.server.engine_api import Engine
from weir.server.errors import status_of
from weir.server.lifecycle import Lifecycle
from weir.server.live import LiveRequests
from weir.server.metadata import REQUEST_ID_KEY, text_metadata
from weir.server.observer import Observer, RequestObserver
from weir.server.prompts import PromptEncoder
from weir.server.pulse import Pulse
from weir.server.replies import StreamReply, UnaryReply, parts_of
from weir.server.sending import begin_stream
from weir.server.tokens import Callers
from weir.server.translate import (
    AnyRequest,
    api_field_names,
    check_model,
    check_salt,
    check_tenant,
    engine_request,
    reservation_tokens,
    with_prompt,
)
from weir.v1 import inference_pb2 as pb
from weir.v1 import inference_pb2_grpc

SERVICE = "weir.v1.InferenceService"
# A protobuf message takes about a third of the memory of the events that it is made from.
MESSAGES_SAVE = 3

_Generation = tuple[GenerateRequest, AsyncIterator[Event], Backlog]


class InferenceService(inference_pb2_grpc.InferenceServiceServicer):
    """Holds no request state of its own: a live request is a frame of `_generation`, and ends with it."""

    def __init__(
        self,
        engine: Engine,
        prompts: Callable[[], PromptEncoder],
        lifecycle: Lifecycle,
        live: LiveRequests,
        callers: Callers,
        observer: Observer,
        pulse: Pulse,
        backlogs: Backlogs,
        max_message_bytes: int,
    ) -> None:
        self._engine = engine
        self._prompts = prompts
        self._lifecycle = lifecycle
        self._live = live
        self._callers = callers
        self._observer = observer
        self._pulse = pulse
        self._backlogs = backlogs
        self._max_message_bytes = max_message_bytes

    async def Generate(self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext) -> None:
        """Stream tokens as they are made."""
        async with self._generation("Generate", request, context) as (spec, events, backlog):
            reply = StreamReply(spec, self._pieces(spec))
            async for event in events:
                if isinstance(event, Admitted):
                    await begin_stream(context)
                for message in reply.push(event):
                    backlog.write(message)
                    await context.write(message)
                    backlog.written()

    async def Complete(self, request: pb.CompleteRequest, context: grpc.aio.ServicerContext) -> pb.CompleteResponse:
        """Answer once with everything."""
        async with self._generation("Complete", request, context) as (spec, events, backlog):
            reply = UnaryReply(spec, self._max_message_bytes)
            pieces = self._pieces(spec)
            async for event in events:
                for part in parts_of(event, pieces) if isinstance(event, Delta) else (event,):
                    reply.push(part)
                    backlog.add(held_bytes(part) // MESSAGES_SAVE)
                    if part is not event:
                        await asyncio.sleep(0)  # a long prompt's scores take a while to convert
            return reply.message

    async def Tokenize(self, request: pb.TokenizeRequest, context: grpc.aio.ServicerContext) -> pb.TokenizeResponse:
        """Token ids of a prompt."""
        self._lifecycle.check_loaded()
        check_model(request.model, self._engine.info)
        prompts = self._prompts()
        prompts.check(request.prompt)
        return await prompts.tokenize(request.prompt, request.with_bytes)

    async def GetModel(self, request: pb.GetModelRequest, context: grpc.aio.ServicerContext) -> pb.GetModelResponse:
        """The served model and the limits."""
        self._lifecycle.check_loaded()
        info = self._engine.info
        return pb.GetModelResponse(
            name=info.model_name,
            architecture=info.architecture,
            dtype=info.dtype,
            device=info.device,
            kernels=info.kernels,
            vocab_size=info.vocab_size,
            max_model_len=info.max_model_len,
            block_size=info.block_size,
            kv_total_tokens=info.kv_total_tokens,
            kv_bytes_per_token=info.kv_bytes_per_token,
            max_batch_tokens=info.max_batch_tokens,
            max_running=info.max_running,
            default_max_tokens=info.default_max_tokens,
            eos_token_ids=info.eos_token_ids,
            server_version=weir.__version__,
        )

    async def Cancel(self, request: pb.CancelRequest, context: grpc.aio.ServicerContext) -> pb.CancelResponse:
        """Cancel a live request of the caller's tenant."""
        if not request.request_id:
            raise InvalidRequestError((Violation("request_id", "must not be empty"),))
        tenant = self._callers.tenant_of(text_metadata(context))
        return pb.CancelResponse(found=self._live.cancel(request.request_id, tenant))

    def _pieces(self, spec: GenerateRequest) -> StreamPieces:
        return stream_pieces(spec, self._engine.info.vocab_size, self._max_message_bytes)

    @asynccontextmanager
    async def _generation(
        self, method: str, request: AnyRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[_Generation]:
        """Observe a call from its arrival to its end, whatever the end is."""
        deadline = Deadline.of(context)
        metadata = text_metadata(context)
        observer = self._observer.request_started(f"{SERVICE}/{method}", metadata)
        code = "OK"
        failure: BaseException | None = None
        try:
            async with self._submitted(request, metadata, context, deadline, observer) as generation:
                yield generation
        except (asyncio.CancelledError, grpc.aio.BaseError) as error:
            # gRPC ends the call both when the client goes and when the deadline passes: by a cancellation, or by an
            # error of the write that is under way.
            by_deadline = deadline is not None and deadline.explains_an_end_now()
            code, failure = "DEADLINE_EXCEEDED" if by_deadline else "CANCELLED", error
            raise
        except Exception as error:
            code, failure = status_of(error).code.name, error
            raise
        finally:
            observer.finished(code, failure)

    @asynccontextmanager
    async def _submitted(
        self,
        request: AnyRequest,
        metadata: dict[str, str],
        context: grpc.aio.ServicerContext,
        deadline: Deadline | None,
        observer: RequestObserver,
    ) -> AsyncIterator[_Generation]:
        """Check, reserve, tokenise, submit; and give back ticket, stream, id and output on every path."""
        arrival = time.monotonic()
        tenant = self._callers.tenant_of(metadata)
        self._lifecycle.check_ready()
        self._pulse.check()
        self._backlogs.check(context.peer())
        check_tenant(tenant)
        info = self._engine.info
        check_model(request.model, info)
        check_salt(request.cache_salt)
        prompts = self._prompts()
        prompts.check(request.prompt)
        with self._live.open(request.request_id, metadata.get(REQUEST_ID_KEY, ""), tenant) as live:
            context.set_trailing_metadata(((REQUEST_ID_KEY, live.request_id),))
            draft = engine_request(
                request,
                info,
                request_id=live.request_id,
                arrival=arrival,
                deadline=None if deadline is None else deadline.at,
                tenant=tenant,
            )
            with api_field_names():
                self._engine.check(draft)
            is_stream = isinstance(request, pb.GenerateRequest)
            ticket = self._engine.reserve(reservation_tokens(request, info), tenant)
            try:
                with self._backlogs.open(context, live.interrupt if is_stream else None) as backlog:
                    spec = with_prompt(draft, request, await prompts.encode(request.prompt), info)
                    observer.submitted(spec)
                    with api_field_names():
                        self._engine.validate(spec)
                        (check_stream if is_stream else check_unary)(spec, info.vocab_size, self._max_message_bytes)
                        stream = self._engine.submit(spec, ticket, backlog)
                        observer.queued(stream.request_id)
                    try:
                        yield spec, _observed(stream, observer), backlog
                    finally:
                        stream.close()
            finally:
                ticket.release()


async def _observed(events: AsyncIterable[Event], observer: RequestObserver) -> AsyncIterator[Event]:
    async for event in events:
        observer.event(event)
        yield event
