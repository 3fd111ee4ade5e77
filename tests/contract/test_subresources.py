"""Binding, eviction, and the refusals of log and exec that need no node."""

import pytest

from tests.contract.client import Client, pod
from tests.contract.conftest import NodeMaker


def test_binding_puts_a_pod_on_a_node_once(cluster: Client, pods: str, make_node: NodeMaker) -> None:
    node = make_node()
    cluster.create(pods, pod())
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}}
    binding |= {"target": {"apiVersion": "v1", "kind": "Node", "name": node}}
    assert cluster.create(f"{pods}/p/binding", binding)["status"] == "Success"
    bound = cluster.get(f"{pods}/p")
    assert bound["spec"]["nodeName"] == node
    assert ("PodScheduled", "True") in {(c["type"], c["status"]) for c in bound["status"]["conditions"]}
    status = cluster.expect(409, "POST", f"{pods}/p/binding", binding)
    assert f'pod p is already assigned to node "{node}"' in status["message"]


def test_eviction_of_an_unbound_pod_is_its_end(cluster: Client, pods: str) -> None:
    cluster.create(pods, pod())
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    cluster.create(f"{pods}/p/eviction", eviction)
    cluster.until_gone(f"{pods}/p")
    assert cluster.expect(404, "POST", f"{pods}/p/eviction", eviction)["reason"] == "NotFound"


def test_eviction_deletes_with_the_pods_grace(cluster: Client, pods: str, make_node: NodeMaker) -> None:
    cluster.create(pods, pod(nodeName=make_node(), terminationGracePeriodSeconds=33))
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    assert cluster.create(f"{pods}/p/eviction", eviction)["status"] == "Success"
    assert cluster.get(f"{pods}/p")["metadata"]["deletionGracePeriodSeconds"] == 33


def test_unbound_pod_has_no_logs_and_no_exec(cluster: Client, pods: str) -> None:
    cluster.create(pods, pod())
    assert cluster.request("GET", f"{pods}/p/log").code == 204
    status = cluster.expect(400, "POST", f"{pods}/p/exec", command="true")
    assert status["message"] == "pod p does not have a host assigned"


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ({"tailLines": "x"}, 400, 'strconv.ParseInt: parsing "x": invalid syntax'),
        ({"tailLines": "-1"}, 422, "tailLines: Invalid value: -1: must be greater than or equal to 0"),
        ({"limitBytes": "0"}, 422, "limitBytes: Invalid value: 0: must be greater than 0"),
    ],
)
def test_invalid_log_options_are_refused(
    cluster: Client, pods: str, options: dict[str, str], code: int, words: str
) -> None:
    cluster.create(pods, pod())
    assert words in cluster.expect(code, "GET", f"{pods}/p/log", **options)["message"]


def test_container_must_be_named_when_there_are_several(cluster: Client, pods: str) -> None:
    several = [{"name": "one", "image": "i:1"}, {"name": "two", "image": "i:1"}]
    cluster.create(pods, pod(containers=several))
    status = cluster.expect(400, "GET", f"{pods}/p/log")
    assert status["message"].startswith("a container name must be specified for pod p, choose one of: [one two]")
    assert "three is not valid for pod p" in cluster.expect(400, "GET", f"{pods}/p/log", container="three")["message"]


def test_logs_and_exec_of_a_node_without_an_address_fail(cluster: Client, pods: str, make_node: NodeMaker) -> None:
    cluster.create(pods, pod(nodeName=make_node()))
    for method, path in (("GET", "log"), ("GET", "exec?command=true"), ("POST", "exec?command=true")):
        status = cluster.expect(500, method, f"{pods}/p/{path}")
        assert status["message"] == "no preferred addresses found; known addresses: []"


def test_logs_of_a_pod_whose_node_is_gone_name_the_node(cluster: Client, pods: str, make_node: NodeMaker) -> None:
    node = make_node()
    cluster.create(pods, pod(nodeName=node))
    cluster.delete(f"/api/v1/nodes/{node}")
    assert f'"{node}" not found' in cluster.expect(404, "GET", f"{pods}/p/log")["message"]
