"""Any JSON anywhere in an object is stored or refused with a Status, and never breaks the server or its controllers."""

import contextlib
import copy
import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlspawner.devcluster.api.controllers.endpoints import EndpointsController
from dlspawner.devcluster.api.controllers.events import EventExpiry, Recorder
from dlspawner.devcluster.api.controllers.garbage import GarbageCollector
from dlspawner.devcluster.api.controllers.nodes import NodeLifecycle
from dlspawner.devcluster.api.controllers.scheduler import Scheduler
from dlspawner.devcluster.api.controllers.volumes import VolumeBinder
from dlspawner.devcluster.api.errors import ApiError
from dlspawner.devcluster.api.objects.resources import (
    CLAIMS,
    ENDPOINTS,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    SERVICES,
    VOLUMES,
    Resource,
    Target,
)
from dlspawner.devcluster.api.objects.tables import table
from dlspawner.devcluster.api.registry import DeleteOptions, Registry
from dlspawner.devcluster.api.store import Store

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
CONTAINER = {
    "name": "c",
    "image": "i",
    "env": [{"name": "A", "value": "b"}],
    "ports": [{"name": "p", "containerPort": 1}],
    "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}},
    "volumeMounts": [{"name": "v", "mountPath": "/v"}],
    "readinessProbe": {"httpGet": {"port": 1}},
}
TERM = {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}
POD = {
    "metadata": {"name": "x", "labels": {"a": "b"}, "annotations": {"a": "b"}, "finalizers": ["a.b/c"]},
    "spec": {
        "containers": [CONTAINER],
        "initContainers": [CONTAINER | {"name": "i"}],
        "volumes": [{"name": "v", "secret": {"secretName": "s"}}],
        "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]}}},
    },
}
POD_STATUS = {
    "phase": "Running",
    "podIP": "127.0.0.9",
    "conditions": [{"type": "Ready", "status": "True"}],
    "containerStatuses": [{"name": "c", "ready": True, "restartCount": 1, "state": {"terminated": {"exitCode": 1}}}],
}
NODE_STATUS = {
    "allocatable": {"cpu": "1"},
    "conditions": [{"type": "Ready", "status": "True"}],
    "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
}
ELSEWHERE = {key: value for key, value in POD["spec"].items() if key != "nodeSelector"}


def named(**fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": "x"}, **fields}


ONCE = ["ReadWriteOnce"]
CLAIM = {"accessModes": ONCE, "resources": {"requests": {"storage": "1"}}}
VOLUME = {"accessModes": ONCE, "capacity": {"storage": "1"}, "claimRef": {"namespace": "a", "name": "c"}}
EVENT = {
    "involvedObject": {"kind": "Pod", "name": "p"},
    "source": {"component": "x"},
    "series": {"count": 1, "lastObservedTime": "2026-01-01T00:00:00.000001Z"},
    "firstTimestamp": "2026-01-01T00:00:00Z",
    "lastTimestamp": "2026-01-01T00:00:00+01:00",
    "type": "Normal",
}
EXAMPLES: dict[str, tuple[Resource, dict[str, Any]]] = {
    "pod": (PODS, POD),
    "pod with affinity alone": (PODS, POD | {"spec": ELSEWHERE}),
    "pod status": (PODS, POD | {"status": POD_STATUS}),
    "node": (NODES, named(spec={"taints": [{"key": "a", "effect": "NoSchedule"}]}, status=NODE_STATUS)),
    "service": (SERVICES, named(spec={"type": "NodePort", "selector": {"a": "b"}, "ports": [{"port": 1}]})),
    "claim": (CLAIMS, named(spec=CLAIM)),
    "volume": (VOLUMES, named(spec=VOLUME)),
    "event": (EVENTS, named(**EVENT)),
    "endpoints": (ENDPOINTS, named(subsets=[{"addresses": [{"ip": "127.0.0.1"}], "ports": [{"port": 1}]}])),
}
ODDITIES = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=3), st.floats(allow_nan=False, allow_infinity=False),
    st.just([]), st.just({}), st.just([None]), st.just([1]), st.just([{}]), st.just({"a": None}), st.just({"a": {}}),
    st.sampled_from(["1e999999999", "Gt", "In", "Never", "a.b/c", "99999999999999999999"]), st.just([[]]),
)  # fmt: skip


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document, the root left out."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [path] if path else []
    for key, item in items:
        found += _places(item, (*path, key))
    return found


def _with(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    result = copy.deepcopy(document)
    holder = result
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return result


@pytest.mark.parametrize("example", EXAMPLES)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
async def test_odd_objects(example: str, tmp_path: Path, data: st.DataObject) -> None:
    resource, document = EXAMPLES[example]
    odd = _with(document, data.draw(st.sampled_from(_places(document))), data.draw(ODDITIES))
    path = tmp_path / "objects.sqlite"
    path.unlink(missing_ok=True)
    store = Store(path)
    try:
        registry = Registry(store, lambda: NOW)
        registry.create(NAMESPACES, "", {"metadata": {"name": "a"}})
        with contextlib.suppress(ApiError):
            _live(registry, resource, odd)
    finally:
        store.close()


def _live(registry: Registry, resource: Resource, odd: dict[str, Any]) -> None:
    """A whole life: created, its status reported, read by all controllers, shown, deleted, found again."""
    namespace = "a" if resource.namespaced else ""
    base, status = odd, odd.get("status")
    if resource is PODS and status is not None:
        base = {key: value for key, value in odd.items() if key != "status"}
    name = registry.create(resource, namespace, base).name
    controllers = [
        Scheduler(registry, Recorder(registry)),
        EndpointsController(registry),
        VolumeBinder(registry),
        GarbageCollector(registry),
        NodeLifecycle(registry, lambda: 0.0),
        EventExpiry(registry),
    ]
    for controller in controllers:
        controller.begin()
    registry.create(NODES, "", {"metadata": {"name": "other"}, "status": NODE_STATUS})
    if status is not None and resource.has_status:
        with contextlib.suppress(ApiError):
            registry.patch(Target(resource, namespace, name, "status"), lambda old: old | {"status": status})
    for controller in controllers:
        controller.reconcile()
    table(resource, registry.store.objects(resource), {}, NOW)
    registry.delete(resource, namespace, name, DeleteOptions())
    for controller in controllers:
        controller.reconcile()
