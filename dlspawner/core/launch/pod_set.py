"""The pods of a job of several: all but the first, derived from the first one's manifest, and how they find each other.

The first pod is KubeSpawner's; it carries the roles in an annotation, so that a Hub that was killed after it had made
that pod makes the same others from it. The first pod owns them: they go when it goes. Each has a name in the job
(``chief``, ``worker-0``) that resolves in all of them, by a headless Service, and an sshd that trusts the job's key.

A further pod runs the image, account, storage and environment of the first one's work container, without what the Hub
told that one (``JUPYTERHUB_…``), and with its role's command and resources.

Pods beyond the least number of a role (``start: incremental``) have a scheduling gate: Kubernetes gives them no node
until the Manager admits them and removes it. Variables and hostfile have all pods; a name resolves once its pod runs.

Variables: ``DLSPAWNER_ROLE``, ``_INDEX`` and ``_HOSTFILE``; those of torch.distributed, one process per pod, and of
``torchrun`` (``PET_…``, one process per GPU); OpenPAI's ``PAI_…`` and DLWorkspace's ``DLWS_…``.
https://github.com/pytorch/pytorch/blob/main/torch/distributed/argparse_util.py
https://openpai.readthedocs.io/en/latest/manual/cluster-user/how-to-use-advanced-job-settings.html
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dlspawner.core import naming, units
from dlspawner.core.gpus import annotations_for, recounted
from dlspawner.core.launch import additions, host_ports
from dlspawner.core.template import MAIN_CONTAINER, NOTEBOOK_CONTAINER, JobPorts, PodFailurePolicy
from dlspawner.core.units import Manifest

FILES = "/etc/dlspawner"
JOB_KEY, KNOWN_HOSTS, AUTHORIZED_KEYS, SSH_CONFIG, SSHD_CONFIG, HOSTFILE = (
    *("job_key", "job_known_hosts", "job_authorized_keys", "job_ssh_config", "job_sshd_config", "hostfile"),
)
SECRET_FILES = (JOB_KEY, KNOWN_HOSTS, AUTHORIZED_KEYS, SSH_CONFIG, SSHD_CONFIG, HOSTFILE)
MASTER_PORT = 29500  # torchrun's own default
SSH_PORT = 29499  # where the job's key is taken: no Service leads there, so it opens nothing from outside the cluster
MASTER = "master"  # the name of the port of the host that takes its place
# Without a command a pod only waits for logins. Every image with a shell has it.
_WAIT = ("tail", "-f", "/dev/null")
_HUBS_OWN = ("JUPYTERHUB_", "JPY_", "DLSPAWNER_MANAGER_URL")
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle")


@dataclass(frozen=True, slots=True)
class Role:
    """So many pods of a role; ``resources`` of each, as limits and requests. The first role is the first pod.

    ``least``: with so many of them the job starts, ``None`` for all.
    """

    name: str
    count: int
    resources: dict[str, str]
    command: tuple[str, ...] = ()
    least: int | None = None
    gpus: int = 0  # as the job asks for them


@dataclass(frozen=True, slots=True)
class PodSet:
    """All pods of a job.

    ``nodes`` are those that the Manager prefers, ``additions`` an engine's, one for each pod, where there are any.
    """

    roles: tuple[Role, ...]
    on_failure: PodFailurePolicy = PodFailurePolicy.STOP
    nodes: tuple[str | None, ...] = ()
    additions: tuple[Manifest, ...] = ()

    @property
    def members(self) -> tuple[tuple[Role, int], ...]:
        """Returns each pod's role and index in it."""
        return tuple((role, index) for role in self.roles for index in range(role.count))

    @property
    def hosts(self) -> tuple[str, ...]:
        """Returns the pods' names within the job, the first one first."""
        first, *others = self.members
        return (first[0].name, *(f"{role.name}-{index}" for role, index in others))

    @property
    def waits(self) -> tuple[bool, ...]:
        """Returns of each pod if the job starts without it."""
        return tuple(role.least is not None and index >= role.least for role, index in self.members)

    def on_nodes(self, nodes: Sequence[str | None]) -> PodSet:
        """Returns the pods with the nodes of those that the job starts with."""
        known = iter(nodes)
        return replace(self, nodes=tuple(None if waits else next(known, None) for waits in self.waits))

    def annotation(self) -> str:
        roles = [
            [one.name, one.count, dict(one.resources), list(one.command), one.least, one.gpus] for one in self.roles
        ]
        told = {"roles": roles, "on_failure": self.on_failure.value, "nodes": self.nodes}
        return json.dumps(told | ({"additions": self.additions} if self.additions else {}))


