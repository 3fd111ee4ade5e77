"""A pod's volumes as directories and files of the machine.

Everything of the pod's own (emptyDir, secret, configMap, downwardAPI, projected) lies below the pod's directory and
goes with it; claims lie where the provisioner put them and stay. Nothing here mounts: the sandbox does.
Not simulated: updates of a mounted Secret or ConfigMap (nor a new token when a service account's is about to expire),
quotas of emptyDir (one in memory has its size, and each container its own), network file systems. Where the cluster
gives no tokens (the embedded API), there is no such file.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dlspawner.clients.kubernetes import (
    CLAIMS,
    CONFIG_MAPS,
    SECRETS,
    SERVICE_ACCOUNTS,
    VOLUMES,
    KubernetesClient,
    KubernetesError,
    ObjectNotFound,
)
from dlspawner.devcluster import quantity
from dlspawner.devcluster.node import env
from dlspawner.devcluster.node.env import Facts
from dlspawner.devcluster.node.runner import Mount

Json = Mapping[str, Any]
DEFAULT_MODE = 0o644
_MEMORY = "1Gi"  # of a volume in memory without a limit
_NO_SUCH_PATH = "could not find the requested resource"
_KINDS = {"secret": SECRETS, "configMap": CONFIG_MAPS}


class MountError(Exception):
    """Why a volume is not there (yet); the text of a FailedMount event."""


async def prepare(cluster: KubernetesClient, facts: Facts, directory: Path) -> dict[str, Path]:
    """Returns the directory of each volume of the pod; raises `MountError` for the first one that is not available."""
    paths: dict[str, Path] = {}
    for volume in facts.pod["spec"].get("volumes") or []:
        path = directory / volume["name"]
        try:
            paths[volume["name"]] = await _volume(cluster, facts, volume, path)
        except (MountError, env.ConfigError) as error:
            raise MountError(f'MountVolume.SetUp failed for volume "{volume["name"]}" : {error}') from error
        except OSError as error:
            raise MountError(f'MountVolume.SetUp failed for volume "{volume["name"]}" : {error}') from error
    return paths


def mounts(container: Json, pod: Json, paths: Mapping[str, Path], variables: Mapping[str, str]) -> Iterator[Mount]:
    """The container's volumeMounts on the volumes' directories."""
    readonly_volumes = {
        volume["name"]
        for volume in pod["spec"].get("volumes") or []
        if (volume.get("persistentVolumeClaim") or {}).get("readOnly") or not volume.keys().isdisjoint(_READ_ONLY)
    }
    memory = {volume["name"]: _memory(volume) for volume in pod["spec"].get("volumes") or []}
    for mount in container.get("volumeMounts") or []:
        if mount["name"] not in paths:
            raise env.ConfigError(f'volume "{mount["name"]}" is not defined')
        sub_path = mount.get("subPath") or env.expand(mount.get("subPathExpr") or "", variables)
        source = below(paths[mount["name"]], sub_path)
        readonly = bool(mount.get("readOnly")) or mount["name"] in readonly_volumes
        yield Mount(str(source), mount["mountPath"], readonly, memory[mount["name"]])


def _memory(volume: Json) -> int:
    """The size of a volume in memory; 0 for any other."""
    empty = volume.get("emptyDir") or {}
    return int(quantity.parse(empty.get("sizeLimit") or _MEMORY)) if empty.get("medium") == "Memory" else 0


_READ_ONLY = {"secret", "configMap", "downwardAPI", "projected"}


def below(volume: Path, sub_path: str) -> Path:
    """A path inside a volume, made as a directory if it is not there; links may not lead out of the volume."""
    if not sub_path:
        return volume
    root = volume.resolve()
    path = (root / sub_path).resolve()
    if not path.is_relative_to(root):
        raise env.ConfigError(f'subPath "{sub_path}" leads out of the volume')
    try:
        if not path.exists():
            path.mkdir(parents=True)
    except OSError as error:
        raise env.ConfigError(f'failed to prepare subPath "{sub_path}": {error.strerror}') from error
    return path


def selected(data: Mapping[str, bytes], source: Json, owner: str, mode: int) -> Iterator[tuple[str, bytes, int]]:
    """The files of a Secret's or ConfigMap's volume: (path, contents, mode)."""
    if not source.get("items"):
        yield from ((key, value, mode) for key, value in data.items())
        return
    for item in source["items"]:
        if item["key"] in data:
            yield item["path"], data[item["key"]], item.get("mode", mode)
        elif not source.get("optional"):
            raise MountError(f"references non-existent {owner} key: {item['key']}")


async def _volume(cluster: KubernetesClient, facts: Facts, volume: Json, path: Path) -> Path:
    if "hostPath" in volume:
        return _host_path(volume["hostPath"])
    if "persistentVolumeClaim" in volume:
        return await _claim(cluster, facts, volume["persistentVolumeClaim"]["claimName"])
    path.mkdir(parents=True, exist_ok=True)
    if "emptyDir" in volume or not volume.keys() - {"name"}:
        path.chmod(0o777)
        return path
    if "projected" in volume:
        mode = volume["projected"].get("defaultMode", DEFAULT_MODE)
        for source in volume["projected"].get("sources") or []:
            _write(path, await _files(cluster, facts, source, mode))
        return path
    mode = next((volume[kind].get("defaultMode", DEFAULT_MODE) for kind in _READ_ONLY & volume.keys()), DEFAULT_MODE)
    _write(path, await _files(cluster, facts, volume, mode))
    return path


async def _files(cluster: KubernetesClient, facts: Facts, source: Json, mode: int) -> list[tuple[str, bytes, int]]:
    for kind, resource in _KINDS.items():
        if kind in source:
            reference = source[kind]
            name = reference.get("secretName") or reference.get("name")
            try:
                manifest = await cluster.get(resource, name, facts.pod["metadata"]["namespace"])
            except ObjectNotFound:
                if reference.get("optional"):
                    return []
                raise MountError(f'{kind.lower()} "{name}" not found') from None
            return list(selected(env.decode(kind, manifest), reference, kind.lower(), mode))
    if "downwardAPI" in source:
        return [
            (item["path"], _downward(item, facts).encode(), item.get("mode", mode))
            for item in source["downwardAPI"].get("items") or []
        ]
    if "serviceAccountToken" in source:
        return await _token(cluster, facts.pod, source["serviceAccountToken"], mode)
    raise MountError(f"no volume plugin matched: {', '.join(sorted(source.keys() - {'name'}))}")


async def _token(cluster: KubernetesClient, pod: Json, source: Json, mode: int) -> list[tuple[str, bytes, int]]:
    """A token of the pod's service account that lives no longer than the pod."""
    metadata, account = pod["metadata"], pod["spec"].get("serviceAccountName") or "default"
    bound = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
    spec: dict[str, Any] = {"boundObjectRef": bound, "expirationSeconds": source.get("expirationSeconds", 3600)}
    spec["audiences"] = [source["audience"]] if source.get("audience") else []
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    try:
        answer = await cluster.create(
            SERVICE_ACCOUNTS, request, metadata["namespace"], name=account, subresource="token"
        )
    except KubernetesError as error:
        if isinstance(error, ObjectNotFound) and _NO_SUCH_PATH in str(error):
            return []
        raise MountError(f"failed to fetch token: {error}") from error
    return [(source["path"], answer["status"]["token"].encode(), mode)]


