"""Where a job's logs are in the cluster, read from its pods. PURE.

A *run* of a container is one start of it: its restart count is the run's number. Of a pod that is there Kubernetes has
the log of the current run, and of the one before. What of the pod's environment looks like a secret by its name is
remembered, to be hidden wherever the job prints it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dlspawner.core.units import Manifest

_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|COOKIE|PRIVATE|(API|ACCESS|AUTH|CRYPT|_)_?KEY", re.IGNORECASE)
_NO_SECRETS = re.compile(r"true|false|[a-z]{1,10}://[^:@?]*|/[^:]*|[\d.]*", re.IGNORECASE)  # addresses, paths, numbers


@dataclass(frozen=True, slots=True)
class LoggedContainer:
    """A container as its pod's status tells: its current run, and whether that runs or has ended."""

    name: str
    run: int
    running: bool
    ended: bool
    code: int | None = None  # how the run ended, or where it runs again the one before
    why: str = ""

    @property
    def started(self) -> bool:
        return self.running or self.ended or self.run > 0


@dataclass(frozen=True, slots=True)
class PodLogSource:
    """One pod with what it prints."""

    uid: str
    pod: str
    namespace: str
    node: str
    containers: tuple[LoggedContainer, ...]
    secrets: tuple[bytes, ...]
    leaving: bool


def read_source(manifest: Manifest) -> PodLogSource:
    """A pod as the Kubernetes API tells it."""
    metadata, spec, status = manifest["metadata"], manifest.get("spec") or {}, manifest.get("status") or {}
    found = {one.get("name"): one for kind in _STATUSES for one in status.get(kind) or ()}
    names = [str(one.get("name")) for kind in _KINDS for one in spec.get(kind) or ()]
    return PodLogSource(
        uid=str(metadata["uid"]),
        pod=str(metadata["name"]),
        namespace=str(metadata.get("namespace") or ""),
        node=str(spec.get("nodeName") or ""),
        containers=tuple(_container(name, found.get(name) or {}) for name in names),
        secrets=tuple(sorted(set(_secrets(spec)))),
        leaving=bool(metadata.get("deletionTimestamp")),
    )


def main_container(names: Iterable[str]) -> str | None:
    """The container that people mean when they name none: their own program's."""
    known = list(names)
    return next((one for one in ("main", "notebook", *known[:1]) if one in known), None)


_KINDS = ("containers", "initContainers")
_STATUSES = ("containerStatuses", "initContainerStatuses")


def _container(name: str, status: Mapping[str, Any]) -> LoggedContainer:
    state, run = status.get("state") or {}, int(status.get("restartCount") or 0)
    over = state.get("terminated")
    last = over or (status.get("lastState") or {}).get("terminated") or {}
    # One that is between two runs has ended the one that its count says: the next one counts it up.
    waits_again = bool(state.get("waiting")) and bool(last)
    code = last.get("exitCode")
    return LoggedContainer(
        name=name,
        run=run,
        running=bool(state.get("running")),
        ended=bool(over) or waits_again,
        code=code if isinstance(code, int) else None,
        why=str(last.get("reason") or ""),
    )


def _secrets(spec: Mapping[str, Any]) -> Iterator[bytes]:
    for kind in _KINDS:
        for container in spec.get(kind) or ():
            for variable in container.get("env") or ():
                name, value = str(variable.get("name") or ""), variable.get("value")
                if isinstance(value, str) and _SECRET.search(name) and not _NO_SECRETS.fullmatch(value):
                    yield value.encode(errors="replace")
