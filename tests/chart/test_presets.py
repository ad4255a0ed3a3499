"""Presets, and the five decisions with which the install guide begins."""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml
from weir import config

from tests.chart.cluster import Cluster
from tests.chart.rendering import CHART, ROOT, Tree, render

PRESETS = sorted(path.stem for path in (CHART / "presets").glob("*.yaml"))
GUIDE = (ROOT / "docs" / "install.md").read_text()


def preset(name: str) -> Tree:
    tree: Tree = yaml.safe_load((CHART / "presets" / f"{name}.yaml").read_text())
    return tree


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_what_the_pods_get(name: str) -> None:
    rendered, wanted = render("default", {"preset": name}), preset(name)
    resources = rendered.container()["resources"]
    for side in ("requests", "limits"):
        assert wanted["resources"][side].items() <= resources[side].items()
        assert resources[side].get("nvidia.com/gpu", "0") == str(wanted["gpu"]["count"])
    engine = config.load(env=rendered.settings()).engine
    given = config.EngineSettings.model_validate(
        {name + ("_bytes" if name == "kv_memory" else ""): v for name, v in wanted["settings"]["engine"].items()}
    )
    assert engine == given
    assert rendered.pod().get("tolerations") == wanted.get("tolerations")


def test_values_win_over_the_preset_one_by_one() -> None:
    values: Tree = {
        "preset": "h100-8x-single-gpu",
        "settings": {"engine": {"max_running": 8, "prefix_cache": False}},
        "tolerations": [{"key": "mine", "operator": "Exists"}],
        "gpu": {"count": 0},
    }
    rendered = render("default", values)
    engine = config.load(env=rendered.settings()).engine
    assert (engine.max_running, engine.prefix_cache, engine.kv_memory_fraction) == (8, False, 0.9)
    assert rendered.pod()["tolerations"] == values["tolerations"]
    assert "nvidia.com/gpu" not in str(rendered.container()["resources"])


def test_a_gpu_is_filled_without_a_word() -> None:
    assert config.load(env=render().settings()).engine.kv_memory_fraction >= 0.85


def test_the_chart_knows_every_preset_and_no_other() -> None:
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())["properties"]["preset"]
    assert sorted(schema["enum"]) == PRESETS


def first_values() -> Tree:
    """The first values file of the guide."""
    block = re.search(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
    assert block is not None
    tree: Tree = yaml.safe_load(block[1])
    return tree


def test_the_guide_begins_with_five_decisions_that_serve_a_node_of_eight_gpus() -> None:
    assert GUIDE.index("## Five decisions") < GUIDE.index("\n## ", GUIDE.index("## Five decisions") + 1)
    assert "\n## " not in GUIDE[: GUIDE.index("## Five decisions") - 1], "it is the first page"
    values = first_values()
    numbered = re.findall(r"^\| (\d) \|", GUIDE, re.MULTILINE)
    assert numbered == ["1", "2", "3", "4", "5"]
    rendered = render("default", values)
    spec = rendered.workload()["spec"]
    assert spec["replicas"] == 8
    assert rendered.container()["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    claim = rendered.one("PersistentVolumeClaim")
    assert [v for v in rendered.pod()["volumes"] if v["name"] == "model"] == [
        {"name": "model", "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}}
    ]
    fetch = rendered.container("fetch-model")
    assert any(arg.startswith("--revision=") for arg in fetch["args"])
    images = {c["image"] for c in [rendered.container(), rendered.container("sidecar")]}
    assert all("/" in image for image in images), "images that were pushed somewhere"


def test_the_guide_can_be_followed_to_the_letter(cluster: Cluster) -> None:
    cluster.install(first_values())
    assert len(cluster.pods.running) == 8
    name = render("default", first_values(), release="chat").workload()["metadata"]["name"]
    assert f"rollout status deployment/{name}\n" in GUIDE
    (command,) = re.findall(r"^    (make push-images .*)$", GUIDE[: GUIDE.index("| 1 |")], re.MULTILINE)
    made = subprocess.run([*command.split(), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "scripts/push_images.sh registry.example.com/team" in [line.strip() for line in made.stdout.splitlines()]


def test_one_download_serves_all_replicas_of_a_node() -> None:
    values: Tree = {
        "replicaCount": 8,
        "model": {"cache": {"enabled": True}},
        "nodeSelector": {"kubernetes.io/hostname": "gpu-1"},
    }
    assert render("default", values).one("PersistentVolumeClaim")["spec"]["accessModes"] == ["ReadWriteOnce"]