def read_pod_set(metadata: Mapping[str, Any]) -> PodSet | None:
    """The pods of the job whose first pod has this metadata; ``None`` for a job of one pod."""
    written = (metadata.get("annotations") or {}).get(naming.PODS_ANNOTATION)
    if written is None:
        return None
    found = json.loads(written)
    roles = (
        Role(name, count, each, tuple(command), least, gpus)
        for name, count, each, command, least, gpus in found["roles"]
    )
    more = tuple(found.get("additions", ()))
    return PodSet(tuple(roles), PodFailurePolicy(found["on_failure"]), tuple(found["nodes"]), more)


def as_first(pod: Manifest, pods: PodSet, service: str, domain: str) -> Manifest:
    """KubeSpawner's pod as the first of a job of several; ``domain``: the DNS name of its namespace's Services."""
    first = copy.deepcopy(pod)
    metadata, spec = first["metadata"], first["spec"]
    own = {naming.PODS_ANNOTATION: pods.annotation(), naming.FAILURE_ANNOTATION: pods.on_failure.value}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **own}
    metadata["labels"] = {**(metadata.get("labels") or {}), naming.POD_LABEL: pods.hosts[0]}
    spec |= {"hostname": pods.hosts[0], "subdomain": service}
    dns = spec.get("dnsConfig") or {}
    spec["dnsConfig"] = {**dns, "searches": [f"{service}.{domain}", *(dns.get("searches") or ())]}
    work = _work(spec)
    work["env"] = [*(work.get("env") or ()), *_variables(pods, 0)]
    return first


def wanted_ports(first: Manifest, ports: Sequence[JobPorts]) -> tuple[tuple[JobPorts, ...], ...]:
    """The host's ports that each pod of the job wants, for a template with these ports."""
    return tuple(host_ports.wanted(pod, ports) for pod in (first, *further_pods(first)))


def with_ports(
    first: Manifest, ports: Sequence[JobPorts], numbers: Sequence[Sequence[int]], *, enforce: bool
) -> Manifest:
    """The first pod with the host's ports that were assigned to each pod of its job, for a template with these ports.

    ``enforce``: programs of the job that listen on others are to be ended.
    """
    each = [host_ports.named(*one) for one in zip(wanted_ports(first, ports), numbers, strict=True)]
    made = host_ports.with_own(first, each[0])
    metadata, work, pods = made["metadata"], _work(made["spec"]), read_pod_set(first["metadata"])
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **host_ports.annotation(each)}
    if enforce:
        work["env"].append({"name": "DLSPAWNER_ENFORCE_PORTS", "value": str(host_ports.GRACE_SECONDS)})
    if pods is not None:
        told = _variables(pods, 0, each)
        names = {one["name"] for one in told}
        work["env"] = [*(one for one in work["env"] if one["name"] not in names), *told]
    return made


def with_additions(first: Manifest, added: Sequence[Manifest]) -> Manifest:
    """The first pod's manifest with an engine's additions; it tells them to the further ones."""
    if not added:
        return first
    pods, own = read_pod_set(first["metadata"]), additions.lacking(first, added[0])
    if pods is not None:
        told = replace(pods, additions=(own, *added[1:])).annotation()
        own = additions.merged(own, {"metadata": {"annotations": {naming.PODS_ANNOTATION: told}}})
    return _with_work(additions.merged(first, own), lambda work: additions.in_container(work, added[0]))


