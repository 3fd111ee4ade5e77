"""What follows from objects: places for pods, addresses for services, volumes for claims."""

from typing import Any

import pytest

from tests.contract.client import Client, pod
from tests.contract.conftest import NodeMaker


def _asking(node: str, name: str = "p", **resources: str) -> dict[str, Any]:
    """A pod that may only run on the test's own node."""
    container = {"name": "main", "image": "i:1", "resources": {"limits": resources}}
    return pod(name, containers=[container], nodeSelector={"contract/node": node})


def _scheduled(condition: dict[str, Any]) -> bool:
    return condition["type"] == "PodScheduled"


def _verdict(found: dict[str, Any]) -> str:
    conditions = filter(_scheduled, found["status"].get("conditions") or [])
    return next((str(condition.get("message", "")) for condition in conditions), "")


def test_pod_that_fits_nowhere_has_the_reason(cluster: Client, pods: str, namespace: str, make_node: NodeMaker) -> None:
    node = make_node(**{"example.org/gpu": "2"})
    cluster.create(pods, _asking(node, **{"example.org/gpu": "3"}))
    waiting = cluster.until(f"{pods}/p", lambda found: "Insufficient example.org/gpu" in _verdict(found))
    assert _verdict(waiting).startswith("0/")
    assert " nodes are available: " in _verdict(waiting)
    condition = next(filter(_scheduled, waiting["status"]["conditions"]))
    assert (condition["status"], condition["reason"]) == ("False", "Unschedulable")
    selector = "involvedObject.name=p,reason=FailedScheduling"
    events = f"/api/v1/namespaces/{namespace}/events?fieldSelector={selector}"
    found = cluster.until(events, lambda listed: bool(listed["items"]))["items"][0]
    assert (found["type"], found["involvedObject"]["uid"]) == ("Warning", waiting["metadata"]["uid"])


def test_waiting_pod_gets_the_resources_of_a_deleted_one(cluster: Client, pods: str, make_node: NodeMaker) -> None:
    node = make_node(**{"example.org/gpu": "2"})
    cluster.create(pods, _asking(node, "first", **{"example.org/gpu": "2"}))
    placed = cluster.until(f"{pods}/first", lambda found: found["spec"].get("nodeName") == node)
    assert [condition["status"] for condition in filter(_scheduled, placed["status"]["conditions"])] == ["True"]
    cluster.create(pods, _asking(node, "second", **{"example.org/gpu": "1"}))
    cluster.until(f"{pods}/second", lambda found: "Insufficient" in _verdict(found))
    cluster.delete(f"{pods}/first", gracePeriodSeconds=0)
    cluster.until(f"{pods}/second", lambda found: found["spec"].get("nodeName") == node)


def test_port_of_the_host_is_one_pods(cluster: Client, pods: str, make_node: NodeMaker) -> None:
    node = make_node()

    def on_port(name: str, number: int) -> dict[str, Any]:
        pod = _asking(node, name)
        pod["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": number}]
        return pod

    for name, number in (("first", 20000), ("other", 20001)):
        cluster.create(pods, on_port(name, number))
        cluster.until(f"{pods}/{name}", lambda found: found["spec"].get("nodeName") == node)
    cluster.create(pods, on_port("second", 20000))
    cluster.until(f"{pods}/second", lambda found: "didn't have free ports" in _verdict(found))
    cluster.delete(f"{pods}/first", gracePeriodSeconds=0)
    cluster.until(f"{pods}/second", lambda found: found["spec"].get("nodeName") == node)


