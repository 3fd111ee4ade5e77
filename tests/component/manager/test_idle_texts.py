"""Texts about unused jobs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from dlspawner.core.job import Job
from dlspawner.core.resources import PodRequest, ResourceRequest
from dlspawner.manager.culling.culler import held_text, span_text
from tests.unit.core.factories import NOW

JOB = Job("j-1", "alice", "vision", NOW, ResourceRequest("a100", (PodRequest("nvidia.com/gpu", 2000),)))
PLAIN = replace(JOB, request=ResourceRequest(None, (PodRequest(cpu_milli=500, memory_bytes=2 * 1024**3),)))


def test_resources_of_a_job_without_gpus() -> None:
    assert held_text(PLAIN) == "500m CPU and 2 GiB of memory"


SPANS = {
    "0 s": timedelta(0),
    "59 s": timedelta(seconds=59),
    "1 min": timedelta(seconds=119),
    "1 h": timedelta(hours=1),
    "1 h 30 min": timedelta(minutes=90),
    "3 d 2 h": timedelta(days=3, hours=2, minutes=40),
}


@pytest.mark.parametrize("text", SPANS)
def test_duration_has_two_units_at_most(text: str) -> None:
    assert span_text(SPANS[text]) == text
