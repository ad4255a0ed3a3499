"""Every row of docs/limits.md about a request: served at its bound, and one past it refused before it costs anything.

The model here takes 64 tokens, and the other limits have their defaults; the requests are bytes, so that none of them
depends on what a client library lets pass.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from pydantic.fields import FieldInfo
from weir.client import AsyncClient, InvalidRequestError, UnavailableError
from weir.config import Settings, public_name
from weir.engine.errors import QueueFullError
from weir.server.app import App
from weir.server.limits import OTHER_BYTES, REST_BYTES, MessageLimits
from weir.server.prompts import MAX_TOKENIZE_CALLS
from weir.v1 import inference_pb2 as pb

from tests.contract.conftest import SETTINGS
from tests.contract.decode import eventually, refusal
from tests.contract.fake_engine import FakeEngine
from tests.contract.fake_tokenizer import ByteTokenizer

PAGE = (Path(__file__).parents[2] / "docs" / "limits.md").read_text()
LIMITS = MessageLimits.of(SETTINGS, max_model_len=64)
SERVICE = "/weir.v1.InferenceService/"


@dataclass(frozen=True)
class Row:
    """A bound of the table: `make(n)` is a request of size n, which may be `least` to `most`."""

    name: str
    field: str
    most: int
    make: Callable[[int], bytes]
    method: str = "Complete"
    least: int | None = None


def field(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def varint(value: int) -> bytes:
    low, rest = value & 127, value >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


def padded(size: int, unit: bytes = b"\x98\x06\x01") -> bytes:
    """An unknown field (99) as often as fits, and a longer number in it to fill up."""
    rest = size % 3
    return unit * (size // 3 - 1) + b"\x98\x06" + b"\x81" * rest + b"\x01"


def complete(**fields: object) -> bytes:
    given = {"prompt": pb.Prompt(text="x"), "params": pb.SamplingParams(max_tokens=1), **fields}
    return pb.CompleteRequest(**given).SerializeToString()  # type: ignore[arg-type]


def params(**fields: object) -> bytes:
    return complete(params=pb.SamplingParams(**{"max_tokens": 1, **fields}))  # type: ignore[arg-type]


def tokenize(prompt: bytes) -> bytes:
    return field(2, prompt)


def _number(name: str) -> Callable[[int], bytes]:
    return lambda value: params(**{name: value})


def turns(count: int) -> bytes:
    return field(3, field(1, b"") * count)


PROMPTS = [
    Row("bytes of a text", "prompt.text", 1024, lambda n: tokenize(field(1, b"x" * n)), "Tokenize"),
    Row(
        "bytes of a text",
        "prompt.text",
        1024,
        lambda n: tokenize(field(1, "é".encode() * (n // 2) + b"x" * (n % 2))),
        "Tokenize",
    ),
    Row(
        "bytes of a conversation",
        "prompt.chat",
        1024,
        lambda n: tokenize(field(3, field(1, field(1, b"r" * (n - 6))))),
        "Tokenize",
    ),
    Row(
        "bytes of a conversation",
        "prompt.chat",
        1024,
        lambda n: tokenize(field(3, field(1, b"") * 30 + field(1, field(2, b"c" * (n - 66))))),
        "Tokenize",
    ),
    Row("turns of a conversation", "prompt.chat", 64, lambda n: tokenize(turns(n)), "Tokenize"),
    Row("token ids", "prompt", 64, lambda n: field(3, field(2, field(1, b"\1" * n))) + field(4, b"\x08\x01")),
    Row("token ids", "prompt", 64, lambda n: tokenize(field(2, field(1, b"\1" * n))), "Tokenize"),
    Row(
        "bytes of the parameters",
        "params",
        LIMITS.params_bytes,
        lambda n: field(3, field(1, b"x")) + field(4, b"\x08\x01" + padded(n - 2)),
    ),
    Row("bytes of the rest", "request", REST_BYTES, lambda n: complete() + padded(n - len(complete()) + 1 + 2)),
]
FIELDS = [
    Row("`n`", "n", 8, lambda n: complete(n=n), least=1),
    Row("`priority`", "priority", 9, lambda n: complete(priority=n), least=0),
    Row("`cache_salt`", "cache_salt", 1024, lambda n: complete(cache_salt="s" * n)),
    Row("`request_id`", "request_id", 128, lambda n: complete(request_id="r" * n)),
    Row("`max_tokens`", "params.max_tokens", 64, lambda n: params(max_tokens=n), least=1),
    Row("`min_tokens`", "params.min_tokens", 5, lambda n: params(min_tokens=n, max_tokens=5), least=0),
    Row("`stop`", "params.stop", 16, lambda n: params(stop=["s"] * n)),
    Row("`stop`, characters of one", "params.stop", 256, lambda n: params(stop=["世" * n]), least=1),
    Row("`stop_token_ids`", "params.stop_token_ids", 16, lambda n: params(stop_token_ids=[1] * n)),
    Row("`logit_bias`, the values", "params.logit_bias", 100, lambda n: params(logit_bias={1: n}), least=-100),
    Row("`logprobs`, `prompt_logprobs`", "params.logprobs", 20, lambda n: params(logprobs=n), least=0),
    Row("`logprobs`, `prompt_logprobs`", "params.prompt_logprobs", 20, lambda n: params(prompt_logprobs=n), least=0),
    Row("`temperature`", "params.temperature", 100, lambda n: params(temperature=n), least=0),
    Row("`top_p`, `min_p`", "params.top_p", 1, lambda n: params(top_p=n), least=1),
    Row("`top_p`, `min_p`", "params.min_p", 1, lambda n: params(min_p=n), least=0),
    Row("`repetition_penalty`", "params.repetition_penalty", 100, lambda n: params(repetition_penalty=n), least=1),
    *(
        Row("`presence_penalty`, `frequency_penalty`", f"params.{name}", 2, _number(name), least=-2)
        for name in ("presence_penalty", "frequency_penalty")
    ),
]
ROWS = [*PROMPTS, *FIELDS]


async def violations(channel: grpc.aio.Channel, row: Row, size: int) -> list[str]:
    """The wrong fields of a request of this size; none when it is served."""
    call = channel.unary_unary(SERVICE + row.method)(row.make(size))
    if await call.code() is grpc.StatusCode.OK:
        return []
    refused = await refusal(call)
    assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.trailers["grpc-retry-pushback-ms"] == "-1"
    return [violation.field for violation in refused.details["BadRequest"].field_violations]


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.name} {row.field} {i}" for i, row in enumerate(ROWS)])
@pytest.mark.usefixtures("app")
async def test_at_its_bound_it_is_served_and_one_past_it_refused(
    channel: grpc.aio.Channel, engine: FakeEngine, tokenizer: ByteTokenizer, row: Row
) -> None:
    assert await violations(channel, row, row.most) == []
    assert row.least is None or await violations(channel, row, row.least) == []
    served = (len(tokenizer.prompts), len(engine.reservations))
    assert await violations(channel, row, row.most + 1) == [row.field]
    assert row.least is None or await violations(channel, row, row.least - 1) == [row.field]
    # Neither a place in the queue nor the tokenizer was taken for it.
    assert (len(tokenizer.prompts), len(engine.reservations)) == served
    assert (engine.gate.requests, engine.gate.tokens, engine.streams) == (0, 0, set())


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.name} {row.field} {i}" for i, row in enumerate(ROWS)])
def test_each_bound_is_in_the_table(row: Row) -> None:
    assert f"| {row.name} |" in PAGE


@pytest.mark.usefixtures("app")
async def test_entries_of_logit_bias_are_counted_before_they_are_looked_at(channel: grpc.aio.Channel) -> None:
    # The vocabulary here has 256 ids, so that at the bound it is the ids that are wrong.
    for entries, description in ((1024, "every id must be in 0..255"), (1025, "at most 1024 entries, got 1025")):
        call = channel.unary_unary(SERVICE + "Complete")(params(logit_bias=dict.fromkeys(range(entries), 1.0)))
        [violation] = (await refusal(call)).details["BadRequest"].field_violations
        assert (violation.field, violation.description) == ("params.logit_bias", description)


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize(
    "method",
    ["weir.v1.InferenceService/GetModel", "weir.v1.BudgetService/GetBudget", "grpc.health.v1.Health/List"],
)
async def test_other_methods_take_four_kibibytes(channel: grpc.aio.Channel, method: str) -> None:
    call = channel.unary_unary(f"/{method}")
    await call(padded(OTHER_BYTES))
    refused = await refusal(call(padded(OTHER_BYTES + 1)))
    assert [v.field for v in refused.details["BadRequest"].field_violations] == ["request"]


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize(
    ("message", "named"),
    [
        (complete() + complete(), "prompt"),
        (field(3, field(1, b"x") + field(1, b"y")), "prompt.text"),
        (field(3, turns(1) + turns(60)), "prompt.chat"),
        (complete() + field(4, b"\x08\x01"), "params"),
    ],
)
async def test_what_a_request_has_once_cannot_be_sent_twice_to_pass_a_bound(
    channel: grpc.aio.Channel, message: bytes, named: str
) -> None:
    refused = await refusal(channel.unary_unary(SERVICE + "Complete")(message))
    assert [v.field for v in refused.details["BadRequest"].field_violations] == [named]


@pytest.mark.usefixtures("app")
async def test_a_request_that_can_never_run_is_invalid_and_not_a_victim_of_the_queue(
    channel: grpc.aio.Channel, engine: FakeEngine
) -> None:
    engine.reserve_error = QueueFullError(1, 1, 1, 1, 1.0)
    for message, named in ((complete(n=2**31 - 1), "n"), (params(max_tokens=2**31 - 1), "params.max_tokens")):
        refused = await refusal(channel.unary_unary(SERVICE + "Complete")(message))
        assert [v.field for v in refused.details["BadRequest"].field_violations] == [named]


@pytest.mark.usefixtures("app")
async def test_text_of_too_many_tokens_is_refused_when_it_is_tokenised(client: AsyncClient) -> None:
    assert (await client.complete("x" * 64, max_tokens=1)).text == "x"
    with pytest.raises(InvalidRequestError, match="prompt: has 65 tokens; the model takes 64"):
        await client.complete("x" * 65, max_tokens=1)
    # Counting them is fine.
    assert await client.tokenize("x" * 65) == [120] * 65


@pytest.mark.usefixtures("app")
async def test_so_many_tokenize_calls_wait_and_no_more(client: AsyncClient, tokenizer: ByteTokenizer) -> None:
    tokenizer.gate.clear()
    waiting = [asyncio.create_task(client.tokenize("x")) for _ in range(MAX_TOKENIZE_CALLS)]
    await eventually(lambda: len(tokenizer.prompts) == MAX_TOKENIZE_CALLS)
    with pytest.raises(UnavailableError) as refused:
        await client.tokenize("x")
    assert (refused.value.reason, refused.value.retry_after_s) == ("TOKENIZER_BUSY", 1.0)
    tokenizer.gate.set()
    assert await asyncio.gather(*waiting) == [[120]] * MAX_TOKENIZE_CALLS
    assert await client.tokenize("x") == [120]


async def test_a_large_request_while_the_model_loads_is_told_so(loading: App, channel: grpc.aio.Channel) -> None:
    refused = await refusal(channel.unary_unary(SERVICE + "Complete")(complete(prompt=pb.Prompt(text="x" * 100_000))))
    assert refused.details["ErrorInfo"].reason == "MODEL_LOADING"


def test_every_default_in_the_table_is_the_settings() -> None:
    defaults = {public_name(name): info.default for _, name, info in config_fields()}
    named = [
        (flag, default)
        for row in re.findall(r"^\| .* \|$", PAGE, re.M)
        for cells in [[cell.strip() for cell in row.strip("|").split("|")]]
        for flag, default in zip(re.findall(r"`--([\w-]+)`", cells[1]), cells[2].split(", "), strict=False)
        if default
    ]
    assert len(named) > 12
    for flag, default in named:
        expected = defaults[flag.replace("-", "_")]
        assert default in ("16 L" if expected is None else str(expected), *written(expected)), flag


def written(value: object) -> list[str]:
    """As a size, and as a time."""
    if isinstance(value, int):
        return [f"{value >> 20} MiB"]
    return [f"{value:g}", f"{value:g} s", f"{value / 60:g} min"] if isinstance(value, float) else []


def config_fields() -> list[tuple[str, str, FieldInfo]]:
    return [
        (section, name, info)
        for section in Settings.model_fields
        for name, info in type(getattr(Settings(), section)).model_fields.items()
    ]
