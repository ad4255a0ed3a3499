"""From a failed gRPC call to the typed error, for what no server of ours says: proxies, lost connections, deadlines."""

from __future__ import annotations

from dataclasses import dataclass

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2
from google.rpc.status_pb2 import Status
from weir.client import (
    BudgetExhaustedError,
    ConnectionLostError,
    DeadlineError,
    MessageTooLargeError,
    RequestCancelledError,
    ServerError,
    SlowReaderError,
    UnauthenticatedError,
    UnavailableError,
)
from weir.client.failures import Sent, from_call


@dataclass
class Ended:
    """A call as gRPC reports it."""

    status: grpc.StatusCode
    words: str | None = ""
    trailers: tuple[tuple[str, str | bytes], ...] = ()

    def code(self) -> grpc.StatusCode:
        return self.status

    def details(self) -> str | None:
        return self.words

    def trailing_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self.trailers


def with_reason(reason: str, **metadata: str) -> tuple[tuple[str, str | bytes], ...]:
    info = AnyMessage()
    info.Pack(error_details_pb2.ErrorInfo(reason=reason, metadata=metadata))
    return (("grpc-status-details-bin", Status(details=[info]).SerializeToString()),)


@pytest.mark.parametrize("words", ["Stream removed (Deadline Exceeded)", "Deadline Exceeded", None])
def test_a_timeout_is_told_as_one_whatever_the_transport_calls_it(words: str | None) -> None:
    error = from_call(Ended(grpc.StatusCode.DEADLINE_EXCEEDED, words), Sent("r1", timeout_s=1.5))
    assert isinstance(error, DeadlineError)
    assert isinstance(error, TimeoutError)
    assert error.message == "the timeout of 1.5 s passed"
    assert error.request_id == "r1"


def test_a_deadline_that_somebody_else_set_is_told_without_a_number() -> None:
    assert from_call(Ended(grpc.StatusCode.DEADLINE_EXCEEDED)).message == "the deadline passed"


def test_the_servers_own_words_about_a_deadline_stay() -> None:
    failed = Ended(grpc.StatusCode.DEADLINE_EXCEEDED, "would wait 9 s", with_reason("DEADLINE_IN_QUEUE"))
    error = from_call(failed, Sent("r1", timeout_s=1.0))
    assert error.message == "would wait 9 s"
    assert isinstance(error, DeadlineError)
    assert error.in_queue


def test_the_id_of_the_trailers_wins_over_the_one_that_was_sent() -> None:
    failed = Ended(grpc.StatusCode.UNKNOWN, "", (("x-request-id", "sent-2"),))
    assert from_call(failed, Sent("sent")).request_id == "sent-2"
    assert from_call(Ended(grpc.StatusCode.UNKNOWN), Sent("sent")).request_id == "sent"


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED])
def test_a_token_that_is_missing_is_told_apart_from_one_that_is_refused(code: grpc.StatusCode) -> None:
    none = from_call(Ended(code, "who are you"), Sent(with_token=False))
    wrong = from_call(Ended(code, "token expired"), Sent(with_token=True))
    assert isinstance(none, UnauthenticatedError)
    assert isinstance(wrong, UnauthenticatedError)
    assert none.message == "a token is needed, and none was given (who are you)"
    assert wrong.message == "the token was refused (token expired)"


def test_a_token_of_another_tenant_is_told_in_the_servers_words() -> None:
    said = "the token is not for the tenant that x-tenant-id names"
    refused = from_call(
        Ended(grpc.StatusCode.PERMISSION_DENIED, said, with_reason("TENANT_REFUSED")), Sent(with_token=True)
    )
    assert isinstance(refused, UnauthenticatedError)
    assert (refused.message, refused.reason) == (said, "TENANT_REFUSED")


def test_a_connection_lost_in_the_middle_is_no_server_that_was_never_there() -> None:
    failed = Ended(grpc.StatusCode.UNAVAILABLE, "Socket closed")
    assert from_call(failed).message == "Socket closed"
    lost = from_call(failed, answered=True)
    assert isinstance(lost, ConnectionLostError)
    assert isinstance(lost, UnavailableError)
    assert lost.message == "the connection was lost before the answer was complete: Socket closed"


@pytest.mark.parametrize(
    ("failed", "kind"),
    [
        (Ended(grpc.StatusCode.RESOURCE_EXHAUSTED, "", with_reason("KV_BUDGET_EXHAUSTED")), BudgetExhaustedError),
        (Ended(grpc.StatusCode.RESOURCE_EXHAUSTED, "Sent message larger than max (5 vs. 4)"), MessageTooLargeError),
        (Ended(grpc.StatusCode.RESOURCE_EXHAUSTED, "", with_reason("ANSWER_TOO_LARGE")), MessageTooLargeError),
        (Ended(grpc.StatusCode.RESOURCE_EXHAUSTED, "", with_reason("CLIENT_TOO_SLOW")), SlowReaderError),
        # What a gateway says of its own limits is not about our queue.
        (Ended(grpc.StatusCode.RESOURCE_EXHAUSTED, "rate limited"), ServerError),
        (Ended(grpc.StatusCode.RESOURCE_EXHAUSTED, "", with_reason("RATE_LIMITED")), ServerError),
        (Ended(grpc.StatusCode.CANCELLED), RequestCancelledError),
        (Ended(grpc.StatusCode.DATA_LOSS), ServerError),
    ],
)
def test_the_kind_follows_the_code_and_the_reason(failed: Ended, kind: type[Exception]) -> None:
    assert type(from_call(failed)) is kind


def test_details_that_are_no_details_are_left_out() -> None:
    trailers = (
        ("grpc-status-details-bin", b"\xff\xff"),
        ("grpc-retry-pushback-ms", "soon"),
        ("x-request-id", b"\x00"),
    )
    error = from_call(Ended(grpc.StatusCode.UNAVAILABLE, None, trailers))
    assert (error.message, error.reason, error.retry_after_s, error.request_id) == ("", None, None, None)


@pytest.mark.parametrize("value", ["", "many", "nan", "inf"])
def test_a_number_that_is_none_counts_as_zero(value: str) -> None:
    trailers = with_reason("KV_BUDGET_EXHAUSTED", needed_tokens=value, free_tokens="7")
    error = from_call(Ended(grpc.StatusCode.RESOURCE_EXHAUSTED, "", trailers))
    assert isinstance(error, BudgetExhaustedError)
    assert (error.needed_tokens, error.free_tokens) == (0, 7)
