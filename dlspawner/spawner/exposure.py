"""How the Hub and its proxy reach a job's web server: at the pod's own address, or by a NodePort of its node.

Pod addresses are only good inside the cluster's network. For a Hub outside of it, every job gets a NodePort Service for
its port ``notebook-port``, which the pod owns. The port is Kubernetes' choice, so it is read from the Service: when the
job starts, and again after a restart of the Hub. Login is not affected, because it is the job's server that asks the
Hub who is there; the port alone opens nothing.

Refused: one Ingress or Gateway route per job. It needs a controller, a second place that knows the Hub's paths, and the
proxy would be asked to trust another hop.
"""

from __future__ import annotations

import ipaddress
from typing import Any

from traitlets import Enum
from traitlets.config import Configurable

from dlspawner.core import naming
from dlspawner.spawner import children
from dlspawner.spawner.pods import PodRequests
from dlspawner.spawner.verdict import PodDict


class ExposureTraits(Configurable):
    """The part of DLSpawner's configuration that is about reaching jobs from the Hub."""

    http_expose = Enum(
        ["pod", "nodeport"],
        "pod",
        config=True,
        help="""
        Where the Hub and its proxy reach jobs: "pod", the default, is the pod's own address, for a Hub inside the
        cluster's network; "nodeport" makes a NodePort Service per job and uses its node's address, for a Hub outside.
        A job then takes two NodePorts (one more than for SSH), of which a cluster has 2,768 by default. Jobs have to
        reach the Hub as well: hub_connect_url must be an address that pods reach. Requests travel unencrypted between
        proxy and node, as they do between proxy and pod. Not together with internal_ssl or services_enabled.
        """,
    )


def http_service(pod: PodDict, job: naming.PodIdentity, port: int) -> dict[str, Any]:
    """The Service that leads to the job's web server."""
    ports = [{"name": "http", "port": port, "targetPort": port, "protocol": "TCP"}]
    spec = {"type": "NodePort", "selector": {naming.JOB_LABEL: job.id}, "ports": ports}
    metadata = children.owned_metadata(pod, naming.http_object(pod["metadata"]["name"]))
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def http_url(pod: PodDict, node_port: int) -> str:
    """Where a running job's web server is reached from outside the cluster."""
    host = ipaddress.ip_address(pod["status"]["hostIP"])
    return f"http://[{host}]:{node_port}" if host.version == 6 else f"http://{host}:{node_port}"


async def ensure_http_service(
    pods: PodRequests, pod: PodDict, job: naming.PodIdentity, port: int, *, new: bool = True
) -> int:
    """The node port of the job's Service, which is made if the pod lacks it."""
    made = await children.ensure_service(pods, http_service(pod, job, port), look_first=not new)
    return int(made["spec"]["ports"][0]["nodePort"])
