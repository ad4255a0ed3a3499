"""The stand-in is as strict as a real API server in the points that sidecars have stumbled over."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.sidecar.api_server import ApiServer, Reply
from tests.unit.sidecar.pods import APPLY, DELETION_COST, MERGE, STRATEGIC
from tests.unit.sidecar.rights import Rule
from tests.unit.sidecar.simulation import VirtualClock, simulated

POD = "/api/v1/namespaces/llm/pods/weir-0"
EVERYTHING = (Rule(("get", "list", "watch", "patch"), ("pods", "pods/status")),)


class Client:
    """Requests to a server in simulated time."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.server = ApiServer(clock, EVERYTHING)

    def patch(
        self, body: dict[str, Any], kind: str = APPLY, manager: str = "me", path: str = POD, force: str = ""
    ) -> tuple[int, dict[str, Any]]:
        target = f"{path}?fieldManager={manager}" + (f"&force={force}" if force else "")
        headers = {"Authorization": "Bearer first", "Content-Type": kind, "User-Agent": "kubectl/1"}
        reply = self.server.handle("PATCH", target, headers, json.dumps(body).encode())
        return reply.status, json.loads(reply.body)

    def watch(self, version: str, seconds: int = 1, more: str = "") -> Reply:
        query = f"watch=true&fieldSelector=metadata.name%3Dweir-0&resourceVersion={version}&timeoutSeconds={seconds}"
        path = f"/api/v1/namespaces/llm/pods?{query}{more}"
        return self.server.handle("GET", path, {"Authorization": "Bearer first"}, b"")

    def events(self, reply: Reply) -> list[dict[str, Any]]:
        assert reply.lines is not None
        return [json.loads(line) for line in reply.lines]

    def managers(self) -> dict[tuple[str, str, str], Any]:
        fields = self.server.pod.shown()["metadata"]["managedFields"]
        return {(f["manager"], f["operation"], f.get("subresource", "")): f["fieldsV1"] for f in fields}


@pytest.fixture
def client() -> Iterator[Client]:
    with simulated() as clock:
        yield Client(clock)


def annotated(value: object, **metadata: object) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"annotations": {DELETION_COST: value}} | metadata}


def condition(status: str, kind: str = "weir.inference/kv-ready") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {},
        "status": {"conditions": [{"type": kind, "status": status}]},
    }


@pytest.mark.parametrize("as_status", [True, False])
def test_a_version_ages_with_the_cluster_though_the_pod_rests(client: Client, as_status: bool) -> None:
    client.server.gone_as_status = as_status
    own = client.server.pod.tree["metadata"]["resourceVersion"]
    client.clock.pass_until(299.0)
    assert client.events(client.watch(own)) == []
    client.clock.pass_until(302.0)
    reply = client.watch(own)
    if as_status:
        assert (reply.status, json.loads(reply.body)["reason"]) == (410, "Expired")
    else:
        (event,) = client.events(reply)
        assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
    (event,) = client.events(client.watch("0"))
    assert (event["type"], event["object"]["metadata"]["resourceVersion"]) == ("ADDED", own)


def test_compaction_makes_the_versions_before_it_old_at_once(client: Client) -> None:
    own = client.server.pod.tree["metadata"]["resourceVersion"]
    client.clock.pass_until(10.0)
    client.server.compact()
    (event,) = client.events(client.watch(own))
    assert event["object"]["code"] == 410


def test_bookmarks_come_each_minute_and_before_the_end_to_those_who_ask(client: Client) -> None:
    def bookmarks(more: str) -> list[int]:
        events = client.events(client.watch("0", 150, more))
        return [int(e["object"]["metadata"]["resourceVersion"]) for e in events if e["type"] == "BOOKMARK"]

    assert bookmarks("") == []
    began_at = client.clock.now()
    first = client.server.version()
    assert bookmarks("&allowWatchBookmarks=true") == [first + 600, first + 1200, first + 1480]
    assert client.clock.now() == began_at + 150.0


@pytest.mark.parametrize("version", ["abc", "-1"])
def test_a_version_that_is_none_is_refused(client: Client, version: str) -> None:
    assert client.watch(version).status == 400


def test_an_apply_owns_what_it_names_and_gives_up_what_it_no_longer_names(client: Client) -> None:
    client.patch(annotated("7"))
    key = ("me", "Apply", "")
    assert client.managers()[key] == {"f:metadata": {"f:annotations": {f"f:{DELETION_COST}": {}}}}
    client.patch({"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": "b"}}})
    assert client.server.annotations == {}
    assert client.managers()[key] == {"f:metadata": {"f:labels": {"f:a": {}}}}


