"""Names: the one module that knows label keys, annotation keys and how a name becomes a Kubernetes or Unix name.

Rules that hold here:

* A *slug* is safe as a label value and as a DNS label, and different names have different slugs. A name that needed a
  change ends in ``---`` and a hash; a name that merely looks like that is hashed as well, so no user can pick another
  user's.
* Labels select, annotations decide. A selector may be too generous (hashes are finite, labels can be forged), so every
  reader compares the exact names in the annotations, which :func:`read_job` does.
* All metadata of a pod is a claim. :func:`read_job` answers ``None`` when labels and annotations disagree.

Refused: escaping (``-2d`` for every ``-``), which makes the common names unreadable to spare the rare ones a hash.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

PREFIX = "dlspawner.dev/"

JOB_LABEL = PREFIX + "job"
USER_LABEL = PREFIX + "user"
SERVER_LABEL = PREFIX + "server"
TEAM_LABEL = PREFIX + "team"
TEMPLATE_LABEL = PREFIX + "template"
GPUS_LABEL = PREFIX + "gpus"
PRIORITY_LABEL = PREFIX + "priority"
REQUEUE_LABEL = PREFIX + "requeue"
HOME_LABEL = PREFIX + "home"
POD_LABEL = PREFIX + "pod"
PREEMPTION_LABEL = "preemption"
PREEMPTION_ALLOWED = "allow"

USER_ANNOTATION = PREFIX + "user"
SERVER_ANNOTATION = PREFIX + "server"
TEAM_ANNOTATION = PREFIX + "team"
SSH_HOST_KEY_ANNOTATION = PREFIX + "ssh-host-key"
SSH_LOGIN_ANNOTATION = PREFIX + "ssh-login"
LOG_DIR_ANNOTATION = PREFIX + "log-dir"
GROUPS_ANNOTATION = PREFIX + "groups"
NONCE_ANNOTATION = PREFIX + "nonce"
PODS_ANNOTATION = PREFIX + "pods"
PORTS_ANNOTATION = PREFIX + "ports"
FIRST_POD_ANNOTATION = PREFIX + "first-pod"
FAILURE_ANNOTATION = PREFIX + "on-pod-failure"
ENGINE_ANNOTATION = PREFIX + "waits-in"  # the engine in which a pod waits for its node (`core.schedulers`)

_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_UNIX_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_SERVER_NAME = re.compile(r"[a-z0-9-]{1,30}")
_FURTHER = "----"  # between the name of a first pod and the role and number of another one
_JOB_ID = re.compile(r"j-[a-z2-7]{12}")
_UNIX_HASHED = re.compile(r".*--[a-z2-7]{8}")
_MARK = "---"
_BOUND = "pod:"

# Accounts that every distribution's passwd already has; a person of that name gets a hashed one.
_SYSTEM_ACCOUNTS = (
    "root daemon bin sys sync games man lp mail news uucp proxy www-data backup list irc gnats _apt nobody nogroup "
    "messagebus sshd operator ftp adm halt shutdown polkitd systemd-network systemd-resolve systemd-timesync"
)
_TAKEN = frozenset(_SYSTEM_ACCOUNTS.split())


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """The job that a pod belongs to, as its metadata claims; ``server`` is ``""`` for the default server.

    ``nonce``: of the start that made the pod. Before the pod is there only the Hub and the Manager know it. ``pod`` is
    the pod within a job of several (``worker-1``), ``first_pod`` the name of the job's first pod in Kubernetes; both
    are empty for the first pod itself.
    """

    id: str
    user: str
    server: str
    team: str
    template: str
    gpus: int
    ssh_host_key: str | None = None
    ssh_login: str | None = None
    log_dir: str | None = None
    preemptible: bool = False
    priority: str = ""  # the level's name; the team's lowest where none is said
    requeue: bool = False
    nonce: str = ""
    pod: str = ""
    first_pod: str = ""


def sign(nonce: str, pod: str) -> str:
    """Signs a nonce for the Manager: that it is this pod's and, the name being taken, no other one's.

    ``pod`` is a namespace and a name, ``jobs/jupyter-alice``: in another namespace the name is not taken.
    """
    told = f"{pod}/{nonce}".encode("utf-8", "surrogatepass")
    return f"{_BOUND}{hashlib.blake2b(told, digest_size=20).hexdigest()}" if nonce else ""


def verify(told: str, nonce: str, pod: str) -> bool:
    """True if a pod of this name and nonce is the ``told`` one; by its nonce alone without a told name."""
    return told == (sign(nonce, pod) if told.startswith(_BOUND) else nonce)


def slug(name: str) -> str:
    """A valid label value and DNS label for any text, the text itself where that is one already."""
    if _DNS_LABEL.fullmatch(name) and _MARK not in name:
        return name
    readable = re.sub(r"[^a-z0-9]+", "-", name.lower()[:200])[:48].strip("-") or "x"
    return f"{readable}{_MARK}{_hash(name, 12)}"


def unix_name(user: str) -> str:
    """The account name inside the job: what useradd accepts, never a system account, another one for every user."""
    if _UNIX_NAME.fullmatch(user) and not _UNIX_HASHED.fullmatch(user) and user not in _TAKEN:
        return user
    readable = re.sub(r"[^a-z0-9_]+", "-", user.lower()[:200])[:22].strip("-") or "u"
    if not readable[0].isalpha():
        readable = ("u" + readable)[:22]
    return f"{readable}--{_hash(user, 8)}"


def tensorboard_server(server: str) -> str:
    """The named server that shows the logs of ``server``: ``tb`` for the default one, ``train-tb`` for ``train``."""
    if not server:
        return "tb"
    if _SERVER_NAME.fullmatch(server) and len(server) <= 27:
        return f"{server}-tb"
    readable = re.sub(r"[^a-z0-9]+", "-", server.lower()[:200])[:18].strip("-") or "x"
    return f"{readable}-{_hash(server, 8)}-tb"


def job_id(entropy: bytes) -> str:
    """A job's id from at least 8 random bytes, which the caller brings because randomness is an argument."""
    if len(entropy) < 8:
        raise ValueError("a job id needs 8 random bytes")
    return "j-" + base64.b32encode(entropy[:8]).decode("ascii").lower()[:12]


