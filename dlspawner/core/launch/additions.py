"""An engine's additions to pods (`core.schedulers`): partial manifests that are merged into the final ones.

The first pod of a job of several carries the additions of all in its annotation, and the others are derived from it as
it is in the cluster: from there the first pod's own addition is taken away, and theirs is added.
"""

from __future__ import annotations

from typing import Any

from dlspawner.core.units import Manifest


def merged(manifest: Manifest, addition: Manifest) -> Manifest:
    """The manifest with an addition: mappings are merged, lists extended by what they lack, other values replaced."""
    made = dict(manifest)
    for key, value in addition.items():
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
