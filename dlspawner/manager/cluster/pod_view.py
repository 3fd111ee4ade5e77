"""The Manager's view of a pod, and what a change of the pod means for its job. PURE.

What a pod says about itself is a claim; what it holds is counted from its spec, never from its labels, and never
refused, because the pod exists. A GPU resource of several types counts as the type of the pod's node.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from dlspawner.core import naming, pod_events, text
from dlspawner.core.config import ClusterConfig, CpuMemory
from dlspawner.core.decisions import Refuse
from dlspawner.core.gpus import KAI_FRACTION, KAI_MEMORY, KAI_MEMORY_PARTS
from dlspawner.core.job import Job, JobState
from dlspawner.core.launch import pod_status
from dlspawner.core.nodes import Node, has_type, milli_held
from dlspawner.core.resources import MOST_GPUS, PodRequest, ResourceRequest, foreign_usage, request_of, strip_manifest
from dlspawner.core.template import PodFailurePolicy
from dlspawner.core.units import GPU, Manifest
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.namespaces import JobNamespaces
from dlspawner.manager.model.records import JobRecord, PodRef

log = logging.getLogger("dlspawner.manager")
_LONGEST_NAME = 255
_MOST = CpuMemory(2**62, 2**62)
_DELETED = "Its pod %s was deleted from outside the Hub."


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """One pod with a job's label; ``job`` is the identity that it claims, if its labels agree with each other."""

    uid: str
    name: str
    job: naming.PodIdentity | None
    node: str | None
    running: bool
    terminating: bool
    over: bool  # it has ended and holds nothing, although the object exists
    namespace: str  # as `JobNamespaces.to_key` returns it
    manifest: Manifest  # the parts of its spec that count
    ended: bool = False  # its program has ended by itself, and not by the deletion
    how: EventReason = EventReason.REMOVED  # FINISHED, FAILED, EVICTED, or REMOVED: by its deletion
    sentence: str = ""  # about the end, as the Hub tells it, without the program's last words
    alone: bool = False  # the failure of this pod does not end its job
    gated: bool = False  # it waits until its job gets it
    engine: str = ""  # the one that places it
    preempted: str = ""  # the words of that engine, which stops it for another job

    @property
    def stopped(self) -> bool:
        """True if the deletion has ended the pod, and not its program."""
        return self.terminating and not self.ended

    @property
    def further(self) -> bool:
        """True for all but the first pod of a job of several."""
        return self.job is not None and self.job.further


def read_pod(manifest: Manifest, namespaces: JobNamespaces, before: ObservedPod | None = None) -> ObservedPod:
    """``before``: the pod as it was last seen. What had ended it then is why it is deleted now."""
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    phase, terminating = status.get("phase"), bool(metadata.get("deletionTimestamp"))
    _, program = pod_status.program_end(manifest)
    over = phase in {"Succeeded", "Failed"} and not any(map(_may_run, _statuses(status)))
    ended = bool(program or over) and (not terminating or pod_status.ended_before_deletion(manifest))
    engine = str((metadata.get("annotations") or {}).get(naming.ENGINE_ANNOTATION, ""))
    judged, how, sentence = pod_status.evaluate(manifest), EventReason.REMOVED, ""
    if (terminating or over) and (evicted := pod_status.ended_by_cluster(manifest)):
        how, sentence = EventReason.EVICTED, evicted
    elif ended and isinstance(judged, pod_status.Terminated):
        how = EventReason.FAILED if judged.exit_code else EventReason.FINISHED
        sentence = text.without_last_words(judged.reason)
    elif terminating and before is not None and before.ended:
        ended, how, sentence = True, before.how, before.sentence
    return ObservedPod(
        uid=str(metadata["uid"]),
        name=str(metadata["name"]),
        job=naming.read_job(metadata),
        node=(manifest.get("spec") or {}).get("nodeName") or None,
        running=phase == "Running",
        terminating=terminating,
        over=over,
        namespace=namespaces.to_key(str(metadata.get("namespace") or "")),
        manifest=strip_manifest(manifest),
        ended=ended,
        how=how,
        sentence=sentence,
        engine=engine,
        preempted=(pod_events.preempted(manifest) or (before.preempted if before else "")) if engine else "",
        alone=(metadata.get("annotations") or {}).get(naming.FAILURE_ANNOTATION) == PodFailurePolicy.CONTINUE.value,
        gated={"name": naming.CAPACITY_GATE} in ((manifest.get("spec") or {}).get("schedulingGates") or ()),
    )


