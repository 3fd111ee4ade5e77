"""The settings that say where the use of GPUs is to be read."""

from __future__ import annotations

import os

from traitlets import List, Unicode
from traitlets.config import Configurable

from dlspawner.clients.prometheus import MetricNames, PrometheusClient


class GpuMetrics(Configurable):
    """The Prometheus server and the metric names from which GPU use is read."""

    prometheus_url = Unicode(
        help="""The address of a Prometheus that scrapes NVIDIA's dcgm-exporter, or another exporter, on all GPU nodes:
        http://prometheus.monitoring:9090. Put its token, if it needs one, into the environment variable
        DLSPAWNER_PROMETHEUS_TOKEN. Default: the environment variable DLSPAWNER_PROMETHEUS_URL. Without either the use
        of GPUs is not known, and no job with GPUs is stopped as idle.""",
    ).tag(config=True)
    utilisation = List(
        Unicode(),
        default_value=list(MetricNames().utilisation),
        help="""Metrics of the utilisation of a GPU, in percent; several if nodes have exporters of different vendors.
        AMD's device-metrics-exporter has gpu_gfx_activity. MIG instances have no DCGM_FI_DEV_GPU_UTIL: add
        DCGM_FI_PROF_GR_ENGINE_ACTIVE. The metrics DCGM_FI_PROF_… are read as numbers from 0 to 1.""",
    ).tag(config=True)
    memory = List(
        Unicode(),
        default_value=list(MetricNames().memory),
        help="""Metrics of the used memory of a GPU, in MiB, for the report; AMD's exporter has gpu_used_vram.""",
    ).tag(config=True)
    namespace_label = Unicode(
        MetricNames().namespace_label,
        help="""The label with the namespace of the pod that holds a GPU. A Prometheus that sets `namespace` itself, as
        the Prometheus Operator does without honorLabels, calls it exported_namespace.""",
    ).tag(config=True)
    pod_label = Unicode(
        MetricNames().pod_label,
        help="""The label with the name of the pod that holds a GPU; exported_pod in the case of exported_namespace.""",
    ).tag(config=True)
    gpu_labels = List(
        Unicode(),
        default_value=list(MetricNames().gpu_labels),
        help="""The labels that identify a GPU; the first one that a metric has counts. AMD's exporter has
        serial_number.""",
    ).tag(config=True)

    def client(self) -> PrometheusClient | None:
        """Returns a client, or None without a configured Prometheus."""
        url = self.prometheus_url or os.environ.get("DLSPAWNER_PROMETHEUS_URL", "")
        if not url:
            return None
        names = MetricNames(
            tuple(self.utilisation),
            tuple(self.memory),
            self.namespace_label,
            self.pod_label,
            tuple(self.gpu_labels),
        )
        return PrometheusClient(url, os.environ.get("DLSPAWNER_PROMETHEUS_TOKEN", ""), names)
