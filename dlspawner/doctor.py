"""``dlspawner doctor``: what of an installation on Kubernetes does not fit, each with its cause and remedy.

It reads the cluster once, with the account of an administrator, into an `Installation`; the checks in `CHECKS` are
functions of that value alone. It changes nothing: questions about rights are SubjectAccessReviews, which are not
stored, and the range of NodePorts is read from the refusal of a Service. What may not be read is a problem itself,
never a check that passes; an address that nothing answers at has a check of its own.

The Hub is asked what the tokens of the Manager and the gateway may do, by https, or on this machine: tokens go nowhere
in the clear. Refused: other requests to the Hub and the Manager; one of the two may be away.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import dataclasses
import json
import os
import re
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import yaml

from dlspawner import settings
from dlspawner.clients import kubernetes
from dlspawner.clients.hub import HubClient, HubError, HubRejected, has_scope
from dlspawner.clients.kubernetes import KubernetesClient, KubernetesError, ObjectNotFound, ResourceKind
from dlspawner.core.nodes import has_type, in_gpus, read_node
from dlspawner.errors import InvalidConfiguration

DEPLOYMENTS = ResourceKind("apps/v1", "deployments")
ENDPOINTS = ResourceKind("v1", "endpoints")
POLICIES = ResourceKind("networking.k8s.io/v1", "networkpolicies")
REVIEWS = ResourceKind("authorization.k8s.io/v1", "subjectaccessreviews", namespaced=False)
OLD = timedelta(days=365)  # keys and tokens
SOON = timedelta(days=14)  # a certificate ends
CLOCK = timedelta(seconds=30)  # an SSH certificate of the gateway lives two minutes
SILENT = timedelta(seconds=60)  # a kubelet reports every ten
LOOPBACK = {"127.0.0.1", "::1", "localhost"}
SECONDS = 5.0  # for an answer from outside the API server
Object = dict[str, Any]

# As in hub_config/kubernetes/base/access.yaml: the account of a process, where, and what it must be allowed.
RIGHTS = (
    ("hub", "jobs", "", "pods", ("get", "list", "watch", "create", "patch", "delete")),
    ("hub", "jobs", "", "secrets", ("get", "create", "delete")),
    ("hub", "jobs", "", "services", ("get", "create", "delete")),
    ("hub", "jobs", "networking.k8s.io", "networkpolicies", ("create",)),
    ("hub", "jobs", "", "persistentvolumeclaims", ("get", "create")),
    ("hub", "jobs", "", "events", ("list",)),
    ("manager", "jobs", "", "pods", ("list", "watch", "patch", "delete")),
    ("manager", "jobs", "", "pods/log", ("get",)),
    ("manager", "jobs", "", "events", ("list", "watch")),
    ("manager", "product", "", "events", ("create",)),
    ("manager", "everywhere", "", "nodes", ("list", "watch", "patch")),
    ("manager", "everywhere", "", "pods", ("list", "watch")),
    ("gateway", "jobs", "", "pods", ("list",)),
    ("gateway", "jobs", "", "services", ("get",)),
)

# As in hub_config/jupyterhub_config.py: the scopes of the services.
SCOPES = {
    "jobs": ("servers", "list:users", "read:users", "list:groups", "read:groups"),
    "ssh-gateway": (
        *("users:activity", "list:users", "read:users", "read:servers", "access:services!service=jobs"),
        *("custom:ssh-keys:read", "custom:notices:read", "custom:ssh-sessions:write", "custom:ssh-starts"),
    ),
}

# Where their tokens are: the Secret and the key, of the manifests and of the chart.
TOKENS = {
    "jobs": (("manager-token", "token"), ("hub", "hub.services.jobs.apiToken")),
    "ssh-gateway": (("gateway-token", "token"), ("hub", "hub.services.ssh-gateway.apiToken")),
}
NOT_PULLED = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName"}

# Values of zero-to-jupyterhub that collide with decisions of the Manager and the templates, and how.
COLLIDING: tuple[tuple[str, Callable[[Any], bool], str, str], ...] = (
    ("cull.enabled", bool, "its culler stops jobs by its own clock, without a warning to people", "false"),
    ("hub.consecutiveFailureLimit", bool, "JupyterHub 5 counts refused starts as failures and then exits", "0"),
    ("hub.concurrentSpawnLimit", bool, "starts that wait for a node use it up, and JupyterHub refuses the others", "0"),
    (
        "scheduling.userScheduler.enabled",
        bool,
        "its scheduler places jobs by rules that the Manager does not know",
        "false",
    ),
    (
        "singleuser.cloudMetadata.blockWithIptables",
        bool,
        "it adds a privileged container, which Pod Security *restricted* refuses",
        "false",
    ),
    ("singleuser.profileList", bool, "templates take the place of profiles, and a Hub with both starts nothing", "[]"),
    ("singleuser.storage.type", lambda kind: kind != "none", "jobs get a second home volume beside their own", "none"),
    (
        "hub.networkPolicy.interNamespaceAccessLabels",
        lambda access: access != "accept",
        "jobs are in another namespace, and with a policy engine do not reach the Hub",
        "accept",
    ),
)


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    problem: str
    cause: str
    remedy: str
    level: str = "error"  # or "warning", which leaves the exit status at 0


@dataclass(frozen=True, slots=True)
class Installation:
    """The state of the cluster and of the addresses at one moment; `answers`: sentences about bad answers."""

    namespace: str
    now: datetime
    workloads: Mapping[str, Object] = field(default_factory=dict)
    pods: tuple[Object, ...] = ()
    job_pods: tuple[Object, ...] = ()
    services: tuple[Object, ...] = ()  # of all namespaces
    policies: Mapping[str, Object] = field(default_factory=dict)
    node_ports: tuple[int, int] | None = None  # the first and the last one; None: not known
    nodes: tuple[Object, ...] = ()
    leases: tuple[Object, ...] = ()
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # of namespaces
    classes: frozenset[str] = frozenset()
    secrets: Mapping[str, Object] = field(default_factory=dict)
    files: settings.Settings | None = None
    mistakes: tuple[str, ...] = ()
    z2jh: Mapping[str, Any] | None = None
    missing: tuple[tuple[str, str, str], ...] = ()  # account, right, namespace
    answers: Mapping[str, str] = field(default_factory=dict)
    held: Mapping[str, frozenset[str] | None] = field(default_factory=dict)  # scopes by service; None: no such token
    unread: tuple[str, ...] = ()

    @property
    def jobs(self) -> str:
        return self.given("manager", "--Manager.namespace") or self.namespace

    @property
    def special(self) -> str:
        return self.given("manager", "--Manager.special_namespace")

    def given(self, process: str, name: str) -> str:
        """An argument or a variable of a process; empty where there is none, or none that can be read here."""
        container = _container(self.workloads.get(process))
        for argument in (*(container.get("command") or ()), *(container.get("args") or ())):
            if argument.startswith(f"{name}="):
                return str(argument.removeprefix(f"{name}="))
        return next((str(one.get("value") or "") for one in container.get("env") or () if one["name"] == name), "")


def _container(workload: Object | None) -> Object:
    return workload["spec"]["template"]["spec"]["containers"][0] if workload else {}


def access(it: Installation) -> Iterator[Finding]:
    for what in it.unread:
        yield Finding("access", f"{what} could not be read", "this account lacks the right", "use an administrator's")


def processes(it: Installation) -> Iterator[Finding]:
    for name in ("proxy", "hub", "manager", "gateway"):
        workload = it.workloads.get(name)
        if workload is None:
            remedy = "install it, or name the namespace: --namespace"
            yield Finding("processes", f"there is no Deployment {name}", f"none is in {it.namespace}", remedy)
        elif not (workload.get("status") or {}).get("availableReplicas"):
            selector = workload["spec"]["selector"]["matchLabels"].items()
            own = [pod for pod in it.pods if selector <= pod["metadata"].get("labels", {}).items()]
            reasons = sorted({reason for pod in own for reason in _reasons(pod)})
            remedy = f"kubectl describe pod -n {it.namespace}, and kubectl logs -n {it.namespace} deploy/{name}"
            yield Finding("processes", f"{name} is not available", "; ".join(reasons) or "no pod says why", remedy)


def _reasons(pod: Object) -> Iterator[str]:
    status = pod.get("status") or {}
    for one in status.get("conditions") or ():
        if one["type"] == "PodScheduled" and one["status"] == "False":
            yield str(one.get("message") or one.get("reason"))
    for one in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (one.get("state") or {}).get("waiting") or {}
        ended = (one.get("lastState") or {}).get("terminated") or {}
        said = " ".join(str(ended.get("message") or waiting.get("message") or "").split())[-300:]
        if waiting:
            yield f"{waiting.get('reason')}: {said}" if said else str(waiting.get("reason"))


def images(it: Installation) -> Iterator[Finding]:
    waiting: dict[str, str] = {}
    for pod in (*it.pods, *it.job_pods):
        status = pod.get("status") or {}
        for one in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
            found = (one.get("state") or {}).get("waiting") or {}
            if found.get("reason") in NOT_PULLED:
                waiting.setdefault(one["image"], f"{found['reason']}: {found.get('message', '')}".strip(": "))
    for image, cause in sorted(waiting.items()):
        remedy = "correct its name, or give the nodes a way and a secret to pull it (components/pull-secret)"
        yield Finding("images", f"the image {image} cannot be pulled", cause, remedy)


def files(it: Installation) -> Iterator[Finding]:
    for mistake in it.mistakes:
        remedy = "correct the file; until then the last good version is used"
        yield Finding("files", mistake, "the ConfigMaps cluster-config and job-templates", remedy)


def rights(it: Installation) -> Iterator[Finding]:
    for account, right, namespace in it.missing:
        remedy = "apply hub_config/kubernetes/base/access.yaml, or the chart's, again"
        yield Finding("rights", f"{account} may not {right} in {namespace}", "a Role or its binding is missing", remedy)


def scopes(it: Installation) -> Iterator[Finding]:
    """As the Hub says; where it could not be asked, of zero-to-jupyterhub's values."""
    if (url := _public_url(it)) and not it.z2jh and not _private(url):
        problem = "what the tokens of the services may do is unknown: the Hub was not asked"
        remedy = "publish it by https, and set DLSPAWNER_PUBLIC_URL to that address"
        yield Finding("scopes", problem, f"{url} is not https, and tokens go nowhere in the clear", remedy, "warning")
    roles = (_value(it.z2jh, "hub.loadRoles") or {}).values() if it.z2jh else ()
    for service, needed in SCOPES.items():
        if service not in it.held and not it.z2jh:
            continue
        given = {scope for role in roles if service in role.get("services", ()) for scope in role["scopes"]}
        held, cause = it.held.get(service, frozenset(given)), "hub.loadRoles, or the Hub's configuration of roles"
        if held is None:
            problem = f"the Hub does not know the token of the service {service}"
            cause = "the Secret is another one than that with which the Hub has started"
            yield Finding("scopes", problem, cause, f"kubectl rollout restart -n {it.namespace} deployment")
        elif lacking := sorted(one for one in needed if not has_scope(held, one)):
            problem = f"the service {service} lacks the scopes {', '.join(lacking)}"
            yield Finding("scopes", problem, cause, "add them to its role")


