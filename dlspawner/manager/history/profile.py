"""The most that the pods of a job have used so far, for its page and, by a setting, as annotations of the pods.

GPUs are told by DCGM and the like, CPU, memory, network and disk by cAdvisor, and processes only by Alnair's exporter
(`alnair_gpu_util`, `alnair_gpu_mem_util`; labels `pod_name`, `gpu_idx`, `pid`). Gauges are the largest sample; rates
are means of two minutes. A pod's name may have been another job's before, so only the job's own life is asked for.

The annotations are those of Alnair's profiler, in its units: `max_cpu_util` in percent of one CPU, `max_cpu_mem_mb`,
`max_network_mbps` and `max_disk_io` in 1e6 bytes (a second), `gpu_util` and `gpu_mem_util` as a dict by
`gpu_<index>_<pid>`, `query_dt`. `max_gpu_util` and `max_gpu_mem_mb` are of no process, and ours. Refused: Alnair's
`max_disk_io` in seconds of writing, which cAdvisor does not tell with cgroup v2.
https://github.com/CentaurusInfra/alnair/blob/main/alnair-profiler/profiler/prometheus_query.py
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from dlspawner.clients.kubernetes import PODS, Conflict, KubernetesClient, ObjectNotFound
from dlspawner.clients.prometheus import MIB, MetricNames, MetricsUnavailable, PrometheusClient, is_ratio, selector
from dlspawner.core.job import JobState
from dlspawner.manager.model.namespaces import JobNamespaces
from dlspawner.manager.state.job_store import JobStore

EVERY_SECONDS = 60.0
ANNOTATIONS = "alnair.centaurusinfra.io/"
PROCESSES = {"gpu_util": "alnair_gpu_util", "gpu_mem_util": "alnair_gpu_mem_util"}
_RATE, _STEP = timedelta(minutes=2), timedelta(seconds=30)
_NOTICEABLE = 1.1  # times what the annotations say
_KEYS = {  # and the factor to Alnair's unit
    "gpu": ("max_gpu_util", 1.0),
    "gpu_memory": ("max_gpu_mem_mb", 1e-6),
    "cpu": ("max_cpu_util", 100.0),
    "memory": ("max_cpu_mem_mb", 1e-6),
    "network": ("max_network_mbps", 1e-6),
    "disk": ("max_disk_io", 1e-6),
}

Maxima = Mapping[tuple[str, str], float]  # by what was measured, and the process `gpu_<index>_<pid>` or ""


@dataclass(frozen=True, slots=True)
class _Question:
    name: str
    expression: str
    pod_label: str
    factor: float = 1.0


def _questions(names: MetricNames, namespace: str, pods: Sequence[str], life: timedelta) -> list[_Question]:
    """Returns the queries by which each pod's maxima of a time are found; rates need some minutes."""
    seconds, of_gpus, real = int(life.total_seconds()), names.pod_label, ',container!="",container!="POD"'
    of_containers = ("namespace", "pod")

    def gauges(metrics: Sequence[str]) -> str:
        return f"max_over_time({selector(metrics, (names.namespace_label, of_gpus), namespace, pods)}[{seconds}s])"

    ratios = [name for name in names.utilisation if is_ratio(name)]
    percents = [name for name in names.utilisation if name not in ratios]
    busy = [gauges(percents)] if percents else []
    busy += [f"100 * {gauges(ratios)}"] if ratios else []
    found = [
        _Question("gpu", f"max by ({of_gpus}) ({' or '.join(busy)})", of_gpus),
        _Question("gpu_memory", f"max by ({of_gpus}) ({gauges(names.memory)})", of_gpus, MIB),
    ]
    for key, metric in PROCESSES.items():
        which = f"{selector([metric], ('', 'pod_name'), namespace, pods)}[{seconds}s]"
        by = f"max by (pod_name, gpu_idx, pid) (max_over_time({which}))"
        found.append(_Question(key, by, "pod_name"))
    steps = f"[{int((life - _RATE).total_seconds())}s:{int(_STEP.total_seconds())}s]"
    if life < _RATE + _STEP:
        return found

    def counters(metrics: Sequence[str], by: str, more: str = "") -> str:
        """The sum of several counters, each once: a kubelet tells the same under two addresses."""
        each = (
            f"label_replace(rate({selector([name], of_containers, namespace, pods, more)}[{_RATE.seconds}s]), "
            f'"counter", "{number}", "", "")'
            for number, name in enumerate(metrics)
        )
        return f"max_over_time((sum by (pod) (max by (pod, {by}, counter) ({' or '.join(each)}))){steps})"

    memory = selector(names.host_memory, of_containers, namespace, pods, real)
    return [
        *found,
        _Question("cpu", counters(names.cpu, "container", real), "pod"),
        _Question("memory", f"max_over_time((sum by (pod) (max by (pod, container) ({memory}))){steps})", "pod"),
        _Question("network", counters(names.network, "interface"), "pod"),
        _Question("disk", counters(names.disk, "container, device", real), "pod"),
    ]