def _downward(item: Json, facts: Facts) -> str:
    if "fieldRef" in item:
        return env.field(item["fieldRef"]["fieldPath"], facts)
    return env.resource(item["resourceFieldRef"], {}, facts)


def _write(directory: Path, files: list[tuple[str, bytes, int]]) -> None:
    root = directory.resolve()
    for name, contents, mode in files:
        path = root / name
        if not path.resolve().is_relative_to(root):
            raise MountError(f"the path {name!r} leads out of the volume")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(contents)
        path.chmod(mode)


def _host_path(source: Json) -> Path:
    path, kind = Path(source["path"]), source.get("type") or ""
    if kind in {"", "DirectoryOrCreate"} and not path.exists():
        path.mkdir(parents=True)
    elif kind == "FileOrCreate" and not path.exists():
        path.touch()
    wrong = (kind.startswith("Directory") and not path.is_dir()) or (kind.startswith("File") and not path.is_file())
    if wrong or not path.exists():
        raise MountError(f"hostPath type check failed: {path} is not a {kind.lower() or 'path'}")
    return path


async def _claim(cluster: KubernetesClient, facts: Facts, name: str) -> Path:
    try:
        claim = await cluster.get(CLAIMS, name, facts.pod["metadata"]["namespace"])
        if (claim.get("status") or {}).get("phase") != "Bound":
            raise MountError(f'persistentvolumeclaim "{name}" is not bound')
        volume = await cluster.get(VOLUMES, claim["spec"]["volumeName"])
    except ObjectNotFound as error:
        raise MountError(f'persistentvolumeclaim "{name}" not found') from error
    source = volume["spec"].get("hostPath") or volume["spec"].get("local")
    if not source:
        raise MountError(f"persistentvolume {volume['metadata']['name']} is neither hostPath nor local")
    return _host_path({"path": source["path"], "type": "DirectoryOrCreate"})


def remove_tree(path: Path) -> None:
    """Everything below, also what a container has made unreadable."""

    def unlock(function: Any, name: str, _: object) -> None:
        with contextlib.suppress(OSError):
            Path(name).parent.chmod(0o700)
            Path(name).chmod(0o700)
            function(name)

    shutil.rmtree(path, onerror=unlock)
