"""Binds claims to volumes: a volume that names a claim in its claimRef, or a claim that names its volume.

Making volumes is the node's business (it provisions what a claim asks for and names the claim in the volume); so is
deleting what a released volume held.
"""

from collections.abc import Callable

from dlspawner.devcluster.api.controllers.base import BATCH, Controller
from dlspawner.devcluster.api.objects.resources import CLAIMS, VOLUMES
from dlspawner.devcluster.api.registry import Registry
from dlspawner.devcluster.api.store import Change, ChangeType, Key, Object, Version

_BOUND = "pv.kubernetes.io/bind-completed"


class VolumeBinder(Controller):
    watches = (CLAIMS, VOLUMES)

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self._dirty: dict[Key, None] = {}  # claims to look at
        self._named_by: dict[Key, dict[str, None]] = {}  # claim -> volumes that name it

    def observe(self, change: Change) -> None:
        version = change.version
        if version.resource is CLAIMS:
            self._dirty[version.key] = None
            return
        for known in (change.previous, version):
            if known is not None and (claim := _claim_of(known.read())):
                self._dirty[claim] = None
                names = self._named_by.setdefault(claim, {})
                if known is version and change.type is not ChangeType.DELETED:
                    names[version.name] = None
                else:
                    names.pop(version.name, None)

    def reconcile(self) -> float | None:
        for key in list(self._dirty)[:BATCH]:
            del self._dirty[key]
            self._sync(key)
        return 0 if self._dirty else None

    def _sync(self, key: Key) -> None:
        claim = self.store.get(CLAIMS, *key)
        wanted = claim.read()["spec"].get("volumeName") if claim else None
        names = [*self._named_by.get(key, {}), *([wanted] if wanted else [])]
        volumes = [volume for name in names if (volume := self.store.get(VOLUMES, "", name)) is not None]
        if claim is not None and wanted and not volumes and _phase(claim) == "Bound":
            self.registry.edit(claim, _set_phase("Lost"))
        for volume in volumes:
            reference = volume.read()["spec"].get("claimRef") or {}
            stranger = claim is None or reference.get("uid") not in (None, "", claim.uid)
            if stranger and reference.get("uid") and _phase(volume) != "Released":
                self.registry.edit(volume, _set_phase("Released"))
            elif not stranger and claim is not None and wanted in (None, "", volume.name):
                self._bind(claim, volume)
                return

    def _bind(self, claim: Version, volume: Version) -> None:
        if b'"deletionTimestamp"' in volume.body:
            return
        if _phase(volume) != "Bound" or not (volume.read()["spec"].get("claimRef") or {}).get("uid"):
            volume = self.registry.edit(volume, _bind_volume(claim))
        if _phase(claim) != "Bound" or not claim.read()["spec"].get("volumeName"):
            self.registry.edit(claim, _bind_claim(volume.read()))


def _claim_of(volume: Object) -> Key | None:
    reference = volume["spec"].get("claimRef")
    return (reference.get("namespace", ""), reference["name"]) if reference else None


def _phase(version: Version) -> str:
    return str(version.read().get("status", {}).get("phase", ""))


def _set_phase(phase: str) -> Callable[[Object], None]:
    def change(manifest: Object) -> None:
        manifest.setdefault("status", {})["phase"] = phase

    return change


def _bind_volume(claim: Version) -> Callable[[Object], None]:
    def change(volume: Object) -> None:
        volume["spec"]["claimRef"] = {
            "kind": "PersistentVolumeClaim",
            "apiVersion": "v1",
            "namespace": claim.namespace,
            "name": claim.name,
            "uid": claim.uid,
            "resourceVersion": str(claim.revision),
        }
        volume["status"] = {"phase": "Bound"}

    return change


def _bind_claim(volume: Object) -> Callable[[Object], None]:
    def change(claim: Object) -> None:
        claim["metadata"].setdefault("annotations", {})[_BOUND] = "yes"
        claim["spec"]["volumeName"] = volume["metadata"]["name"]
        claim["status"] = {
            "phase": "Bound",
            "accessModes": volume["spec"].get("accessModes") or [],
            "capacity": volume["spec"].get("capacity") or {},
        }

    return change
