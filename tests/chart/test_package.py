"""The chart as an artifact: what is in it, and images by digest."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

from tests.chart.rendering import HELM_MAJORS, ROOT, helm_binary

DIGESTS = {"DIGEST": "sha256:" + "a" * 64, "SIDECAR_DIGEST": "sha256:" + "b" * 64}


def package(folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the script on a copy of the tree, so that it writes nothing here."""
    (folder / "scripts").mkdir()
    (folder / "scripts" / "package_chart.sh").symlink_to(ROOT / "scripts" / "package_chart.sh")
    (folder / "helm").symlink_to(ROOT / "helm")
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "HELM": str(helm_binary(4))} | environment
    command = ["bash", folder / "scripts" / "package_chart.sh"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("helm", HELM_MAJORS)
def test_a_packaged_chart_names_its_images_by_digest_and_renders_alone(tmp_path: Path, helm: int) -> None:
    done = package(tmp_path, DIGESTS)
    assert done.returncode == 0, done.stderr
    (archive,) = (tmp_path / "dist").glob("weir-*.tgz")
    with tarfile.open(archive) as files:
        names = files.getnames()
    assert "weir/presets/h100-8x-single-gpu.yaml" in names
    assert not [name for name in names if "/ci/" in name or "/examples/" in name]
    command = [helm_binary(helm), "template", "demo", archive, "--set", "preset=h100-8x-single-gpu"]
    rendered = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    (deployment,) = [o for o in yaml.safe_load_all(rendered) if o and o["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == f"weir@{DIGESTS['DIGEST']}"
    assert [c["image"] for c in pod["initContainers"] if c["name"] == "sidecar"] == [
        f"weir-sidecar@{DIGESTS['SIDECAR_DIGEST']}"
    ]


def test_what_is_no_digest_is_refused(tmp_path: Path) -> None:
    done = package(tmp_path, {"DIGEST": "latest"})
    assert done.returncode != 0
    assert "not a digest: latest" in done.stderr
