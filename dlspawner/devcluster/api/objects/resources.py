"""The kinds of object that the API serves, as data.

A new kind is a row here (and, where it wants them, defaults, validation and columns in the modules of those names).
Merge keys live in `patch`, because only strategic merge patches need them.
"""

from __future__ import annotations

from dataclasses import dataclass

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
EVENT_FIELDS = (
    "involvedObject.apiVersion",
    "involvedObject.fieldPath",
    "involvedObject.kind",
    "involvedObject.name",
    "involvedObject.namespace",
    "involvedObject.resourceVersion",
    "involvedObject.uid",
    "reason",
    "reportingComponent",
    "source",
    "type",
)
POD_FIELDS = (
    "spec.hostNetwork",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "status.nominatedNodeName",
    "status.phase",
    "status.podIP",
)


@dataclass(frozen=True, slots=True)
class Resource:
    """One row: how a kind is called, where it lives and what can be asked of it."""

    plural: str
    kind: str
    namespaced: bool = True
    group: str = ""
    version: str = "v1"
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()  # what a field selector may name besides metadata.name and metadata.namespace
    returns_deleted: bool = False  # DELETE answers with the object, not with a Status
    counts_generations: bool = False
    status_on_create: bool = False  # a create may bring its status, as a kubelet does for its node

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """The name that messages and details use: `pods`, `leases.coordination.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def has_status(self) -> bool:
        return "status" in self.subresources


@dataclass(frozen=True, slots=True)
class Target:
    """The object, collection or subresource that a request is about."""

    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""


PODS = Resource(
    "pods",
    "Pod",
    short_names=("po",),
    categories=("all",),
    subresources=("status", "binding", "eviction", "log", "exec"),
    fields=POD_FIELDS,
    returns_deleted=True,
    counts_generations=True,
)
NODES = Resource(
    "nodes",
    "Node",
    namespaced=False,
    short_names=("no",),
    subresources=("status",),
    fields=("spec.unschedulable",),
    status_on_create=True,
)
NAMESPACES = Resource(
    "namespaces",
    "Namespace",
    namespaced=False,
    short_names=("ns",),
    subresources=("status", "finalize"),
    fields=("status.phase",),
)
SERVICES = Resource(
    "services",
    "Service",
    short_names=("svc",),
    categories=("all",),
    subresources=("status",),
    fields=("spec.clusterIP", "spec.type"),
    returns_deleted=True,
)
ENDPOINTS = Resource("endpoints", "Endpoints", short_names=("ep",))
SECRETS = Resource("secrets", "Secret", fields=("type",))
CONFIG_MAPS = Resource("configmaps", "ConfigMap", short_names=("cm",))
CLAIMS = Resource(
    "persistentvolumeclaims",
    "PersistentVolumeClaim",
    short_names=("pvc",),
    subresources=("status",),
    returns_deleted=True,
)
VOLUMES = Resource(
    "persistentvolumes",
    "PersistentVolume",
    namespaced=False,
    short_names=("pv",),
    subresources=("status",),
    returns_deleted=True,
)
EVENTS = Resource("events", "Event", short_names=("ev",), fields=EVENT_FIELDS)
SERVICE_ACCOUNTS = Resource("serviceaccounts", "ServiceAccount", short_names=("sa",), returns_deleted=True)
NETWORK_POLICIES = Resource(  # stored but not enforced: all pods share one network
    "networkpolicies", "NetworkPolicy", group="networking.k8s.io", short_names=("netpol",), counts_generations=True
)
LEASES = Resource("leases", "Lease", group="coordination.k8s.io")
PRIORITY_CLASSES = Resource(
    "priorityclasses", "PriorityClass", namespaced=False, group="scheduling.k8s.io", short_names=("pc",)
)

RESOURCES = (
    CONFIG_MAPS,
    ENDPOINTS,
    EVENTS,
    NAMESPACES,
    NODES,
    CLAIMS,
    VOLUMES,
    PODS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    LEASES,
    NETWORK_POLICIES,
    PRIORITY_CLASSES,
)
BY_PATH = {(resource.group, resource.version, resource.plural): resource for resource in RESOURCES}
BY_KIND = {(resource.api_version, resource.kind): resource for resource in RESOURCES}
BY_QUALIFIED = {resource.qualified: resource for resource in RESOURCES}
