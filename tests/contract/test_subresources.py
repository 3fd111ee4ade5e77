"""Binding, eviction, and the refusals of log and exec that need no node."""

import http.client
from typing import Any

import pytest

from tests.contract.client import Client, pod
from tests.contract.conftest import NodeMaker

UNSCHEDULED = {"schedulerName": "nobody"}


def test_binding_puts_a_pod_on_a_node_once(cluster: Client, pods: str, make_node: NodeMaker) -> None:
    node = make_node()
    cluster.create(pods, pod(**UNSCHEDULED))
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}}
    binding |= {"target": {"apiVersion": "v1", "kind": "Node", "name": node}}
    assert cluster.create(f"{pods}/p/binding", binding)["status"] == "Success"
    bound = cluster.get(f"{pods}/p")
    assert bound["spec"]["nodeName"] == node
    assert ("PodScheduled", "True") in {(c["type"], c["status"]) for c in bound["status"]["conditions"]}
    status = cluster.expect(409, "POST", f"{pods}/p/binding", binding)
    assert f'pod p is already assigned to node "{node}"' in status["message"]


@pytest.mark.parametrize("body", [[], {}, {"target": None}, {"target": {"kind": "Pod", "name": "p"}}])
def test_a_binding_to_nothing_is_refused(cluster: Client, pods: str, body: Any) -> None:
    cluster.create(pods, pod(**UNSCHEDULED))
    assert cluster.request("POST", f"{pods}/p/binding", body).code in (400, 422)


def test_eviction_deletes_with_the_pods_grace(cluster: Client, pods: str, make_node: NodeMaker) -> None:
    cluster.create(pods, pod(nodeName=make_node(), terminationGracePeriodSeconds=33))
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    assert cluster.create(f"{pods}/p/eviction", eviction)["status"] == "Success"
    assert cluster.get(f"{pods}/p")["metadata"]["deletionGracePeriodSeconds"] == 33


def test_logs_of_an_unbound_pod_are_refused(cluster: Client, pods: str) -> None:
    cluster.create(pods, pod(**UNSCHEDULED))
    assert cluster.request("GET", f"{pods}/p/log").code == 400


def test_a_container_must_be_named_when_there_are_several(cluster: Client, pods: str) -> None:
    several = [{"name": "one", "image": "i:1"}, {"name": "two", "image": "i:1"}]
    cluster.create(pods, pod(containers=several, **UNSCHEDULED))
    status = cluster.expect(400, "GET", f"{pods}/p/log")
    assert status["message"].startswith("a container name must be specified for pod p, choose one of: [one two]")
    assert "three is not valid for pod p" in cluster.expect(400, "GET", f"{pods}/p/log", container="three")["message"]


def test_logs_say_why_a_container_has_none_yet(cluster: Client, pods: str, make_node: NodeMaker) -> None:
    cluster.create(pods, pod(nodeName=make_node()))
    waiting = {"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}, "ready": False}
    waiting |= {"image": "i:1", "imageID": "", "restartCount": 0}
    cluster.patched(f"{pods}/p/status", {"status": {"containerStatuses": [waiting]}})
    answer = cluster.request("GET", f"{pods}/p/log")
    assert answer.code in (400, 500)
    assert "ContainerCreating" in answer.json["message"] or "kubelet" in answer.json["message"]


def test_logs_of_a_pod_whose_node_is_gone_name_the_node(embedded: Client, pods: str, make_node: NodeMaker) -> None:
    node = make_node()
    embedded.create(pods, pod(nodeName=node))
    embedded.delete(f"/api/v1/nodes/{node}")
    assert embedded.expect(404, "GET", f"{pods}/p/log")["message"] == f'nodes "{node}" not found'


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_exec_without_an_upgrade_is_refused(cluster: Client, pods: str, method: str, make_node: NodeMaker) -> None:
    cluster.create(pods, pod(nodeName=make_node()))
    answer = cluster.request(method, f"{pods}/p/exec", query={"command": "true", "container": "main"})
    assert answer.code == 400
    assert http.client.responses[answer.code]
