"""What holds for every ci file under both Helm majors, and for every top-level value set to null."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from tests.chart.rendering import CHART, CI_NAMES, HELM_MAJORS, ROOT, Rendered, RenderError, helm_binary, render

SCHEMAS = ("1.29", "1.32", kubernetes_validate.latest_version())
# Their schemas come with operators, not with Kubernetes; test_custom_resources.py looks at these.
CUSTOM_GROUPS = {
    "monitoring.coreos.com/v1",
    "keda.sh/v1alpha1",
    "cert-manager.io/v1",
}
TOP_LEVEL = list(yaml.safe_load((CHART / "values.yaml").read_text()))


def valid(rendered: Rendered, schema: str) -> None:
    for obj in rendered.objects:
        if obj["apiVersion"] not in CUSTOM_GROUPS:
            kubernetes_validate.validate(obj, schema, strict=True)


# One major is enough here: the next test shows that both render the same text.
@pytest.mark.parametrize("ci", CI_NAMES)
def test_every_object_is_valid_for_the_oldest_a_common_and_the_newest_kubernetes(ci: str) -> None:
    for schema in SCHEMAS:
        if schema == "1.29" and ci == "tls-cert-manager":
            continue  # asks for an admission policy, which is newer: test_faults.py
        kube = f"{schema}.0" if schema.count(".") == 1 else schema
        valid(render(ci, kube=kube), schema)


@pytest.mark.parametrize("helm", HELM_MAJORS)
@pytest.mark.parametrize("ci", CI_NAMES)
def test_every_render_is_the_one_that_was_reviewed(ci: str, helm: int) -> None:
    golden = CHART / "examples" / ci / "rendered.yaml"
    assert golden.exists(), f"{golden} is missing: run `make chart-docs` and look at it"
    assert render(ci, helm=helm).text == golden.read_text(), "run `make chart-docs` and look at the difference"


@pytest.mark.parametrize("helm", HELM_MAJORS)
@pytest.mark.parametrize("key", TOP_LEVEL)
def test_a_top_level_value_set_to_null_renders_or_is_explained(key: str, helm: int) -> None:
    rendered, refusal = render_or_refusal(("--set", f"{key}=null"), helm)
    if rendered is not None:
        valid(rendered, "1.32")
    else:
        assert f"`{key}`" in refusal
        assert "Leave the key out to keep its default" in refusal


def render_or_refusal(flags: tuple[str, ...], helm: int) -> tuple[Rendered | None, str]:
    try:
        return render(flags=flags, helm=helm), ""
    except RenderError as error:
        return None, str(error)


def test_no_example_is_left_over() -> None:
    assert sorted(path.name for path in (CHART / "examples").iterdir()) == CI_NAMES


def test_generated_files_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "chart_docs.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("helm", HELM_MAJORS)
def test_helm_lint_finds_nothing(helm: int) -> None:
    done = subprocess.run(
        [helm_binary(helm), "lint", "--strict", CHART], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout


def test_the_package_holds_the_chart_and_not_its_tests(tmp_path: Path) -> None:
    subprocess.run([helm_binary(4), "package", CHART, "--destination", tmp_path], check=True, capture_output=True)
    (archive,) = tmp_path.glob("weir-*.tgz")
    names = subprocess.run(["tar", "tzf", archive], check=True, capture_output=True, text=True).stdout.splitlines()
    assert "weir/values.schema.json" in names
    assert not [n for n in names if n.startswith(("weir/ci/", "weir/examples/"))]
