"""The official client against a real HTTPS server: what it sends, and what each fault becomes."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import trustme
from weir.sidecar.kube import ApiError, FaultKind, PodApi
from weir.sidecar.metrics import SidecarMetrics

from tests.unit.sidecar.api_server import IDENTITY, ApiServer, Fault
from tests.unit.sidecar.conftest import FAST, value

KEY = "weir.inference/kv-level"


def test_the_pod_is_read(pod_api: PodApi) -> None:
    pod = pod_api.get()
    assert (pod.resource_version, pod.owner_kinds, pod.deleting) == ("10", ("ReplicaSet",), False)


def test_an_annotation_is_applied_with_its_manager_and_the_pods_uid(api_server: ApiServer, pod_api: PodApi) -> None:
    pod_api.apply_annotation(KEY, "low", "weir-sidecar-kv-level")
    assert api_server.annotations[KEY] == "low"
    assert api_server.owners[KEY] == "weir-sidecar-kv-level"
    (call,) = api_server.of("patch")
    assert call.body["metadata"]["uid"] == IDENTITY.uid
    assert call.body["metadata"]["annotations"] == {KEY: "low"}


def test_a_field_of_another_manager_is_a_conflict_and_stays_as_it_is(api_server: ApiServer, pod_api: PodApi) -> None:
    api_server.own(KEY, "theirs", "karpenter")
    with pytest.raises(ApiError, match="karpenter") as error:
        pod_api.apply_annotation(KEY, "ours", "weir-sidecar-kv-level")
    assert error.value.kind is FaultKind.CONFLICT
    assert api_server.annotations[KEY] == "theirs"


def test_a_later_pod_of_the_same_name_is_not_written_to(api_server: ApiServer, pod_api: PodApi) -> None:
    api_server.pod["metadata"]["uid"] = "uid-2"
    with pytest.raises(ApiError) as error:
        pod_api.apply_annotation(KEY, "low", "weir-sidecar-kv-level")
    assert error.value.kind is FaultKind.CONFLICT
    assert KEY not in api_server.annotations


def test_a_condition_goes_to_the_status(api_server: ApiServer, pod_api: PodApi) -> None:
    pod_api.apply_condition("weir.inference/kv-ready", False, "QueueTooLong", "weir-sidecar-kv-ready")
    (condition,) = api_server.pod["status"]["conditions"]
    assert condition["type"] == "weir.inference/kv-ready"
    assert (condition["status"], condition["reason"]) == ("False", "QueueTooLong")
    assert api_server.of("patch")[0].path.endswith("/status")


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
        (500, FaultKind.BUSY),
        (503, FaultKind.BUSY),
    ],
)
def test_every_status_becomes_a_fault_that_is_counted(
    api_server: ApiServer, pod_api: PodApi, metrics: SidecarMetrics, status: int, kind: FaultKind
) -> None:
    api_server.faults.append(Fault("patch", status))
    with pytest.raises(ApiError, match=str(status)) as error:
        pod_api.apply_annotation(KEY, "low", "m")
    assert error.value.kind is kind
    assert value(metrics, "weir_sidecar_k8s_api_errors_total", kind=kind.value) == 1
    assert len(api_server.of("patch")) == 1


def test_the_wait_that_the_server_asks_for_is_kept(api_server: ApiServer, pod_api: PodApi) -> None:
    api_server.faults.append(Fault("patch", 429, {"Retry-After": "17"}))
    with pytest.raises(ApiError) as error:
        pod_api.apply_annotation(KEY, "low", "m")
    assert error.value.retry_after_s == 17.0


@pytest.mark.parametrize("header", ["Wed, 21 Oct 2026 07:28:00 GMT", "-5", ""])
def test_a_wait_that_is_no_number_of_seconds_is_none(api_server: ApiServer, pod_api: PodApi, header: str) -> None:
    api_server.faults.append(Fault("patch", 429, {"Retry-After": header}))
    with pytest.raises(ApiError) as error:
        pod_api.apply_annotation(KEY, "low", "m")
    assert error.value.retry_after_s == 0.0


def test_a_server_that_hangs_is_given_up_on_within_the_timeout(api_server: ApiServer, pod_api: PodApi) -> None:
    api_server.faults.append(Fault("get", hang_s=2.0))
    began = time.monotonic()
    with pytest.raises(ApiError) as error:
        pod_api.get()
    assert error.value.kind is FaultKind.UNREACHABLE
    assert time.monotonic() - began < 1.5
    assert pod_api.get().resource_version == "10"


def test_a_connection_that_is_dropped_and_a_port_that_is_closed_are_faults(
    api_server: ApiServer, pod_api: PodApi, metrics: SidecarMetrics
) -> None:
    api_server.faults.append(Fault("get", is_drop=True))
    with pytest.raises(ApiError) as error:
        pod_api.get()
    assert error.value.kind is FaultKind.UNREACHABLE
    closed = PodApi(IDENTITY, metrics, FAST, api_server.folder, api_server.env | {"KUBERNETES_SERVICE_PORT": "1"})
    with pytest.raises(ApiError) as error:
        closed.get()
    assert error.value.kind is FaultKind.UNREACHABLE


def test_an_answer_that_is_no_json_is_a_fault(api_server: ApiServer, pod_api: PodApi) -> None:
    api_server.faults.append(Fault("get", 200, body=b"<html>a proxy</html>"))
    with pytest.raises(ApiError) as error:
        pod_api.get()
    assert error.value.kind is FaultKind.UNREACHABLE


def test_outside_of_a_cluster_every_call_is_a_fault(metrics: SidecarMetrics, api_server: ApiServer) -> None:
    outside = PodApi(IDENTITY, metrics, FAST, api_server.folder, {})
    with pytest.raises(ApiError, match="host/port"):
        outside.get()


def test_a_ca_that_is_replaced_is_read_again(api_server: ApiServer, pod_api: PodApi) -> None:
    right = (api_server.folder / "ca.crt").read_bytes()
    trustme.CA().cert_pem.write_to_path(api_server.folder / "ca.crt")
    with pytest.raises(ApiError) as error:
        pod_api.get()
    assert error.value.kind is FaultKind.UNREACHABLE
    (api_server.folder / "ca.crt").write_bytes(right)
    assert pod_api.get().resource_version == "10"


def test_a_rotated_token_is_read_when_the_old_one_is_forgotten(api_server: ApiServer, pod_api: PodApi) -> None:
    pod_api.get()
    api_server.tokens = {"second"}
    api_server.write_token("second")
    with pytest.raises(ApiError) as error:
        pod_api.get()
    assert error.value.kind is FaultKind.UNAUTHORIZED
    pod_api.forget_token()
    pod_api.get()
    assert [call.token for call in api_server.of("get")] == ["first", "first", "second"]


def test_a_watch_tells_every_change_and_ends_with_the_servers_limit(
    api_server: ApiServer, metrics: SidecarMetrics
) -> None:
    api = PodApi(IDENTITY, metrics, replace(FAST, watch_s=1), api_server.folder, api_server.env)
    changes = api.watch("10")
    api_server.own("other", "x", "somebody")
    assert next(changes).resource_version == "11"
    api_server.delete()
    assert next(changes).deleting
    assert list(changes) == []


def test_a_watch_from_too_old_a_version_is_gone(pod_api: PodApi) -> None:
    with pytest.raises(ApiError) as error:
        list(pod_api.watch("3"))
    assert error.value.kind is FaultKind.GONE
