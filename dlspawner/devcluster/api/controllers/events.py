"""Events of the server's own controllers, and the end of all events an hour after they were last seen."""

import datetime as dt
import secrets
from collections import OrderedDict

from dlspawner.devcluster.api.controllers.base import BATCH, Controller
from dlspawner.devcluster.api.errors import ApiError
from dlspawner.devcluster.api.objects.resources import EVENTS, NAMESPACES
from dlspawner.devcluster.api.registry import DeleteOptions, Registry, parse_timestamp, timestamp
from dlspawner.devcluster.api.store import Change, Key, Object

LIFETIME = dt.timedelta(hours=1)  # kube-apiserver's --event-ttl
_SWEEP_SECONDS = 60.0
_REMEMBERED = 2_000


class Recorder:
    """Writes events; the same thing said again raises a count."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._recent: OrderedDict[tuple[str, str, str], Key] = OrderedDict()

    def record(self, involved: Object, kind: str, reason: str, message: str, component: str) -> None:
        metadata = involved["metadata"]
        same = (metadata["uid"], reason, message)
        now = timestamp(self._registry.now())
        if not self._repeat(same, now):
            namespace = metadata.get("namespace", "default")
            name = f"{metadata['name']}.{secrets.token_hex(8)}"
            event = {
                "metadata": {"name": name, "namespace": namespace},
                "involvedObject": {
                    "kind": involved["kind"],
                    "apiVersion": involved["apiVersion"],
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                    "resourceVersion": metadata["resourceVersion"],
                    **({"namespace": namespace} if "namespace" in metadata else {}),
                },
                "reason": reason,
                "message": message,
                "type": kind,
                "source": {"component": component},
                "firstTimestamp": now,
                "lastTimestamp": now,
                "count": 1,
                "eventTime": None,
            }
            self._create(same, namespace, event)

    def _create(self, same: tuple[str, str, str], namespace: str, event: Object) -> None:
        found = self._registry.store.get(NAMESPACES, "", namespace)
        if found is None or found.fields["status.phase"] == "Terminating":
            return  # it has no reader, and nothing may be created there
        version = self._registry.create(EVENTS, namespace, event)
        self._recent[same] = version.key
        while len(self._recent) > _REMEMBERED:
            self._recent.popitem(last=False)

    def _repeat(self, same: tuple[str, str, str], now: str) -> bool:
        key = self._recent.get(same)
        version = self._registry.store.get(EVENTS, *key) if key else None
        if version is None:
            return False

        def again(event: Object) -> None:
            event["count"] += 1
            event["lastTimestamp"] = now

        self._registry.edit(version, again)
        return True


class EventExpiry(Controller):
    """Deletes events that were not repeated for an hour."""

    watches = (EVENTS,)

    def observe(self, change: Change) -> None:
        """Nothing to note: the clock decides, not the change."""

    def begin(self) -> None:
        self.awake.set()  # no need to be woken by every event

    def reconcile(self) -> float | None:
        oldest = self.registry.now() - LIFETIME
        old = [version for version in self.store.values(EVENTS) if _last_seen(version.read()) < oldest]
        for version in old[:BATCH]:
            try:
                self.registry.delete(EVENTS, *version.key, DeleteOptions())
            except ApiError:
                continue  # gone already
        return 0 if len(old) > BATCH else _SWEEP_SECONDS


def _last_seen(event: Object) -> dt.datetime:
    times = [
        (event.get("series") or {}).get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event["metadata"]["creationTimestamp"],
    ]
    return parse_timestamp(next(time for time in times if time))
