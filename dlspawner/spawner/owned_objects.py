"""The objects that a job's pod owns: the Secret with the files of its sshd, its Services, and the further pods.

Everything is derived from the pod itself, so that a Hub that was killed between pod and objects creates the same ones
after its restart. Rules:

* Owner references delete the objects with the pod; an object of an earlier pod of the same name is replaced.
* The pod waits for its Secret (ContainerCreating), so no sshd ever runs without the announced host key.
* The Secret decides about the host key and the pod's annotation follows it. A private key is stored nowhere else: a key
  that was lost with the Hub was never used, and is replaced.
* Pod addresses are valid only inside the cluster's network. For a Hub outside of it, every job gets a NodePort Service
  for its port ``notebook-port``. Kubernetes chooses the port, so it is read from the Service: when the job starts, and
  again after a restart of the Hub. The port grants no access: the job's server asks the Hub for the user's login.

Refused: a Secret before the pod, which saves a rare retry of the kubelet, but leaves private keys without an owner if
the Hub dies in between; one Ingress or Gateway route per job, which needs a controller, a second place that knows the
Hub's paths, and another hop that the proxy trusts.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from dlspawner.backoff import delays
from dlspawner.core import naming, unix_account
from dlspawner.core.launch import host_ports, pod_set, security
from dlspawner.core.launch import pod as launch_pod
from dlspawner.core.launch.pod_status import PodDict
from dlspawner.core.template import MAIN_CONTAINER, NOTEBOOK_CONTAINER, Endpoint, EndpointProtocol, EndpointService
from dlspawner.spawner.kube.errors import StartRefused
from dlspawner.spawner.kube.pods import PodRequests
from dlspawner.spawner.kube.requests import ApiError

HOST_KEY = "ssh_host_ed25519_key"
PUBLIC_HOST_KEY = "ssh_host_ed25519_key.pub"
# Secret key -> file of this package. The template's volume mounts the Secret at /etc/dlspawner.
_PACKAGED = {
    "start": "start.sh",
    "profile.sh": "profile.sh",
    "shell": "shell",
    "report_ssh_keys.py": "report_ssh_keys.py",
    "report_kernels.py": "report_kernels.py",
    "watch_ports.py": "watch_ports.py",
}
_ROUNDS = 5
_MENDED_AT_ONCE = 20  # pods
_MADE_AT_ONCE = 16  # objects of one job
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

USUAL_SSH = Endpoint("ssh", 2222, EndpointProtocol.SSH, EndpointService.NODEPORT)


@dataclass(frozen=True, slots=True)
class HostKey:
    """An ed25519 key pair of one job's sshd, in OpenSSH's formats."""

    public: str
    private: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class SecretFiles:
    """The contents of the Secret that cannot be read from the pod."""

    host_key: HostKey
    user_ca: str
    page: str


def make_host_key() -> HostKey:
    """A new key pair; takes well below a millisecond, so it may run on the Hub's event loop."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return HostKey(public.decode("ascii"), private.decode("ascii"))


def account(pod: PodDict, login: str) -> unix_account.UnixAccount:
    """Returns the Unix account of the pod's work container; the names of its groups are in an annotation."""
    spec = pod["spec"]
    named = {container["name"]: container for container in spec["containers"]}
    container = named.get(MAIN_CONTAINER) or named.get(NOTEBOOK_CONTAINER) or {}
    home = next((item.get("value") for item in container.get("env") or () if item["name"] == "HOME"), None)
    annotations = pod["metadata"].get("annotations") or {}
    known = unix_account.read_groups(annotations.get(naming.GROUPS_ANNOTATION, ""))
    found = security.unix_ids(spec, container) or unix_account.UnixIds(1000, 1000)
    names = {group.gid: group.name for group in known}
    groups = tuple(unix_account.UnixGroup(names.get(one.gid, ""), one.gid) for one in found.groups)
    own = tuple(group for group in known if group.gid == found.gid)
    numbers = unix_account.UnixIds(found.uid, found.gid, own + groups)
    return unix_account.account(login, numbers, home or f"/home/{login}")


def login_shell(pod: PodDict) -> str:
    """Returns the login shell of the account: a file of the job, which executes the user's shell."""
    volumes = pod["spec"].get("volumes") or ()
    bundled = any(one["name"] == launch_pod.BUNDLE_VOLUME for one in volumes)
    return launch_pod.LOGIN_SHELL if bundled else "/etc/dlspawner/shell"


