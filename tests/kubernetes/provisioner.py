"""Volumes for claims of the cluster's default class: directories of the node, as `local` volumes.

`local` and not `hostPath`, because only the former has what real storage has: node affinity, and ownership by a pod's
fsGroup. A claim waits for its first pod (WaitForFirstConsumer); the scheduler names the node, the directory is made,
and it is deleted when the claim is gone. Sizes are not enforced, nor are access modes: every volume can be mounted by
several pods of its node.

    python -m tests.kubernetes.provisioner KUBECONFIG DIRECTORY
"""

from __future__ import annotations

import http.client
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.contract.client import Client

NAME = "dlspawner.dev/test-directory"
CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "local", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    "provisioner": NAME,
    "volumeBindingMode": "WaitForFirstConsumer",
    "reclaimPolicy": "Delete",
}
NODE = "volume.kubernetes.io/selected-node"
PROVISIONER = "volume.kubernetes.io/storage-provisioner"
MARK = "pv.kubernetes.io/provisioned-by"
CLAIMS, VOLUMES = "/api/v1/persistentvolumeclaims", "/api/v1/persistentvolumes"
WATCHED_SECONDS = 15  # less than the client's own deadline for a line
BACK_OFF = 0.5


def wanted(claim: dict[str, Any]) -> bool:
    """True if a claim waits for us, and the scheduler has chosen its node."""
    annotations = claim["metadata"].get("annotations", {})
    ours = annotations.get(PROVISIONER) == NAME and NODE in annotations
    return ours and not claim["spec"].get("volumeName") and "deletionTimestamp" not in claim["metadata"]


def volume(claim: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The volume for a claim, on the node that the scheduler chose."""
    metadata, spec = claim["metadata"], claim["spec"]
    node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [metadata["annotations"][NODE]]}
    return {
        "metadata": {"name": f"pvc-{metadata['uid']}", "annotations": {MARK: NAME}},
        "spec": {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "accessModes": spec["accessModes"],
            "storageClassName": spec["storageClassName"],
            "persistentVolumeReclaimPolicy": "Delete",
            "local": {"path": str(folder)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [node]}]}},
            "claimRef": {
                **{"apiVersion": "v1", "kind": "PersistentVolumeClaim"},
                **{key: metadata[key] for key in ("name", "namespace", "uid")},
            },
        },
    }


def claim_seen(client: Client, folder: Path, claim: dict[str, Any]) -> None:
    if not wanted(claim):
        return
    made = folder / f"pvc-{claim['metadata']['uid']}"
    made.mkdir(mode=0o755, parents=True, exist_ok=True)  # root's own, as a new filesystem is: fsGroup must open it
    answer = client.request("POST", VOLUMES, volume(claim, made))
    if answer.code != 409:  # made before we were started again
        print(f"{claim['metadata']['namespace']}/{claim['metadata']['name']}: {answer.code}", flush=True)


def volume_seen(client: Client, _: Path, volume: dict[str, Any]) -> None:
    ours = volume["metadata"].get("annotations", {}).get(MARK) == NAME
    if ours and volume.get("status", {}).get("phase") == "Released":
        shutil.rmtree(volume["spec"]["local"]["path"], ignore_errors=True)
        client.request("DELETE", f"{VOLUMES}/{volume['metadata']['name']}")


def follow(client: Client, folder: Path, path: str, seen: Callable[[Client, Path, dict[str, Any]], None]) -> None:
    """List, then watch, for ever; the API server may be away for a while."""
    while True:
        try:
            listed = client.get(path)
            for item in listed["items"]:
                seen(client, folder, item)
            version = listed["metadata"]["resourceVersion"]
            with client.watch(path, resourceVersion=version, timeoutSeconds=WATCHED_SECONDS) as watcher:
                while True:
                    seen(client, folder, watcher.next("ADDED", "MODIFIED")[1])
        except EOFError:
            continue  # a watch ends after a while
        except (OSError, http.client.HTTPException, AssertionError) as error:
            print(f"{path}: {error!r}, again in {BACK_OFF} s", flush=True)
            time.sleep(BACK_OFF)


def main() -> None:
    kubeconfig, folder = map(Path, sys.argv[1:])
    client = Client(kubeconfig)
    threading.Thread(target=follow, args=(client, folder, CLAIMS, claim_seen), daemon=True).start()
    follow(client, folder, VOLUMES, volume_seen)


if __name__ == "__main__":
    main()
