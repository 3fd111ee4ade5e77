"""When a job of several pods has to end, and what its owner reads then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlspawner.core import naming
from dlspawner.manager.cluster.pod_view import ObservedPod, end_of_several
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.records import PodRef

_JOB = naming.PodIdentity("j-1", "alice", "", "default", "tiny", 1, pod="chief")
_POD = ObservedPod(
    *("u0", "jupyter-alice", _JOB, "gpu-1"), running=True, terminating=False, over=False, namespace="", manifest={}
)


def further(number: int, *, alone: bool = False, **state: object) -> ObservedPod:
    role = f"worker-{number}"
    job = replace(_JOB, pod=role, number=1 + number, first_pod=_POD.name)
    name = naming.further_pod(_POD.name, role)
    return replace(_POD, uid=role, name=name, job=job, alone=alone, **state)  # type: ignore[arg-type]


FAILED = {"how": EventReason.FAILED, "sentence": "Exit code 3."}
ENDED = {"over": True, "ended": True, "how": EventReason.FINISHED}
REF = PodRef("u2", naming.further_pod(_POD.name, "worker-1"), role="worker-1")
NAMED = (EventReason.POD_FAILED, "Its pod worker-1 has ended: Exit code 3.")
DELETED = (EventReason.POD_FAILED, "Its pod worker-1 was deleted from outside the Hub.")
Row = tuple[list[ObservedPod], tuple[PodRef, ...], tuple[EventReason, str] | None]
ROWS: dict[str, Row] = {
    "all run": ([_POD, further(0), further(1)], (), None),
    "a further pod has ended well": ([_POD, further(0, **ENDED)], (), None),
    "a further pod has failed": ([_POD, further(0), further(1, over=True, **FAILED)], (), NAMED),
    "it was evicted": ([_POD, further(1, terminating=True, **{**FAILED, "how": EventReason.EVICTED})], (), NAMED),
    "its program has failed and is started again": ([_POD, further(1, ended=True, **FAILED)], (), None),
    "it has failed, and the template says continue": ([_POD, further(1, alone=True, over=True, **FAILED)], (), None),
    "it is deleted": ([_POD, further(1, terminating=True)], (), DELETED),
    "it is deleted, and the template says continue": ([_POD, further(1, alone=True, terminating=True)], (), None),
    "the first pod has ended": (
        [replace(_POD, over=True, how=EventReason.FAILED, sentence="Exit code 1."), further(0)],
        *((), (EventReason.FAILED, "Exit code 1.")),
    ),
    "the Hub ends it": ([replace(_POD, terminating=True), further(1, over=True, **FAILED)], (), None),
    "a pod went while no Manager watched": ([_POD, further(0)], (REF,), DELETED),
    "one that had ended well": ([_POD, further(0)], (replace(REF, ended=True),), None),
    "one whose template says continue": ([replace(_POD, alone=True), further(0, alone=True)], (REF,), None),
}


@pytest.mark.parametrize("row", ROWS)
def test_end_of_a_job_of_several_pods(row: str) -> None:
    pods, gone, expected = ROWS[row]
    assert end_of_several(pods, gone) == expected
