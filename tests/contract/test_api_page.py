"""docs/api.md is true: its examples run, and its tables name every field, flag and error there is."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import weir.client
from google.protobuf import descriptor_pool, json_format
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2  # noqa: F401 - the pool describes what is imported
from weir.server.app import App
from weir.v1 import inference_pb2 as pb

from tests.contract.fake_engine import INFO, FakeEngine

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
async def engine() -> FakeEngine:
    """Of a model that is long enough for the examples."""
    return FakeEngine(replace(INFO, max_model_len=1000, kv_total_tokens=4000))


@pytest.mark.parametrize("example", EXAMPLES, ids=["threads", "asyncio", "errors"])
async def test_an_example_runs(app: App, example: str) -> None:
    program = example.replace("127.0.0.1:50051", f"127.0.0.1:{app.port}")
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


async def test_the_example_of_the_readme_runs(app: App) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    [example] = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    await test_an_example_runs(app, example.replace("localhost:50051", "127.0.0.1:50051"))


def test_requests_in_other_languages_are_requests_of_the_api() -> None:
    """Every name in them is a field of the message that they are sent as, and every value fits."""
    [node] = re.findall(r"client\.Generate\(\n(.*?),\n  \{ deadline", PAGE, flags=re.DOTALL)
    as_json = re.sub(r",\s*}", "}", re.sub(r"(\w+):", r'"\1":', node))
    request = json_format.Parse(as_json, pb.GenerateRequest())
    assert (request.params.max_tokens, request.prompt.chat.messages[0].role) == (32, "user")
    assert request.params.HasField("temperature")
    grpcurl = re.findall(r"-d '([^']*)' (?:\\\n\s*)?localhost:50051 ([\w.]+)/(\w+)", PAGE)
    assert len(grpcurl) == 3
    for data, service, method in grpcurl:
        described = descriptor_pool.Default().FindServiceByName(service).methods_by_name[method]
        json_format.Parse(data, GetMessageClass(described.input_type)())


def test_every_request_field_is_explained() -> None:
    fields = [f.name for f in pb.GenerateRequest.DESCRIPTOR.fields if f.name != "params"]
    for name in [*fields, *(f.name for f in pb.SamplingParams.DESCRIPTOR.fields)]:
        assert f"`{name}`" in PAGE, name


def test_every_error_class_is_explained() -> None:
    for name in weir.client.__all__:
        if name.endswith("Error"):
            assert f"`{name}`" in PAGE, name


def test_every_method_is_explained() -> None:
    for method in pb.DESCRIPTOR.services_by_name["InferenceService"].methods:
        assert f"`{method.name}`" in PAGE