def namespaces(it: Installation) -> Iterator[Finding]:
    if "manager" not in it.workloads:
        return
    if it.jobs == it.namespace:
        cause = (
            f"both are in {it.jobs}: people's pods beside the product's secrets, which the Hub's rights then include"
        )
        remedy = "give jobs a namespace of their own"
        yield Finding("namespaces", "jobs and the product share a namespace", cause, remedy, "warning")
    for name, wanted in ((it.jobs, {"restricted"}), (it.special, {None, "privileged"})):
        labels = it.labels.get(name)
        if name and labels is None:
            yield Finding("namespaces", f"there is no namespace {name}", "the Manager's settings name it", "create it")
        elif name and labels is not None and labels.get("pod-security.kubernetes.io/enforce") not in wanted:
            level = "privileged" if None in wanted else "restricted"
            found = labels.get("pod-security.kubernetes.io/enforce", "nothing")
            remedy = f"kubectl label namespace {name} --overwrite pod-security.kubernetes.io/enforce={level}"
            yield Finding("namespaces", f"{name} does not enforce {level}", f"it enforces {found}", remedy)


def zero_to_jupyterhub(it: Installation) -> Iterator[Finding]:
    for path, collides, cause, remedy in COLLIDING if it.z2jh else ():
        if collides(value := _value(it.z2jh, path)):
            yield Finding("zero-to-jupyterhub", f"{path} is {json.dumps(value)}", cause, f"set it to {remedy}")
    uids = [name for name in ("uid", "fsGid") if _value(it.z2jh, f"singleuser.{name}") is not None]
    if it.z2jh and uids and "00-dlspawner" not in (_value(it.z2jh, "hub.extraConfig") or {}):
        cause = "jobs of all people then run with one uid, and read each other's files"
        problem = " and ".join(f"singleuser.{name}" for name in uids)
        yield Finding("zero-to-jupyterhub", f"{problem} hold for jobs", cause, "set both to null")


