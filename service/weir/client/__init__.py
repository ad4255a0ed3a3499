"""The Python client: `Client` for threads, `AsyncClient` for asyncio. Needs the stubs and gRPC only."""

from weir.client.aio import AsyncClient, AsyncTokenStream
from weir.client.errors import (
    BudgetExhaustedError,
    ClientStateError,
    ConnectionLostError,
    DeadlineError,
    EngineFailedError,
    InvalidRequestError,
    MessageTooLargeError,
    RequestCancelledError,
    ServerError,
    SlowReaderError,
    UnauthenticatedError,
    UnavailableError,
    Violation,
    WeirError,
    WrongTypeError,
)
from weir.client.requests import Message, Options
from weir.client.sync import Client, TokenStream
from weir.client.values import Budget, Choice, Completion, Delta, ModelInfo, Timings, TokenLogprob, Usage

__all__ = [
    "AsyncClient",
    "AsyncTokenStream",
    "Budget",
    "BudgetExhaustedError",
    "Choice",
    "Client",
    "ClientStateError",
    "Completion",
    "ConnectionLostError",
    "DeadlineError",
    "Delta",
    "EngineFailedError",
    "InvalidRequestError",
    "Message",
    "MessageTooLargeError",
    "ModelInfo",
    "Options",
    "RequestCancelledError",
    "ServerError",
    "SlowReaderError",
    "Timings",
    "TokenLogprob",
    "TokenStream",
    "UnauthenticatedError",
    "UnavailableError",
    "Usage",
    "Violation",
    "WeirError",
    "WrongTypeError",
]