def test_the_same_manager_of_a_subresource_is_another_one(client: Client) -> None:
    client.patch(condition("True"), path=f"{POD}/status")
    item = {'k:{"type":"weir.inference/kv-ready"}': {"f:type": {}, "f:status": {}}}
    assert client.managers() == {("me", "Apply", "status"): {"f:status": {"f:conditions": item}}}
    client.patch(annotated("7"))
    assert set(client.managers()) == {("me", "Apply", "status"), ("me", "Apply", "")}
    assert set(client.server.conditions) == {"Ready", "weir.inference/kv-ready"}


def test_a_conflict_names_the_owner_and_the_field_and_force_takes_it(client: Client) -> None:
    client.patch(annotated("7"), manager="karpenter")
    status, answer = client.patch(annotated("8"))
    assert (status, answer["reason"]) == (409, "Conflict")
    assert answer["message"] == (
        f'Apply failed with 1 conflict: conflict with "karpenter": .metadata.annotations.{DELETION_COST}'
    )
    assert client.patch(annotated("8"), force="true")[0] == 200
    assert client.server.owner_of(DELETION_COST) == "me"


def test_two_managers_may_agree_and_then_the_value_stays_until_both_have_gone(client: Client) -> None:
    client.patch(annotated("7"), manager="karpenter")
    assert client.patch(annotated("7"))[0] == 200
    bare = {"apiVersion": "v1", "kind": "Pod", "metadata": {}}
    client.patch(bare)
    assert client.server.annotations == {DELETION_COST: "7"}
    client.patch(bare, manager="karpenter")
    assert client.server.annotations == {}


@pytest.mark.parametrize("kind", [MERGE, STRATEGIC])
def test_any_other_patch_takes_the_ownership_of_what_it_changes(client: Client, kind: str) -> None:
    client.patch(annotated("7"))
    assert client.patch({"metadata": {"annotations": {DELETION_COST: "9"}}}, kind, manager="")[0] == 200
    assert set(client.managers()) == {("kubectl", "Update", "")}
    assert client.patch(annotated("7"))[0] == 409


def test_a_strategic_patch_merges_conditions_by_their_type_and_a_merge_patch_replaces_them(client: Client) -> None:
    body = {"status": {"conditions": [{"type": "Own", "status": "True"}]}}
    client.patch(body, STRATEGIC, path=f"{POD}/status")
    assert set(client.server.conditions) == {"Ready", "Own"}
    client.patch(body, MERGE, path=f"{POD}/status")
    assert set(client.server.conditions) == {"Own"}


def test_a_write_that_changes_nothing_makes_no_version_and_no_event(client: Client) -> None:
    client.patch(annotated("7"))
    version = client.server.pod.tree["metadata"]["resourceVersion"]
    client.clock.pass_until(60.0)
    client.patch(annotated("7"))
    assert client.server.pod.tree["metadata"]["resourceVersion"] == version


def test_each_resource_leaves_alone_what_is_not_its_own(client: Client) -> None:
    client.patch(condition("True"))
    assert set(client.server.conditions) == {"Ready"}
    image = {"spec": {"containers": [{"name": "weir", "image": "evil"}]}, "metadata": {"ownerReferences": []}}
    assert client.patch(image, STRATEGIC, path=f"{POD}/status")[0] == 200
    tree = client.server.pod.tree
    assert tree["spec"]["containers"][0]["image"] == "weir:1"
    assert tree["metadata"]["ownerReferences"][0]["kind"] == "ReplicaSet"


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (annotated(7), APPLY, 400),
        (annotated("007"), APPLY, 422),
        (annotated("2147483648"), APPLY, 422),
        (annotated("7", uid="uid-9"), APPLY, 409),
        (annotated("7", name="other"), APPLY, 400),
        (annotated("7", managedFields=[]), APPLY, 400),
        ({"metadata": {}}, APPLY, 400),
        ({"metadata": {"annotations": {"no name": "7"}}}, MERGE, 422),
        ({"metadata": {"uid": "uid-9"}}, MERGE, 409),
        ({"spec": {"nodeName": "node-2"}}, MERGE, 422),
        (annotated("7"), "application/json", 415),
    ],
)
def test_what_is_wrong_is_refused(client: Client, body: dict[str, Any], kind: str, status: int) -> None:
    before = client.server.pod.shown()
    assert client.patch(body, kind)[0] == status
    assert client.server.pod.shown() == before


@pytest.mark.parametrize("wrong", [condition("yes"), condition("True", "not a name")])
def test_a_condition_that_is_none_is_refused(client: Client, wrong: dict[str, Any]) -> None:
    assert client.patch(wrong, path=f"{POD}/status")[0] == 422


def test_an_apply_needs_a_manager_and_only_an_apply_may_be_forced(client: Client) -> None:
    assert client.patch(annotated("7"), manager="")[0] == 422
    assert client.patch({"metadata": {}}, MERGE, force="true")[0] == 422


def test_a_token_ends_at_its_time(client: Client) -> None:
    client.server.tokens["first"] = 10.0
    client.clock.pass_until(9.9)
    assert client.watch("0").status == 200
    client.clock.pass_until(10.0)
    assert client.watch("0").status == 401