async def read_maxima(
    prometheus: PrometheusClient, namespace: str, pods: Sequence[str], since: datetime, until: datetime
) -> dict[str, Maxima]:
    """Returns {pod: its maxima} of a time, without those of which nothing is known; MetricsUnavailable."""
    if not pods or until - since < timedelta(seconds=1):
        return {}
    asked = _questions(prometheus.names, namespace, pods, until - since)
    answers = await asyncio.gather(*(prometheus.values(one.expression, until) for one in asked))
    found: dict[str, dict[tuple[str, str], float]] = {}
    for one, answer in zip(asked, answers, strict=True):
        for labels, value in answer:
            process = f"gpu_{labels.get('gpu_idx', '')}_{labels.get('pid', '')}" if one.name in PROCESSES else ""
            found.setdefault(labels.get(one.pod_label, ""), {})[one.name, process] = value * one.factor
    return dict(found)


def alnair_annotations(maxima: Maxima, now: datetime) -> dict[str, str]:
    """Returns the annotations of Alnair's profiler."""
    found = {"query_dt": str(now)}
    for (name, process), value in maxima.items():
        if not process:
            key, factor = _KEYS[name]
            found[key] = str(round(value * factor, 2))
    for key in PROCESSES:
        processes = {process: value for (name, process), value in sorted(maxima.items()) if name == key}
        found |= {key: str(processes)} if processes else {}
    return {ANNOTATIONS + key: value for key, value in found.items()}


@dataclass(slots=True)
class ProfileWriter:
    """Annotates the pods of running jobs with their maxima when one has grown noticeably."""

    store: JobStore
    cluster: KubernetesClient
    prometheus: PrometheusClient | None
    namespaces: JobNamespaces
    _known: dict[str, Maxima] = field(default_factory=dict)  # by the uid of a pod
    _written: dict[str, Maxima] = field(default_factory=dict)
    _asked: datetime | None = None

    async def run_once(self) -> None:
        now, pods = self.store.now(), dict[tuple[str, datetime], dict[str, str]]()
        if self.prometheus is None or not self.store.cluster_state.cluster.profiler_annotations:
            return
        recently = (self._asked or now) - _RATE - _STEP
        for record in self.store.records.values():
            if record.job.state is JobState.RUNNING and record.job.started:
                for pod in record.seen:
                    since = max(record.job.started, recently) if pod.uid in self._known else record.job.started
                    pods.setdefault((self.namespaces.from_key(pod.namespace), since), {})[pod.name] = pod.uid
        uids = {uid for named in pods.values() for uid in named.values()}
        self._known = {uid: one for uid, one in self._known.items() if uid in uids}
        self._written = {uid: one for uid, one in self._written.items() if uid in uids}
        for (namespace, since), named in pods.items():
            try:
                found = await read_maxima(self.prometheus, namespace, list(named), since, now)
            except MetricsUnavailable:
                return  # culling asks as well, and says so
            for name, uid in named.items():
                known = self._known.get(uid, {})
                more = {key: max(value, known.get(key, value)) for key, value in found.get(name, {}).items()}
                self._known[uid] = {**known, **more}
        self._asked = now
        for (namespace, _), named in pods.items():
            for name, uid in named.items():
                await self._write(namespace, name, uid, now)

    async def _write(self, namespace: str, name: str, uid: str, now: datetime) -> None:
        known, written = self._known[uid], self._written.get(uid, {})
        if not any(value > _NOTICEABLE * written.get(key, -1) for key, value in known.items()):
            return
        metadata = {"uid": uid, "annotations": alnair_annotations(known, now)}
        with contextlib.suppress(ObjectNotFound, Conflict):  # it has gone
            await self.cluster.patch(PODS, name, {"metadata": metadata}, namespace)
        self._written[uid] = known
