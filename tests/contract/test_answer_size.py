"""An answer that does not fit into a message is refused before it is computed, and every stream message fits."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from weir.client import AsyncClient, InvalidRequestError, MessageTooLargeError
from weir.config import ServerSettings
from weir.engine.errors import InvalidRequestError as Invalid
from weir.engine.request import (
    ChoiceFinish,
    Delta,
    Done,
    FinishReason,
    GenerateRequest,
    SamplingParams,
    Timings,
    TokenLogprobs,
    Usage,
)
from weir.server.answer_size import check_stream, check_unary, scored_token_bytes, stream_pieces
from weir.server.backlog import Backlogs
from weir.server.lifecycle import Lifecycle
from weir.server.load_report import LoadReporter
from weir.server.messages import MessageParser
from weir.server.observer import NoObserver
from weir.server.replies import StreamReply
from weir.server.rpc import RpcInterceptor
from weir.server.watches import Watches
from weir.v1 import inference_pb2 as pb

from tests.contract.decode import refusal
from tests.contract.fake_engine import FakeEngine
from tests.contract.observed_app import observed_app
from tests.contract.pushing_engine import PushingEngine, admitted, delta, done

KIB = 1024
VOCAB = 151_936


def spec(
    n: int = 1, max_tokens: int = 10, prompt: int = 3, logprobs: int | None = None, prompt_logprobs: int | None = None
) -> GenerateRequest:
    params = SamplingParams(max_tokens, logprobs=logprobs, prompt_logprobs=prompt_logprobs)
    return GenerateRequest("r", (1,) * prompt, params, n=n)


def largest_answer(request: GenerateRequest) -> pb.CompleteResponse:
    """The answer with the longest ids there are, as protobuf itself encodes it; without text."""
    last = VOCAB - 1

    def scored(alternatives: int | None) -> pb.TokenLogprob:
        top = [pb.Alternative(token_id=last, logprob=-1.5)] * (alternatives or 0)
        return pb.TokenLogprob(token_id=last, logprob=-1.5, top=top)

    params = request.params
    logprobs = [] if params.logprobs is None else [scored(params.logprobs)] * params.max_tokens
    choice = pb.Choice(
        token_ids=[last] * params.max_tokens,
        logprobs=logprobs,
        finish=pb.Finish(reason=pb.FINISH_REASON_STOP, stop_token_id=last),
    )
    scores = [] if params.prompt_logprobs is None else [scored(params.prompt_logprobs)] * len(request.prompt_token_ids)
    return pb.CompleteResponse(
        request_id="x" * 128,
        choices=[choice] * request.n,
        prompt_logprobs=scores,
        usage=pb.Usage(prompt_tokens=2**31 - 1, completion_tokens=2**31 - 1, cached_tokens=2**31 - 1),
        timings=pb.Timings(queue_s=1.0, prefill_s=1.0, first_token_s=1.0, total_s=1.0),
        max_tokens=2**31 - 1,
    )


@pytest.mark.parametrize("alternatives", [0, 1, 5, 20, 100, 5000])
def test_a_scored_token_takes_what_protobuf_takes(alternatives: int) -> None:
    top = [pb.Alternative(token_id=VOCAB - 1, logprob=-1.5)] * alternatives
    one = pb.CompleteResponse(prompt_logprobs=[pb.TokenLogprob(token_id=VOCAB - 1, logprob=-1.5, top=top)])
    assert scored_token_bytes(alternatives, VOCAB) == one.ByteSize()


@pytest.mark.parametrize(
    ("request_", "fields"),
    [
        # The two that were computed first and lost: 232 bytes a scored token, 20,000 and 8 * 2,500 of them.
        (spec(prompt=20_000, prompt_logprobs=20), ["prompt_logprobs"]),
        (spec(n=8, max_tokens=2_500, logprobs=20), ["logprobs"]),
        (spec(n=16, max_tokens=100_000), ["max_tokens"]),
        (spec(n=4, max_tokens=2_500, prompt=10_000, logprobs=20, prompt_logprobs=20), ["logprobs", "prompt_logprobs"]),
    ],
)
def test_what_may_not_fit_is_refused_naming_the_fields_that_make_it_large(
    request_: GenerateRequest, fields: list[str]
) -> None:
    with pytest.raises(Invalid, match="use Generate") as refused:
        check_unary(request_, VOCAB, 4 * 2**20)
    assert [violation.field for violation in refused.value.violations] == fields
    assert largest_answer(request_).ByteSize() > 4 * 2**20


@settings(deadline=None, max_examples=60)
@given(
    n=st.integers(1, 16),
    max_tokens=st.integers(1, 300),
    prompt=st.integers(1, 300),
    logprobs=st.none() | st.integers(0, 30),
    prompt_logprobs=st.none() | st.integers(0, 30),
)
def test_what_is_let_through_fits_and_little_that_would_fit_is_refused(
    n: int, max_tokens: int, prompt: int, logprobs: int | None, prompt_logprobs: int | None
) -> None:
    request = spec(n, max_tokens, prompt, logprobs, prompt_logprobs)
    size = largest_answer(request).ByteSize()
    try:
        check_unary(request, VOCAB, 64 * KIB)
    except Invalid:
        assert size > 60 * KIB
    else:
        assert size <= 64 * KIB


TEXT = st.text(max_size=40).map(lambda text: text * 3)


@settings(deadline=None, max_examples=60)
@given(
    tokens=st.lists(TEXT, min_size=1, max_size=60),
    repeat=st.integers(1, 300),
    alternatives=st.none() | st.integers(0, 40),
    prompt=st.none() | st.integers(1, 2000),
    max_message=st.sampled_from([64 * KIB, 4 * 2**20]),
)
def test_any_delta_becomes_messages_that_fit_and_together_are_the_delta(
    tokens: list[str], repeat: int, alternatives: int | None, prompt: int | None, max_message: int
) -> None:
    texts = tokens * repeat
    scored = TokenLogprobs(VOCAB - 1, -1.0, ((VOCAB - 1, -1.0),) * (alternatives or 0))
    logprobs = () if alternatives is None else (scored,) * len(texts)
    prompt_scores = None if prompt is None else (None, *(scored,) * (prompt - 1))
    request = spec(
        max_tokens=len(texts), logprobs=alternatives, prompt_logprobs=None if prompt is None else alternatives or 0
    )
    finish = ChoiceFinish(FinishReason.STOP, "é" * 4096)
    event = Delta("r", 0, (VOCAB - 1,) * len(texts), "".join(texts), logprobs, prompt_scores, finish)
    reply = StreamReply(request, stream_pieces(request, VOCAB, max_message))
    messages = [*reply.push(event), *reply.push(Done("r", Usage(1, 1, 1), Timings(1.0, 1.0, 1.0, 1.0)))]
    assert max(message.ByteSize() for message in messages) <= 64 * KIB
    deltas = [part for message in messages for part in message.deltas]
    assert [token for part in deltas for token in part.token_ids] == list(event.token_ids)
    assert "".join(part.text for part in deltas) == event.text
    assert sum(len(part.logprobs) for part in deltas) == len(logprobs)
    scores = [score for message in messages for score in message.prompt_logprobs]
    assert [score.HasField("logprob") for score in scores] == [False, *[True] * (len(scores) - 1)][: len(scores)]
    assert len(scores) == (prompt or 0)
    assert [part.HasField("finish") for part in deltas] == [False] * (len(deltas) - 1) + [True]
    assert [message.HasField("done") for message in messages] == [False] * (len(messages) - 1) + [True]
    # A client that looks at the prompt's scores when the first text comes has them all.
    first = next(i for i, message in enumerate(messages) if message.deltas)
    assert sum(len(message.prompt_logprobs) for message in messages[: first + 1]) == len(scores)


@pytest.mark.parametrize("field", ["logprobs", "prompt_logprobs"])
def test_scores_of_a_token_that_fit_into_no_message_are_refused(field: str) -> None:
    # An alternative takes 11 bytes: its id 4, its float 5, its tag and length 2; the token itself 12.
    fits = (16 * KIB - 12) // 11
    check_stream(spec(**{field: fits}), VOCAB, 4 * 2**20)  # type: ignore[arg-type]
    with pytest.raises(Invalid) as refused:
        check_stream(spec(**{field: fits + 1}), VOCAB, 4 * 2**20)  # type: ignore[arg-type]
    assert [violation.field for violation in refused.value.violations] == [field]


async def test_the_scores_of_a_prompt_of_20000_tokens_arrive_whole_over_a_stream() -> None:
    engine = PushingEngine()
    async with (
        observed_app(engine) as server,
        AsyncClient(f"127.0.0.1:{server.app.port}", max_attempts=1, max_message_bytes=64 * KIB) as client,
    ):
        stream = client.generate(token_ids=[1], max_tokens=1, prompt_logprobs=20, request_id="scored")
        reading = asyncio.create_task(_collect(stream))
        await engine.has("scored")
        scores = (None, *(TokenLogprobs(i, -float(i), tuple((j, -0.5) for j in range(20))) for i in range(1, 20_000)))
        last = delta("scored", 7, last=True)._replace(prompt_logprobs=scores)
        engine.tell(admitted("scored"), last, done("scored"))
        assert [d.token_ids for d in await reading] == [(7,)]
        got = stream.prompt_logprobs
        assert [score.logprob for score in got] == [None, *(-float(i) for i in range(1, 20_000))]
        assert [score.token_id for score in got] == list(range(20_000))
        assert {len(score.top) for score in got[1:]} == {20}
        assert server.statuses() == {"OK": 1}


async def _collect(stream) -> list[object]:  # type: ignore[no-untyped-def]
    return [part async for part in stream]


async def test_a_unary_call_is_refused_before_anything_is_computed_and_with_its_id() -> None:
    engine = PushingEngine()
    async with observed_app(engine, max_message_bytes=64 * KIB) as server:
        async with AsyncClient(f"127.0.0.1:{server.app.port}", max_attempts=1) as client:
            with pytest.raises(InvalidRequestError, match="use Generate") as refused:
                await client.complete(token_ids=[1, 2], max_tokens=1000, logprobs=20)
        assert [violation.field for violation in refused.value.violations] == ["params.logprobs"]
        assert refused.value.request_id
        assert engine.submitted == []
        assert server.statuses() == {"INVALID_ARGUMENT": 1}


async def test_a_request_that_is_wrong_otherwise_is_told_that_and_not_its_size() -> None:
    async with (
        observed_app(PushingEngine(), max_message_bytes=64 * KIB) as server,
        AsyncClient(f"127.0.0.1:{server.app.port}", max_attempts=1) as client,
    ):
        with pytest.raises(InvalidRequestError) as refused:
            await client.complete(token_ids=[1], max_tokens=50_000, logprobs=20, top_p=2.0)
        assert [violation.field for violation in refused.value.violations] == ["params.top_p"]


async def test_text_that_outgrows_a_message_ends_its_unary_call_when_it_does() -> None:
    engine = PushingEngine()
    async with (
        observed_app(engine, max_message_bytes=64 * KIB) as server,
        AsyncClient(f"127.0.0.1:{server.app.port}", max_attempts=3) as client,
    ):
        call = asyncio.create_task(client.complete(token_ids=[1], max_tokens=1000, request_id="long"))
        await engine.has("long")
        engine.tell(admitted("long"))
        for token in range(70):
            engine.tell(delta("long", token)._replace(text="x" * KIB))
            await asyncio.sleep(0)
        with pytest.raises(MessageTooLargeError, match="use Generate") as refused:
            await call
        assert refused.value.reason == "ANSWER_TOO_LARGE"
        assert refused.value.retry_after_s is None
        assert refused.value.request_id == "long"
        assert engine.cancelled == ["long"]
        assert server.statuses() == {"RESOURCE_EXHAUSTED": 1}


async def test_any_other_answer_that_is_too_large_is_told_so_and_never_to_be_repeated(engine: FakeEngine) -> None:
    async def large(request: bytes, context: grpc.aio.ServicerContext) -> pb.TokenizeResponse:
        return pb.TokenizeResponse(token_ids=[1] * 64 * KIB)

    load = LoadReporter(engine, Lifecycle(), Watches(Backlogs(1, 1, 1.0), 1.0))
    settings = ServerSettings(max_message_bytes=64 * KIB)
    rpc = RpcInterceptor(load, MessageParser(lambda: None), NoObserver(), settings)
    server = grpc.aio.server(interceptors=[rpc])
    handler = grpc.unary_unary_rpc_method_handler(
        large, pb.TokenizeRequest.FromString, pb.TokenizeResponse.SerializeToString
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Large", {"Call": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        refused = await refusal(channel.unary_unary("/test.Large/Call")(b"", metadata=(("x-request-id", "mine"),)))
    await server.stop(None)
    assert refused.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refused.details["ErrorInfo"].reason == "ANSWER_TOO_LARGE"
    assert refused.trailers["grpc-retry-pushback-ms"] == "-1"
    assert refused.trailers["x-request-id"] == "mine"
