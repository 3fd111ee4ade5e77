"""Namespaces: each gets its `default` ServiceAccount; one that is being deleted is emptied, then it goes."""

import contextlib

from dlspawner.devcluster.api.controllers.base import Controller
from dlspawner.devcluster.api.errors import ApiError
from dlspawner.devcluster.api.objects.resources import NAMESPACES, RESOURCES, SERVICE_ACCOUNTS, Target
from dlspawner.devcluster.api.registry import DeleteOptions, Registry
from dlspawner.devcluster.api.store import Change, ChangeType, Object


class NamespaceController(Controller):
    watches = RESOURCES

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self._fresh: dict[str, None] = {}
        self._ending: set[str] = set()

    def observe(self, change: Change) -> None:
        version = change.version
        if version.resource is SERVICE_ACCOUNTS and change.type is ChangeType.DELETED:
            self._fresh[version.namespace] = None
        if version.resource is not NAMESPACES:
            return
        if change.type is ChangeType.DELETED:
            self._ending.discard(version.name)
            self._fresh.pop(version.name, None)
        elif version.fields["status.phase"] == "Terminating":
            self._ending.add(version.name)
        else:
            self._fresh[version.name] = None

    def reconcile(self) -> float | None:
        for name in list(self._fresh):
            del self._fresh[name]
            if name not in self._ending and self.store.get(SERVICE_ACCOUNTS, name, "default") is None:
                self.registry.create(SERVICE_ACCOUNTS, name, {"metadata": {"name": "default"}})
        for name in list(self._ending):
            self._empty(name)
        return None

    def _empty(self, namespace: str) -> None:
        left = [
            version
            for resource in RESOURCES
            if resource.namespaced
            for version in self.store.in_namespace(resource, namespace)
        ]
        for version in left:
            if b'"deletionTimestamp"' not in version.body:
                with contextlib.suppress(ApiError):  # changed in the meantime: the next pass sees it
                    self.registry.delete(version.resource, *version.key, DeleteOptions())
        if any(self.store.get(version.resource, *version.key) for version in left):
            return

        def finalize(manifest: Object) -> Object:
            manifest["spec"]["finalizers"] = []
            return manifest

        self.registry.patch(Target(NAMESPACES, "", namespace, "finalize"), finalize)
