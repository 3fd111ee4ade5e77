"""Resources of the Kubernetes API that the product knows, as its paths name them; what is asked of a log. PURE."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

DEADLINE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """A resource as the API's paths name it."""

    group_version: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """``namespace=None`` with a namespaced kind means all namespaces."""
        prefix = "/api/" if "/" not in self.group_version else "/apis/"
        parts = [prefix + self.group_version]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", quote(namespace, safe="")]
        parts += [part for part in (self.plural, quote(name, safe=""), subresource) if part]
        return "/".join(parts)


PODS = ResourceKind("v1", "pods")
SERVICES = ResourceKind("v1", "services")
SECRETS = ResourceKind("v1", "secrets")
CONFIG_MAPS = ResourceKind("v1", "configmaps")
EVENTS = ResourceKind("v1", "events")
SERVICE_ACCOUNTS = ResourceKind("v1", "serviceaccounts")
CLAIMS = ResourceKind("v1", "persistentvolumeclaims")
VOLUMES = ResourceKind("v1", "persistentvolumes", namespaced=False)
NODES = ResourceKind("v1", "nodes", namespaced=False)
PRIORITY_CLASSES = ResourceKind("scheduling.k8s.io/v1", "priorityclasses", namespaced=False)
NAMESPACES = ResourceKind("v1", "namespaces", namespaced=False)
LEASES = ResourceKind("coordination.k8s.io/v1", "leases")


@dataclass(frozen=True, slots=True)
class LogRequest:
    """What of a container's log is wanted: at most `most` bytes from its beginning, or that of its last lines.

    `since`: from this time on, to the second; `seconds`: for how long to read, and with `follow` to wait for more.
    """

    container: str
    previous: bool = False
    follow: bool = False
    timestamps: bool = False
    tail: int | None = None
    since: str = ""
    seconds: float = DEADLINE_SECONDS
    most: int = 64 * 2**20

    @property
    def query(self) -> dict[str, str]:
        flags = {"previous": self.previous, "follow": self.follow, "timestamps": self.timestamps}
        tail = {} if self.tail is None else {"tailLines": str(self.tail)}
        chosen = {name: "true" for name, wanted in flags.items() if wanted}
        return {"container": self.container, "sinceTime": self.since, **tail, **chosen}