def _value(values: Mapping[str, Any] | None, path: str) -> Any:
    found: Any = values
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def gpu_types(it: Installation) -> Iterator[Finding]:
    kinds = it.files.cluster.gpu_types if it.files else ()
    nodes = [in_gpus(read_node(node), kinds) for node in it.nodes]
    for kind in kinds:
        if not any(has_type(node, kind) for node in nodes):
            shown = sorted({name for node in nodes for name, _ in node.gpus})
            selected = any(node.gpus_of(kind.resource) for node in nodes)
            cause = "nodes with it have other labels, or taints that the type does not tolerate"
            none = f"no node shows {kind.shows}; nodes show {', '.join(shown) or 'no such resource'}"
            remedy = "correct it in cluster.yaml, or install the device plugin: kubectl describe node"
            problem = f"no node has GPUs of the type {kind.name}"
            yield Finding("gpu-types", problem, cause if selected else none, remedy)


def priority_classes(it: Installation) -> Iterator[Finding]:
    chosen = it.files.cluster.scheduling.classes if it.files else None
    for name in (chosen.guaranteed, chosen.preemptible) if chosen else ():
        if name and name not in it.classes:
            remedy = "kubectl apply -f hub_config/kubernetes/base/priorities.yaml"
            yield Finding("priority-classes", f"there is no PriorityClass {name}", "cluster.yaml names it", remedy)


