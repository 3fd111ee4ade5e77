"""Selectors on lists, and the three kinds of patch, as clients send them."""

from typing import Any

import pytest

from tests.contract.client import Client, pod


@pytest.fixture
def three(cluster: Client, pods: str) -> str:
    cluster.create(pods, pod("a", labels={"app": "web", "tier": "front"}))
    cluster.create(pods, pod("b", labels={"app": "web"}))
    cluster.create(pods, pod("c", labels={"app": "db", "size": "12"}))
    return pods


def _names(found: dict[str, Any]) -> list[str]:
    return [item["metadata"]["name"] for item in found["items"]]


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("", "abc"),
        ("app=web", "ab"),
        ("app==web,tier=front", "a"),
        ("tier", "a"),
        ("app in (web, db)", "abc"),
        ("size<12", ""),
        ("app>1", ""),
        ("app!=web", "c"),
        ("!tier", "bc"),
        ("app notin (db),tier", "a"),
        ("tier notin (front)", "bc"),
        ("size>10", "c"),
        ("app=", ""),
    ],
)
def test_label_selectors(cluster: Client, three: str, selector: str, names: str) -> None:
    assert _names(cluster.get(three, labelSelector=selector)) == list(names)


@pytest.mark.parametrize(
    "selector", ["a b", "app in web", "=x", "app=(", "app in (a,b", "a=b=c", "a=b,,c=d", "a=-b", "!"]
)
def test_bad_label_selector_is_refused(cluster: Client, pods: str, selector: str) -> None:
    assert cluster.expect(400, "GET", pods, labelSelector=selector)["reason"] == "BadRequest"


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("metadata.name!=b", "ac"),
        ("status.phase=Pending", "abc"),
        ("status.phase!=Pending", ""),
        ("spec.nodeName=", "abc"),
        ("spec.nodeName=,metadata.name=c", "c"),
    ],
)
def test_field_selectors(cluster: Client, three: str, selector: str, names: str) -> None:
    assert _names(cluster.get(three, fieldSelector=selector)) == list(names)


def test_field_that_cannot_be_selected_is_named(cluster: Client, pods: str) -> None:
    status = cluster.expect(400, "GET", pods, fieldSelector="spec.hostname=x")
    assert "field label not supported: spec.hostname" in status["message"]


def test_events_are_found_by_what_they_are_about(cluster: Client, namespace: str) -> None:
    events = f"/api/v1/namespaces/{namespace}/events"
    for name in ("one", "two"):
        involved = {"kind": "Pod", "name": name, "namespace": namespace}
        cluster.create(
            events, {"metadata": {"name": f"{name}.1"}, "involvedObject": involved, "reason": "Test", "type": "Normal"}
        )
    selector = f"involvedObject.name=one,involvedObject.namespace={namespace},involvedObject.kind=Pod,type!=Warning"
    assert _names(cluster.get(events, fieldSelector=selector)) == ["one.1"]


def test_event_lies_in_the_namespace_of_what_it_is_about(cluster: Client, namespace: str) -> None:
    event = {"metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "elsewhere"}}
    status = cluster.expect(422, "POST", f"/api/v1/namespaces/{namespace}/events", event)
    assert status["details"]["causes"][0]["field"] == "involvedObject.namespace"


def test_merge_patch_replaces_lists_and_removes_nulls(cluster: Client, services: str) -> None:
    _service(cluster, services)
    patch = {"metadata": {"labels": {"a": None, "c": "3"}}, "spec": {"ports": [{"name": "only", "port": 9}]}}
    changed = cluster.patched(f"{services}/s", patch, "merge")
    assert changed["metadata"]["labels"] == {"b": "2", "c": "3"}
    assert [port["port"] for port in changed["spec"]["ports"]] == [9]


def test_strategic_patch_merges_lists_by_key(cluster: Client, services: str) -> None:
    _service(cluster, services)
    changed = cluster.patched(f"{services}/s", {"spec": {"ports": [{"name": "ssh", "port": 22, "targetPort": 2222}]}})
    ports = {port["port"]: port["targetPort"] for port in changed["spec"]["ports"]}
    assert ports == {22: 2222, 80: 80}


def test_conditions_are_merged_by_type(cluster: Client, pods: str) -> None:
    cluster.create(pods, pod())
    for kind in ("Initialized", "Ready"):
        condition = {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        changed = cluster.patched(f"{pods}/p/status", {"status": {"conditions": [condition]}})
    assert {"Initialized", "Ready"} <= {condition["type"] for condition in changed["status"]["conditions"]}


def test_json_patch_tests_before_it_changes(cluster: Client, services: str) -> None:
    _service(cluster, services)
    path = "/metadata/labels/a"
    wrong = [{"op": "test", "path": path, "value": "other"}, {"op": "remove", "path": path}]
    assert cluster.patch(f"{services}/s", wrong, "json").code == 422
    right = [{"op": "test", "path": path, "value": "1"}, {"op": "replace", "path": path, "value": "9"}]
    assert cluster.patched(f"{services}/s", right, "json")["metadata"]["labels"]["a"] == "9"


def test_patch_of_another_version_conflicts(cluster: Client, services: str) -> None:
    old = _service(cluster, services)["metadata"]["resourceVersion"]
    cluster.patched(f"{services}/s", {"metadata": {"labels": {"x": "1"}}})
    patch = {"metadata": {"resourceVersion": old, "labels": {"x": "2"}}}
    assert cluster.patch(f"{services}/s", patch, "merge").code == 409


@pytest.mark.parametrize(("body", "kind"), [(b"{", "merge"), (b"[]", "merge"), (b"[]", "strategic"), (b"{}", "json")])
def test_malformed_patch_is_refused(cluster: Client, services: str, body: bytes, kind: str) -> None:
    _service(cluster, services)
    assert cluster.patch(f"{services}/s", body, kind).code == 400


def test_patch_cannot_be_of_another_object(cluster: Client, services: str) -> None:
    _service(cluster, services)
    other = cluster.patch(f"{services}/s", {"metadata": {"uid": "other"}}, "merge")
    assert (other.code, other.json["details"]["causes"][0]["field"]) == (422, "metadata.uid")
    assert cluster.patch(f"{services}/s", {"metadata": {"name": "other"}}, "merge").code == 400
    assert cluster.patch(f"{services}/s", {"metadata": {"namespace": "other"}}, "merge").code == 400


def test_unknown_kind_of_patch_is_refused(cluster: Client, services: str) -> None:
    _service(cluster, services)
    answer = cluster.request("PATCH", f"{services}/s", {}, headers={"Content-Type": "application/json"})
    assert (answer.code, answer.json["reason"]) == (415, "UnsupportedMediaType")


def _service(cluster: Client, services: str) -> Any:
    ports = [{"name": "ssh", "port": 22}, {"name": "web", "port": 80}]
    metadata = {"name": "s", "labels": {"a": "1", "b": "2"}}
    return cluster.create(services, {"metadata": metadata, "spec": {"ports": ports}})
