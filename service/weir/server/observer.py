"""The seam between the server and telemetry: what is told of a request, and when. Calls must not block or raise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from weir.engine.request import Event, GenerateRequest


class RequestObserver(Protocol):
    """Follows one Generate or Complete call. `finished` is called exactly once, last, on every path."""

    def submitted(self, request: GenerateRequest) -> None:
        """The call is a valid request, tokenised, and about to be queued."""

    def event(self, event: Event) -> None:
        """The engine sent an event of this request."""

    def finished(self, code: str, error: BaseException | None) -> None:
        """The call ended with this gRPC status: `OK`, `CANCELLED`, `RESOURCE_EXHAUSTED`, ..., and the error if any."""


class Observer(Protocol):
    """Makes a RequestObserver for each call."""

    def request_started(self, method: str, metadata: Mapping[str, str]) -> RequestObserver:
        """A call arrived. `method` is `weir.v1.InferenceService/Generate`; metadata keys are lower case."""


class NoObserver:
    """Observes nothing."""

    def request_started(self, method: str, metadata: Mapping[str, str]) -> RequestObserver:
        """The observer of no request."""
        return _NO_REQUEST_OBSERVER


class _NoRequestObserver:
    def submitted(self, request: GenerateRequest) -> None:
        pass

    def event(self, event: Event) -> None:
        pass

    def finished(self, code: str, error: BaseException | None) -> None:
        pass


_NO_REQUEST_OBSERVER = _NoRequestObserver()
