"""A fake engine that is ahead of its readers: the test pushes events, and the engine's own streams keep them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from weir.engine.messages import Cancel, ToEngine
from weir.engine.process import RequestStream
from weir.engine.queue_gate import Ticket
from weir.engine.request import (
    Admitted,
    ChoiceFinish,
    Delta,
    Done,
    Event,
    FinishReason,
    GenerateRequest,
    Timings,
    TokenLogprobs,
    Usage,
)
from weir.engine.unread import Meter

from tests.contract.fake_engine import INFO, FakeEngine


class Inbox:
    """What the server sent to the engine."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []

    def put(self, message: ToEngine) -> None:
        if isinstance(message, Cancel):
            self.cancelled.append(message.request_id)


class PushingEngine(FakeEngine):
    """`tell` hands an event to the stream of its request, as the engine process does after a step."""

    def __init__(self) -> None:
        super().__init__(replace(INFO, max_model_len=100_000, kv_total_tokens=400_000))
        self._to_send = Inbox()
        self.readers: dict[str, RequestStream] = {}

    @property
    def cancelled(self) -> list[str]:
        return self._to_send.cancelled

    def submit(self, request: GenerateRequest, ticket: Ticket, meter: Meter) -> RequestStream:  # type: ignore[override]
        stream = RequestStream(self, request.request_id, ticket, meter)  # type: ignore[arg-type]
        self.submitted.append(request)
        self.readers[request.request_id] = stream
        return stream

    def tell(self, *events: Event) -> None:
        for event in events:
            self.readers[event.request_id]._push(event)

    async def has(self, request_id: str) -> None:
        """Wait for a request to be submitted."""
        async with asyncio.timeout(5):
            while request_id not in self.readers:  # noqa: ASYNC110 - no event tells of it
                await asyncio.sleep(0.005)


def admitted(request_id: str) -> Admitted:
    return Admitted(request_id, prompt_tokens=3, cached_tokens=0, queue_s=0.0, max_tokens=1000)


def delta(request_id: str, token: int, choice: int = 0, alternatives: int | None = None, last: bool = False) -> Delta:
    """One token; the text spells its number."""
    top = tuple((other, -0.5) for other in range(alternatives or 0))
    return Delta(
        request_id,
        choice,
        (token,),
        f"<{token}>",
        () if alternatives is None else (TokenLogprobs(token, -0.25, top),),
        finish=ChoiceFinish(FinishReason.LENGTH) if last else None,
    )


def done(request_id: str) -> Done:
    return Done(request_id, Usage(3, 1000, 0), Timings(0.0, 0.1, 0.2, 0.3))
