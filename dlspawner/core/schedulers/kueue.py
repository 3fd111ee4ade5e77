"""Kueue: a Workload per job, which the Manager makes before there are pods and keeps as long as the job holds GPUs.

The Workload is the job's account in Kueue; the Manager is to it what Kueue's own integrations are to Jobs:

* it exists from the moment at which the job may wait, so that quota, order, borrowing and preemption are Kueue's;
* admitted: the job starts, and its pods get the node labels and tolerations of the assigned flavors;
* evicted: Kueue waits with its quota until the job's pods are gone. That is what gives people their notice. After that
  the Workload of a job that is to be requeued loses its reservation and keeps its creation time, and so its place; that
  of an ended job is deleted;
* ``PodsReady`` is set when the pods run, because Kueue (0.19: by default) evicts what is not ready in time.

Refused, both measured with 0.15: Kueue's own integration for pods, which holds pods in the cluster and so a spawn in
the Hub, deletes them without notice, and ends the Workload, and the place, with the pod; and pods that name this
Workload (``prebuilt-workload-name``): Kueue ends a Workload if its containers differ in anything from the pod's, and
each start of a server has a token of its own, which belongs into no Workload.

v1beta2 is served by 0.15 to 0.19. https://kueue.sigs.k8s.io/docs/reference/kueue.v1beta2/
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from dlspawner.core import naming
from dlspawner.core.config import ClusterConfig, GpuType, SchedulerConfig, SchedulerName, Team, TeamsConfig
from dlspawner.core.decisions import EngineAdmits, EngineEvicts, EngineSays, EngineVerdict, EngineWaits
from dlspawner.core.job import Job, JobState
from dlspawner.core.nodes import NodePlacement
from dlspawner.core.resources import PodRequest
from dlspawner.core.schedulers.engine import EngineObject, ObjectKind, Observed, Patch, QueueView
from dlspawner.core.units import GPU, Manifest

VERSION = "kueue.x-k8s.io/v1beta2"
WORKLOADS = ObjectKind(VERSION, "workloads")
FLAVORS = ObjectKind(VERSION, "resourceflavors", namespaced=False)
PRIORITY_CLASSES = ObjectKind(VERSION, "workloadpriorityclasses", namespaced=False)
LOCAL_QUEUES = ObjectKind(VERSION, "localqueues")
CLUSTER_QUEUES = ObjectKind(VERSION, "clusterqueues", namespaced=False)
_VIEWS = ObjectKind("visibility.kueue.x-k8s.io/v1beta2", "localqueues")
_RESERVED, _ADMITTED, _EVICTED, _READY = "QuotaReserved", "Admitted", "Evicted", "PodsReady"
_MOST_POD_SETS = 8
# What a message says for machines: names and numbers of objects.
_FOR_MACHINES = re.compile(r" \(UID: [^)]*\)|; preemptor path: .*")
_TITLE = SchedulerConfig(SchedulerName.KUEUE).title
COHORT = "dlspawner"
MANAGED = {"app.kubernetes.io/managed-by": "dlspawner"}
_ANY_NODE = "dlspawner-any-node"  # the flavor of CPU and memory
_NO_LIMIT = {"cpu": "1M", "memory": "1000Ti"}  # our own limits hold: CPU and memory go with GPUs
_NO_EXTENDED_LIMIT = "1M"  # here too: the Manager has checked the team's quota of them


class Kueue:
    """The engine; see `Engine`."""

    kinds = (WORKLOADS, FLAVORS, PRIORITY_CLASSES)
    domains = ("kueue.x-k8s.io",)

    def objects(self, job: Job, cluster: ClusterConfig, observed: Observed) -> tuple[EngineObject, ...]:
        scheduler = cluster.scheduler
        kind = cluster.gpu_type(job.request.gpu_type or "")
        named = dict(scheduler.priority_classes).get(cluster.priority_name(job.priority))
        known = observed.shared.get((PRIORITY_CLASSES, named)) if named else None
        spec: Manifest = {
            "queueName": _queue(job.team, cluster, preemptible=job.preemptible),
            "priority": known["value"] if known else job.priority,
            "podSets": [
                {
                    "name": name,
                    "count": len(numbers),
                    "template": {"spec": _pod_spec(job.request.pods[numbers[0]], kind)},
                }
                for name, numbers in _pod_sets(job.request.pods).items()
            ],
        }
        if known:
            spec["priorityClassRef"] = {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": named}
        metadata = {"name": job.id, "labels": {naming.JOB_LABEL: job.id}}
        manifest = {"apiVersion": VERSION, "kind": "Workload", "metadata": metadata, "spec": spec}
        return (EngineObject(WORKLOADS, manifest),)

    def patches(self, job: Job, observed: Observed, now: datetime) -> tuple[Patch, ...]:
        workload = observed.own.get((WORKLOADS, job.id))
        if workload is None:
            return ()
        changed: list[Manifest] = []
        status: Manifest = {}
        if _is(workload, _EVICTED) and _is(workload, _RESERVED) and not job.holds:
            why = _message(workload, _EVICTED)
            changed += [_condition(_RESERVED, "False", "Pending", why), _condition("Requeued", "True", "Evicted", why)]
            changed += [_condition(_ADMITTED, "False", "NoReservation", "The workload has no reservation")]
            status["admission"] = None
        if job.state is JobState.RUNNING and _is(workload, _ADMITTED) and not _is(workload, _READY):
            changed.append(_condition(_READY, "True", "Started", "All pods reached readiness"))
        if not changed:
            return ()
        return (
            Patch(WORKLOADS, job.id, {"status": {**status, "conditions": _with(workload, changed, now)}}, "status"),
        )

    def additions(self, job: Job, cluster: ClusterConfig, observed: Observed) -> tuple[Manifest, ...]:
        workload = observed.own.get((WORKLOADS, job.id)) or {}
        assigned = ((workload.get("status") or {}).get("admission") or {}).get("podSetAssignments") or ()
        by_name = {one["name"]: dict.fromkeys((one.get("flavors") or {}).values()) for one in assigned}
        added: list[Manifest] = [{} for _ in job.request.pods]
        for name, numbers in _pod_sets(job.request.pods).items():
            flavors = [observed.shared.get((FLAVORS, flavor)) or {} for flavor in by_name.get(name, ())]
            for number in numbers:
                added[number] = _of_flavors(flavors)
        return tuple(added)

    def verdict(self, job: Job, observed: Observed) -> EngineVerdict | None:
        workload = observed.own.get((WORKLOADS, job.id))
        if workload is None:
            return None
        if _is(workload, _EVICTED) and _is(workload, _RESERVED):
            return EngineEvicts(EngineSays.TAKES_BACK.sentence(_TITLE, _message(workload, _EVICTED)))
        if _is(workload, _ADMITTED):
            return EngineAdmits()
        if _is(workload, _RESERVED):
            checks = [one for one in (workload["status"].get("admissionChecks") or ()) if one["state"] != "Ready"]
            told = "; ".join(f"{one['name']} {one.get('message') or 'is pending'}" for one in checks)
            return EngineWaits(EngineSays.CHECKS_PENDING.sentence(_TITLE, told))
        message = _message(workload, _RESERVED)
        return EngineWaits(EngineSays.NOT_ADMITTED.sentence(_TITLE, message)) if message else None

    def queue_view(self, job: Job, cluster: ClusterConfig) -> QueueView | None:
        return QueueView(_VIEWS, _queue(job.team, cluster, preemptible=job.preemptible), "pendingworkloads")

    def positions(self, view: Manifest) -> Mapping[str, int]:
        items = view.get("items") or ()
        return {one["metadata"]["name"]: int(one.get("positionInClusterQueue", 0)) + 1 for one in items}


def _queue(team: str, cluster: ClusterConfig, *, preemptible: bool) -> str:
    """The queue that the file names, else one of our own.

    It is never called ``default``: Kueue would take every pod of the namespace for one of that queue.
    """
    return dict(cluster.scheduler.queues).get(team) or f"team-{team}{'-preemptible' if preemptible else ''}"


def _pod_sets(pods: Sequence[PodRequest]) -> dict[str, list[int]]:
    """Groups equal pods; Kueue takes eight groups, and what is more is counted with the last one's amounts."""
    found: dict[PodRequest, list[int]] = {}
    for number, pod in enumerate(pods):
        last = list(found)[-1] if len(found) == _MOST_POD_SETS and pod not in found else pod
        found.setdefault(last, []).append(number)
    names = ["pods"] if len(found) == 1 else [f"pods-{number}" for number in range(len(found))]
    return dict(zip(names, found.values(), strict=True))


