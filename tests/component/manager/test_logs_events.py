"""Events of a job's pods, stored with the job."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dlspawner.clients.kubernetes import EVENTS
from dlspawner.manager.db import pod_events as pod_event_rows
from dlspawner.manager.logs.pod_events import read_event
from dlspawner.manager.model.job_history import PodEventMessage
from tests.component.manager.manager_harness import NAMESPACE, until
from tests.component.manager.printing import PrintingHarness, job

AT = "2024-05-01T10:00:00Z"


def event(reason: str, message: str = "", **more: Any) -> dict[str, Any]:
    return {"metadata": {"uid": "u", "name": "e"}, "reason": reason, "message": message, "lastTimestamp": AT, **more}


PLACE = "Successfully assigned jobs/p to gpu-1"
FULL = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
NO_PLACE = "No node has enough free nvidia.com/gpu for the job (1 node: 1 full): wait until other jobs end, or ask for "
AGAIN = "A container of it ends again and again; the node waits before it starts it once more."
MOUNT = event("FailedMount", "MountVolume failed: //user:password@10.0.0.1/x")


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        pytest.param(event("Scheduled", PLACE), "Scheduled on node gpu-1.", id="a place"),
        pytest.param(event("FailedScheduling", FULL), f"{NO_PLACE}less.", id="no place, as FAILURES.md says it"),
        pytest.param(event("BackOff", "Back-off restarting failed container x"), AGAIN, id="ends again and again"),
        pytest.param(MOUNT, "A volume of it cannot be mounted now.", id="nothing of Kubernetes' own words"),
        pytest.param(event("Wondrous", "whatever"), None, id="what nobody knows"),
        pytest.param({**event("Killing"), "lastTimestamp": None}, None, id="without a time"),
    ],
)
def test_event_has_a_sentence(told: dict[str, Any], sentence: str | None) -> None:
    found = read_event(told, frozenset())
    assert (found.sentence if found else None) == sentence
    assert found is None or found.at == datetime(2024, 5, 1, 10, tzinfo=UTC)


async def test_events_of_a_pod_are_stored_once(printing_harness: PrintingHarness) -> None:
    request = job()
    async with printing_harness.manager() as leader:

        async def kept() -> list[PodEventMessage]:
            return await leader.repository.read(
                lambda connection: pod_event_rows.read_pod_events(connection, request.job)
            )

        async def has(words: str) -> bool:
            return any(words in one.sentence for one in await kept())

        pod = await printing_harness.start(leader, request, "exit 3")
        about = {key: pod["metadata"][key] for key in ("name", "namespace", "uid")}
        told = {"apiVersion": "v1", "kind": "Event", "type": "Warning", **event("FailedMount", count=3)}
        told["metadata"] = {"name": "mount", "namespace": NAMESPACE}
        await printing_harness.cluster.create(EVENTS, {**told, "involvedObject": {"kind": "Pod", **about}}, NAMESPACE)
        await until(lambda: has("The container notebook ended with exit code 3."), "its end")
        await until(lambda: has("A volume of it cannot be mounted now."), "the event")
        assert [one.count for one in await kept() if one.reason == "FailedMount"] == [3]
        before = await kept()
    async with printing_harness.manager() as leader:
        await until(lambda: has("exit code 3"), "it is told again")
        assert [one.sentence for one in await kept()] == [one.sentence for one in before]