def storage(it: Installation) -> Iterator[Finding]:
    modes = it.files.cluster.storage.access_modes if it.files else ()
    if modes and "ReadWriteMany" not in modes and len(it.nodes) > 1:
        problem = f"homes are {', '.join(modes)}, and there are {len(it.nodes)} nodes"
        cause = "a second job of the same person waits until it finds room on the node of the first one"
        yield Finding("storage", problem, cause, "a storage_class with ReadWriteMany (storage.md)", "warning")


def node_ports(it: Installation) -> Iterator[Finding]:
    if it.node_ports is None:
        return
    first, last = it.node_ports
    used = sum(1 for one in it.services for port in one["spec"].get("ports") or () if port.get("nodePort"))
    if used > 0.9 * (last - first + 1):
        problem = f"{used} of the cluster's {last - first + 1} NodePorts are in use"
        remedy = "a larger --service-node-port-range, or `expose: cluster` at the templates' ssh endpoints"
        yield Finding("node-ports", problem, "each running job with ssh holds one", remedy, "warning")
    rules = it.policies.get("gateway", {}).get("spec", {}).get("egress") or ()
    for low, high in (
        (one["port"], one["endPort"]) for rule in rules for one in rule.get("ports") or () if "endPort" in one
    ):
        if low > first or high < last:
            problem = (
                f"the NetworkPolicy gateway admits NodePorts {low} to {high}, and the cluster's are {first} to {last}"
            )
            yield Finding(
                "node-ports", problem, "where a plug-in enforces it, ssh does not reach every job", "correct it"
            )