def ssh_object(pod_name: str) -> str:
    """The name of a pod's SSH Secret and Service."""
    return _child(pod_name, "ssh")


def http_object(pod_name: str) -> str:
    """The name of the Service by which a pod's web server is reached from outside the cluster."""
    return _child(pod_name, "http")


def pods_object(pod_name: str) -> str:
    """The name of the headless Service of a job of several pods."""
    return _child(pod_name, "pods")


def further_pod(pod_name: str, pod: str) -> str:
    """The name of another pod of the job whose first pod is ``pod_name``.

    KubeSpawner joins user and server by ``--`` and a hash by ``---``: no server's own pod has a name with four hyphens.
    """
    return f"{pod_name}{_FURTHER}{pod}"


def is_further_pod(name: str) -> bool:
    return _FURTHER in name


def ssh_server(job: PodIdentity) -> str:
    """The name by which SSH reaches a pod: the server's, and for a further pod ``train.worker-1``."""
    return f"{job.server}.{job.pod}" if job.pod else job.server


def start_pod(name: str, job: PodIdentity) -> str:
    """The name of the pod that the start's nonce is bound to; a further pod has the name that follows from it."""
    return job.first_pod if job.pod and name == further_pod(job.first_pod, job.pod) else name


def _child(pod_name: str, what: str) -> str:
    """Services want a DNS label, so a long pod name is cut and hashed."""
    if len(pod_name) + len(what) <= 62:
        return f"{pod_name}-{what}"
    return f"{pod_name[:46].rstrip('-.')}-{_hash(pod_name, 12)}-{what}"


