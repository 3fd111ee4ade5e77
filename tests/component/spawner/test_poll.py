"""The result of polls while pods start and end, and what is done about ended pods."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from dlspawner.core import naming
from dlspawner.settings import Settings
from dlspawner.spawner import DLSpawner
from dlspawner.spawner.kube.errors import StartRefused
from dlspawner.spawner.kube.pods import PodRequests
from dlspawner.spawner.manager_link import ManagerLink
from tests.harness.spawner_builders import SETTINGS, make_spawner

GOING: dict[str, Any] = {
    "metadata": {"name": "jupyter-alice", "uid": "1", "deletionTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {},
    "status": {"phase": "Pending"},
}
GONE = None
JOB = naming.PodIdentity(id="j-aaaaaaaaaaaa", user="alice", server="", team="default", template="tiny", gpus=0)


@pytest.fixture
def spawner(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A spawner without a watch: ``shown`` is its pod."""

    async def no_cluster(_spawner: DLSpawner) -> None:
        """There is no watch."""

    monkeypatch.setattr(DLSpawner, "_start_watching_pods", no_cluster)
    monkeypatch.setattr(DLSpawner, "pod", lambda spawner: spawner.shown)
    made = make_spawner(monkeypatch)
    made.shown = GOING
    return made


async def poll_during_cleanup(spawner: Any) -> int | None:
    """The answer to a poll during the Hub's cleanup after a failed start: it waits for the end of the cleanup."""
    polled, over = asyncio.Event(), asyncio.Event()

    async def start() -> None:
        spawner._stop_pending = True
        await spawner.poll()  # the Hub's own, and one of a hook's task
        await asyncio.ensure_future(spawner.poll())
        polled.set()
        await over.wait()
        spawner._stop_pending = False
        raise StartRefused("This is why.", reason="test")

    spawner._spawn_future = failed = asyncio.ensure_future(start())
    await asyncio.wait_for(polled.wait(), 10)
    poll = asyncio.ensure_future(spawner.poll())
    await asyncio.sleep(0.01)
    assert not poll.done()
    over.set()
    answer: int | None = await poll
    with pytest.raises(StartRefused, match="This is why"):
        await failed
    assert (spawner._spawn_future, spawner._ended) == (failed, None), "the start itself says why it failed"
    return answer


async def test_a_failed_start_that_is_being_stopped_has_not_ended_yet(spawner: Any) -> None:
    spawner._spawn_future = asyncio.current_task()
    spawner._stop_pending = True

    assert await spawner.poll() is None


@pytest.mark.parametrize("pod", [GOING, GONE], ids=["its pod is ending", "without a pod"])
async def test_other_polls_wait_for_the_cleanup_of_a_failed_start(pod: dict[str, Any] | None, spawner: Any) -> None:
    spawner.shown = pod
    assert await poll_during_cleanup(spawner) == 1


@pytest.mark.parametrize(
    ("starting", "stopping", "pod"),
    [
        pytest.param(False, True, GOING, id="a job that ran and is stopped"),
        pytest.param(True, False, GOING, id="a pod that is removed while it starts"),
        pytest.param(True, True, GONE, id="a start whose server is stopped before it has failed"),
        pytest.param(None, True, GOING, id="a job that an earlier Hub started"),
    ],
)
async def test_every_other_ending_pod_has_ended(
    starting: bool | None, stopping: bool, pod: dict[str, Any] | None, spawner: Any
) -> None:
    if starting is not None:
        spawner._spawn_future = asyncio.get_running_loop().create_future()
        if not starting:
            spawner._spawn_future.set_result(None)
    spawner._start_pending, spawner._stop_pending = bool(starting), stopping
    spawner.shown = pod

    assert await spawner.poll() == 1


