"""Deletes objects without any owner left, and applies a deletion's policy for dependents.

An owner counts as gone when no object of its uid exists, so a new object of the same name does not keep the old one's
dependents. Objects that lost their owner while the server was down are found at start.
"""

import contextlib

from dlspawner.devcluster.api.controllers.base import BATCH, Controller
from dlspawner.devcluster.api.errors import ApiError
from dlspawner.devcluster.api.objects.resources import BY_KIND, RESOURCES, Resource, Target
from dlspawner.devcluster.api.registry import FOREGROUND, ORPHAN, DeleteOptions, Registry
from dlspawner.devcluster.api.store import Change, ChangeType, Key, Object, Version

_Place = tuple[Resource, Key]


class GarbageCollector(Controller):
    watches = RESOURCES

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self._alive: set[str] = set()
        self._dependents: dict[str, dict[_Place, None]] = {}
        self._suspects: dict[_Place, None] = {}
        self._ending: dict[_Place, None] = {}  # owners that wait for their dependents

    def observe(self, change: Change) -> None:
        version = change.version
        place = version.resource, version.key
        for owner in change.previous.owners if change.previous else ():
            self._dependents.get(owner, {}).pop(place, None)
        if change.type is ChangeType.DELETED:
            self._alive.discard(version.uid)
            self._suspects |= self._dependents.pop(version.uid, {})
            self._recheck_owners(version)
            return
        self._alive.add(version.uid)
        for owner in version.owners:
            self._dependents.setdefault(owner, {})[place] = None
        if version.owners:
            self._suspects[place] = None
        if b'"deletionTimestamp"' in version.body and b'"finalizers"' in version.body:
            self._ending[place] = None

    def _recheck_owners(self, gone: Version) -> None:
        """A dependent that goes may be the last thing its owner waited for."""
        for reference in gone.read()["metadata"].get("ownerReferences") or []:
            resource = BY_KIND.get((reference["apiVersion"], reference["kind"]))
            if resource is not None:
                self._ending[resource, (gone.namespace if resource.namespaced else "", reference["name"])] = None

    def reconcile(self) -> float | None:
        for place in list(self._suspects)[:BATCH]:
            del self._suspects[place]
            version = self.store.get(place[0], *place[1])
            if version is not None and version.owners and not self._alive.intersection(version.owners):
                with contextlib.suppress(ApiError):  # gone or replaced in the meantime: not ours any more
                    self.registry.delete(*_address(place), DeleteOptions(uid=version.uid))
        for place in list(self._ending)[:BATCH]:
            del self._ending[place]
            version = self.store.get(place[0], *place[1])
            if version is not None:
                self._end(version)
        return 0 if self._suspects or self._ending else None

    def _end(self, owner: Version) -> None:
        metadata = owner.read()["metadata"]
        finalizers = metadata.get("finalizers") or []
        if "deletionTimestamp" not in metadata:
            return
        dependents = [self.store.get(resource, *key) for resource, key in self._dependents.get(owner.uid, {})]
        present = [version for version in dependents if version is not None]
        if ORPHAN in finalizers:
            for version in present:
                self.registry.edit(version, lambda manifest: _disown(manifest, owner.uid))
            self._finalize(owner, ORPHAN)
        elif FOREGROUND in finalizers:
            for version in present:
                if b'"deletionTimestamp"' not in version.body:
                    options = DeleteOptions(policy="Foreground", uid=version.uid)
                    self.registry.delete(version.resource, *version.key, options)
            if not self._dependents.get(owner.uid):
                self._finalize(owner, FOREGROUND)

    def _finalize(self, owner: Version, finalizer: str) -> None:
        def drop(manifest: Object) -> Object:
            manifest["metadata"]["finalizers"].remove(finalizer)
            return manifest

        self.registry.patch(Target(owner.resource, *owner.key), drop)


def _address(place: _Place) -> tuple[Resource, str, str]:
    return place[0], *place[1]


def _disown(manifest: Object, uid: str) -> None:
    metadata = manifest["metadata"]
    metadata["ownerReferences"] = [owner for owner in metadata.get("ownerReferences") or [] if owner["uid"] != uid]