def pod_ref(pod: ObservedPod, *, grown: bool = False) -> PodRef:
    ended, role = pod.further and pod.over, pod.job.pod if pod.job else ""
    return PodRef(pod.uid, pod.name, pod.running or ended, pod.namespace, role, grown, ended)


def _statuses(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]


def _may_run(status: Mapping[str, Any]) -> bool:
    """True for a container that may still run: on an unreachable node, of a pod that counts as failed."""
    return bool((status.get("state") or {}).get("running"))


def pod_request(pod: ObservedPod, cluster: ClusterConfig, node: Node | None) -> ResourceRequest:
    """Returns what a pod holds; the limits of jobs are not applied."""
    unlimited = replace(
        cluster,
        gpu_types=tuple(replace(kind, per_gpu=_MOST, max_per_job=MOST_GPUS) for kind in cluster.gpu_types),
        cpu_only_max=_MOST,
        extended_resources=tuple(replace(one, max_per_job=None) for one in cluster.extended_resources),
    )
    found = request_of([pod.manifest], unlimited)
    if isinstance(found, Refuse) and node is not None:
        spec = {**pod.manifest["spec"], "nodeSelector": dict(node.labels)}
        found = request_of([{**pod.manifest, "spec": spec}], unlimited)
    return _as_it_is(pod, cluster, node) if isinstance(found, Refuse) else found