def further_pods(
    first: Mapping[str, Any], finish: Callable[[Manifest], Manifest] = lambda pod: pod
) -> Iterator[Manifest]:
    """The manifests of all pods but the first, from the first one's: as it is to be made, or as the cluster has it.

    ``finish`` is the last step before an engine's additions to the work container.
    """
    pods, ports = read_pod_set(first["metadata"]), host_ports.assigned(first["metadata"])
    for number, (role, _) in enumerate(pods.members if pods else ()):
        if pods is not None and number:
            made = _further(host_ports.with_own(dict(first), ports[number]) if ports else first, pods, role, number)
            added = pods.additions[number] if pods.additions else {}
            yield _with_work(finish(made), partial(additions.in_container, addition=added))


def at_start(first: Manifest) -> list[Manifest]:
    """Returns the manifests of the pods that the job starts with, from the first one's."""
    return [first, *(pod for pod in further_pods(first) if not pod["spec"].get("schedulingGates"))]


def _further(first: Mapping[str, Any], pods: PodSet, role: Role, number: int) -> Manifest:
    host, made = pods.hosts[number], copy.deepcopy(dict(first))
    if pods.additions:
        made = additions.merged(additions.without(made, pods.additions[0]), pods.additions[number])
        made = _with_work(made, lambda work: additions.out_of_container(work, pods.additions[0]))
    metadata, spec = made["metadata"], made["spec"]
    work = _work(spec)
    for key in ("nodeName", "priority", "preemptionPolicy", "schedulingGates"):
        spec.pop(key, None)  # the cluster's own answers about the first pod
    for key in _PROBES:
        work.pop(key, None)
    ports = host_ports.assigned(metadata)
    own = {one["name"] for one in _variables(pods, 0, ports)} | {
        "MEM_LIMIT",
        "MEM_GUARANTEE",
        "CPU_LIMIT",
        "CPU_GUARANTEE",
    }
    kept = [one for one in work.get("env") or () if one["name"] not in own and not one["name"].startswith(_HUBS_OWN)]
    work["env"] = [*kept, *_variables(pods, number, ports), *amount_variables({"limits": role.resources})]
    roles_own = {name for one in pods.roles for name in one.resources}
    amounts = {kind: (work.get("resources") or {}).get(kind) or {} for kind in ("limits", "requests")}
    work["resources"] = {
        kind: {name: amount for name, amount in known.items() if name not in roles_own} | role.resources
        for kind, known in amounts.items()
    }
    if spec.get("resourceClaims"):
        claims = recounted(spec["resourceClaims"], role.gpus)
        spec["resourceClaims"] = list(claims.claims)
        work["resources"]["claims"] = claims.claim_names
    # `--main` tells the login proxy beside it about its end, and further pods have none.
    work["command"] = [part for part in work.get("command") or () if part != "--main"]
    work["args"] = list(role.command or _WAIT)
    bundles = [one for one in spec.get("initContainers") or () if one["name"] == "dlspawner-ssh"]
    spec |= {"containers": [work], "initContainers": bundles, "hostname": host}
    mounted = {one["name"] for container in (work, *bundles) for one in container.get("volumeMounts") or ()}
    spec["volumes"] = [_sized(one, role) for one in spec.get("volumes") or () if one["name"] in mounted]
    spec["restartPolicy"] = "OnFailure" if pods.on_failure is PodFailurePolicy.RESTART else "Never"
    spec["affinity"] = _without_node(spec.get("affinity") or {})
    if pods.waits[number]:
        spec["schedulingGates"] = [{"name": naming.CAPACITY_GATE}]
    # KubeSpawner's watch follows its own component only: the Hub takes no further pod for a server's.
    labels = {**metadata["labels"], "component": "job-pod", naming.POD_LABEL: host}
    told = annotations_for(metadata["annotations"], role.gpus)
    annotations = (
        {key: value for key, value in told.items() if key != naming.PODS_ANNOTATION}
        | {
            naming.FIRST_POD_ANNOTATION: metadata["name"],
            naming.NUMBER_ANNOTATION: str(number - sum(pods.waits[:number])),  # among those that the job starts with
            **host_ports.annotation(ports[number : number + 1]),
        }
    )
    further: Manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": naming.further_pod(metadata["name"], host),
            "labels": labels,
            "annotations": annotations,
        },
        "spec": spec,
    }
    if metadata.get("uid"):
        owner = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        further["metadata"]["ownerReferences"] = [owner]
    return with_preferred_node(further, pods.nodes[number] if number < len(pods.nodes) else None)


