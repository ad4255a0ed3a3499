"""The Python client: `Client` for threads, `AsyncClient` for asyncio. Needs the stubs and gRPC only."""

from weir.client.aio import AsyncClient, AsyncTokenStream
from weir.client.errors import (
    BudgetExhaustedError,
    DeadlineError,
    EngineFailedError,
    InvalidRequestError,
    MessageTooLargeError,
    RequestCancelledError,
    ServerError,
    UnavailableError,
    Violation,
    WeirError,
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
    "Completion",
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
    "Timings",
    "TokenLogprob",
    "TokenStream",
    "UnavailableError",
    "Usage",
    "Violation",
    "WeirError",
]
