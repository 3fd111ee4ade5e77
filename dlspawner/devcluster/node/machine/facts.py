"""Reads the Secrets and ConfigMaps that a container's environment refers to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dlspawner.clients.kubernetes import CONFIG_MAPS, SECRETS, KubernetesClient, KubernetesError, ObjectNotFound
from dlspawner.devcluster.node import env

_KINDS = {"secret": SECRETS, "configMap": CONFIG_MAPS}


async def objects(
    cluster: KubernetesClient, namespace: str, container: Mapping[str, Any]
) -> dict[env.Source, Mapping[str, str] | None]:
    """Their data, None for one that does not exist; raises `env.ConfigError` when that cannot be found out."""
    found: dict[env.Source, Mapping[str, str] | None] = {}
    for kind, name in set(env.references(container)):
        try:
            data = env.decode(kind, await cluster.get(_KINDS[kind], name, namespace))
            found[kind, name] = {key: value.decode(errors="surrogateescape") for key, value in data.items()}
        except ObjectNotFound:
            found[kind, name] = None
        except KubernetesError as error:
            raise env.ConfigError(f"failed to get {kind.lower()} {name}: {error}") from error
    return found