def secret_files(
    pods: PodSet, keys: tuple[str, str], host_key: str, login: str, assigned: Sequence[int] = ()
) -> dict[str, str]:
    """Returns the files by which the pods log in to each other.

    ``keys``: the job's own pair, private and public; ``assigned``: the host's port of each pod's sshd, its only one.
    """
    private, public = keys
    ports, where = assigned or [SSH_PORT] * len(pods.hosts), "all" if assigned else f"LocalPort {SSH_PORT}"
    hosts = " ".join(pods.hosts)
    config = {
        "User": login,
        "IdentityFile": f"{FILES}/{JOB_KEY}",
        "IdentitiesOnly": "yes",
        "HostKeyAlias": "job",
        "UserKnownHostsFile": f"{FILES}/{KNOWN_HOSTS}",
        "LogLevel": "ERROR",
    }
    return {
        JOB_KEY: private,
        AUTHORIZED_KEYS: f"{public}\n",
        KNOWN_HOSTS: f"job {host_key}\n",
        SSHD_CONFIG: f"Match {where}\n    AuthorizedKeysFile {FILES}/{AUTHORIZED_KEYS}\n",
        SSH_CONFIG: "".join(f"Host {host}\n    Port {at}\n" for host, at in zip(pods.hosts, ports, strict=True))
        + f"Host {hosts}\n"
        + "".join(f"    {key} {value}\n" for key, value in config.items()),
        HOSTFILE: "".join(
            f"{host} slots={role.gpus or 1}\n" for host, (role, _) in zip(pods.hosts, pods.members, strict=True)
        ),
    }


def network_policy(metadata: Mapping[str, Any], job: str) -> Manifest:
    """Lets the pods of a job reach each other where jobs are kept apart."""
    same = [{"podSelector": {"matchLabels": {naming.JOB_LABEL: job}}}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {**metadata, "name": job},
        "spec": {
            "podSelector": {"matchLabels": {naming.JOB_LABEL: job}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": same}],
            "egress": [{"to": same}],
        },
    }


def service(first: Mapping[str, Any], metadata: Mapping[str, Any], job: str) -> Manifest:
    """The headless Service that gives the pods their names, also before they are ready."""
    spec = {"clusterIP": "None", "selector": {naming.JOB_LABEL: job}, "publishNotReadyAddresses": True}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {**metadata, "name": str(first["spec"]["subdomain"])},
        "spec": spec,
    }


_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_MOST_WEIGHT = 100  # that there is


def with_preferred_node(manifest: Manifest, node: str | None) -> Manifest:
    """The manifest with one more preferred term, for this node, after those that it has; without a node, as it is."""
    if node is None:
        return manifest
    named = {"key": "metadata.name", "operator": "In", "values": [node]}
    term = {"weight": _MOST_WEIGHT, "preference": {"matchFields": [named]}}
    spec = manifest["spec"]
    affinity = spec.get("affinity") or {}
    nodes = affinity.get("nodeAffinity") or {}
    nodes = {**nodes, _PREFERRED: [*(nodes.get(_PREFERRED) or ()), term]}
    return {**manifest, "spec": {**spec, "affinity": {**affinity, "nodeAffinity": nodes}}}


def _without_node(affinity: Mapping[str, Any]) -> Manifest:
    """The affinity without the node that the first pod prefers."""
    nodes = affinity.get("nodeAffinity") or {}
    terms = [one for one in nodes.get(_PREFERRED) or () if "matchFields" not in one["preference"]]
    return {**affinity, "nodeAffinity": {**nodes, _PREFERRED: terms}} if _PREFERRED in nodes else dict(affinity)


