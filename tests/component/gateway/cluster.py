"""Jobs as Kubernetes objects, in the embedded API server."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dlspawner.clients.kubernetes import PODS, SERVICES, KubernetesClient
from dlspawner.core import naming

NAMESPACE = "jobs"


@contextlib.contextmanager
def embedded_api(state: Path) -> Iterator[Path]:
    """The embedded API server as a process; its kubeconfig."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dlspawner.devcluster.api", "--state", str(state)], stdout=subprocess.PIPE, text=True
    )
    try:
        line = process.stdout.readline()
        assert line.startswith("API server ready"), line
        yield state / "kubeconfig"
    finally:
        process.terminate()
        process.communicate(timeout=20)


def job(user: str, server: str, **changes: Any) -> naming.PodIdentity:
    name = naming.job_id(f"{user}/{server}/padding".encode())
    given: dict[str, Any] = {"id": name, "ssh_login": "person", "team": "t"}
    return naming.PodIdentity(user=user, server=server, template="ssh", gpus=0, **{**given, **changes})


async def create_pod(
    cluster: KubernetesClient,
    name: str,
    job: naming.PodIdentity,
    address: str | None = "127.0.0.1",
    namespace: str = NAMESPACE,
) -> None:
    """A pod of this job; it runs on a node of this address, or nowhere yet."""
    metadata = {"name": name, "labels": naming.job_labels(job), "annotations": naming.job_annotations(job)}
    spec = {"containers": [{"name": "notebook", "image": "x"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    await cluster.create(PODS, pod, namespace)
    if address is not None:
        status = {"status": {"phase": "Running", "hostIP": address, "podIP": "127.9.9.9"}}
        await cluster.patch(PODS, name, status, namespace, subresource="status")


async def create_service(
    cluster: KubernetesClient, pod: str, job: naming.PodIdentity, namespace: str = NAMESPACE
) -> int:
    """The pod's SSH Service; the NodePort it was given."""
    metadata = {"name": naming.ssh_object(pod), "labels": naming.job_labels(job)}
    spec = {
        "type": "NodePort",
        "selector": {naming.JOB_LABEL: job.id},
        "ports": [{"name": "ssh", "port": 22, "targetPort": 2222}],
    }
    service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
    created = await cluster.create(SERVICES, service, namespace)
    return int(created["spec"]["ports"][0]["nodePort"])
