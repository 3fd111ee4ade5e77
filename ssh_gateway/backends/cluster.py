"""Addresses of jobs: the gateway's requests to the cluster.

A pod belongs to a user only if `naming.read_job` returns exactly that user's name; labels merely select. The address is
the one that Kubernetes wrote (the pod's `status.hostIP`, the Service's NodePort), never one that a user typed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from dlspawner.clients.kubernetes import PODS, SERVICES, KubernetesClient, KubernetesError, ObjectNotFound
from dlspawner.core import naming
from ssh_gateway.backends.directory import BackendUnavailable, SshEndpoint
from ssh_gateway.core.routing import JobCondition, JobEndpoint
from ssh_gateway.log import say

Object = dict[str, Any]

JOBS_AT_ONCE = 50


class ClusterJobDirectory:
    """Answers about users' jobs, by the pods and Services in both namespaces of jobs."""

    def __init__(self, cluster: KubernetesClient, namespace: str, special: str = "") -> None:
        self._cluster = cluster
        self._namespaces = tuple(dict.fromkeys(one for one in (namespace, special) if one))

    async def jobs(self, user: str) -> tuple[JobEndpoint, ...]:
        """Returns the jobs of a user in the cluster."""
        pods = await self._pods(naming.user_selector(user))
        return tuple(one for pod, job in _owned(pods, user) for one in read_endpoints(pod, job))

    async def endpoint(self, user: str, server: str) -> SshEndpoint | None:
        """Returns the sshd of a user's running job on exactly this server."""
        owned = _owned(await self._pods(naming.server_selector(user, server)), user)
        if not owned and "." in server:  # one pod of another server's job
            owned = _owned(await self._pods(naming.server_selector(user, server.rpartition(".")[0])), user)
        alive = [
            (str(pod["metadata"].get("creationTimestamp", "")), pod["metadata"]["name"], pod, job)
            for pod, job in owned
            for one in read_endpoints(pod, job)
            if one.name == server and one.condition is not JobCondition.STOPPING
        ]
        if not alive:
            return None
        _, name, pod, job = min(alive, key=lambda found: found[:2])  # the Hub makes one such pod for a server
        if condition(pod, job) is not JobCondition.READY:
            return None
        try:
            service = await self._cluster.get(SERVICES, naming.ssh_object(name), pod["metadata"]["namespace"])
        except ObjectNotFound:
            return None
        except KubernetesError as error:
            raise _no_cluster(error) from error
        return read_target(pod, service, job)

    async def running(self, jobs: Collection[str]) -> frozenset[str]:
        """Returns those of these jobs that run and are not being stopped."""
        wanted = sorted(jobs)
        parts = [wanted[at : at + JOBS_AT_ONCE] for at in range(0, len(wanted), JOBS_AT_ONCE)]
        pods = [pod for part in parts for pod in await self._pods(naming.jobs_selector(part))]
        found = [(pod, naming.read_job(pod["metadata"])) for pod in pods]
        return frozenset(job.id for pod, job in found if job and condition(pod, job) is not JobCondition.STOPPING)

    async def _pods(self, selector: str) -> list[Object]:
        try:
            asked = [self._cluster.list(PODS, namespace, labels=selector) for namespace in self._namespaces]
            return [pod for found in await asyncio.gather(*asked) for pod in found]
        except KubernetesError as error:
            raise _no_cluster(error) from error


def read_endpoints(pod: Mapping[str, Any], job: naming.PodIdentity) -> tuple[JobEndpoint, ...]:
    """Returns a pod under each of its names: the first one of a job of several has two."""
    created = str(pod["metadata"].get("creationTimestamp", ""))
    own = (job.pod,) if job.further else dict.fromkeys(("", job.pod))
    return tuple(JobEndpoint(job.server, condition(pod, job), created, name) for name in own)


def condition(pod: Mapping[str, Any], job: naming.PodIdentity) -> JobCondition:
    """Returns the condition of a job's sshd: phase and deletion, from the cluster, and what the job offers."""
    if job.ssh_host_key is None or job.ssh_login is None:
        return JobCondition.WITHOUT_SSH
    phase = pod.get("status", {}).get("phase", "Pending")
    if pod["metadata"].get("deletionTimestamp") or phase not in {"Running", "Pending"}:
        return JobCondition.STOPPING
    return JobCondition.READY if phase == "Running" and pod["status"].get("hostIP") else JobCondition.STARTING


def read_target(pod: Mapping[str, Any], service: Mapping[str, Any], job: naming.PodIdentity) -> SshEndpoint | None:
    """Returns the address in a job's pod and Service; ``None`` if the Service is another job's or has no port for SSH.

    A Service of type ClusterIP is for a gateway inside the cluster.
    """
    labels = service["metadata"].get("labels") or {}
    ports = [port for port in service["spec"].get("ports") or () if port.get("name") == "ssh"]
    if labels.get(naming.JOB_LABEL) != job.id or not ports or job.ssh_host_key is None or job.ssh_login is None:
        return None
    if service["spec"].get("type") == "NodePort":
        host, port = pod["status"]["hostIP"], ports[0].get("nodePort")
    else:
        host, port = service["spec"].get("clusterIP"), ports[0].get("port")
    if not host or host == "None" or not port:
        return None
    return SshEndpoint(job.id, job.user, job.server, host, int(port), job.ssh_login, job.ssh_host_key)


def _owned(pods: Iterable[Object], user: str) -> list[tuple[Object, naming.PodIdentity]]:
    found = [(pod, naming.read_job(pod["metadata"])) for pod in pods]
    return [(pod, job) for pod, job in found if job is not None and job.user == user]


def _no_cluster(error: KubernetesError) -> BackendUnavailable:
    say("directory", level=logging.WARNING, source="cluster", result="failed", why=error)
    return BackendUnavailable("the cluster does not answer: try again later")