def clocks(it: Installation) -> Iterator[Finding]:
    ready = {node.name for node in map(read_node, it.nodes) if node.ready}
    for lease in it.leases:
        name, renewed = lease["metadata"]["name"], lease["spec"].get("renewTime")
        off = _time(renewed) - it.now if renewed else timedelta()
        if name in ready and (off > CLOCK or off < -(SILENT + CLOCK)):
            problem = f"the clock of {name} differs by {abs(off.total_seconds()):.0f} s from this machine's"
            cause = "certificates of SSH logins live two minutes, and its jobs refuse them"
            yield Finding("clocks", problem, cause, "run an NTP client there, and here")


def prometheus(it: Installation) -> Iterator[Finding]:
    if "manager" in it.workloads and not _prometheus_url(it):
        cause, remedy = "the use of GPUs is unknown, and no job that holds some is stopped as idle", "set it"
        yield Finding("prometheus", "no GpuMetrics.prometheus_url is set", cause, remedy, "warning")
    yield from _answer(it, "prometheus", "correct GpuMetrics.prometheus_url, or the way there")


def _prometheus_url(it: Installation) -> str:
    return it.given("manager", "--GpuMetrics.prometheus_url") or it.given("manager", "DLSPAWNER_PROMETHEUS_URL")


def _public_url(it: Installation) -> str:
    return it.given("gateway", "DLSPAWNER_PUBLIC_URL")


def _private(url: str) -> bool:
    """True if a token may be sent to this address."""
    parts = urlsplit(url)
    return parts.scheme == "https" or parts.hostname in LOOPBACK


def gateway(it: Installation) -> Iterator[Finding]:
    yield from _answer(it, "gateway", "correct DLSPAWNER_SSH_HOST and _PORT, the Service gateway, or the firewall")


def web(it: Installation) -> Iterator[Finding]:
    yield from _answer(it, "web", "correct DLSPAWNER_PUBLIC_URL, the ingress, or renew the certificate")
    known = it.z2jh or it.given("hub", "DLSPAWNER_PUBLIC_URL").startswith("https:")
    if "hub" in it.workloads and _public_url(it).startswith("https:") and not known:
        cause = "the Hub does not know that people come by https (unless overrides.py says so)"
        remedy = f"set DLSPAWNER_PUBLIC_URL of the Deployment hub to {_public_url(it)}"
        yield Finding("web", "the cookie of a login is sent by http as well", cause, remedy, "warning")


def database(it: Installation) -> Iterator[Finding]:
    yield from _answer(it, "database", "run the Manager of this version, or install the newer one again")


def _answer(it: Installation, check: str, remedy: str) -> Iterator[Finding]:
    if check in it.answers:
        problem, _, cause = it.answers[check].partition(": ")
        yield Finding(check, problem, cause, remedy)


def secrets(it: Installation) -> Iterator[Finding]:
    for name in ("gateway-keys", "manager-token", "gateway-token", "proxy-token", "hub-keys", "hub"):
        metadata = it.secrets.get(name, {}).get("metadata", {})
        times = [str(one["time"]) for one in metadata.get("managedFields") or () if one.get("time")]
        changed = max(times, default=metadata.get("creationTimestamp"))
        if changed and it.now - _time(changed) > OLD:
            problem = f"the Secret {name} was last changed {(it.now - _time(changed)).days} days ago"
            remedy = "rotate what is in it (hub_config/OPERATIONS.md, Rotate secrets)"
            yield Finding(
                "secrets", problem, "the longer it is in use, the more copies of it there are", remedy, "warning"
            )
    if it.workloads and "gateway-keys" not in it.secrets and "Secrets" not in it.unread:
        cause = "the Job bootstrap has not ended, or was never applied"
        yield Finding("secrets", "there is no Secret gateway-keys", cause, "kubectl describe job, then apply again")


