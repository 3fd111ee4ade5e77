"""The end of a namespace, for which a real cluster takes its time (ten seconds and more)."""

from tests.contract.client import Client, pod
from tests.contract.conftest import NodeMaker


def test_namespace_is_emptied_and_goes(cluster: Client, namespace: str, pods: str, make_node: NodeMaker) -> None:
    cluster.create(pods, pod(nodeName=make_node()))
    cluster.create(f"/api/v1/namespaces/{namespace}/configmaps", {"metadata": {"name": "a"}})
    cluster.delete(f"/api/v1/namespaces/{namespace}", {"gracePeriodSeconds": 0})
    cluster.until_gone(f"/api/v1/namespaces/{namespace}/configmaps/a")
    cluster.until(f"{pods}/p", lambda found: "deletionTimestamp" in found["metadata"])
    cluster.delete(f"{pods}/p", gracePeriodSeconds=0)
    cluster.until_gone(f"/api/v1/namespaces/{namespace}")
