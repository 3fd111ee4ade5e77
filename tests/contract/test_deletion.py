"""Deletion: grace, finalizers, preconditions, owners, namespaces."""

import datetime as dt
from typing import Any

from tests.contract.client import Client, pod
from tests.contract.conftest import NodeMaker


def _bound(cluster: Client, pods: str, node: str, **spec: Any) -> Any:
    """A pod that a node would have to stop."""
    cluster.create(pods, pod(nodeName=node, **spec))
    return cluster.get(f"{pods}/p")


def test_pod_that_no_node_runs_goes_at_once(cluster: Client, pods: str) -> None:
    cluster.create(pods, pod(nodeSelector={"contract/node": "none"}))
    assert cluster.delete(f"{pods}/p")["kind"] == "Pod"
    assert cluster.request("GET", f"{pods}/p").code == 404


def test_bound_pod_is_only_marked_and_its_node_ends_it(cluster: Client, pods: str, make_node: NodeMaker) -> None:
    _bound(cluster, pods, make_node())
    asked = dt.datetime.now(dt.UTC)
    marked = cluster.delete(f"{pods}/p", {"gracePeriodSeconds": 20})
    answered = dt.datetime.now(dt.UTC)
    metadata = marked["metadata"]
    end = dt.datetime.fromisoformat(metadata["deletionTimestamp"])
    assert metadata["deletionGracePeriodSeconds"] == 20
    assert (end - asked).total_seconds() > 15
    assert (end - answered).total_seconds() < 25
    assert cluster.get(f"{pods}/p")["metadata"]["deletionTimestamp"] == metadata["deletionTimestamp"]
    cluster.delete(f"{pods}/p", {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}})
    cluster.until_gone(f"{pods}/p")


def test_grace_can_be_shortened_and_not_prolonged(cluster: Client, pods: str, make_node: NodeMaker) -> None:
    _bound(cluster, pods, make_node())
    first = cluster.delete(f"{pods}/p", gracePeriodSeconds=60)["metadata"]
    shorter = cluster.delete(f"{pods}/p", gracePeriodSeconds=10)["metadata"]
    longer = cluster.delete(f"{pods}/p", gracePeriodSeconds=100)["metadata"]
    assert (shorter["deletionGracePeriodSeconds"], longer["deletionGracePeriodSeconds"]) == (10, 10)
    assert shorter["deletionTimestamp"] < first["deletionTimestamp"]


def test_finished_pod_goes_at_once(cluster: Client, pods: str, make_node: NodeMaker) -> None:
    _bound(cluster, pods, make_node())
    cluster.patched(f"{pods}/p/status", {"status": {"phase": "Succeeded"}})
    cluster.delete(f"{pods}/p")
    cluster.until_gone(f"{pods}/p")


def test_preconditions_are_kept(cluster: Client, config_maps: str) -> None:
    created = cluster.create(config_maps, {"metadata": {"name": "a"}})["metadata"]
    for what, preconditions in (("UID", {"uid": "other"}), ("ResourceVersion", {"resourceVersion": "1"})):
        status = cluster.expect(409, "DELETE", f"{config_maps}/a", {"preconditions": preconditions})
        assert (status["reason"], status["details"]) == ("Conflict", {"name": "a", "kind": "ConfigMap"})
        assert f"the {what} in the precondition (" in status["message"]
    right = {"uid": created["uid"], "resourceVersion": created["resourceVersion"]}
    status = cluster.delete(f"{config_maps}/a", {"preconditions": right})
    assert (status["status"], status["details"]["uid"]) == ("Success", created["uid"])


def test_finalizer_holds_an_object_until_it_is_removed(cluster: Client, config_maps: str) -> None:
    cluster.create(config_maps, {"metadata": {"name": "a", "finalizers": ["example.org/hold"]}})
    assert cluster.delete(f"{config_maps}/a")["metadata"]["deletionTimestamp"]
    cluster.get(f"{config_maps}/a")
    cluster.patched(f"{config_maps}/a", {"metadata": {"finalizers": None}}, "merge")
    assert cluster.request("GET", f"{config_maps}/a").code == 404