def job_labels(job: PodIdentity) -> dict[str, str]:
    """The labels of every pod of a job, for selectors."""
    labels = {
        JOB_LABEL: job.id,
        USER_LABEL: slug(job.user),
        SERVER_LABEL: slug(job.server),
        TEAM_LABEL: slug(job.team),
        TEMPLATE_LABEL: slug(job.template),
        GPUS_LABEL: str(job.gpus),
    }
    if job.preemptible:
        labels[PREEMPTION_LABEL] = PREEMPTION_ALLOWED
    if job.priority:
        labels[PRIORITY_LABEL] = job.priority
    if job.requeue:
        labels[REQUEUE_LABEL] = "true"
    if job.pod:
        labels[POD_LABEL] = job.pod
    return labels


def job_annotations(job: PodIdentity) -> dict[str, str]:
    """The exact names behind the labels, and what the gateway and the home page want to know of a job."""
    known = {
        USER_ANNOTATION: job.user,
        SERVER_ANNOTATION: job.server,
        TEAM_ANNOTATION: job.team,
        SSH_HOST_KEY_ANNOTATION: job.ssh_host_key,
        SSH_LOGIN_ANNOTATION: job.ssh_login,
        LOG_DIR_ANNOTATION: job.log_dir,
        NONCE_ANNOTATION: job.nonce or None,
        FIRST_POD_ANNOTATION: job.first_pod or None,
    }
    return {key: value for key, value in known.items() if value is not None}


def job_selector(job_id: str) -> str:
    return f"{JOB_LABEL}={job_id}"


def jobs_selector(job_ids: Iterable[str]) -> str:
    """Selects everything that belongs to any of these jobs, of which there is at least one."""
    return f"{JOB_LABEL} in ({','.join(job_ids)})"


def server_selector(user: str, server: str) -> str:
    """A label selector for the pods of one server; check ``read_job`` of what it finds against the exact names."""
    return f"{USER_LABEL}={slug(user)},{SERVER_LABEL}={slug(server)}"


def user_selector(user: str) -> str:
    """A label selector for the pods of one user; check ``read_job`` of what it finds against the exact name."""
    return f"{USER_LABEL}={slug(user)}"


def read_job(metadata: Mapping[str, object]) -> PodIdentity | None:
    """The job that a pod's ``metadata`` names; ``None`` for a pod that is not ours or contradicts itself."""
    labels, annotations = _texts(metadata.get("labels")), _texts(metadata.get("annotations"))
    identifier, gpus = labels.get(JOB_LABEL, ""), labels.get(GPUS_LABEL, "")
    if not _JOB_ID.fullmatch(identifier) or not re.fullmatch(r"0|[1-9][0-9]{0,5}", gpus):
        return None
    if USER_ANNOTATION not in annotations or SERVER_ANNOTATION not in annotations:
        return None
    job = PodIdentity(
        id=identifier,
        user=annotations[USER_ANNOTATION],
        server=annotations[SERVER_ANNOTATION],
        team=annotations.get(TEAM_ANNOTATION, labels.get(TEAM_LABEL, "")),
        template=labels.get(TEMPLATE_LABEL, ""),
        gpus=int(gpus),
        ssh_host_key=annotations.get(SSH_HOST_KEY_ANNOTATION),
        ssh_login=annotations.get(SSH_LOGIN_ANNOTATION),
        log_dir=annotations.get(LOG_DIR_ANNOTATION),
        preemptible=labels.get(PREEMPTION_LABEL) == PREEMPTION_ALLOWED,
        priority=labels.get(PRIORITY_LABEL, ""),
        requeue=labels.get(REQUEUE_LABEL) == "true",
        nonce=annotations.get(NONCE_ANNOTATION, ""),
        pod=labels.get(POD_LABEL, "") if FIRST_POD_ANNOTATION in annotations else "",
        first_pod=annotations.get(FIRST_POD_ANNOTATION, ""),
    )
    agrees = labels.get(USER_LABEL) == slug(job.user) and labels.get(SERVER_LABEL) == slug(job.server)
    return job if agrees else None


def _texts(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        return {}
    return {key: text for key, text in value.items() if isinstance(key, str) and isinstance(text, str)}


def _hash(name: str, length: int) -> str:
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
    return base64.b32encode(digest).decode("ascii").lower()[:length]
