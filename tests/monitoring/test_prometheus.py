"""A real Prometheus scrapes the metrics port under traffic, then answers every query of the dashboards and rules."""

from __future__ import annotations

import asyncio
import json
import math
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from weir.config import ServerSettings, Settings
from weir.engine.errors import CancelledError, QueueFullError
from weir.telemetry.telemetry import Telemetry

from tests.monitoring.tools import program
from tests.unit.telemetry import factories as make
from tests.unit.telemetry.test_dashboards import DASHBOARDS, RULES, panels

SCRAPE_S = 0.5
LOAD_S = 8.0
WINDOW = "5s"


def one_round(telemetry: Telemetry, number: int) -> None:
    """A request that runs to its end, one that is cancelled, one that is rejected, and the steps between."""
    runs, leaves, full = (telemetry.request_started(make.GENERATE, {}) for _ in range(3))
    full.finished("RESOURCE_EXHAUSTED", QueueFullError(10, 0, 900, 9, 1.0))
    for observer, request_id in ((runs, f"a{number}"), (leaves, f"b{number}")):
        observer.submitted(make.request(request_id))
        observer.event(make.admitted(request_id, prompt_tokens=40, cached_tokens=16))
    telemetry.step(make.step(number, prefills=(make.prefill("a", 16, 24), make.prefill("b", 16, 24))))
    telemetry.step(make.step(number, decodes=(make.decode("a"),), prefills=(make.prefill("b", 0, 4),)))
    telemetry.step(make.step(number, decodes=(make.decode("a"), make.decode("b")), preempted=("b",)))
    for last in (False, False, True):
        runs.event(make.delta(last=last))
    runs.finished("OK", None)
    leaves.event(make.delta())
    leaves.finished("CANCELLED", CancelledError())
    telemetry.metrics.traces.exported.add(3)
    telemetry.metrics.traces.dropped["ring_full"].add()


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
    settings = Settings(server=ServerSettings(metrics_host="127.0.0.1", metrics_port=0))
    telemetry = Telemetry(settings, "tiny")
    port = await telemetry.start()
    telemetry.watch(make.EngineStub(), make.engine_info(), [])
    async with prometheus(tmp_path, port) as address:
        for number in range(int(LOAD_S / 0.1)):
            one_round(telemetry, number)
            await asyncio.sleep(0.1)
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

        labels = await ask(address, "label/pod/values", **{"match[]": "weir_engine_info"})
        assert labels == ["weir-0"]
        for gauge, value in (("vllm:num_requests_waiting", 3), ("vllm:kv_cache_usage_perc", 0.25)):
            [sample] = (await ask(address, "query", query=gauge))["result"]
            assert float(sample["value"][1]) == pytest.approx(value), "an endpoint picker's gauge is one series"
    await telemetry.stop()