def _owned(owner: Any, name: str, **extra: Any) -> dict[str, Any]:
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }
    return {"metadata": {"name": name, "ownerReferences": [reference | extra]}}


def test_dependents_go_after_their_owner(cluster: Client, config_maps: str, secrets_path: str) -> None:
    owner = cluster.create(config_maps, {"metadata": {"name": "owner"}})
    child = cluster.create(secrets_path, _owned(owner, "child"))
    cluster.create(config_maps, _owned(child, "grandchild"))
    cluster.delete(f"{config_maps}/owner")
    cluster.until_gone(f"{secrets_path}/child")
    cluster.until_gone(f"{config_maps}/grandchild")


def test_owner_of_another_uid_is_no_owner(cluster: Client, config_maps: str) -> None:
    owner = cluster.create(config_maps, {"metadata": {"name": "owner"}})
    owner["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"
    cluster.create(config_maps, _owned(owner, "stray"))
    cluster.until_gone(f"{config_maps}/stray")


def test_object_stays_while_one_of_its_owners_is_there(cluster: Client, config_maps: str) -> None:
    one = cluster.create(config_maps, {"metadata": {"name": "one"}})
    two = cluster.create(config_maps, {"metadata": {"name": "two"}})
    child = _owned(one, "child")
    child["metadata"]["ownerReferences"] += _owned(two, "child")["metadata"]["ownerReferences"]
    cluster.create(config_maps, child)
    canary = cluster.create(config_maps, _owned(one, "canary"))
    assert canary
    cluster.delete(f"{config_maps}/one")
    cluster.until_gone(f"{config_maps}/canary")
    cluster.get(f"{config_maps}/child")


def test_orphans_stay(cluster: Client, config_maps: str) -> None:
    owner = cluster.create(config_maps, {"metadata": {"name": "owner"}})
    cluster.create(config_maps, _owned(owner, "child"))
    cluster.delete(f"{config_maps}/owner", {"propagationPolicy": "Orphan"})
    cluster.until_gone(f"{config_maps}/owner")
    assert not cluster.get(f"{config_maps}/child")["metadata"].get("ownerReferences")


def test_in_the_foreground_dependents_go_first(cluster: Client, config_maps: str) -> None:
    owner = cluster.create(config_maps, {"metadata": {"name": "owner"}})
    child = _owned(owner, "child", blockOwnerDeletion=True)
    child["metadata"]["finalizers"] = ["example.org/hold"]
    cluster.create(config_maps, child)
    cluster.delete(f"{config_maps}/owner", {"propagationPolicy": "Foreground"})
    cluster.until(f"{config_maps}/child", lambda found: "deletionTimestamp" in found["metadata"])
    assert "foregroundDeletion" in cluster.get(f"{config_maps}/owner")["metadata"]["finalizers"]
    cluster.patched(f"{config_maps}/child", {"metadata": {"finalizers": None}}, "merge")
    cluster.until_gone(f"{config_maps}/owner")


def test_default_namespace_stays(cluster: Client) -> None:
    status = cluster.expect(403, "DELETE", "/api/v1/namespaces/default")
    assert status["message"] == 'namespaces "default" is forbidden: this namespace may not be deleted'


def test_namespace_that_is_deleted_takes_nothing_new(
    cluster: Client, namespace: str, pods: str, make_node: NodeMaker
) -> None:
    _bound(cluster, pods, make_node())  # something that has to be waited for
    cluster.delete(f"/api/v1/namespaces/{namespace}", {"gracePeriodSeconds": 0})  # which is no short cut
    assert cluster.get(f"/api/v1/namespaces/{namespace}")["status"]["phase"] == "Terminating"
    status = cluster.expect(403, "POST", pods, pod("late"))
    assert status["details"]["causes"][0]["reason"] == "NamespaceTerminating"
