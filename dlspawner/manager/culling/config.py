"""The settings that say where the use of GPUs is to be read."""

from __future__ import annotations

import os

from traitlets import List, Unicode
from traitlets.config import Configurable

from dlspawner.clients.prometheus import MetricNames, PrometheusClient


class GpuMetrics(Configurable):
    """The Prometheus server and the metric names from which GPU use is read."""

    prometheus_url = Unicode(
        help="""The address of a Prometheus that scrapes NVIDIA's dcgm-exporter, or another one, on all GPU nodes:
        http://prometheus.monitoring:9090. A token that it wants belongs into the environment variable
        DLSPAWNER_PROMETHEUS_TOKEN. Default: the environment variable DLSPAWNER_PROMETHEUS_URL; without either the use
        of GPUs is not known, and no job that holds some is stopped as unused.""",
    ).tag(config=True)
    utilisation = List(
        Unicode(),
        default_value=list(MetricNames().utilisation),
        help="""Metrics of how busy a GPU is, in percent; several where nodes have exporters of different makers. AMD's
        device-metrics-exporter calls it gpu_gfx_activity. Parts of a GPU by MIG have none of that name: add
        DCGM_FI_PROF_GR_ENGINE_ACTIVE, which is from 0 to 1 and known to be so, as all of DCGM_FI_PROF_….""",
    ).tag(config=True)
    memory = List(
        Unicode(),
        default_value=list(MetricNames().memory),
        help="""Metrics of how much of a GPU's memory is in use, in MiB, for the report; gpu_used_vram of AMD's.""",
    ).tag(config=True)
    namespace_label = Unicode(
        MetricNames().namespace_label,
        help="""The label with the namespace of the pod that holds a GPU. A Prometheus that sets `namespace` itself, as
        the Prometheus Operator does without honorLabels, calls it exported_namespace.""",
    ).tag(config=True)
    pod_label = Unicode(
        MetricNames().pod_label, help="""The label with the name of that pod; exported_pod likewise."""
    ).tag(config=True)
    gpu_labels = List(
        Unicode(),
        default_value=list(MetricNames().gpu_labels),
        help="""The labels that tell one GPU from another; the first that a metric has counts. AMD's exporter has
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
