"""The built manifests as tests ask about them, and what their NetworkPolicies mean.

An engine is slow to build (test_enforced.py), so `reaches` is one: it decides by the rules of the NetworkPolicy API
which ports of a pod another pod or an outside address may connect to. Only what the manifests use is understood; what
else there may be is an error here instead of being taken for permission. An ipBlock means pods with such an address
too: the API leaves that to the plug-in, and what some allow counts as allowed.
"""

from __future__ import annotations

import copy
import ipaddress
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]
WORKLOADS = {"Deployment", "StatefulSet", "Job"}
PRODUCT, JOBS = "dlspawner", "dlspawner-jobs"


def of_kind(objects: Iterable[Object], *kinds: str) -> list[Object]:
    return [one for one in objects if one["kind"] in kinds]


def containers(workload: Object) -> Iterator[Object]:
    spec = workload["spec"]["template"]["spec"]
    yield from spec.get("initContainers", ())
    yield from spec["containers"]


def moved(objects: Iterable[Object], product: str, jobs: str) -> list[Object]:
    """The same objects for other namespaces, beside the cluster's own objects: no fixed NodePorts."""
    names = {PRODUCT: product, JOBS: jobs}
    made = []
    for one in copy.deepcopy(list(objects)):
        if one["kind"] == "Namespace":
            one["metadata"]["name"] = names[one["metadata"]["name"]]
        elif one["kind"] in {"ClusterRole", "ClusterRoleBinding"}:
            one["metadata"]["name"] = one["metadata"]["name"].replace(PRODUCT, product)
            if "roleRef" in one:
                one["roleRef"]["name"] = one["metadata"]["name"]
        elif one["kind"] != "PriorityClass":  # of the cluster, and the same for all namespaces
            one["metadata"]["namespace"] = names[one["metadata"]["namespace"]]
        for subject in one.get("subjects", ()):
            subject["namespace"] = names[subject["namespace"]]
        if one["kind"] == "Service":
            for port in one["spec"]["ports"]:
                port.pop("nodePort", None)
        made.append(one)
    return made


def as_list(objects: Iterable[Object]) -> str:
    """For `kubectl apply --filename -`."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})


@dataclass(frozen=True)
class Pod:
    """A pod as policies see it: namespace, labels, ports by name, address."""

    name: str
    namespace: str
    labels: Mapping[str, str] = field(hash=False)
    ports: Mapping[str, int] = field(hash=False)
    ip: str


@dataclass(frozen=True)
class Address:
    """A peer outside of the cluster, or a node."""

    ip: str


Peer = Pod | Address


def pods(objects: Iterable[Object]) -> list[Pod]:
    """One pod of each workload, with addresses of a usual pod network."""
    found = []
    for one in of_kind(objects, *WORKLOADS):
        template = one["spec"]["template"]
        ports = {port["name"]: port["containerPort"] for each in containers(one) for port in each.get("ports", ())}
        name, namespace, ip = one["metadata"]["name"], one["metadata"]["namespace"], f"10.244.0.{10 + len(found)}"
        found.append(Pod(name, namespace, template["metadata"]["labels"], ports, ip))
    return found


def reaches(objects: Iterable[Object], source: Peer, target: Peer, ports: Iterable[int]) -> set[int]:
    """Which of these TCP ports of the target the policies on both sides let the source connect to."""
    policies = of_kind(objects, "NetworkPolicy")
    return {
        port
        for port in ports
        if _allows(policies, "Egress", source, target, port) and _allows(policies, "Ingress", target, source, port)
    }


def _allows(policies: list[Object], way: str, pod: Peer, peer: Peer, port: int) -> bool:
    """True if the policies on `pod` let this connection out or in; without any, everything may pass."""
    if not isinstance(pod, Pod):
        return True
    mine = [
        one["spec"]
        for one in policies
        if one["metadata"]["namespace"] == pod.namespace
        and way in one["spec"]["policyTypes"]
        and _selects(one["spec"]["podSelector"], pod.labels)
    ]
    if not mine:
        return True
    whose = pod if way == "Ingress" else peer  # the owner of named ports
    side = "from" if way == "Ingress" else "to"
    return any(
        _port_matches(rule.get("ports"), port, whose) and _peer_matches(rule.get(side), peer, pod.namespace)
        for spec in mine
        for rule in spec.get(way.lower(), ())
    )


def _port_matches(entries: list[Object] | None, port: int, whose: Peer) -> bool:
    if entries is None:
        return True
    for entry in entries:
        wanted = entry["port"]
        if isinstance(wanted, str):
            wanted = whose.ports.get(wanted, -1) if isinstance(whose, Pod) else -1
        if entry.get("protocol", "TCP") == "TCP" and wanted <= port <= entry.get("endPort", wanted):
            return True
    return False


def _peer_matches(entries: list[Object] | None, peer: Peer, namespace: str) -> bool:
    if entries is None:
        return True
    return any(_is_peer(entry, peer, namespace) for entry in entries)


def _is_peer(entry: Object, peer: Peer, namespace: str) -> bool:
    unknown = set(entry) - {"ipBlock", "podSelector", "namespaceSelector"}
    assert not unknown, unknown
    if "ipBlock" in entry:
        block = entry["ipBlock"]
        return _within(peer, block["cidr"]) and not any(_within(peer, one) for one in block.get("except", ()))
    if not isinstance(peer, Pod):
        return False
    if "namespaceSelector" in entry:
        if not _selects(entry["namespaceSelector"], {"kubernetes.io/metadata.name": peer.namespace}):
            return False
    elif peer.namespace != namespace:
        return False
    return _selects(entry.get("podSelector", {}), peer.labels)


def _within(peer: Peer, network: str) -> bool:
    block, ip = ipaddress.ip_network(network), ipaddress.ip_address(peer.ip)
    return ip.version == block.version and ip in block


def _selects(selector: Object, labels: Mapping[str, str]) -> bool:
    unknown = set(selector) - {"matchLabels", "matchExpressions"}
    assert not unknown, unknown
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    for one in selector.get("matchExpressions", ()):
        if one["operator"] == "Exists":
            fits = one["key"] in labels
        else:
            assert one["operator"] == "In", one
            fits = labels.get(one["key"]) in one["values"]
        if not fits:
            return False
    return True
