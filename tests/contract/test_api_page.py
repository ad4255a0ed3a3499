"""docs/api.md is true: its examples run, and its tables name every field, flag and error there is."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest
import weir.client
from weir.server.app import App
from weir.v1 import inference_pb2 as pb

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=["threads", "asyncio", "errors"])
async def test_an_example_runs(app: App, example: str) -> None:
    program = example.replace("127.0.0.1:50051", f"127.0.0.1:{app.port}")
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


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
