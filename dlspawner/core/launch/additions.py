"""An engine's additions to pods (`core.schedulers`): partial manifests that are merged into the final ones.

What an engine adds to the work container is a part of its own (`CONTAINER`): amounts, ``None`` for those that it takes
away, and variables, which replace those of the same name.

The first pod of a job of several carries the additions of all in its annotation, and the others are derived from it as
it is in the cluster: from there the first pod's own addition is taken away, and theirs is added.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dlspawner.core.units import Manifest

CONTAINER = "container"  # the part of an addition that is the work container's, wherever that is in the manifest


def merged(manifest: Manifest, addition: Manifest) -> Manifest:
    """The manifest with an addition: mappings are merged, lists extended by what they lack, other values replaced."""
    made = dict(manifest)
    for key, value in addition.items():
        if key == CONTAINER:
            continue
        old = made.get(key)
        if isinstance(value, dict):
            made[key] = merged(old if isinstance(old, dict) else {}, value)
        elif isinstance(value, list):
            known = old if isinstance(old, list) else []
            made[key] = [*known, *(one for one in value if one not in known)]
        else:
            made[key] = value
    return made


def lacking(manifest: Manifest, addition: Manifest) -> Manifest:
    """The part of an addition that the manifest does not have yet: what `without` may take away again."""
    left: dict[str, Any] = {}
    for key, value in addition.items():
        old = manifest.get(key)
        part: Any = value
        if isinstance(value, dict) and isinstance(old, dict):
            part = lacking(old, value)
        elif isinstance(value, list) and isinstance(old, list):
            part = [one for one in value if one not in old]
        elif value == old:
            continue
        if part not in ({}, []):
            left[key] = part
    return left


def without(manifest: Manifest, addition: Manifest) -> Manifest:
    """The manifest before an addition, as far as it replaced no values."""
    made = dict(manifest)
    for key, value in addition.items():
        old = made.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            made[key] = without(old, value)
        elif isinstance(value, list) and isinstance(old, list):
            made[key] = [one for one in old if one not in value]
        elif old == value:
            del made[key]
    return made


def in_container(container: Manifest, addition: Manifest) -> Manifest:
    """The work container with its part of an addition."""
    part: Mapping[str, Any] = addition.get(CONTAINER) or {}
    if not part:
        return container
    resources = dict(container.get("resources") or {})
    for kind, amounts in part["resources"].items():
        changed = {**(resources.get(kind) or {}), **amounts}
        resources[kind] = {name: amount for name, amount in changed.items() if amount is not None}
    names = {one["name"] for one in part["env"]}
    kept = [one for one in container.get("env") or () if one["name"] not in names]
    return {**container, "resources": resources, "env": [*kept, *part["env"]]}


def out_of_container(container: Manifest, addition: Manifest) -> Manifest:
    """The work container without what its part of an addition has brought."""
    part: Mapping[str, Any] = addition.get(CONTAINER) or {}
    names = {one["name"] for one in part.get("env", ())}
    gone = {kind: dict.fromkeys(amounts) for kind, amounts in part.get("resources", {}).items()}
    made = in_container(container, {CONTAINER: {"resources": gone, "env": []}} if part else {})
    return {**made, "env": [one for one in made.get("env") or () if one["name"] not in names]}
