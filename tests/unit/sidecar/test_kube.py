"""What is sent to a real HTTPS server, and what each fault becomes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import trustme
from weir.sidecar.connection import ClusterConnection
from weir.sidecar.kube import ApiError, FaultKind, PodApi
from weir.sidecar.metrics import SidecarMetrics

from tests.unit.sidecar.api_server import CUT, IDENTITY, ApiServer, Fault
from tests.unit.sidecar.conftest import READ_TIMEOUT_S, connected, value
from tests.unit.sidecar.rights import COST_RULES, GATE_RULES

KEY = "controller.kubernetes.io/pod-deletion-cost"
GATE = "weir.inference/kv-ready"
MANAGER = "weir-sidecar-deletion-cost"


@pytest.mark.parametrize("through_status", [True, False])
def test_an_annotation_is_applied_with_its_manager_and_the_pods_uid(
    api_server: ApiServer, metrics: SidecarMetrics, through_status: bool
) -> None:
    api_server.rules = GATE_RULES if through_status else COST_RULES
    connected(api_server, metrics, through_status).apply_annotation(KEY, "302", MANAGER)
    assert api_server.annotations[KEY] == "302"
    assert api_server.owner_of(KEY) == MANAGER
    (call,) = api_server.of("patch")
    assert call.path.endswith("/status") is through_status
    assert call.body["metadata"]["uid"] == IDENTITY.uid
    assert call.body["metadata"]["annotations"] == {KEY: "302"}


def test_a_field_of_another_manager_is_a_conflict_and_stays_as_it_is(api_server: ApiServer, pod_api: PodApi) -> None:
    api_server.set_annotation(KEY, "7", "karpenter")
    with pytest.raises(ApiError, match="karpenter") as error:
        pod_api.apply_annotation(KEY, "302", MANAGER)
    assert error.value.kind is FaultKind.CONFLICT
    assert api_server.annotations[KEY] == "7"


def test_a_later_pod_of_the_same_name_is_not_written_to(api_server: ApiServer, pod_api: PodApi) -> None:
    api_server.pod.tree["metadata"]["uid"] = "uid-2"
    with pytest.raises(ApiError) as error:
        pod_api.apply_annotation(KEY, "302", MANAGER)
    assert error.value.kind is FaultKind.CONFLICT
    assert api_server.annotations == {}


@pytest.mark.parametrize(("through_status", "kind"), [(True, FaultKind.MISSING), (False, FaultKind.CONFLICT)])
def test_a_pod_that_is_gone_is_not_made_anew(
    api_server: ApiServer, metrics: SidecarMetrics, through_status: bool, kind: FaultKind
) -> None:
    api_server.rules = GATE_RULES if through_status else COST_RULES
    del api_server.pods[IDENTITY.name]
    with pytest.raises(ApiError) as error:
        connected(api_server, metrics, through_status).apply_annotation(KEY, "302", MANAGER)
    assert error.value.kind is kind
    assert api_server.pods == {}


def test_a_condition_goes_to_the_status_and_leaves_those_of_others(api_server: ApiServer, pod_api: PodApi) -> None:
    pod_api.apply_condition(GATE, False, "QueueTooLong", "weir-sidecar-kv-ready")
    assert set(api_server.conditions) == {"Ready", GATE}
    found = api_server.conditions[GATE]
    assert (found["status"], found["reason"]) == ("False", "QueueTooLong")
    assert api_server.of("patch")[0].path.endswith("/status")


def test_the_condition_and_the_annotation_do_not_undo_each_other(api_server: ApiServer, pod_api: PodApi) -> None:
    pod_api.apply_annotation(KEY, "302", MANAGER)
    pod_api.apply_condition(GATE, True, "QueueWithinBound", "weir-sidecar-kv-ready")
    pod_api.apply_annotation(KEY, "100", MANAGER)
    assert (api_server.annotations[KEY], api_server.conditions[GATE]["status"]) == ("100", "True")


def test_a_right_that_the_role_does_not_give_is_denied(api_server: ApiServer, metrics: SidecarMetrics) -> None:
    api_server.rules = GATE_RULES
    with pytest.raises(ApiError, match='cannot patch resource "pods" in API group') as error:
        connected(api_server, metrics, through_status=False).apply_annotation(KEY, "302", MANAGER)
    assert error.value.kind is FaultKind.DENIED


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, FaultKind.INVALID),
        (401, FaultKind.UNAUTHORIZED),
        (403, FaultKind.DENIED),
        (404, FaultKind.MISSING),
        (409, FaultKind.CONFLICT),
        (410, FaultKind.GONE),
        (422, FaultKind.INVALID),
        (429, FaultKind.BUSY),
        (500, FaultKind.FAILING),
        (503, FaultKind.FAILING),
    ],
)
def test_every_status_becomes_a_fault_that_is_counted(
    api_server: ApiServer, pod_api: PodApi, metrics: SidecarMetrics, status: int, kind: FaultKind
) -> None:
    api_server.faults.extend([Fault("patch", status), Fault("watch", status)])
    for call in (lambda: pod_api.apply_annotation(KEY, "0", MANAGER), lambda: list(pod_api.watch(1))):
        with pytest.raises(ApiError, match=f"{status}: fault") as error:
            call()
        assert error.value.kind is kind
    assert value(metrics, "weir_sidecar_k8s_api_errors_total", kind=kind.value) == 2
    assert len(api_server.calls) == 2


@pytest.mark.parametrize(
    ("header", "wait_s"), [("17", 17.0), ("Wed, 21 Oct 2026 07:28:00 GMT", 0.0), ("-5", 0.0), ("", 0.0), ("9e9", 300.0)]
)
def test_the_wait_that_the_server_asks_for_is_kept_within_reason(
    api_server: ApiServer, pod_api: PodApi, header: str, wait_s: float
) -> None:
    api_server.faults.extend(Fault(verb, 429, {"Retry-After": header}) for verb in ("patch", "watch"))
    for call in (lambda: pod_api.apply_annotation(KEY, "0", MANAGER), lambda: list(pod_api.watch(1))):
        with pytest.raises(ApiError) as error:
            call()
        assert error.value.retry_after_s == wait_s


def test_a_server_that_hangs_is_given_up_on_within_the_timeout(api_server: ApiServer, pod_api: PodApi) -> None:
    api_server.faults.append(Fault("patch", hang_s=4 * READ_TIMEOUT_S))
    began = time.monotonic()
    with pytest.raises(ApiError) as error:
        pod_api.apply_annotation(KEY, "1", MANAGER)
    assert error.value.kind is FaultKind.UNREACHABLE
    assert time.monotonic() - began < 3 * READ_TIMEOUT_S
    pod_api.apply_annotation(KEY, "1", MANAGER)
    assert api_server.annotations[KEY] == "1"


def test_a_connection_that_is_dropped_and_a_port_that_is_closed_are_faults(
    api_server: ApiServer, pod_api: PodApi, metrics: SidecarMetrics
) -> None:
    api_server.faults.append(Fault("patch", is_drop=True))
    closed = ClusterConnection(api_server.folder, api_server.env | {"KUBERNETES_SERVICE_PORT": "1"})
    for api in (pod_api, PodApi(IDENTITY, closed, metrics, through_status=True)):
        with pytest.raises(ApiError) as error:
            api.apply_annotation(KEY, "1", MANAGER)
        assert error.value.kind is FaultKind.UNREACHABLE


def test_a_connection_that_the_server_closed_while_it_was_idle_costs_no_call(
    api_server: ApiServer, pod_api: PodApi
) -> None:
    api_server.closes_connections = True
    for cost in ("100", "200", "300"):
        pod_api.apply_annotation(KEY, cost, MANAGER)
        time.sleep(0.05)
    assert len(api_server.of("patch")) == 3


def test_an_answer_that_is_no_json_is_a_fault(api_server: ApiServer, pod_api: PodApi) -> None:
    api_server.faults.extend(Fault(verb, 200, body=b"<html>a proxy</html>") for verb in ("patch", "watch"))
    for call in (lambda: pod_api.apply_annotation(KEY, "0", MANAGER), lambda: list(pod_api.watch(1))):
        with pytest.raises(ApiError) as error:
            call()
        assert error.value.kind is FaultKind.UNREACHABLE


def test_outside_of_a_cluster_every_call_is_a_fault(metrics: SidecarMetrics, api_server: ApiServer) -> None:
    outside = PodApi(IDENTITY, ClusterConnection(api_server.folder, {}), metrics, through_status=True)
    with pytest.raises(ApiError, match="host/port"):
        list(outside.watch(1))


def test_a_ca_that_is_replaced_is_read_again(api_server: ApiServer, pod_api: PodApi) -> None:
    right = (api_server.folder / "ca.crt").read_bytes()
    trustme.CA().cert_pem.write_to_path(api_server.folder / "ca.crt")
    with pytest.raises(ApiError) as error:
        pod_api.apply_annotation(KEY, "1", MANAGER)
    assert error.value.kind is FaultKind.UNREACHABLE
    (api_server.folder / "ca.crt").write_bytes(right)
    pod_api.apply_annotation(KEY, "1", MANAGER)


def test_a_rotated_token_is_read_when_the_old_one_is_forgotten(api_server: ApiServer, pod_api: PodApi) -> None:
    pod_api.apply_annotation(KEY, "1", MANAGER)
    api_server.tokens = {"first": 0.0, "second": float("inf")}
    api_server.write_token("second")
    with pytest.raises(ApiError) as error:
        pod_api.apply_annotation(KEY, "2", MANAGER)
    assert error.value.kind is FaultKind.UNAUTHORIZED
    pod_api.forget_token()
    pod_api.apply_annotation(KEY, "2", MANAGER)
    assert [call.token for call in api_server.of("patch")] == ["first", "first", "second"]


def test_a_watch_tells_the_state_first_then_every_change_and_ends_with_its_limit(
    api_server: ApiServer, pod_api: PodApi
) -> None:
    states = pod_api.watch(3)
    first = next(states)
    assert first is not None
    assert (first.owner_kinds, first.deleting, first.annotations) == (("ReplicaSet",), False, {})
    assert first.conditions == {"Ready": "True"}
    api_server.set_annotation(KEY, "7", "somebody")
    second = next(states)
    assert second is not None
    assert second.annotations == {KEY: "7"}
    api_server.delete()
    third = next(states)
    assert third is not None
    assert third.deleting
    # What comes shortly before the end is a bookmark.
    assert list(states) == [None]
    assert len(api_server.calls) == 1


def test_a_watch_asks_for_any_version_for_bookmarks_and_for_its_own_pod_only(
    api_server: ApiServer, pod_api: PodApi
) -> None:
    next(pod_api.watch(317))
    (call,) = api_server.calls
    assert call.path == "/api/v1/namespaces/llm/pods"
    assert call.query == {
        "watch": "true",
        "fieldSelector": "metadata.name=weir-0",
        "resourceVersion": "0",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "317",
    }


def test_a_later_pod_of_the_same_name_is_not_taken_for_the_own_one(api_server: ApiServer, pod_api: PodApi) -> None:
    api_server.pod.tree["metadata"]["uid"] = "uid-2"
    assert next(pod_api.watch(5)) is None


def test_a_watch_that_is_cut_in_the_middle_is_a_fault(api_server: ApiServer, pod_api: PodApi) -> None:
    states = pod_api.watch(60)
    next(states)
    api_server.end_watches(CUT)
    with pytest.raises(ApiError) as error:
        list(states)
    assert error.value.kind is FaultKind.UNREACHABLE


def test_a_watch_that_the_server_ends_in_order_is_none(api_server: ApiServer, pod_api: PodApi) -> None:
    states = pod_api.watch(60)
    next(states)
    api_server.end_watches()
    assert list(states) == []


def test_nothing_of_the_generated_client_is_needed(api_server: ApiServer, tmp_path: Path) -> None:
    """The image leaves out kubernetes.aio, kubernetes.client.api and all modules of kubernetes.client.models."""
    code = f"""
import importlib.abc, sys
from pathlib import Path

class Pruned(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.startswith(("kubernetes.aio", "kubernetes.client.api.", "kubernetes.client.models.", "aiohttp")):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Pruned())
from weir.commands import sidecar
from weir.sidecar.connection import ClusterConnection
from weir.sidecar.kube import PodApi
from weir.sidecar.metrics import SidecarMetrics
from weir.sidecar.settings import PodIdentity

connection = ClusterConnection(Path({str(api_server.folder)!r}), {api_server.env!r})
api = PodApi(PodIdentity("weir-0", "llm", "uid-0"), connection, SidecarMetrics(), True)
api.apply_annotation({KEY!r}, "7", "m")
assert next(api.watch(5)).annotations == {{{KEY!r}: "7"}}
assert "kubernetes.client.api" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
