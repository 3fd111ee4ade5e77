"""Create, read, update and delete by Kubernetes' rules, on top of the store.

What every kind has in common is here: names, metadata that belongs to the server, optimistic concurrency, status
apart from spec, finalizers, preconditions, graceful deletion. What is special to a kind is in `defaults`, `validation`
and `allocation`. All methods are synchronous and raise `ApiError`.
"""

import copy
import dataclasses
import datetime as dt
import secrets
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from dlspawner.devcluster.api import errors
from dlspawner.devcluster.api.allocation import Allocator
from dlspawner.devcluster.api.objects import defaults, shapes, validation
from dlspawner.devcluster.api.objects.resources import NAMESPACES, PODS, PRIORITY_CLASSES, Resource, Target
from dlspawner.devcluster.api.store import Object, Store, Version

_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # Kubernetes': no words, no look-alikes
_SERVER_OWNED = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")
_RETRIES = 5
_PROTECTED = ("default", "kube-system")
FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"


def timestamp(moment: dt.datetime) -> str:
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_timestamp(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)


@dataclasses.dataclass(frozen=True, slots=True)
class DeleteOptions:
    """`grace` None is the object's own; policies and preconditions as in `meta/v1.DeleteOptions`."""

    grace: int | None = None
    policy: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    dry_run: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Binding:
    """The decision of a scheduler about a pod; with a uid, about this one only."""

    node: str
    uid: str | None = None
    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Registry:
    """Everything that may be done to objects."""

    def __init__(self, store: Store, now: Callable[[], dt.datetime]) -> None:
        self.store = store
        self.now = now
        self._allocator = Allocator(store)

    # Reading

    def get(self, resource: Resource, namespace: str, name: str) -> Version:
        version = self.store.get(resource, namespace, name)
        if version is None:
            raise errors.not_found(resource, name)
        return version

    # Creating

    def create(self, resource: Resource, namespace: str, given: Object, *, dry_run: bool = False) -> Version:
        manifest = self._received(resource, namespace, given)
        metadata = manifest["metadata"]
        if metadata.get("resourceVersion"):
            raise errors.bad_request("resourceVersion should not be set on objects to be created")
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = self._generated(resource, namespace, str(metadata["generateName"]))
        for field in (*_SERVER_OWNED, "managedFields", "selfLink"):
            metadata.pop(field, None)
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = timestamp(self.now())
        if resource.counts_generations:
            metadata["generation"] = 1
        if resource.has_status and not resource.status_on_create:
            manifest.pop("status", None)
        defaults.apply(resource, manifest)
        self._resolve_priority(resource, manifest)
        self._check(resource, manifest, validation.check(resource, manifest))
        self._require_namespace(resource, namespace)
        name = str(metadata["name"])
        if self.store.get(resource, namespace, name) is not None:
            raise errors.already_exists(resource, name)
        self._allocator.assign(resource, manifest, None)
        return self._write(resource, manifest, dry_run=dry_run)

    def _received(self, resource: Resource, namespace: str, given: object) -> Object:
        """The body of a create or update, as far as it is shaped like an object of this kind."""
        if not isinstance(given, dict):
            raise errors.bad_request("the request's body is not an object")
        manifest: Object = shapes.without_nulls(given)
        for field, expected in (("apiVersion", resource.api_version), ("kind", resource.kind)):
            if manifest.setdefault(field, expected) != expected:
                what = "API version" if field == "apiVersion" else "kind"
                raise errors.bad_request(
                    f"the {what} in the data ({manifest[field]}) does not match the expected {what} ({expected})"
                )
        problem = shapes.malformed(resource, manifest)
        if problem is not None:
            raise errors.bad_request(
                f"{resource.kind} in version {resource.version!r} cannot be handled as a {resource.kind}: {problem}"
            )
        metadata = manifest.setdefault("metadata", {})
        if resource.namespaced:
            if metadata.setdefault("namespace", namespace) != namespace:
                raise errors.bad_request(
                    f"the namespace of the provided object does not match the namespace sent on the request "
                    f"({metadata['namespace']} != {namespace})"
                )
        else:
            metadata.pop("namespace", None)
        for field in ("labels", "annotations", "finalizers", "ownerReferences"):
            if field in metadata and not metadata[field]:
                del metadata[field]  # empty is absent
        ordered = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
        return ordered | manifest

    def _generated(self, resource: Resource, namespace: str, prefix: str) -> str:
        for _ in range(_RETRIES):
            name = prefix[:58] + "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(5))
            if self.store.get(resource, namespace, name) is None:
                return name
        raise errors.already_exists(resource, prefix)

    def _require_namespace(self, resource: Resource, namespace: str) -> None:
        if not resource.namespaced:
            return
        found = self.store.get(NAMESPACES, "", namespace)
        if found is None:
            raise errors.not_found(NAMESPACES, namespace)
        if found.read()["metadata"].get("deletionTimestamp"):
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise errors.forbidden(resource, "", why, "NamespaceTerminating")

    def _resolve_priority(self, resource: Resource, manifest: Object) -> None:
        """The Priority admission plugin: a class's name becomes a number."""
        if resource is not PODS or not isinstance(manifest.get("spec"), dict):
            return
        spec = manifest["spec"]
        name = spec.get("priorityClassName")
        classes = [version.read() for version in self.store.values(PRIORITY_CLASSES)]
        chosen = [c for c in classes if (c["metadata"]["name"] == name if name else c.get("globalDefault"))]
        if name and not chosen:
            raise errors.forbidden(
                resource, str(manifest["metadata"].get("name", "")), f"no PriorityClass with name {name} was found"
            )
        if chosen:
            spec["priorityClassName"] = chosen[0]["metadata"]["name"]
        spec["priority"] = chosen[0]["value"] if chosen else 0
        policy = chosen[0].get("preemptionPolicy") if chosen else None
        spec.setdefault("preemptionPolicy", policy or "PreemptLowerPriority")

    @staticmethod
    def _check(resource: Resource, manifest: Object, causes: list[errors.Cause]) -> None:
        if causes:
            metadata = manifest["metadata"]
            name = str(metadata.get("name") or metadata.get("generateName") or "")
            raise errors.invalid(resource, name, causes)

    # Changing

    def update(self, target: Target, given: Object, *, dry_run: bool = False) -> Version:
        resource, namespace, name = target.resource, target.namespace, target.name
        old_version = self.get(resource, namespace, name)
        manifest = self._received(resource, namespace, given)
        metadata = manifest["metadata"]
        if metadata.setdefault("name", name) != name:
            raise errors.bad_request(
                f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})"
            )
        if metadata.get("resourceVersion") not in (None, "", str(old_version.revision)):
            raise errors.stale(resource, name)
        if metadata.get("uid") not in (None, "", old_version.uid):
            why = f"Precondition failed: UID in precondition: {metadata['uid']}, UID in object meta: {old_version.uid}"
            raise errors.conflict(resource, name, why)
        old = old_version.read()
        new = self._merged(resource, old, manifest, target.subresource)
        return self._replace(resource, old_version, old, new, dry_run=dry_run)

    def _merged(self, resource: Resource, old: Object, given: Object, subresource: str) -> Object:
        """Returns the part that a write through this path may change: everything but status, or status alone."""
        if subresource == "status":
            new = copy.deepcopy(old)
            new["status"] = given.get("status", {})
            # Real status updates may also touch labels and annotations; nodes and controllers rely on it.
            for field in ("labels", "annotations"):
                if field in given["metadata"]:
                    new["metadata"][field] = given["metadata"][field]
            return new
        new = copy.deepcopy(given)
        metadata, kept = new["metadata"], old["metadata"]
        for field in (*_SERVER_OWNED, "resourceVersion", "managedFields", "selfLink"):
            metadata.pop(field, None)
            if field in kept:
                metadata[field] = kept[field]
        if resource.has_status:
            new.pop("status", None)
            if "status" in old:
                new["status"] = old["status"]
        return new

    def _replace(self, resource: Resource, version: Version, old: Object, new: Object, *, dry_run: bool) -> Version:
        defaults.apply_update(resource, new, old)
        self._check(resource, new, [*validation.check(resource, new), *validation.check_update(resource, new, old)])
        self._allocator.assign(resource, new, old)
        if new == old:
            return version  # nothing changed: no new version and no event, as in Kubernetes
        metadata = new["metadata"]
        if resource.counts_generations and new.get("spec") != old.get("spec"):
            metadata["generation"] = old["metadata"].get("generation", 0) + 1
        if metadata.get("deletionTimestamp") and not self._pending(resource, new) and not dry_run:
            return self.store.remove(version, new)
        return self._write(resource, new, dry_run=dry_run)

    @staticmethod
    def _pending(resource: Resource, manifest: Object) -> bool:
        """Is something still to happen before an object that is being deleted can go?"""
        metadata = manifest["metadata"]
        if resource is NAMESPACES and manifest.get("spec", {}).get("finalizers"):
            return True
        return bool(metadata.get("finalizers")) or bool(metadata.get("deletionGracePeriodSeconds"))

    def patch(self, target: Target, change: Callable[[Object], Any], *, dry_run: bool = False) -> Version:
        """Applies `change` to the object as it is now; conflicts only when the patch itself names another version."""
        version = self.get(target.resource, target.namespace, target.name)
        changed = change(version.read())
        if not isinstance(changed, dict) or not isinstance(changed.get("metadata"), dict):
            raise errors.bad_request("the patch leaves no object")
        if changed["metadata"].get("uid") not in (None, "", version.uid):
            cause = errors.wrong("metadata.uid", changed["metadata"]["uid"], "field is immutable")
            raise errors.invalid(target.resource, target.name, [cause])
        return self.update(target, changed, dry_run=dry_run)

    def edit(self, version: Version, change: Callable[[Object], None]) -> Version:
        """A controller's own write, past the rules for clients; refused (409) when the object has moved on."""
        current = self.store.get(version.resource, version.namespace, version.name)
        if current is None or current.revision != version.revision:
            raise errors.stale(version.resource, version.name)
        old = current.read()
        new = copy.deepcopy(old)
        change(new)
        return current if new == old else self.store.put(version.resource, new)

    def bind(self, namespace: str, name: str, binding: Binding) -> None:
        """A scheduler's verdict: writes `spec.nodeName`, once."""
        pod = self.get(PODS, namespace, name)
        if binding.uid not in (None, "", pod.uid):
            raise errors.conflict(
                PODS, name, f"Precondition failed: UID in precondition: {binding.uid}, UID: {pod.uid}"
            )
        manifest = pod.read()
        if manifest["metadata"].get("deletionTimestamp"):
            raise errors.conflict(PODS, name, f"pod {name} is being deleted, cannot be assigned to a host")
        if manifest["spec"].get("nodeName"):
            held = manifest["spec"]["nodeName"]
            raise errors.conflict(PODS, name, f'pod {name} is already assigned to node "{held}"')
        if manifest["spec"].get("schedulingGates"):
            raise errors.conflict(PODS, name, f"pod {name} has non-empty .spec.schedulingGates")

        def assign(pod: Object) -> None:
            pod["spec"]["nodeName"] = binding.node
            if binding.annotations:
                pod["metadata"].setdefault("annotations", {}).update(binding.annotations)
            defaults.set_condition(pod, {"type": "PodScheduled", "status": "True"}, timestamp(self.now()))

        self.edit(pod, assign)

    # Deleting

    def delete(self, resource: Resource, namespace: str, name: str, options: DeleteOptions) -> Version:
        version = self.get(resource, namespace, name)
        if resource is NAMESPACES and name in _PROTECTED:
            raise errors.forbidden(resource, name, "this namespace may not be deleted")
        self._precondition(version, options)
        manifest = version.read()
        metadata = manifest["metadata"]
        before = copy.deepcopy(manifest)
        for finalizer, policy in ((FOREGROUND, "Foreground"), (ORPHAN, "Orphan")):
            if options.policy == policy and finalizer not in metadata.get("finalizers", []):
                metadata.setdefault("finalizers", []).append(finalizer)
        if "deletionTimestamp" in metadata:
            self._shorten(resource, manifest, options)
        else:
            grace = self._grace(resource, manifest, options)
            metadata["deletionTimestamp"] = timestamp(self.now() + dt.timedelta(seconds=grace))
            metadata["deletionGracePeriodSeconds"] = grace
            if resource.counts_generations:
                metadata["generation"] = metadata.get("generation", 0) + 1
            if resource is NAMESPACES:
                manifest.setdefault("status", {})["phase"] = "Terminating"
        if options.dry_run or (manifest == before and self._pending(resource, manifest)):
            return version
        if self._pending(resource, manifest):
            return self.store.put(resource, manifest)
        return self.store.remove(version, manifest)

    @staticmethod
    def _precondition(version: Version, options: DeleteOptions) -> None:
        held = (
            ("UID", options.uid, version.uid, "deleted and then recreated"),
            ("ResourceVersion", options.resource_version, str(version.revision), "modified"),
        )
        for what, wanted, actual, happened in held:
            if wanted is not None and wanted != actual:
                why = (
                    f"the {what} in the precondition ({wanted}) does not match the {what} in record ({actual}). "
                    f"The object might have been {happened}"
                )
                raise errors.precondition(version.resource, version.name, why)

    @staticmethod
    def _grace(resource: Resource, pod: Object, options: DeleteOptions) -> int:
        """Seconds that a pod's processes get; nothing waits for a pod that no node runs."""
        if resource is not PODS or not pod["spec"].get("nodeName"):
            return 0
        if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            return 0
        grace = options.grace if options.grace is not None else pod["spec"].get("terminationGracePeriodSeconds", 30)
        return max(int(grace), 0) if int(grace) >= 0 else 1

    def _shorten(self, resource: Resource, manifest: Object, options: DeleteOptions) -> None:
        """A second delete can bring the end forward, never put it off."""
        metadata = manifest["metadata"]
        current = metadata.get("deletionGracePeriodSeconds", 0)
        wanted = self._grace(resource, manifest, options) if options.grace is not None else current
        if wanted < current:
            end = parse_timestamp(metadata["deletionTimestamp"]) - dt.timedelta(seconds=current - wanted)
            metadata["deletionTimestamp"] = timestamp(end)
            metadata["deletionGracePeriodSeconds"] = wanted

    def _write(self, resource: Resource, manifest: Object, *, dry_run: bool) -> Version:
        if dry_run:
            manifest["metadata"].setdefault("resourceVersion", "")
            return self.store.unwritten(resource, manifest)
        return self.store.put(resource, manifest)