def test_cordoned_node_takes_no_new_pods(cluster: Client, pods: str, make_node: NodeMaker) -> None:
    node = make_node()
    cluster.patched(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
    cluster.create(pods, _asking(node))
    cluster.until(f"{pods}/p", lambda found: "unschedulable" in _verdict(found))
    cluster.patched(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": None}})
    cluster.until(f"{pods}/p", lambda found: found["spec"].get("nodeName") == node)


def test_taint_needs_a_toleration(cluster: Client, pods: str, make_node: NodeMaker) -> None:
    node = make_node()
    taint = {"key": "example.org/gpu", "value": "yes", "effect": "NoSchedule"}
    cluster.patched(f"/api/v1/nodes/{node}", {"spec": {"taints": [taint]}})
    cluster.create(pods, _asking(node))
    cluster.until(f"{pods}/p", lambda found: "untolerated taint" in _verdict(found))
    tolerant = _asking(node, "tolerant")
    tolerant["spec"]["tolerations"] = [{"key": "example.org/gpu", "operator": "Exists"}]
    cluster.create(pods, tolerant)
    cluster.until(f"{pods}/tolerant", lambda found: found["spec"].get("nodeName") == node)


def test_pod_gets_its_most_preferred_node(cluster: Client, pods: str, make_node: NodeMaker) -> None:
    first, second, full = sorted(make_node(**{"example.org/gpu": gpus}) for gpus in ("2", "2", "2"))

    def preferring(name: str, **weights: int) -> dict[str, Any]:
        made = _asking(first, name, **{"example.org/gpu": "1"})
        del made["spec"]["nodeSelector"]
        one_of_ours = {"key": "contract/node", "operator": "In", "values": [first, second, full]}
        terms = [
            {
                "weight": weight,
                "preference": {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]},
            }
            for node, weight in weights.items()
        ]
        made["spec"]["affinity"] = {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [one_of_ours]}]
                },
                "preferredDuringSchedulingIgnoredDuringExecution": terms,
            }
        }
        return made

    def node(name: str) -> str:
        placed = cluster.until(f"{pods}/{name}", lambda found: bool(found["spec"].get("nodeName")))
        return str(placed["spec"]["nodeName"])

    for name in (first, second):  # on a real cluster a node takes nothing before its taint of a new one is gone
        cluster.create(pods, _asking(name, f"on-{name}"))
        assert node(f"on-{name}") == name
    cluster.create(pods, _asking(full, "all", **{"example.org/gpu": "2"}))
    assert node("all") == full
    cluster.create(pods, preferring("one", **{second: 100}))
    assert node("one") == second, "although it is the last by name, and has as much as the first"
    cluster.create(pods, preferring("two", **{second: 100}))
    assert node("two") == second, "although it holds another already"
    cluster.create(pods, preferring("more", **{full: 100, first: 1}))
    assert node("more") == first, "the most preferred one has no room"
    cluster.create(pods, preferring("none", **{full: 100, second: 50}))
    assert node("none") == first, "a preference is none of what a pod needs"
    broken = preferring("broken", **{first: 0})
    assert "must be in the range 1-100" in cluster.expect(422, "POST", pods, broken)["message"]


def test_gated_pod_waits_for_its_gates(cluster: Client, pods: str, make_node: NodeMaker) -> None:
    node = make_node()
    gated = _asking(node)
    gated["spec"]["schedulingGates"] = [{"name": "example.org/wait"}]
    condition = next(filter(_scheduled, cluster.create(pods, gated)["status"]["conditions"]))
    assert condition["reason"] == "SchedulingGated"
    cluster.patched(f"{pods}/p", {"spec": {"schedulingGates": []}}, "merge")
    cluster.until(f"{pods}/p", lambda found: found["spec"].get("nodeName") == node)


