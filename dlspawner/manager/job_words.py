"""The words of the portal's pages for states and reasons, and the names that people give. PURE."""

from __future__ import annotations

import re

from dlspawner.core.amounts import counted
from dlspawner.core.jobs import Job, JobState
from dlspawner.manager.records import StopReason

# Why a job has ended, by the reason of its last event; what was decided here has a sentence of its own.
ENDS = {
    "denied": "It was denied",
    "cancelled": "It was cancelled before it ran.",
    "replaced": "Another request for the same server took its place.",
    "start-refused": "Its turn came, and the Hub refused to start it:",
    "start-failed": "Its turn came, and the Hub could not start it: its administrator finds why in the Hub's log.",
    "no-server": "Its turn came, and the Hub had no such server any more.",
    "runs-already": "Its turn came, and the server ran already.",
    "not-started": "Its turn came many times, and the Hub could not start it. Ask an administrator.",
    "not-created": "The cluster refused its pod:",
    "never-seen": "It was being started, and no pod of it ever came.",
    "finished": "Its program has ended.",
    "failed": "Its program has failed:",
    "gone": "It was stopped.",
    "disappeared": "Its pod is gone: whether it had ended or was removed was not seen.",
}

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?")
NO_NAME = "A job's name has at most 30 small letters, digits and hyphens, and a hyphen neither first nor last."

# Of these the owner reads the details, too: they name nobody else's job.
TOLD = frozenset({"start-refused", "start-failing", "not-created", "approved", "denied", "failed"})


GOING = "It is being started."
ENDING = "It is being stopped."


def progress_sentence(state: JobState, stop: StopReason | None, happened: str = "") -> str:
    """What is waited for while a job starts or ends; ``happened``: the latest that Kubernetes told of its pods."""
    if stop is not None:
        return stop.message
    if state is JobState.STARTING:
        return happened or GOING
    return ENDING if state is JobState.STOPPING else ""


def has_detail(reason: str, stop: StopReason | None) -> bool:
    """Whether what is said of an end has the details of its event."""
    return reason in TOLD and not (stop is not None and stop.message)


def end_sentence(reason: str, detail: str, stop: StopReason | None) -> str:
    """Why a job has ended."""
    if stop is not None and stop.message:
        return stop.message
    sentence = ENDS.get(reason, "It has ended.")
    if reason in TOLD and detail:
        return f"{sentence} {detail}"
    return f"{sentence.rstrip(':.')}."


def request_text(job: Job, team: str) -> str:
    """What a job has or wants: ``2 GPUs of type a100, preemptible, team Vision``."""
    words = [size_text(job) if job.request.gpus else "", "preemptible" if job.preemptible else ""]
    return ", ".join(word for word in (*words, f"team {team}" if team else "") if word)


def size_text(job: Job) -> str:
    """How large a job is: ``2 GPUs of type a100``, ``no GPU``."""
    return gpus_text(job.request.gpus, job.request.gpu_type)


def gpus_text(milli: int, kind: str | None) -> str:
    """An amount of GPUs with its type."""
    if not milli:
        return "no GPU"
    return counted(milli) + (f" of type {kind}" if kind else "")


def is_server_name(server: str) -> bool:
    """Whether a new job may have this name; without one it is the default server's."""
    return not server or _NAME.fullmatch(server) is not None
