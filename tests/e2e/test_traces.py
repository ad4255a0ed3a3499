"""A real engine behind the real server, traced to a collector: every step is there, and links add up to the usage."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from weir.client import AsyncClient, Completion, InvalidRequestError
from weir.config import TelemetrySettings

from tests.e2e.tiny_server import tiny_server
from tests.unit.telemetry.factories import Received, attributes, grpc_receiver

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


def spans_of(received: Received, request_id: str) -> Span:
    [span] = [
        span
        for span in received.spans
        if span.kind == Span.SPAN_KIND_SERVER and attributes(span.attributes).get("gen_ai.response.id") == request_id
    ]
    return span


def linked_tokens(received: Received, span: Span) -> tuple[int, int, int]:
    """Prefill tokens, decode tokens and number of the steps that link to a request's span."""
    links = [
        attributes(link.attributes)
        for step in received.named("engine.step")
        for link in step.links
        if link.span_id == span.span_id and link.trace_id == span.trace_id
    ]
    return (
        sum(link.get("weir.step.prefill_tokens", 0) for link in links),
        sum(link.get("weir.step.decode_tokens", 0) for link in links),
        len(links),
    )


async def test_steps_and_links_account_for_every_token_of_every_request(tmp_path: Path) -> None:
    with grpc_receiver() as (endpoint, received):
        async with tiny_server(tmp_path, TelemetrySettings(trace_endpoint=endpoint)) as server:
            client = AsyncClient(server.target)
            await client.wait_ready(60)
            prompts = {"short": 3, "chunked": 100, "exact": 32, "long": 150}

            async def complete(name: str, length: int) -> Completion:
                ids = [7 + (length + i) % 200 for i in range(length)]
                return await client.complete(
                    token_ids=ids,
                    request_id=name,
                    max_tokens=9,
                    ignore_eos=True,
                    metadata=(("traceparent", f"00-{TRACE}-{PARENT}-01"),),
                )

            answers = dict(
                zip(prompts, await asyncio.gather(*(complete(*item) for item in prompts.items())), strict=True)
            )
            stream = client.generate(token_ids=[9] * 40, request_id="left", max_tokens=300, ignore_eos=True)
            await anext(stream)
            await stream.aclose()
            with pytest.raises(InvalidRequestError):
                await client.complete(token_ids=[9] * 600, request_id="too-long", max_tokens=9)
            async for budget in client.watch_budget(0.05):
                if not budget.running_requests:
                    break
            await client.close()
        steps = server.engine.snapshot().step

    assert sorted(attributes(span.attributes)["weir.step.number"] for span in received.named("engine.step")) == list(
        range(1, steps + 1)
    )
    assert sum(count.value for count in server.telemetry.metrics.traces.dropped.values()) == 0
    for name, length in prompts.items():
        span, usage = spans_of(received, name), answers[name].usage
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
        prefill, decode, count = linked_tokens(received, span)
        # The last token is sampled and never computed; the first comes from the last prompt token.
        assert (prefill, decode) == (length - usage.cached_tokens, usage.completion_tokens - 1)
        found = attributes(span.attributes)
        assert found["weir.request.steps"] == count
        assert found["rpc.response.status_code"] == "OK"
        children = [child.name for child in received.spans if child.parent_span_id == span.span_id]
        assert sorted(children) == ["decode", "prefill", "queue"]
    left = spans_of(received, "left")
    assert attributes(left.attributes)["rpc.response.status_code"] == "CANCELLED"
    assert linked_tokens(received, left)[0] == 40
    statuses = [
        attributes(span.attributes)["rpc.response.status_code"]
        for span in received.spans
        if span.kind == Span.SPAN_KIND_SERVER
    ]
    assert sorted(statuses) == ["CANCELLED", "INVALID_ARGUMENT", "OK", "OK", "OK", "OK"]


async def test_an_engine_that_dies_is_the_status_of_the_requests_that_were_in_it(tmp_path: Path) -> None:
    with grpc_receiver() as (endpoint, received):
        async with tiny_server(tmp_path, TelemetrySettings(trace_endpoint=endpoint)) as server:
            client = AsyncClient(server.target, max_attempts=1)
            await client.wait_ready(60)
            stream = client.generate(token_ids=[9] * 40, request_id="hit", max_tokens=400, ignore_eos=True)
            await anext(stream)
            server.engine._process.kill()
            await server.engine.failed
            assert await server.app.live.wait_empty(30)
            await stream.aclose()
            await client.close()
    span = spans_of(received, "hit")
    assert attributes(span.attributes)["rpc.response.status_code"] == "UNAVAILABLE"
    assert attributes(span.attributes)["error.type"] == "EngineFailedError"
    assert span.status.code == span.status.STATUS_CODE_ERROR