CHECKS: tuple[Callable[[Installation], Iterable[Finding]], ...] = (
    *(access, processes, images, files, rights, scopes, namespaces, zero_to_jupyterhub, gpu_types, priority_classes),
    *(storage, node_ports, clocks, prometheus, gateway, web, database, secrets),
)


def check(it: Installation) -> list[Finding]:
    return [problem for one in CHECKS for problem in one(it)]


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def look(client: KubernetesClient, namespace: str) -> Installation:
    """Reads the cluster and asks the addresses. Raises KubernetesError if the API server cannot be asked at all."""
    unread: list[str] = []

    async def listed(what: str, kind: ResourceKind, where: str | None = None) -> tuple[Object, ...]:
        try:
            return tuple(await client.list(kind, where))
        except kubernetes.KubernetesRejected:
            unread.append(what)
            return ()

    async def named(what: str, kind: ResourceKind, where: str | None = None) -> dict[str, Object]:
        return {one["metadata"]["name"]: one for one in await listed(what, kind, where)}

    found = await named("Namespaces", kubernetes.NAMESPACES)
    secrets = await named("Secrets", kubernetes.SECRETS, namespace)
    maps = await named("ConfigMaps", kubernetes.CONFIG_MAPS, namespace)
    it = Installation(
        namespace=namespace,
        now=datetime.now(UTC),
        workloads=await named("Deployments", DEPLOYMENTS, namespace),
        pods=await listed("Pods", kubernetes.PODS, namespace),
        services=await listed("Services", kubernetes.SERVICES),
        policies=await named("NetworkPolicies", POLICIES, namespace),
        nodes=await listed("Nodes", kubernetes.NODES),
        leases=await listed("Leases of nodes", kubernetes.LEASES, "kube-node-lease"),
        labels={name: one["metadata"].get("labels") or {} for name, one in found.items()},
        classes=frozenset(await named("PriorityClasses", kubernetes.PRIORITY_CLASSES)),
        secrets=secrets,
        z2jh=_z2jh(secrets.get("hub")),
    )
    loaded, mistakes = _files(maps, it.special)
    missing: tuple[tuple[str, str, str], ...] = ()
    try:
        missing = await _missing(client, it)
    except kubernetes.KubernetesRejected:
        unread.append("Rights of accounts")
    jobs = {name for name in (it.jobs, it.special) if name and name != namespace}
    job_pods = [pod for name in sorted(jobs) for pod in await listed(f"Pods of {name}", kubernetes.PODS, name)]
    return dataclasses.replace(
        it,
        files=loaded,
        mistakes=mistakes,
        missing=missing,
        job_pods=tuple(job_pods),
        node_ports=await _node_ports(client, namespace),
        answers=await _answers(client, it),
        held=await _held(_public_url(it), secrets),
        unread=tuple(unread),
    )


async def _node_ports(client: KubernetesClient, namespace: str) -> tuple[int, int] | None:
    """The range of the API server, which refuses a port outside and then names the range; a dry run does not tell.

    A range that has both ports is all that there are: the Service is then deleted at once.
    """
    ports = [{"name": f"p{port}", "port": port, "nodePort": port} for port in (1, 65535)]
    spec = {"type": "NodePort", "ports": ports}
    manifest = {"apiVersion": "v1", "kind": "Service", "metadata": {"generateName": "doctor-"}, "spec": spec}
    try:
        made = await client.create(kubernetes.SERVICES, manifest, namespace)
    except (kubernetes.KubernetesRejected, ObjectNotFound) as refused:
        found = re.search(r"valid ports is (\d+)-(\d+)", str(refused))
        return (int(found[1]), int(found[2])) if found else None
    await client.delete(kubernetes.SERVICES, made["metadata"]["name"], namespace)
    return 1, 65535


