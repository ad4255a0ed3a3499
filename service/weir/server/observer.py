"""The seam between the server and telemetry: what is told, and when. Calls must not block, and must not raise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from weir.engine.records import EngineInfo, StepRecord
from weir.engine.request import Event, GenerateRequest
from weir.server.engine_api import Engine


class RequestObserver(Protocol):
    """Follows one Generate or Complete call. `finished` is called exactly once, last, on every path."""

    def submitted(self, request: GenerateRequest) -> None:
        """The call is a valid request, tokenised, and about to be queued."""

    def queued(self, engine_id: str) -> None:
        """The engine has taken it, under this id: unlike the caller's where another live request is called the same."""

    def event(self, event: Event) -> None:
        """The engine sent an event of this request."""

    def finished(self, code: str, error: BaseException | None) -> None:
        """The call ended with this gRPC status: `OK`, `CANCELLED`, `RESOURCE_EXHAUSTED`, ..., and the error if any."""


class Output(Protocol):
    """Output that waits for its readers."""

    @property
    def bytes(self) -> int:
        """What all calls hold now."""


class Credentials(Protocol):
    """The files that say who may connect."""

    @property
    def tokens_unusable(self) -> bool:
        """Whether the token file holds no token, or cannot be read."""

    @property
    def certificate_ends_unix_s(self) -> float:
        """When the first certificate ends; 0 without TLS."""


class Observer(Protocol):
    """Sees a server's life. `weir.telemetry.telemetry.Telemetry` is one."""

    async def start(self) -> int:
        """The engine process runs; nothing is served yet. The metrics port, 0 for none."""

    def output(self, held: Output) -> None:
        """Where to read how much output waits for its readers."""

    def credentials(self, held: Credentials) -> None:
        """Where to read whether the server's files of tokens and certificates are good."""

    def watch(self, engine: Engine, info: EngineInfo, token_bytes: Sequence[bytes]) -> None:
        """The model is loaded."""

    def step(self, record: StepRecord) -> None:
        """A scheduling step ended."""

    def request_started(self, method: str, metadata: Mapping[str, str]) -> RequestObserver:
        """A call arrived. `method` is `weir.v1.InferenceService/Generate`; metadata keys are lower case."""

    async def stop(self) -> None:
        """Nothing more will come."""


class NoObserver:
    """Observes nothing."""

    async def start(self) -> int:
        """No port."""
        return 0

    def output(self, held: Output) -> None:
        """Ignored."""

    def credentials(self, held: Credentials) -> None:
        """Ignored."""

    def watch(self, engine: Engine, info: EngineInfo, token_bytes: Sequence[bytes]) -> None:
        """Ignored."""

    def step(self, record: StepRecord) -> None:
        """Ignored."""

    def request_started(self, method: str, metadata: Mapping[str, str]) -> RequestObserver:
        """The observer of no request."""
        return _NoRequestObserver()

    async def stop(self) -> None:
        """Nothing to end."""


class _NoRequestObserver:
    def submitted(self, request: GenerateRequest) -> None:
        pass

    def queued(self, engine_id: str) -> None:
        pass

    def event(self, event: Event) -> None:
        pass

    def finished(self, code: str, error: BaseException | None) -> None:
        pass
