"""The use of GPUs according to Prometheus: raw samples with their own times, of the GPUs that pods hold.

One instant query with a range selector (`name{…}[90s]`) returns the samples themselves. Refused: `query_range`, which
repeats the last sample for up to five minutes, so that missing samples would look present.

The names are those of NVIDIA's dcgm-exporter unless configured otherwise. The exporter names the pod of a GPU in the
labels `namespace` and `pod`; a Prometheus that sets these labels itself renames the exporter's to `exported_namespace`
and `exported_pod`. Series of one GPU with other labels changed, as after a restart of the exporter, are one GPU; the
instances of a GPU in MIG mode, which have its UUID, are several. What DCGM calls profiling metrics are parts of 1.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp

MIB = 1024 * 1024
_DEADLINE = aiohttp.ClientTimeout(total=20)

GpuSample = tuple[datetime, float]
_MIG_INSTANCE = "GPU_I_ID"


def is_ratio(metric: str) -> bool:
    """True for a metric from 0 to 1, as DCGM_FI_PROF_GR_ENGINE_ACTIVE; others are in percent."""
    return metric.startswith("DCGM_FI_PROF_")


class MetricsUnavailable(Exception):
    """Prometheus is unreachable, or its answer is invalid; the message is for the administrator."""


@dataclass(frozen=True, slots=True)
class MetricNames:
    """The names of a cluster's metrics. Several exporters, such as NVIDIA's and AMD's, may exist at once."""

    utilisation: tuple[str, ...] = ("DCGM_FI_DEV_GPU_UTIL",)  # in percent
    memory: tuple[str, ...] = ("DCGM_FI_DEV_FB_USED",)  # in MiB
    namespace_label: str = "namespace"
    pod_label: str = "pod"
    gpu_labels: tuple[str, ...] = ("UUID",)  # the first of these that a series has identifies its GPU
    cpu: tuple[str, ...] = ("container_cpu_usage_seconds_total",)  # of containers, from cAdvisor in the kubelet
    host_memory: tuple[str, ...] = ("container_memory_working_set_bytes",)
    network: tuple[str, ...] = ("container_network_receive_bytes_total", "container_network_transmit_bytes_total")
    disk: tuple[str, ...] = ("container_fs_reads_bytes_total", "container_fs_writes_bytes_total")


@dataclass(frozen=True, slots=True)
class JobMetrics:
    """The metrics of one GPU of one pod: samples of its utilisation in percent, and its latest used memory."""

    samples: tuple[GpuSample, ...]
    memory_bytes: int | None = None