def _pod_spec(pod: PodRequest, kind: GpuType | None) -> Manifest:
    requests: dict[str, str | int] = {"cpu": f"{pod.cpu_milli}m", "memory": pod.memory_bytes}
    if pod.gpus:
        requests[pod.resource] = kind.amount_of(pod.gpus) if kind else pod.gpus // GPU
    requests |= {name: milli // GPU for name, milli in pod.extended}
    resources = {"requests": {name: amount for name, amount in requests.items() if amount not in {0, "0m"}}}
    spec: Manifest = {"restartPolicy": "Never", "containers": [{"name": "job", "image": "job", "resources": resources}]}
    placement = pod.placement
    if placement.selector:
        spec["nodeSelector"] = dict(placement.selector)
    if placement.tolerations:
        spec["tolerations"] = [one.manifest() for one in placement.tolerations]
    if placement.terms:
        required = {"nodeSelectorTerms": list(_terms(placement))}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return spec


def _terms(placement: NodePlacement) -> Iterator[Manifest]:
    for term in placement.terms:
        expressions = [
            {"key": one.key, "operator": one.operator, **({"values": list(one.values)} if one.values else {})}
            for one in term
            if one.key != "metadata.name"
        ]
        yield {"matchExpressions": expressions}


def _of_flavors(flavors: Sequence[Mapping[str, Any]]) -> Manifest:
    labels: dict[str, str] = {}
    tolerations: list[Manifest] = []
    for flavor in flavors:
        spec = flavor.get("spec") or {}
        labels |= spec.get("nodeLabels") or {}
        tolerations += spec.get("tolerations") or ()
    found = {"nodeSelector": labels, "tolerations": tolerations}
    spec = {key: value for key, value in found.items() if value}
    return {"spec": spec} if spec else {}


def _conditions(workload: Manifest) -> dict[str, Manifest]:
    return {one["type"]: one for one in (workload.get("status") or {}).get("conditions") or ()}


def _is(workload: Manifest, condition: str) -> bool:
    return bool(_conditions(workload).get(condition, {}).get("status") == "True")


def _message(workload: Manifest, condition: str) -> str:
    return _FOR_MACHINES.sub("", str(_conditions(workload).get(condition, {}).get("message", "")))


def _condition(kind: str, status: str, reason: str, message: str) -> Manifest:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def _with(workload: Manifest, changed: Sequence[Manifest], now: datetime) -> list[Manifest]:
    """All conditions of a Workload, some of them changed now."""
    moment = f"{now:%Y-%m-%dT%H:%M:%SZ}"
    new = {one["type"]: {**one, "lastTransitionTime": moment} for one in changed}
    return list({**_conditions(workload), **new}.values())


def queue_objects(cluster: ClusterConfig, teams: TeamsConfig, namespaces: Sequence[str]) -> tuple[EngineObject, ...]:
    """Returns the flavors, queues and priority classes by which Kueue does what the files say.

    A flavor for each GPU type. All queues are in one cohort. A team's ClusterQueue has its quota, borrows nothing, and
    takes back what others have borrowed; that of its preemptible jobs has no quota, and borrows what is idle. Teams
    with a queue of their own in ``scheduler.queues`` have theirs already. CPU and memory are not limited here.
    """
    made = [_shared(FLAVORS, "ResourceFlavor", _ANY_NODE, {})]
    for kind in cluster.gpu_types:
        spec = {
            "nodeLabels": dict(kind.node_selector),
            "tolerations": [one.manifest() for one in kind.tolerations],
        }
        made.append(_shared(FLAVORS, "ResourceFlavor", kind.name, {key: one for key, one in spec.items() if one}))
    levels = {one.name: one.level for one in cluster.priorities}
    for level, name in cluster.scheduler.priority_classes:
        made.append(
            _shared(PRIORITY_CLASSES, "WorkloadPriorityClass", name, {}, value=levels[level], description=level)
        )
    own = dict(cluster.scheduler.queues)
    for team in (one for one in teams.teams if one.name not in own):
        for preemptible in (False, True):
            name = _queue(team.name, cluster, preemptible=preemptible)
            spec = _cluster_queue(cluster, team, namespaces, preemptible=preemptible)
            made.append(_shared(CLUSTER_QUEUES, "ClusterQueue", name, spec))
            for namespace in namespaces:
                local = _object("LocalQueue", name, {"clusterQueue": name})
                local["metadata"]["namespace"] = namespace
                made.append(EngineObject(LOCAL_QUEUES, local))
    return tuple(made)


def _cluster_queue(cluster: ClusterConfig, team: Team, namespaces: Sequence[str], *, preemptible: bool) -> Manifest:
    groups: dict[str, list[Manifest]] = {}
    for kind in cluster.gpu_types:
        quota: Manifest = {"name": kind.resource, "nominalQuota": "0"}
        if not preemptible:
            quota |= {"nominalQuota": str(kind.amount_of(team.entitled(kind.name))), "borrowingLimit": "0"}
        groups.setdefault(kind.resource, []).append({"name": kind.name, "resources": [quota]})
    unlimited = _NO_LIMIT | {one.name: _NO_EXTENDED_LIMIT for one in cluster.extended_resources}
    plenty = [{"name": name, "nominalQuota": amount} for name, amount in unlimited.items()]
    within = "LowerPriority" if team.preempt_within_team and not preemptible else "Never"
    where = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": list(namespaces)}
    return {
        "cohortName": COHORT,
        "namespaceSelector": {"matchExpressions": [where]},
        "queueingStrategy": "BestEffortFIFO",
        "preemption": {"reclaimWithinCohort": "Never" if preemptible else "Any", "withinClusterQueue": within},
        "resourceGroups": [
            *({"coveredResources": [resource], "flavors": flavors} for resource, flavors in groups.items()),
            {"coveredResources": list(unlimited), "flavors": [{"name": _ANY_NODE, "resources": plenty}]},
        ],
    }


def _shared(kind: ObjectKind, name: str, called: str, spec: Manifest, **more: object) -> EngineObject:
    return EngineObject(kind, _object(name, called, spec) | more)


def _object(kind: str, name: str, spec: Manifest) -> Manifest:
    made = {"apiVersion": VERSION, "kind": kind, "metadata": {"name": name, "labels": MANAGED}}
    return made | ({"spec": spec} if kind != "WorkloadPriorityClass" else {})