def _as_it_is(pod: ObservedPod, cluster: ClusterConfig, node: Node | None) -> ResourceRequest:
    """Returns what a pod holds that no job could request."""
    found = foreign_usage([pod.manifest])
    asked = {name: milli // GPU for name, milli in found.gpus}
    here = [kind for kind in cluster.gpu_types if node is not None and has_type(node, kind)]
    costs = [(milli_held(kind, asked, node), kind) for kind in here] if node is not None else []
    costs = [one for one in costs if one[0]] or [(kind.milli_of(asked), kind) for kind in cluster.gpu_types]
    of_gpus = cluster.gpu_resources | {KAI_FRACTION, KAI_MEMORY, KAI_MEMORY_PARTS}
    extended = tuple((name, milli) for name, milli in found.gpus if milli and name not in of_gpus)
    gpus, kind = max((one for one in costs if one[0]), key=lambda cost: cost[0], default=(0, None))
    charged = PodRequest(kind.resource if kind else "", gpus, found.cpu_milli, found.memory_bytes, extended=extended)
    return ResourceRequest(kind.name if kind else None, (charged,))


def claimed_name(claim: str) -> str:
    """Returns a name that a pod claims, as far as every database accepts it."""
    return claim.replace("\0", "").encode(errors="replace").decode()[:_LONGEST_NAME]


def observe(
    record: JobRecord, pod: ObservedPod, cluster: ClusterConfig, node: Node | None, now: datetime
) -> tuple[EventReason | None, JobRecord]:
    """Returns the record after a change of one of the job's pods, with the reason; no reason, no change."""
    job, count = record.job, len(record.job.request.pods)
    reason: EventReason | None = None
    pods = list(record.pods) or [None] * count
    known = next((index for index, one in enumerate(pods) if one is not None and one.uid == pod.uid), None)
    index = known
    if index is None:
        reason, actual = EventReason.POD_SEEN, pod_request(pod, cluster, node)
        index = _which(record, pod.job.number if pod.job else 0)
        job = job if pod.engine else _charged(job, index, actual, pod.name)
    before = pods[index]
    pods[index] = ref = pod_ref(pod, grown=before is not None and before.grown)
    nodes = [*job.nodes, *[None] * (count - len(job.nodes))]
    if pod.node is not None and nodes[index] != pod.node:
        nodes[index] = pod.node
        job, reason = replace(job, nodes=tuple(nodes)), reason or EventReason.BOUND
    if pod.terminating and not pod.further and job.state is not JobState.STOPPING:
        job, reason = replace(job, state=JobState.STOPPING), EventReason.DELETED
    elif job.state is JobState.STARTING and all(one is not None and one.running for one in pods):
        job, reason = replace(job, state=JobState.RUNNING, started=now), EventReason.RUNNING
    elif reason is None and ref.running and ref != before:
        reason = EventReason.POD_ENDED if ref.ended else EventReason.POD_RUNNING
    return reason, replace(record, job=job, pods=tuple(pods))


def _which(record: JobRecord, number: int) -> int:
    """Returns the index of a new pod: its number, or the last unobserved one if that pod was observed already."""
    pods = range(len(record.job.request.pods))
    unseen = [index for index in pods if not record.pods or record.pods[index] is None]
    return number if number in unseen else unseen[-1]


def _charged(job: Job, index: int, actual: ResourceRequest, name: str) -> Job:
    """Returns the job with what this pod holds instead of what was reserved.

    Of all but GPUs, to which the cluster may have added (overhead, sidecars, defaults), never less than was reserved:
    that is what it asks for when it is started again.
    """
    reserved, seen = job.request.pods[index], actual.pods[0]
    if (actual.gpus, seen.resource) == (reserved.gpus, reserved.resource) and (
        not actual.gpus or actual.gpu_type == job.request.gpu_type
    ):
        cpu, memory = max(seen.cpu_milli, reserved.cpu_milli), max(seen.memory_bytes, reserved.memory_bytes)
        known = dict(reserved.extended)
        more = {name: max(amount, known.get(name, 0)) for name, amount in seen.extended}
        held = replace(reserved, cpu_milli=cpu, memory_bytes=memory, extended=tuple(sorted({**known, **more}.items())))
        return job if held == reserved else replace(job, request=replace(job.request, pods=_instead(job, index, held)))
    log.warning("job=%s pod=%s holds other GPUs than were reserved", job.id, name)
    pods = _instead(job, index, seen)
    return replace(
        job,
        request=ResourceRequest(actual.gpu_type or job.request.gpu_type if any(p.gpus for p in pods) else None, pods),
    )


def _instead(job: Job, index: int, pod: PodRequest) -> tuple[PodRequest, ...]:
    return (*job.request.pods[:index], pod, *job.request.pods[index + 1 :])


def end_of_several(pods: Sequence[ObservedPod], gone: Sequence[PodRef] = ()) -> tuple[EventReason, str] | None:
    """Returns why a job of several pods must end, and the sentence for its owner; ``None`` if it need not.

    It ends with its first pod, and with a further one that has failed, was evicted or was deleted, unless its template
    says `continue`. ``gone``: the pods that went while no Manager watched.
    """
    first = next((pod for pod in pods if not pod.further), None)
    if first is not None and first.terminating:
        return None  # the Hub ends it
    if first is not None and first.over:
        return first.how, first.sentence
    for pod in pods:
        if pod.further and pod.job is not None and not pod.alone:
            # The kubelet restarts a failed program in a pod that still runs.
            if (pod.over or pod.terminating) and pod.how in {EventReason.FAILED, EventReason.EVICTED}:
                return EventReason.POD_FAILED, f"Its pod {pod.job.pod} has ended: {pod.sentence}"
            if pod.stopped:
                return EventReason.POD_FAILED, _DELETED % pod.job.pod
    lost = [one for one in gone if not one.ended]
    if lost and first is not None and not first.alone:
        return EventReason.POD_FAILED, _DELETED % lost[0].name.removeprefix(naming.further_pod(first.name, ""))
    return None


def restore(record: JobRecord) -> JobRecord:
    """Returns the record of a job that has ended because its pods were thought to be gone, as it was before."""
    job = record.job
    state = JobState.STOPPING if record.stop else JobState.RUNNING if job.started else JobState.STARTING
    return replace(record, job=replace(job, state=state, notice=None))


def drop_missing_pods(record: JobRecord) -> JobRecord:
    """Returns the record without the pods that were never created; unchanged if none was."""
    kept = [index for index, pod in enumerate(record.pods) if pod is not None]
    if not kept:
        return record
    job = record.job
    charge = ResourceRequest(job.request.gpu_type, tuple(job.request.pods[index] for index in kept))
    nodes = tuple(job.nodes[index] for index in kept if index < len(job.nodes))
    state = JobState.RUNNING if all(pod.running for pod in record.seen) else job.state
    return replace(record, job=replace(job, request=charge, nodes=nodes, state=state), pods=record.seen)
