"""Logs and exec of a pod whose node's kubelet does not answer: on a real cluster no test can set its address."""

from tests.contract.client import Client, pod
from tests.contract.conftest import NodeMaker
from tests.harness.ports import free_port


def test_kubelet_that_does_not_answer_is_an_error(cluster: Client, pods: str, make_node: NodeMaker) -> None:
    node = make_node()
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": free_port()}},
    }
    cluster.patched(f"/api/v1/nodes/{node}/status", {"status": status})
    cluster.create(pods, pod(nodeName=node))
    for path, headers in (("log", {}), ("exec?command=true", {"Connection": "Upgrade", "Upgrade": "SPDY/3.1"})):
        answer = cluster.request("GET", f"{pods}/p/{path}", headers=headers)
        assert (answer.code, answer.json["reason"]) == (500, "InternalError")
        assert "error dialing backend" in answer.json["message"]
