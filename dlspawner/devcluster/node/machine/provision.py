"""Claims become directories: a hostPath volume for every claim without another provisioner.

Only the public API is used: the volume carries a ``claimRef`` and the cluster's own binder binds the two. Served are
claims without a storage class and those of class `STORAGE_CLASS`. A deleted claim's directory goes with its volume
(reclaim policy Delete), unless a claim of the same name has come back to it.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dlspawner.clients.kubernetes import CLAIMS, VOLUMES, Conflict, KubernetesClient, KubernetesError, ObjectNotFound

log = logging.getLogger(__name__)

STORAGE_CLASS = "standard"
PROVISIONER = "devcluster/hostpath"
_PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"


class Provisioner:
    """`run` it as a task; directories lie at ``directory/NAMESPACE/CLAIM``."""

    def __init__(self, cluster: KubernetesClient, directory: Path) -> None:
        self._cluster = cluster
        self._directory = directory
        self._volumes: dict[str, Mapping[str, Any]] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._claims(), name="claims")
            group.create_task(self._reclaim(), name="released volumes")

    async def _claims(self) -> None:
        async for change in self._cluster.watch(CLAIMS):
            if change.type in {"ADDED", "MODIFIED"} and is_ours(change.object):
                try:
                    await self._provide(change.object)
                except KubernetesError as error:
                    log.warning("claim=%s error=%s", change.object["metadata"]["name"], error)

    async def _provide(self, claim: Mapping[str, Any]) -> None:
        metadata = claim["metadata"]
        path = self._directory / metadata["namespace"] / metadata["name"]
        path.mkdir(parents=True, exist_ok=True)
        try:
            await self._cluster.create(VOLUMES, volume(claim, path))
        except Conflict:
            log.debug("claim=%s has its volume already", metadata["name"])

    async def _reclaim(self) -> None:
        async for change in self._cluster.watch(VOLUMES):
            if change.type == "SYNCED":
                continue
            name = change.object["metadata"]["name"]
            if change.type == "DELETED":
                self._volumes.pop(name, None)
                continue
            self._volumes[name] = change.object
            if _released(change.object):
                await self._remove(change.object)

    async def _remove(self, volume: Mapping[str, Any]) -> None:
        path = Path(volume["spec"]["hostPath"]["path"])
        name = volume["metadata"]["name"]
        others = [v for v in self._volumes.values() if v["metadata"]["name"] != name and not _released(v)]
        in_use = any((v["spec"].get("hostPath") or {}).get("path") == str(path) for v in others)
        if path.is_relative_to(self._directory) and not in_use:
            await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
        try:
            await self._cluster.delete(VOLUMES, name)
        except ObjectNotFound:
            pass
        except KubernetesError as error:
            log.warning("volume=%s error=%s", name, error)


def is_ours(claim: Mapping[str, Any]) -> bool:
    """Unbound, without a wish for a certain volume, and of no class or ours; the class "" is a volume made by hand."""
    spec, metadata = claim["spec"], claim["metadata"]
    if metadata.get("deletionTimestamp") or spec.get("volumeName") or spec.get("selector"):
        return False
    return bool(spec.get("storageClassName", STORAGE_CLASS) == STORAGE_CLASS)


def volume(claim: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The volume for a claim."""
    metadata, spec = claim["metadata"], claim["spec"]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"pvc-{metadata['uid']}", "annotations": {_PROVISIONED_BY: PROVISIONER}},
        "spec": {
            "capacity": {"storage": (spec.get("resources") or {}).get("requests", {}).get("storage", "1Gi")},
            "accessModes": spec.get("accessModes") or ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": spec.get("storageClassName") or "",
            "volumeMode": "Filesystem",
            "hostPath": {"path": str(path), "type": "DirectoryOrCreate"},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
        },
    }


def _released(volume: Mapping[str, Any]) -> bool:
    ours = (volume["metadata"].get("annotations") or {}).get(_PROVISIONED_BY) == PROVISIONER
    return ours and (volume.get("status") or {}).get("phase") == "Released"