def amount_variables(resources: Mapping[str, Any]) -> list[Manifest]:
    """JupyterHub's variables of a container's CPU and memory, in cores and bytes."""
    told: list[Manifest] = []
    limits = resources.get("limits") or {}
    for amounts, word in ((limits, "LIMIT"), (resources.get("requests") or limits, "GUARANTEE")):
        cpu, memory = (units.parse_quantity(str(amounts.get(name))) for name in ("cpu", "memory"))
        told += [] if memory is None else [{"name": f"MEM_{word}", "value": str(units.memory_bytes(memory))}]
        told += [] if cpu is None else [{"name": f"CPU_{word}", "value": str(float(cpu))}]
    return told


def _work(spec: Manifest) -> Manifest:
    """The work container of a pod; see `Template.work_container`."""
    named = {one["name"]: one for one in spec["containers"]}
    found: Manifest = named.get(MAIN_CONTAINER) or named[NOTEBOOK_CONTAINER]
    return found


def _with_work(pod: Manifest, change: Callable[[Manifest], Manifest]) -> Manifest:
    work, spec = _work(pod["spec"]), pod["spec"]
    return {**pod, "spec": {**spec, "containers": [change(one) if one is work else one for one in spec["containers"]]}}


def _sized(volume: Manifest, role: Role) -> Manifest:
    """The volume; shared memory as large as the role's memory."""
    empty = volume.get("emptyDir") or {}
    if empty.get("medium") != "Memory" or "sizeLimit" not in empty or "memory" not in role.resources:
        return volume
    return {**volume, "emptyDir": {**empty, "sizeLimit": role.resources["memory"]}}


def _variables(pods: PodSet, number: int, ports: Sequence[host_ports.Assigned] = ()) -> list[Manifest]:
    role, index = pods.members[number]
    world = len(pods.members)
    master = next(iter(ports), {}).get(MASTER, (MASTER_PORT,))[0]
    values: dict[str, object] = {
        "DLSPAWNER_ROLE": role.name,
        "DLSPAWNER_INDEX": index,
        "DLSPAWNER_HOSTFILE": f"{FILES}/{HOSTFILE}",
        "RANK": number,
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": 1,
        "MASTER_ADDR": pods.hosts[0],
        "MASTER_PORT": master,
        "PET_NNODES": world,
        "PET_NODE_RANK": number,
        "PET_NPROC_PER_NODE": role.gpus or 1,
        "PET_MASTER_ADDR": pods.hosts[0],
        "PET_MASTER_PORT": master,
        "PAI_TASK_ROLE_COUNT": len(pods.roles),
        "PAI_TASK_ROLE_LIST": ",".join(one.name for one in pods.roles),
        "PAI_CURRENT_TASK_ROLE_NAME": role.name,
        "PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX": index,
        **{f"PAI_TASK_ROLE_TASK_COUNT_{one.name.replace('-', '_')}": one.count for one in pods.roles},
        **{
            f"PAI_HOST_IP_{one.name.replace('-', '_')}_{at}": host
            for host, (one, at) in zip(pods.hosts, pods.members, strict=True)
        },
        **{
            f"PAI_PORT_LIST_{one.name.replace('-', '_')}_{at}_{name.replace('-', '_')}": host_ports.listed(numbers)
            for own, (one, at) in zip(ports, pods.members, strict=False)
            for name, numbers in own.items()
        },
        "DLWS_ROLE_NAME": role.name,
        "DLWS_ROLE_IDX": index,
        "DLWS_NUM_PS": _count(pods.roles, "ps"),
        "DLWS_NUM_WORKER": _count(pods.roles, "worker"),
        "DLWS_NUM_GPU_PER_WORKER": pods.roles[-1].gpus,
    }
    if any(pods.waits):  # an elastic job of torchrun: pods join while it runs
        at_start = world - sum(pods.waits)
        values |= {"PET_NNODES": f"{at_start}:{world}", "PET_RDZV_BACKEND": "c10d"}
        values["PET_RDZV_ENDPOINT"] = f"{pods.hosts[0]}:{master}"
    return [{"name": name, "value": str(value)} for name, value in values.items()]


def _count(roles: Sequence[Role], name: str) -> int:
    return sum(role.count for role in roles if role.name == name)