def wants_secret(pod: PodDict) -> bool:
    """True if the pod mounts its Secret."""
    name = naming.ssh_object(pod["metadata"]["name"])
    volumes = pod["spec"].get("volumes") or ()
    return any((volume.get("secret") or {}).get("secretName") == name for volume in volumes)


def owner_reference(pod: PodDict) -> dict[str, Any]:
    metadata = pod["metadata"]
    return {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}


def owned_metadata(pod: PodDict, name: str | None = None) -> dict[str, Any]:
    """Returns the metadata of an object that the pod owns; by default of the Secret and the Service for SSH."""
    found = pod["metadata"]
    keep = (naming.JOB_LABEL, naming.USER_LABEL, naming.SERVER_LABEL, naming.TEAM_LABEL, naming.TEMPLATE_LABEL)
    labels = found.get("labels") or {}
    return {
        "name": name or naming.ssh_object(found["name"]),
        "labels": {key: labels[key] for key in keep if key in labels},
        "ownerReferences": [owner_reference(pod)],
    }


def secret(pod: PodDict, job: naming.PodIdentity, given: SecretFiles, port: int) -> dict[str, Any]:
    """The Secret with everything that sshd and the start script read."""
    who = account(pod, job.ssh_login or naming.unix_name(job.user))
    files = {
        HOST_KEY: given.host_key.private,
        PUBLIC_HOST_KEY: given.host_key.public + "\n",
        "user_ca.pub": given.user_ca,
        "principals": job.id + "\n",
        "passwd": unix_account.passwd(who, login_shell(pod)),
        "group": unix_account.group(who),
        "index.html": given.page,
        **{key: packaged(name) for key, name in _PACKAGED.items()},
        "sshd_config": f"{packaged('sshd_config')}Port {port}\n",
    }
    pods = pod_set.read_pod_set(pod["metadata"])
    if pods is not None:
        keys, host_key = make_host_key(), given.host_key.public
        assigned = [one[host_ports.SSH][0] for one in host_ports.assigned(pod["metadata"])]
        files |= pod_set.secret_files(pods, (keys.private, keys.public), host_key, who.name, assigned)
        files["sshd_config"] += f"Port {pod_set.SSH_PORT}\n"
    data = {key: base64.b64encode(text.encode("utf-8")).decode("ascii") for key, text in files.items()}
    return {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": owned_metadata(pod), "data": data}


def ssh_service(
    pod: PodDict, job: naming.PodIdentity, endpoint: Endpoint, first: PodDict | None = None
) -> dict[str, Any]:
    """Returns the Service of the pod's sshd; the ``first`` pod owns the Service of a further one."""
    listens = host_ports.ssh_port(pod, endpoint.port)
    port = {"name": "ssh", "port": endpoint.port, "targetPort": listens, "protocol": "TCP"}
    kind = "NodePort" if endpoint.expose is EndpointService.NODEPORT else "ClusterIP"
    spec = {"type": kind, "selector": _selector(pod, job), "ports": [port]}
    metadata = owned_metadata(first or pod, naming.ssh_object(pod["metadata"]["name"]))
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def _selector(pod: PodDict, job: naming.PodIdentity) -> dict[str, str]:
    """Selects exactly this pod of the job."""
    own = (pod["metadata"].get("labels") or {}).get(naming.POD_LABEL)
    return {naming.JOB_LABEL: job.id} | ({naming.POD_LABEL: own} if own else {})


def packaged(name: str) -> str:
    return (resources.files(__package__) / "files" / name).read_text(encoding="utf-8")


def has_started(pod: PodDict) -> bool:
    """True if all containers have run, which none does before the Secret is mounted."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    begun = [
        one
        for one in statuses
        if one.get("restartCount") or {"running", "terminated"} & (one.get("state") or {}).keys()
    ]
    return len(begun) >= len(pod["spec"]["containers"])


def needs_secret(pod: PodDict, *, new: bool) -> bool:
    """True if the pod's Secret has to be created or checked; ``new``: this process has just created the pod."""
    return wants_secret(pod) and (new or not has_started(pod))


@asynccontextmanager
async def repair_slot(seconds: float) -> AsyncIterator[None]:
    """Limits concurrent repairs, as a restarted Hub checks thousands of pods; TimeoutError after ``seconds``."""
    turns = _turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_MENDED_AT_ONCE))
    try:
        async with asyncio.timeout(seconds):
            await turns.acquire()
    except TimeoutError:
        raise TimeoutError("other pods are checked first") from None
    try:
        yield
    finally:
        turns.release()


