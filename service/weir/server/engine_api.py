"""What the server asks of an engine. `weir.engine.process.EngineClient` is one; tests put a scripted one here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from weir.engine.errors import EngineFailedError
from weir.engine.queue_gate import Ticket
from weir.engine.records import BudgetSnapshot, EngineInfo, LoadStage, StepRecord
from weir.engine.request import Event, GenerateRequest
from weir.engine.unread import Meter


class EventStream(Protocol):
    """The events of one submitted request: Admitted, Delta, Preempted, and Done at the end."""

    @property
    def request_id(self) -> str:
        """What the engine calls the request, in its events and step records."""

    def __aiter__(self) -> AsyncIterator[Event]:
        """Iterate once, to Done. Raises the RequestError that a request failed with."""

    def close(self) -> None:
        """Cancel the request unless it is finished. Idempotent, and never waits."""


class Progress(Protocol):
    """The engine's last heartbeat."""

    @property
    def busy(self) -> bool:
        """Whether a step is being computed, or should be."""

    @property
    def step_age_s(self) -> float:
        """Seconds since the last step ended, or since work arrived."""


class Engine(Protocol):
    """The engine as seen from the event loop: nothing here blocks."""

    on_step: list[Callable[[StepRecord], None]]
    on_loading: list[Callable[[LoadStage], None]]
    """Told how far loading is, until the engine is ready."""
    failed: asyncio.Future[EngineFailedError]
    """Done when the engine process has died."""

    def start(self) -> None:
        """Spawn the engine process."""

    async def ready(self) -> EngineInfo:
        """Wait until the model is loaded. Raises EngineFailedError."""

    @property
    def info(self) -> EngineInfo:
        """What is served; known once ready."""

    def check(self, request: GenerateRequest) -> None:
        """Raise InvalidRequestError for a request, yet without its prompt, that no prompt could make possible.

        Asked before `reserve`, so that what can never run takes no room from what can.
        """

    def reserve(self, tokens_upper_bound: int, tenant: str) -> Ticket:
        """Take room in the queue before a prompt is tokenised, so that a burst cannot overshoot the bound.

        Raises QueueFullError or UnavailableError.
        """

    def validate(self, request: GenerateRequest) -> None:
        """Raise InvalidRequestError for a request that can never be served."""

    def submit(self, request: GenerateRequest, ticket: Ticket, meter: Meter) -> EventStream:
        """Queue a valid request; the ticket stays the caller's to release. Raises EngineFailedError.

        `meter` counts what the engine has made and the reader of the stream has not done with.
        """

    def snapshot(self) -> BudgetSnapshot:
        """The KV budget and the queue now."""

    def progress(self) -> Progress:
        """The last heartbeat; answered from memory."""

    async def flush_prefix_cache(self) -> int:
        """Forget unused prefixes; the number of KV blocks freed."""

    async def stop(self, timeout_s: float) -> None:
        """End the engine process, by force after `timeout_s`."""