def test_node_ports_are_unique_and_kept(cluster: Client, services: str) -> None:
    spec = {"type": "NodePort", "selector": {"a": "b"}, "ports": [{"name": "ssh", "port": 22, "targetPort": 2222}]}
    made = [cluster.create(services, {"metadata": {"name": f"s-{n}"}, "spec": spec}) for n in range(5)]
    ports = {service["spec"]["ports"][0]["nodePort"] for service in made}
    assert len(ports) == 5
    assert all(30000 <= port <= 32767 for port in ports)
    assert len({service["spec"]["clusterIP"] for service in made}) == 5
    again = {"metadata": {"name": "s-0"}, "spec": spec | {"selector": {"c": "d"}}}
    kept = cluster.put(f"{services}/s-0", again)["spec"]
    assert kept["ports"][0]["nodePort"] == made[0]["spec"]["ports"][0]["nodePort"]
    assert kept["clusterIP"] == made[0]["spec"]["clusterIP"]
    headless = {"metadata": {"name": "h"}, "spec": {"clusterIP": "None", "ports": [{"port": 1}]}}
    assert cluster.create(services, headless)["spec"]["clusterIP"] == "None"
    taken = spec | {"ports": [{"port": 1, "nodePort": kept["ports"][0]["nodePort"]}]}
    status = cluster.expect(422, "POST", services, {"metadata": {"name": "thief"}, "spec": taken})
    assert "provided port is already allocated" in status["message"]
    cluster.delete(f"{services}/s-0")
    cluster.create(services, {"metadata": {"name": "heir"}, "spec": taken})


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({}, "spec.ports"),
        ({"ports": [{"port": 1}, {"port": 2}]}, "spec.ports[0].name"),
        ({"type": "Wrong", "ports": [{"port": 1}]}, "spec.type"),
    ],
)
def test_invalid_service_is_refused(cluster: Client, services: str, spec: dict[str, Any], field: str) -> None:
    status = cluster.expect(422, "POST", services, {"metadata": {"name": "s"}, "spec": spec})
    assert field in {cause["field"] for cause in status["details"]["causes"]}


def test_services_endpoints_are_its_ready_pods(cluster: Client, pods: str, services: str, make_node: NodeMaker) -> None:
    ports = [{"name": "web", "port": 80, "targetPort": "http"}]
    spec = {"selector": {"app": "web"}, "ports": ports}
    cluster.create(services, {"metadata": {"name": "s"}, "spec": spec})
    container = {"name": "main", "image": "i:1", "ports": [{"name": "http", "containerPort": 8080}]}
    cluster.create(pods, pod(labels={"app": "web"}, containers=[container], nodeName=make_node()))
    status = {"phase": "Running", "podIP": "10.1.2.3", "podIPs": [{"ip": "10.1.2.3"}]}
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    cluster.patched(f"{pods}/p/status", {"status": status | {"conditions": [ready]}})
    path = services.replace("/services", "/endpoints/s")
    waiting = cluster.until(path, lambda found: bool(found.get("subsets")))["subsets"][0]
    assert [address["ip"] for address in waiting["notReadyAddresses"]] == ["10.1.2.3"]
    cluster.patched(f"{pods}/p/status", {"status": {"conditions": [ready | {"status": "True"}]}})
    subset = cluster.until(path, lambda found: "addresses" in found["subsets"][0])["subsets"][0]
    assert subset["addresses"][0]["targetRef"]["name"] == "p"
    assert subset["ports"] == [{"name": "web", "port": 8080, "protocol": "TCP"}]
    cluster.delete(f"{services}/s")
    cluster.until_gone(path)


def test_claim_is_bound_to_the_volume_made_for_it(cluster: Client, namespace: str) -> None:
    claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    nobodys = {"storageClassName": ""}  # the volume is made by hand, the cluster makes none
    asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **nobodys}
    refused = cluster.expect(422, "POST", claims, {"metadata": {"name": "c"}, "spec": {}})
    fields = {cause["field"] for cause in refused["details"]["causes"]}
    assert {"spec.accessModes", "spec.resources[storage]"} <= fields
    claim = cluster.create(claims, {"metadata": {"name": "home"}, "spec": asked})
    assert claim["status"]["phase"] == "Pending"
    name = f"pv-{namespace}"
    reference = {"namespace": namespace, "name": "home", "uid": claim["metadata"]["uid"]}
    spec = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "claimRef": reference}
    spec |= {"hostPath": {"path": "/nonexistent"}, **nobodys}
    cluster.create("/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": spec})
    try:
        bound = cluster.until(f"{claims}/home", lambda found: found["status"]["phase"] == "Bound")
        assert (bound["spec"]["volumeName"], bound["status"]["capacity"]) == (name, {"storage": "1Gi"})
        assert cluster.get(f"/api/v1/persistentvolumes/{name}")["status"]["phase"] == "Bound"
        cluster.delete(f"{claims}/home")
        cluster.until(f"/api/v1/persistentvolumes/{name}", lambda found: found["status"]["phase"] == "Released")
    finally:
        cluster.delete(f"/api/v1/persistentvolumes/{name}")