async def ensure_owned_objects(  # noqa: PLR0913  (what the children are made of, by name)
    pods: PodRequests,
    pod: PodDict,
    job: naming.PodIdentity,
    given: SecretFiles | None,
    endpoint: Endpoint,
    *,
    new: bool = True,
) -> PodDict:
    """Creates the missing Secret and Service of the pod, and sets its annotation to the host key that sshd uses.

    ``new``: this process has just created the pod, which has no objects yet. Without files the Secret is left alone.
    Returns the pod with its present annotation.
    """
    if given is not None:
        announced = await _ensure_files(pods, pod, job, secret(pod, job, given, endpoint.port), look_first=not new)
        if announced is not None:
            annotations = {**(pod["metadata"].get("annotations") or {}), naming.SSH_HOST_KEY_ANNOTATION: announced}
            pod = {**pod, "metadata": {**pod["metadata"], "annotations": annotations}}
    if job.ssh_host_key is not None:
        await ensure_service(pods, ssh_service(pod, job, endpoint), look_first=not new)
    return pod


async def ensure_job_objects(  # noqa: PLR0913  (what they are made of, by name)
    pods: PodRequests,
    pod: PodDict,
    job: naming.PodIdentity,
    given: SecretFiles | None,
    endpoint: Endpoint,
    *,
    gpu_resources: Collection[str],
    new: bool,
) -> None:
    """Creates the objects of the job's first pod, and its further pods; all at once for a ``new`` pod.

    Later the host key is settled first, because the further pods announce it too.
    """
    if not new:
        pod = await ensure_owned_objects(pods, pod, job, given, endpoint, new=False)
        await ensure_further_pods(pods, pod, job, endpoint, gpu_resources, new=False)
        return
    async with _at_once() as group:
        group.create_task(ensure_owned_objects(pods, pod, job, given, endpoint), name="make owned objects")
        group.create_task(ensure_further_pods(pods, pod, job, endpoint, gpu_resources, new=True), name="make pods")


@asynccontextmanager
async def _at_once() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group whose first refusal ends it, and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except* StartRefused as refused:
        raise refused.exceptions[0] from None


async def ensure_further_pods(  # noqa: PLR0913  (what they are made of, by name)
    pods: PodRequests,
    first: PodDict,
    job: naming.PodIdentity,
    endpoint: Endpoint,
    gpu_resources: Collection[str],
    *,
    new: bool,
) -> None:
    """Creates the missing further pods of the job, their Services for SSH, their headless Service and NetworkPolicy.

    The first refusal ends it: all pods or none.
    """
    hide = partial(launch_pod.disable_gpus_by_default, gpu_resources=gpu_resources)
    further = list(pod_set.further_pods(first, hide))
    if not further:
        return
    ways = [ssh_service(pod, job, endpoint, first) for pod in further if job.ssh_host_key is not None]
    ways.append(pod_set.service(first, owned_metadata(first), job.id))
    turns = asyncio.Semaphore(_MADE_AT_ONCE)

    async def ensure(kind: str, manifest: PodDict) -> None:
        async with turns:
            await ensure_object(pods, kind, manifest, look_first=not new)

    async with _at_once() as group:
        for kind, manifests in (("pod", further), ("service", ways)):
            for manifest in manifests:
                group.create_task(ensure(kind, manifest), name=f"make {kind} {manifest['metadata']['name']}")
        group.create_task(_ensure_policy(pods, pod_set.network_policy(owned_metadata(first), job.id)))


async def _ensure_policy(pods: PodRequests, manifest: PodDict) -> None:
    """Creates the NetworkPolicy of a job of several pods; without the right to do so the job starts without it."""
    create = pods.networking.create_namespaced_network_policy
    try:
        await pods.requests.send("NetworkPolicy of a job", create, pods.namespace, manifest, expected=(403, 404, 409))
    except ApiError as problem:
        if problem.status != 409:  # it is there
            pods.log.warning(
                "pod=%s where network policies keep jobs apart, its pods do not reach each other: the Hub may not "
                "create networkpolicies (%s)",
                pods.key,
                problem,
            )


async def delete_further_pods(pods: PodRequests, first: PodDict) -> None:
    """Requests the deletion of the job's further pods, with their grace period; the rest goes with the first pod."""
    metadata = first["metadata"]
    told = pod_set.read_pod_set(metadata)
    if told is None:
        return
    delete = pods.api.delete_namespaced_pod
    names = [naming.further_pod(metadata["name"], host) for host in told.hosts[1:]]
    requests = [
        pods.requests.send("deletion of a pod", delete, name, pods.namespace, expected=(404,)) for name in names
    ]
    await asyncio.gather(*requests, return_exceptions=True)