class Ended:
    """A job that ran, its shown pod, and the grace periods of deletions."""

    def __init__(self, spawner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spawner, self.deleted, self.known = spawner, list[int](), True

        async def delete(_pods: PodRequests, _pod: Any, seconds: int, _trying: float = 0) -> None:
            self.deleted.append(seconds)

        async def gone(_pods: PodRequests, _pod: Any) -> bool:
            return self.known

        async def no_events(_pods: PodRequests, *_of: Any) -> list[Any]:
            return []

        monkeypatch.setattr(PodRequests, "events", no_events)
        monkeypatch.setattr(PodRequests, "delete", delete)
        monkeypatch.setattr(PodRequests, "gone", gone)

    def show(self, phase: str, code: int | None = None, node: str = "node-1", policy: str = "OnFailure") -> None:
        state = {"running": {}} if code is None else {"terminated": {"exitCode": code}}
        self.spawner.shown = {
            "metadata": {"name": "jupyter-alice", "uid": "1"},
            "spec": {"nodeName": node, "restartPolicy": policy, "terminationGracePeriodSeconds": 20},
            "status": {"phase": phase, "containerStatuses": [{"name": "notebook", "ready": False, "state": state}]},
        }


@pytest.fixture
def ended(spawner: Any, monkeypatch: pytest.MonkeyPatch) -> Ended:
    return Ended(spawner, monkeypatch)


@pytest.mark.parametrize(
    ("phase", "starting", "keep", "deleted"),
    [
        pytest.param("Running", False, False, [20], id="deleted with its grace"),
        pytest.param("Failed", False, True, [], id="kept where that is configured"),
        pytest.param("Failed", True, True, [], id="kept after a failed start"),
        pytest.param("Running", False, True, [20], id="deleted because it would be restarted"),
    ],
)
async def test_pod_of_a_server_that_has_ended(
    phase: str, starting: bool, keep: bool, deleted: list[int], ended: Ended
) -> None:
    ended.spawner.delete_stopped_pods = not keep
    ended.show(phase, 3, policy="Never" if starting else "OnFailure")
    if starting:
        ended.spawner._spawn_future, ended.spawner._stop_pending = asyncio.current_task(), True

    assert await ended.spawner.poll() == 3
    assert ended.deleted == deleted


@pytest.mark.parametrize(
    ("kept", "warnings", "own"),
    [(True, 0, True), (False, 1, True), (True, 0, False)],
    ids=["kept", "not kept", "an earlier job's pod"],
)
async def test_the_reason_is_told_and_the_log_kept_once_before_the_pod_is_deleted(
    ended: Ended,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    kept: bool,
    warnings: int,
    own: bool,
) -> None:
    asked, answered = list[tuple[str, str]](), asyncio.Event()

    async def log_kept(_manager: ManagerLink, job: str, pod: str) -> bool:
        asked.append((job, pod))
        await answered.wait()
        return kept

    async def job_ended(_manager: ManagerLink, job: str, user: str, why: str) -> None:
        told.add((job, user, why))

    async def stop_reason(_manager: ManagerLink, job: str) -> str | None:
        return why if job == JOB.id else "That is not of this pod."

    told = set[tuple[str, str, str]]()
    why = "Its server failed with exit code 3: correct that and start the job again."
    monkeypatch.setattr(ManagerLink, "stop_reason", stop_reason)
    monkeypatch.setattr(ManagerLink, "log_kept", log_kept)
    monkeypatch.setattr(ManagerLink, "job_ended", job_ended)
    monkeypatch.setattr(DLSpawner, "_has_manager", True)
    ended.spawner._job_id = JOB.id if own else "j-bbbbbbbbbbbb"
    ended.show("Running", 3)
    ended.spawner.shown["status"]["containerStatuses"][0]["state"]["terminated"]["message"] = "no such data"
    ended.spawner.shown["metadata"] |= {
        "labels": naming.job_labels(JOB),
        "annotations": naming.job_annotations(JOB),
    }
    polls = [asyncio.ensure_future(ended.spawner.poll()) for _ in range(2)]
    await asyncio.sleep(0.01)
    polls[0].cancel()
    assert (asked, ended.deleted) == ([(JOB.id, "1")], [])
    answered.set()

    assert await polls[1] == 3
    assert ended.deleted == [20]
    assert caplog.text.count("not all of its log is kept") == warnings
    assert told == ({(JOB.id, "alice", why)} if own else set())
    assert "(“no such data”)" in ended.spawner._ended


async def test_an_end_is_kept_for_jupyterhubs_pages_without_manifest_and_keys(ended: Ended) -> None:
    ended.spawner._created = ended.spawner._waiting = ended.spawner._launch = SimpleNamespace()
    ended.show("Running", 3)
    await ended.spawner.poll()

    assert ended.spawner._failed
    assert "failed with exit code 3" in ended.spawner._spawn_future.exception().jupyterhub_message
    assert [ended.spawner._created, ended.spawner._waiting, ended.spawner._launch] == [None] * 3


async def test_a_job_that_has_finished_has_not_failed(ended: Ended) -> None:
    ended.show("Succeeded", 0)

    assert await ended.spawner.poll() == 0
    assert not ended.spawner._failed


@pytest.mark.parametrize(
    ("phase", "node", "now", "seconds"),
    [
        pytest.param("Running", "node-1", True, 1, id="a node has it and may be silent"),
        pytest.param("Running", "node-1", False, 1, id="a grace period of 0"),
        pytest.param("Pending", "", True, 0, id="no node has it"),
        pytest.param("Failed", "node-1", True, 0, id="it is over"),
    ],
)
async def test_no_pod_that_may_run_is_deleted_without_grace(
    phase: str, node: str, now: bool, seconds: int, ended: Ended
) -> None:
    ended.show(phase, node=node)
    ended.spawner.shown["spec"]["terminationGracePeriodSeconds"] = 0
    await ended.spawner.stop(now)

    assert ended.deleted == [seconds]


async def test_a_stop_does_not_wait_for_a_silent_node(ended: Ended, caplog: pytest.LogCaptureFixture) -> None:
    ended.show("Running")
    ended.known = False
    await ended.spawner.stop()

    assert "stays until its node answers or is removed" in caplog.text


@pytest.mark.parametrize(
    "problem",
    [
        KeyError("a-token"),
        StartRefused("no", reason="x"),
    ],
    ids=lambda problem: type(problem).__name__,
)
async def test_a_failed_repair_of_owned_objects_does_not_end_the_job(
    problem: Exception, ended: Ended, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(_spawner: DLSpawner, _pod: Any) -> None:
        raise problem

    monkeypatch.setattr(DLSpawner, "_ensure_owned_objects", fails)
    ended.show("Pending")

    assert await ended.spawner.poll() is None
    assert caplog.text.count("trying again later") == 1
    assert "a-token" not in caplog.text


async def test_nothing_is_repaired_during_a_stop(ended: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(_spawner: DLSpawner, _pod: Any) -> None:
        raise AssertionError("a stop waits for this")

    monkeypatch.setattr(DLSpawner, "_repair_owned_objects", fails)
    ended.show("Pending")
    ended.spawner._stop_pending = True

    assert await ended.spawner.poll() is None


@pytest.mark.parametrize(("begun", "told"), [(True, "The Hub was restarted before"), (False, "removed from outside")])
async def test_the_reason_of_a_missing_pod_after_a_restart(
    begun: bool, told: str, spawner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = make_spawner(monkeypatch)
    killed._pod_expected = begun
    spawner.load_state(killed.get_state())
    spawner.shown = GONE

    assert await spawner.poll() == 1
    assert told in spawner._ended


@pytest.mark.parametrize("settings", [pytest.param(SETTINGS, id="of a template"), pytest.param(None, id="without any")])
async def test_a_start_is_saved_before_its_first_request(
    settings: Settings | None, spawner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = make_spawner(monkeypatch, settings=settings)
    start = killed.start()
    start.cancel()  # before its first step: JupyterHub commits the state
    spawner.load_state(killed.orm_spawner.state or {})
    assert spawner._starting, "an earlier pod of its name would be taken for its server"
    spawner.shown = GONE
    await spawner.poll()

    assert "The Hub was restarted before" in spawner._ended


@pytest.mark.parametrize(
    ("sentence", "told"), [("It had to leave.", "It had to leave."), (None, "removed from outside")]
)
async def test_a_job_that_the_manager_stopped_while_the_hub_was_down_says_why(
    sentence: str | None, told: str, monkeypatch: pytest.MonkeyPatch, spawner: Any
) -> None:
    async def ending(_manager: ManagerLink, job: str) -> str | None:
        return sentence if job == "j-abcdefghijkl" else None

    monkeypatch.setattr(ManagerLink, "stop_reason", ending)
    spawner.manager_url, spawner.manager_token = "http://127.0.0.1:1/services/jobs", "token"
    spawner.load_state({**spawner.get_state(), "dlspawner_job": "j-abcdefghijkl"})
    spawner.shown = GONE

    assert await spawner.poll() == 1
    assert told in spawner._ended


async def test_a_pod_that_was_found_after_a_restart_is_not_forgotten(
    spawner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawner.load_state({"dlspawner_begun": True})
    spawner._start_pending = True
    assert await spawner.poll() == 1
    later = make_spawner(monkeypatch)
    later.load_state(spawner.get_state())
    later.shown = GONE
    await later.poll()

    assert "removed from outside" in later._ended
