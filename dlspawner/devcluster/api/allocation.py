"""Numbers that only one Service may hold: cluster addresses and node ports.

There is no second record of them: what is taken is what the Services say, read once at start and kept by listening.
Cluster addresses come from a part of 127.0.0.0/8, because everything here is on loopback; nothing listens there unless
the node chooses to.
"""

import ipaddress
import secrets
from collections.abc import Iterator
from typing import Any

from dlspawner.devcluster.api import errors
from dlspawner.devcluster.api.objects.resources import SERVICES, Resource
from dlspawner.devcluster.api.store import Change, ChangeType, Object, Store

NODE_PORTS = range(30000, 32768)  # Kubernetes' default
CLUSTER_ADDRESSES = ipaddress.ip_network("127.96.0.0/16")
_WITH_NODE_PORTS = ("NodePort", "LoadBalancer")


class Allocator:
    """Gives every new Service what it needs and checks what it asks for."""

    def __init__(self, store: Store) -> None:
        self._addresses: set[str] = set()
        self._ports: set[int] = set()
        for version in store.values(SERVICES):
            self._note(version.read(), taken=True)
        store.listeners.append(self._listen)

    def _listen(self, change: Change) -> None:
        if change.version.resource is not SERVICES:
            return
        if change.previous is not None:
            self._note(change.previous.read(), taken=False)
        if change.type is not ChangeType.DELETED:
            self._note(change.version.read(), taken=True)

    def _note(self, service: Object, *, taken: bool) -> None:
        spec = service.get("spec", {})
        addresses = {spec["clusterIP"]} - {"None", ""} if "clusterIP" in spec else set()
        ports = set(_node_ports(service))
        if taken:
            self._addresses |= addresses
            self._ports |= ports
        else:
            self._addresses -= addresses
            self._ports -= ports

    def assign(self, resource: Resource, manifest: Object, old: Object | None) -> None:
        if resource is not SERVICES:
            return
        self._assign_address(manifest, old)
        self._assign_ports(manifest, set(_node_ports(old)) if old else set())

    def _assign_address(self, service: Object, old: Object | None) -> None:
        spec = service["spec"]
        before = (old or {}).get("spec", {}).get("clusterIP", "")
        wanted = spec.get("clusterIP") or before
        if spec.get("type") == "ExternalName":
            spec.pop("clusterIP", None)
            spec.pop("clusterIPs", None)
            return
        if wanted not in ("", "None", before):
            self._check_address(service, wanted)
        spec["clusterIP"] = wanted or self._free_address()
        spec["clusterIPs"] = [spec["clusterIP"]]

    def _check_address(self, service: Object, wanted: str) -> None:
        try:
            inside = ipaddress.ip_address(wanted) in CLUSTER_ADDRESSES
        except ValueError:
            inside = False
        if not inside:
            why = f"failed to allocate IP {wanted}: the provided IP ({wanted}) is not in the valid range. "
            why += f"The range of valid IPs is {CLUSTER_ADDRESSES}"
            raise _refused(service, errors.wrong("spec.clusterIPs", [wanted], why))
        if wanted in self._addresses:
            why = f"failed to allocate IP {wanted}: provided IP is already allocated"
            raise _refused(service, errors.wrong("spec.clusterIPs", [wanted], why))

    def _free_address(self) -> str:
        first = int(CLUSTER_ADDRESSES.network_address)
        for number in _from_random(range(first + 1, first + CLUSTER_ADDRESSES.num_addresses - 1)):
            address = str(ipaddress.ip_address(number))
            if address not in self._addresses:
                return address
        raise errors.internal("failed to allocate a serviceIP: range is full")

    def _assign_ports(self, service: Object, own: set[int]) -> None:
        spec = service["spec"]
        if spec.get("type") not in _WITH_NODE_PORTS:
            return
        taken = self._ports - own
        chosen: set[int] = set()
        for index, port in enumerate(spec.get("ports") or []):
            number = port.get("nodePort")
            if number and (number in taken or number in chosen):
                cause = errors.wrong(f"spec.ports[{index}].nodePort", number, "provided port is already allocated")
                raise _refused(service, cause)
            port["nodePort"] = number or self._free_port(taken | chosen)
            chosen.add(port["nodePort"])

    @staticmethod
    def _free_port(taken: set[int]) -> int:
        for number in _from_random(NODE_PORTS):
            if number not in taken:
                return number
        raise errors.internal("failed to allocate a nodePort: range is full")


def _from_random(numbers: range) -> Iterator[int]:
    """All of a range from a random start: what was just freed is not given out again at once."""
    start = secrets.randbelow(len(numbers))
    yield from numbers[start:]
    yield from numbers[:start]


def _node_ports(service: Object) -> list[int]:
    ports: list[dict[str, Any]] = service.get("spec", {}).get("ports") or []
    return [port["nodePort"] for port in ports if port.get("nodePort")]


def _refused(service: Object, cause: errors.Cause) -> errors.ApiError:
    return errors.invalid(SERVICES, service["metadata"]["name"], [cause])