async def _ensure_files(
    pods: PodRequests, pod: PodDict, job: naming.PodIdentity, manifest: PodDict, *, look_first: bool
) -> str | None:
    """Returns the host key that the pod announces, ``None`` for one without SSH."""
    announced = job.ssh_host_key
    found = await find(pods, "secret", manifest["metadata"]["name"], _owner(manifest)) if look_first else None
    if look_first and found is None and announced not in (None, _public(manifest)):
        # Before the Secret: once it exists the pod starts, and no check follows.
        announced = _public(manifest)
        await pods.annotate(pod, {naming.SSH_HOST_KEY_ANNOTATION: announced})
    public = _public(found) if found is not None else await ensure_secret(pods, manifest)
    if announced not in (None, public):
        await pods.annotate(pod, {naming.SSH_HOST_KEY_ANNOTATION: public})
    return None if announced is None else public


async def ensure_secret(pods: PodRequests, manifest: PodDict) -> str:
    """Creates the Secret unless the pod has it already; returns the public host key that sshd will use."""
    return _public(await ensure_object(pods, "secret", manifest))


def _public(secret: PodDict) -> str:
    return base64.b64decode(secret["data"][PUBLIC_HOST_KEY]).decode("ascii").strip()


async def ensure_service(pods: PodRequests, manifest: PodDict, *, look_first: bool = False) -> PodDict:
    return await ensure_object(pods, "service", manifest, look_first=look_first)


async def find(pods: PodRequests, kind: str, name: str, owner: str | None) -> PodDict | None:
    """Returns the object of this kind ("secret", "service") and name, if the pod with this uid owns it."""
    read = getattr(pods.api, f"read_namespaced_{kind}")
    with suppress(ApiError):
        found = await pods.requests.send(f"look at a {kind} of a pod", read, name, pods.namespace, expected=(404,))
        return found if _is_owned_by(found, owner) else None
    return None


async def ensure_object(pods: PodRequests, kind: str, manifest: PodDict, *, look_first: bool = False) -> PodDict:
    """Returns the object of this kind ("secret", "service", "pod"), created unless the pod owns it already.

    An object of another pod is replaced. ``look_first``: the object is likely to exist. If it is deleted or replaced
    between two requests, all of them are repeated, `_ROUNDS` times at most.
    """
    requests, namespace, name = pods.requests, pods.namespace, manifest["metadata"]["name"]
    create, read, delete = (getattr(pods.api, f"{verb}_namespaced_{kind}") for verb in ("create", "read", "delete"))
    found = await find(pods, kind, name, _owner(manifest)) if look_first else None
    if found is not None:
        return found
    what = f"{kind} of a pod"
    for delay in islice(delays(0.05), _ROUNDS):
        with suppress(ApiError):
            return await requests.send(what, create, namespace, manifest, expected=(409,))
        with suppress(ApiError):
            found = await requests.send(f"look at a {what}", read, name, namespace, expected=(404,))
            if _is_owned_by(found, _owner(manifest)):
                return found
            same = {"preconditions": {"uid": found["metadata"]["uid"]}}
            await requests.send(f"deletion of a {what}", delete, name, namespace, body=same, expected=(404, 409))
        await asyncio.sleep(delay)
    raise requests.refused(what, ApiError(None, "another client creates it again and again"))


def _owner(manifest: PodDict) -> str:
    return str(manifest["metadata"]["ownerReferences"][0]["uid"])


def _is_owned_by(found: PodDict, owner: str | None) -> bool:
    return any(one["uid"] == owner for one in found["metadata"].get("ownerReferences") or ())


def http_service(pod: PodDict, job: naming.PodIdentity, port: int) -> dict[str, Any]:
    ports = [{"name": "http", "port": port, "targetPort": port, "protocol": "TCP"}]
    spec = {"type": "NodePort", "selector": _selector(pod, job), "ports": ports}
    metadata = owned_metadata(pod, naming.http_object(pod["metadata"]["name"]))
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def http_url(pod: PodDict, node_port: int) -> str:
    """Returns the URL of a running job's web server from outside the cluster."""
    host = ipaddress.ip_address(pod["status"]["hostIP"])
    return f"http://[{host}]:{node_port}" if host.version == 6 else f"http://{host}:{node_port}"


async def ensure_http_service(
    pods: PodRequests, pod: PodDict, job: naming.PodIdentity, port: int, *, new: bool = True
) -> int:
    """Returns the node port of the job's Service, which is created if it is missing."""
    made = await ensure_service(pods, http_service(pod, job, port), look_first=not new)
    return int(made["spec"]["ports"][0]["nodePort"])