async def _held(url: str, secrets: Mapping[str, Object]) -> dict[str, frozenset[str] | None]:
    """Returns the scopes of the services' tokens, where the Hub may be asked and answers."""
    held = dict[str, frozenset[str] | None]()
    for service, places in TOKENS.items() if _private(url) else ():
        data = ((secrets.get(name) or {}).get("data", {}).get(key, "") for name, key in places)
        token = base64.b64decode(next(filter(None, data), "")).decode().strip()
        if not token:
            continue  # its pod does not start, and says why
        async with HubClient(f"{url.rstrip('/')}/hub/api", token, deadline_seconds=SECONDS) as hub:
            try:
                held[service] = await hub.scopes()
            except HubRejected as rejected:
                if rejected.status in {401, 403}:
                    held[service] = None
            except HubError:
                continue  # `web` says so
    return held


def _z2jh(secret: Object | None) -> Mapping[str, Any] | None:
    """The values of zero-to-jupyterhub, which keeps them in its Secret for the Hub."""
    encoded = ((secret or {}).get("data") or {}).get("values.yaml")
    values = yaml.safe_load(base64.b64decode(encoded)) if encoded else None
    return values if isinstance(values, dict) else None


def _files(maps: Mapping[str, Object], special: str) -> tuple[settings.Settings | None, tuple[str, ...]]:
    config, templates = ((maps.get(name) or {}).get("data") for name in ("cluster-config", "job-templates"))
    if not config or not templates:
        return None, ()
    texts = {"cluster": config.get("cluster.yaml", ""), "teams": config.get("teams.yaml", "")}
    texts |= {f"jobs/{name}": text for name, text in templates.items()}
    try:
        return settings.load_texts(texts, special_namespace=special), ()
    except InvalidConfiguration as invalid:
        return None, tuple(f"{Path(one.file).name}:{one.line}: {one.path}: {one.sentence}" for one in invalid.problems)


async def _missing(client: KubernetesClient, it: Installation) -> tuple[tuple[str, str, str], ...]:
    """Yields the rights that the accounts of the processes need and lack."""
    missing = []
    for process, where, group, resource, verbs in RIGHTS:
        if process not in it.workloads:
            continue
        account = it.workloads[process]["spec"]["template"]["spec"].get("serviceAccountName", "default")
        jobs = [name for name in (it.jobs, it.special) if name]
        kind, _, part = resource.partition("/")
        for namespace in {"jobs": jobs, "product": [it.namespace], "everywhere": [""]}[where]:
            for verb in verbs:
                asked = {"namespace": namespace, "verb": verb, "group": group, "resource": kind, "subresource": part}
                user = f"system:serviceaccount:{it.namespace}:{account}"
                groups = ["system:serviceaccounts", f"system:serviceaccounts:{it.namespace}", "system:authenticated"]
                review = {"spec": {"user": user, "groups": groups, "resourceAttributes": asked}}
                if not (await client.create(REVIEWS, review))["status"].get("allowed"):
                    missing.append((account, f"{verb} {resource}", namespace or "all namespaces"))
    return tuple(missing)


async def _answers(client: KubernetesClient, it: Installation) -> dict[str, str]:
    """A sentence, "problem: cause", for each address that does not answer as it should."""
    host, port = it.given("manager", "DLSPAWNER_SSH_HOST"), it.given("manager", "DLSPAWNER_SSH_PORT") or "22"
    asked = {
        "prometheus": _ask_prometheus(client, _prometheus_url(it)),
        "gateway": _ask_gateway(host, int(port)),
        "web": _ask_web(_public_url(it), it.now),
        "database": asyncio.to_thread(_ask_database, os.environ.get("DLSPAWNER_MANAGER_DB_URL", "")),
    }
    said = await asyncio.gather(*asked.values())
    return {name: sentence for name, sentence in zip(asked, said, strict=True) if sentence}


