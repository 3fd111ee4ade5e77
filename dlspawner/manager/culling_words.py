"""What people are told of a job that nobody uses, or that is old. PURE."""

from __future__ import annotations

from datetime import timedelta
from typing import assert_never

from dlspawner.core import quantity
from dlspawner.core.amounts import counted
from dlspawner.core.idle import Cause
from dlspawner.core.jobs import Job
from dlspawner.core.telling import WHEN


def held_text(job: Job) -> str:
    """What a job keeps from others: ``2 a100 GPUs``, ``4 CPU and 8Gi of memory``."""
    if job.request.gpus:
        return counted(job.request.gpus, f"{job.request.gpu_type} GPU" if job.request.gpu_type else "GPU")
    cpu = sum(pod.cpu_milli for pod in job.request.pods)
    memory = sum(pod.memory_bytes for pod in job.request.pods)
    return f"{quantity.cpu(cpu)} CPU and {quantity.memory(memory)} of memory"


def span_text(span: timedelta) -> str:
    """A span of time in at most two units: ``3 d 2 h``, ``1 h 30 min``, ``45 min``, ``50 s``."""
    seconds = max(0, int(span.total_seconds()))
    for unit, size, next_unit, next_size in (("d", 86400, "h", 3600), ("h", 3600, "min", 60)):
        if seconds >= size:
            rest = seconds % size // next_size
            return f"{seconds // size} {unit}" + (f" {rest} {next_unit}" if rest else "")
    return f"{seconds // 60} min" if seconds >= 60 else f"{seconds} s"


def warning_text(job: Job, why: Cause, span: timedelta) -> str:
    """Before the stop."""
    match why:
        case Cause.LIFETIME:
            return f"This job has run for {span_text(span)} and stops {WHEN}, at the end of its lifetime; files stay."
        case Cause.UNUSED:
            return f"{held_text(job)} unused for {span_text(span)}. The job stops {WHEN} unless it is used; files stay."
        case Cause.USED | Cause.UNKNOWN | Cause.EXEMPT:
            raise ValueError(why)
        case _:
            assert_never(why)


def stopped_text(job: Job, why: Cause, span: timedelta) -> str:
    """After the stop."""
    again = "Your files are kept; “Start again” starts it with the same options."
    if why is Cause.LIFETIME:
        return f"The job was stopped at the end of its lifetime, after {span_text(span)}. {again}"
    return f"The job was stopped because it was not used for {span_text(span)} ({held_text(job)}). {again}"
