"""A real Prometheus scrapes the metrics port under traffic, then answers every query of the dashboards and rules."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from weir.client import AsyncClient
from weir.config import TelemetrySettings

from tests.e2e.tiny_server import tiny_server
from tests.monitoring.tools import program
from tests.unit.telemetry.test_dashboards import DASHBOARDS, RULES, panels

SCRAPE_S = 0.5
LOAD_S = 8.0
WINDOW = "5s"


def unused_port() -> int:
    """A port for the server to take; Prometheus must know it before the server starts."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


async def traffic(client: AsyncClient, seconds: float) -> None:
    """Rounds of requests that end, one that is cancelled, and more than the queue holds."""
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        number += 1
        prompts = ([1 + (7 * i + number) % 250 for i in range(3 + 25 * k)] for k in range(14))
        calls = [client.complete(token_ids=ids, max_tokens=20, ignore_eos=True) for ids in prompts]
        await asyncio.gather(*calls, _leave(client), return_exceptions=True)


async def _leave(client: AsyncClient) -> None:
    stream = client.generate(token_ids=[9] * 40, max_tokens=300, ignore_eos=True)
    await anext(stream)
    await stream.aclose()


@asynccontextmanager
async def prometheus(folder: Path, scraped_port: int) -> AsyncIterator[str]:
    """A Prometheus with our rules that scrapes one port, labelled as a pod is; its address."""
    target = {"targets": [f"127.0.0.1:{scraped_port}"], "labels": {"namespace": "inference", "pod": "weir-0"}}
    config = {
        "global": {"scrape_interval": f"{int(SCRAPE_S * 1000)}ms", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "weir", "static_configs": [target]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    process = await asyncio.create_subprocess_exec(
        program("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--web.listen-address=127.0.0.1:0",
        "--enable-feature=exemplar-storage",
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield await _address(process)
    finally:
        process.terminate()
        await process.communicate()


async def _address(process: asyncio.subprocess.Process) -> str:
    """The address that Prometheus logs when it listens."""
    assert process.stderr is not None
    log = []
    async for line in process.stderr:
        log.append(line.decode())
        if 'msg="Listening on"' in log[-1]:
            return log[-1].split("address=")[-1].strip()
    raise AssertionError("prometheus ended: " + "".join(log))


async def ask(address: str, path: str, **parameters: str) -> Any:
    """The `data` of an answer of the HTTP API."""
    url = f"http://{address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"

    def read() -> Any:
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return json.load(error)

    answer = await asyncio.to_thread(read)
    assert answer["status"] == "success", answer
    return answer["data"]


def queries() -> dict[str, str]:
    """Every query of the dashboards, by panel."""
    return {
        f"{path.stem}: {panel['title']}: {target['refId']}": target["expr"]
        .replace("$__rate_interval", WINDOW)
        .replace("$namespace", "inference")
        .replace("$pod", ".*")
        for path in DASHBOARDS
        for panel in panels(path)
        for target in panel["targets"]
        if target["datasource"]["type"] == "prometheus"
    }


async def test_every_panel_has_data_under_traffic_and_every_rule_evaluates(tmp_path: Path) -> None:
    telemetry, port = TelemetrySettings(trace_file=str(tmp_path / "trace.jsonl")), unused_port()
    async with (
        tiny_server(tmp_path, telemetry, max_queue_requests=4, metrics_port=port) as server,
        prometheus(tmp_path, port) as address,
        AsyncClient(server.target, max_attempts=1) as client,
    ):
        await client.wait_ready(60)
        await traffic(client, LOAD_S)
        empty = []
        for name, query in queries().items():
            result = (await ask(address, "query", query=query))["result"]
            if not any(math.isfinite(float(sample["value"][1])) for sample in result):
                empty.append(name)
        assert empty == []

        groups = (await ask(address, "rules"))["groups"]
        assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}
        [target] = (await ask(address, "targets"))["activeTargets"]
        assert (target["health"], target["lastError"]) == ("up", "")
        assert await ask(address, "label/pod/values", **{"match[]": "weir_engine_info"}) == ["weir-0"]

        now = str(time.time())
        seen = await ask(
            address, "query_exemplars", query="weir_time_to_first_token_seconds_bucket", start="0", end=now
        )
        assert all(len(found["labels"]["trace_id"]) == 32 for series in seen for found in series["exemplars"])
        assert seen

        for gauge in ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"):
            [sample] = (await ask(address, "query", query=gauge))["result"]
            assert sample["metric"]["model_name"] == "tiny", "an endpoint picker's gauge is one series"
        ratios = await ask(address, "query", query="max_over_time(vllm:kv_cache_usage_perc[10s])")
        assert 0 < float(ratios["result"][0]["value"][1]) <= 1