async def _ask_prometheus(client: KubernetesClient, url: str) -> str:
    parts = urlsplit(url)
    name, _, rest = (parts.hostname or "").partition(".")
    namespace, _, domain = rest.partition(".")
    if url and (not domain or domain.split(".")[0] == "svc"):  # a Service, which is not to be reached from here
        try:
            behind = await client.get(ENDPOINTS, name, namespace or client.namespace)
        except kubernetes.KubernetesRejected as error:
            return f"the Service of {url} could not be read: {error}"
        except ObjectNotFound:
            return f"Prometheus does not answer at {url}: there is no Service {name} in {namespace or client.namespace}"
        return "" if behind.get("subsets") else f"Prometheus does not answer at {url}: no pod is behind its Service"
    if url:
        try:
            timeout = aiohttp.ClientTimeout(total=SECONDS)
            async with aiohttp.ClientSession(timeout=timeout) as http, http.get(f"{url.rstrip('/')}/-/ready") as answer:
                return "" if answer.status < 500 else f"Prometheus is not ready at {url}: it answers {answer.status}"
        except (aiohttp.ClientError, TimeoutError) as error:
            return f"Prometheus does not answer at {url}: {error!r}"
    return ""


async def _ask_gateway(host: str, port: int) -> str:
    if not host:
        return ""
    try:
        async with asyncio.timeout(SECONDS):
            reader, writer = await asyncio.open_connection(host, port)
            greeting = await reader.read(64)
            writer.close()
    except (OSError, TimeoutError) as error:
        return f"the gateway does not answer at {host}:{port}: {error!r}"
    return "" if greeting.startswith(b"SSH-2.0-") else f"no SSH server is at {host}:{port}: it says {greeting[:40]!r}"


async def _ask_web(url: str, now: datetime) -> str:
    parts = urlsplit(url)
    if not parts.hostname or "$(" in url:
        return ""
    secure = parts.scheme == "https"
    try:
        async with asyncio.timeout(SECONDS):
            context = ssl.create_default_context() if secure else None
            port = parts.port or (443 if secure else 80)
            _, writer = await asyncio.open_connection(parts.hostname, port, ssl=context)
            certificate = writer.get_extra_info("peercert") or {}
            writer.close()
    except (OSError, TimeoutError) as error:  # includes certificates that are not valid, and unknown names
        return f"the Hub does not answer at {url}: {error!r}"
    if secure:
        ends = datetime.fromtimestamp(ssl.cert_time_to_seconds(certificate["notAfter"]), UTC)
        if ends - now < SOON:
            return f"the certificate of {url} ends in {(ends - now).days} days: it ends on {ends:%Y-%m-%d}"
    return ""


def _ask_database(url: str) -> str:
    """Only where this runs with the Manager's own variable, as in its pod."""
    if not url:
        return ""
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory
    from sqlalchemy.exc import DBAPIError

    from dlspawner.manager.db import engine

    try:
        opened = engine.open_to_read(url)
        with opened.connect() as connection:
            current = set(MigrationContext.configure(connection).get_current_heads())
        opened.dispose()
    except (DBAPIError, engine.DatabaseUnusable) as error:
        return f"the Manager's database cannot be read: {error}"
    known = set(ScriptDirectory(str(engine.MIGRATIONS)).get_heads())
    found = ", ".join(sorted(current)) or "empty"
    return "" if current == known else f"the Manager's database has another schema: {found}, not {', '.join(known)}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--namespace", "-n", default="dlspawner", help="of the product (default: dlspawner)")
    parser.add_argument("--kubeconfig", type=Path, help="an administrator's; default: $KUBECONFIG")
    parser.add_argument("--json", action="store_true", help="print the problems as JSON")


def main(given: argparse.Namespace) -> int:
    """Returns exit code 0 without errors (warnings are none), 1 with some, 2 if the cluster cannot be asked."""
    try:
        problems = asyncio.run(_problems(given))
    except KubernetesError as error:
        print(f"The cluster cannot be asked: {error}")
        return 2
    if given.json:
        print(json.dumps({"problems": [dataclasses.asdict(one) for one in problems]}, indent=1))
    else:
        for one in problems:
            print(f"{one.level}: {one.check}: {one.problem}\n    cause:  {one.cause}\n    remedy: {one.remedy}")
        print(f"{len(CHECKS)} checks, {len(problems)} problem{'' if len(problems) == 1 else 's'}")
    return int(any(one.level == "error" for one in problems))


async def _problems(given: argparse.Namespace) -> list[Finding]:
    async with await KubernetesClient.connect(given.kubeconfig) as client:
        return check(await look(client, given.namespace))