@dataclass(slots=True)
class PrometheusClient:
    """A client of one Prometheus, or of another server with its HTTP API."""

    url: str
    token: str = field(default="", repr=False)
    names: MetricNames = field(default_factory=MetricNames)
    _session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Closes the connections; a later query would open them again."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def gpus(self, namespace: str, since: datetime, until: datetime) -> dict[str, dict[str, JobMetrics]]:
        """Returns {pod: {GPU: its metrics}} of a namespace in a span of time; raises MetricsUnavailable."""
        used = await self._query(self.names.utilisation, namespace, until, until - since)
        held = await self._query(self.names.memory, namespace, until, min(until - since, timedelta(minutes=5)))
        memory = {key: max(samples)[1] for key, samples in _by_gpu(held, self.names).items()}
        found: dict[str, dict[str, JobMetrics]] = {}
        for (pod, gpu), samples in _by_gpu(used, self.names).items():
            mib = memory.get((pod, gpu))
            found.setdefault(pod, {})[gpu] = JobMetrics(tuple(samples), None if mib is None else int(mib * MIB))
        return found

    async def _query(
        self, metrics: Sequence[str], namespace: str, at: datetime, span: timedelta
    ) -> Sequence[Mapping[str, Any]]:
        which = f"__name__=~{json.dumps('|'.join(metrics))},{self.names.namespace_label}={json.dumps(namespace)}"
        seconds = max(1, math.ceil(span.total_seconds()))
        return await self._ask("query", {"query": f"{{{which}}}[{seconds}s]", "time": f"{at.timestamp():.3f}"})

    async def over_time(self, expression: str, since: datetime, until: datetime, step: timedelta) -> list[GpuSample]:
        """Returns the values of an expression of one series, ``step`` apart, both ends included; raises
        MetricsUnavailable.

        For plots: the expression must aggregate over ranges itself (`avg_over_time`), or Prometheus fills gaps as
        described in the module's docstring.
        """
        times = {"start": f"{since.timestamp():.3f}", "end": f"{until.timestamp():.3f}"}
        found = await self._ask("query_range", {"query": expression, **times, "step": f"{step.total_seconds():.3f}"})
        return _samples(found[0]) if found else []

    async def values(self, expression: str, at: datetime) -> list[tuple[Mapping[str, str], float]]:
        """Returns the labels and the values of an expression at a time; raises MetricsUnavailable."""
        found = await self._ask("query", {"query": expression, "time": f"{at.timestamp():.3f}"})
        try:
            values = [(one["metric"], float(one["value"][1])) for one in found]
        except (KeyError, TypeError, ValueError) as error:
            raise MetricsUnavailable("Prometheus gave an answer that is none of its own.") from error
        return [one for one in values if math.isfinite(one[1])]

    async def _ask(self, what: str, form: Mapping[str, str]) -> Sequence[Mapping[str, Any]]:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=_DEADLINE)
        try:
            async with self._session.post(
                f"{self.url.rstrip('/')}/api/v1/{what}", data=dict(form), headers=headers, allow_redirects=False
            ) as answer:
                content = await answer.json(content_type=None)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise MetricsUnavailable(f"Prometheus does not answer: {type(error).__name__}") from error
        try:
            if content["status"] != "success":
                raise MetricsUnavailable(f"Prometheus refused the question: {str(content.get('error'))[:300]}")
            result: list[Mapping[str, Any]] = content["data"]["result"]
        except (AttributeError, KeyError, TypeError) as error:
            raise MetricsUnavailable("Prometheus gave an answer that is none of its own.") from error
        return result


def selector(
    metrics: Sequence[str], labels: tuple[str, str], namespace: str, pods: Sequence[str], more: str = ""
) -> str:
    """Returns the selector of the series of pods.

    ``labels``: of namespace ("" where series have none) and pod; ``more``: further conditions, after a comma.
    """
    namespace_label, pod_label = labels
    pod = json.dumps("|".join(re.escape(name) for name in pods))
    where = f"{namespace_label}={json.dumps(namespace)}," if namespace_label else ""
    return f"{{__name__=~{json.dumps('|'.join(metrics))},{where}{pod_label}=~{pod}{more}}}"


def _by_gpu(result: Sequence[Mapping[str, Any]], names: MetricNames) -> dict[tuple[str, str], list[GpuSample]]:
    """Returns samples by pod and GPU; values that are no numbers are left out."""
    found: dict[tuple[str, str], list[GpuSample]] = {}
    try:
        for series in result:
            labels: Mapping[str, str] = series["metric"]
            pod, gpu = labels.get(names.pod_label, ""), _gpu(labels, names)
            if not pod:
                continue
            factor = 100 if is_ratio(labels.get("__name__", "")) else 1
            known = [(at, value * factor) for at, value in _samples(series)]
            if known:
                found.setdefault((pod, gpu), []).extend(known)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise MetricsUnavailable("Prometheus gave an answer that is none of its own.") from error
    return found


def _samples(series: Mapping[str, Any]) -> list[GpuSample]:
    """Returns the samples of a series that are numbers."""
    try:
        samples = [(datetime.fromtimestamp(float(at), UTC), float(value)) for at, value in series["values"]]
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise MetricsUnavailable("Prometheus gave an answer that is none of its own.") from error
    return [sample for sample in samples if math.isfinite(sample[1])]


def _gpu(labels: Mapping[str, str], names: MetricNames) -> str:
    """Returns the GPU of a series; a series without any of the GPU labels is a GPU of its own."""
    named = next((labels[one] for one in names.gpu_labels if labels.get(one)), None)
    if named and labels.get(_MIG_INSTANCE):
        return f"{named}/{labels[_MIG_INSTANCE]}"
    return named or json.dumps({key: labels[key] for key in sorted(labels) if key != "__name__"})
