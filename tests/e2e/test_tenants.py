"""Two tenants of a real engine behind the real server: neither sees what the other has asked, or how it is called."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Literal

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from weir.client import AsyncClient
from weir.config import TelemetrySettings, TenantSettings

from tests.e2e.tiny_server import tiny_server
from tests.unit.telemetry.factories import attributes, grpc_receiver

TENANTS = {"gold": TenantSettings(), "batch": TenantSettings()}
PROMPT = [7 + i % 200 for i in range(200)]


async def cached(target: str, tenant: str, salt: str = "") -> int:
    """Tokens of the prompt that the answer says were cached."""
    async with AsyncClient(target, tenant=tenant) as client:
        await client.wait_ready(60)
        answer = await client.complete(token_ids=PROMPT, max_tokens=2, ignore_eos=True, cache_salt=salt)
    return answer.usage.cached_tokens


@pytest.mark.parametrize(
    ("tenants", "sharing", "expected"),
    [
        # 200 tokens in blocks of 32: 6 whole blocks, 192 tokens.
        (TENANTS, "tenant", {"gold": 0, "batch": 0, "": 0, "unheard-of": 192}),
        (TENANTS, "all", {"gold": 0, "batch": 192, "": 192, "unheard-of": 192}),
        (None, "tenant", {"gold": 0, "batch": 192, "": 192, "unheard-of": 192}),
    ],
)
async def test_a_prompt_is_cached_for_those_who_share_the_tenants_part_only(
    tmp_path: Path,
    tenants: dict[str, TenantSettings] | None,
    sharing: Literal["tenant", "all"],
    expected: dict[str, int],
) -> None:
    async with tiny_server(tmp_path, tenants=tenants, prefix_cache_sharing=sharing) as server:
        assert {tenant: await cached(server.target, tenant) for tenant in expected} == expected
        assert [await cached(server.target, tenant) for tenant in expected] == [192] * 4
        assert [await cached(server.target, "gold", salt="s") for _ in range(2)] == [0, 192]


async def test_two_tenants_with_one_id_at_once_get_their_own_tokens_under_it_and_spans_of_their_own(
    tmp_path: Path,
) -> None:
    prompts = {"gold": PROMPT[:40], "batch": PROMPT[:70]}
    with grpc_receiver() as (endpoint, received):
        async with tiny_server(tmp_path, TelemetrySettings(trace_endpoint=endpoint), tenants=TENANTS) as server:

            async def ask(tenant: str, request_id: str) -> list[int]:
                async with AsyncClient(server.target, tenant=tenant) as client:
                    await client.wait_ready(60)
                    stream = client.generate(
                        token_ids=prompts[tenant],
                        request_id=request_id,
                        max_tokens=300,
                        temperature=0,
                        ignore_eos=True,
                    )
                    ids = [token async for delta in stream for token in delta.token_ids]
                    assert stream.request_id == request_id
                    return ids

            alone = [await ask(tenant, f"alone-{tenant}") for tenant in prompts]
            assert await asyncio.gather(*(ask(tenant, "r") for tenant in prompts)) == alone
    linked: Counter[bytes] = Counter()
    for step in received.named("engine.step"):
        for link in step.links:
            linked[link.span_id] += attributes(link.attributes).get("weir.step.decode_tokens", 0)
    spans = [
        (attributes(span.attributes), span.span_id)
        for span in received.spans
        if span.kind == Span.SPAN_KIND_SERVER and attributes(span.attributes)["gen_ai.response.id"].startswith("r")
    ]
    assert {found["weir.request.tenant"]: linked[span_id] for found, span_id in spans} == {"gold": 299, "batch": 299}
    assert {found["gen_ai.response.id"] for found, _ in spans} == {"r", "r.2"}
