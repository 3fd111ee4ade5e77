"""What the Hub is told of a pod that goes, while a start is on its way and after it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from dlspawner.core import naming
from dlspawner.settings import Settings
from dlspawner.spawner import DLSpawner
from dlspawner.spawner.kube.errors import StartRefused
from dlspawner.spawner.kube.pod_store import PodWatch
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
    """One whose start the Hub is about to give up; a test shows it its pod."""

    async def no_cluster(_spawner: DLSpawner) -> None:
        """There is no watch: the tests say what it would have seen."""

    monkeypatch.setattr(DLSpawner, "_start_watching_pods", no_cluster)
    monkeypatch.setattr(DLSpawner, "pod", lambda spawner: spawner.shown)
    made = make_spawner(monkeypatch)
    made.shown = GOING
    return made


@contextlib.asynccontextmanager
async def clears_up(spawner: Any) -> AsyncIterator[asyncio.Event]:
    """After a failed start, until the event, the Hub clears up: it has asked for itself, and so has a hook of it."""
    asked, over = asyncio.Event(), asyncio.Event()

    async def start() -> None:
        spawner._stop_pending = True
        await spawner.poll()
        await asyncio.ensure_future(spawner.poll())
        asked.set()
        await over.wait()
        spawner._stop_pending = False
        raise StartRefused("This is why.", reason="test")

    spawner._spawn_future = failed = asyncio.ensure_future(start())
    await asyncio.wait_for(asked.wait(), 10)
    yield over
    over.set()
    with pytest.raises(StartRefused, match="This is why"):
        await failed
    assert (spawner._spawn_future, spawner._ended) == (failed, None), "why it failed is what it says itself"


async def told_when_over(spawner: Any) -> int | None:
    """What somebody else is told who asks meanwhile: not before that is over."""
    async with clears_up(spawner) as over:
        asked = asyncio.ensure_future(spawner.poll())
        await asyncio.sleep(0.01)
        assert not asked.done()
        over.set()
        told: int | None = await asked
    return told


async def test_a_failed_start_that_is_being_stopped_has_not_ended_yet(spawner: Any) -> None:
    spawner._spawn_future = asyncio.current_task()
    spawner._stop_pending = True

    assert await spawner.poll() is None


@pytest.mark.parametrize("pod", [GOING, GONE], ids=["its pod goes", "without a pod"])
async def test_who_else_asks_hears_it_when_the_failed_start_is_over(pod: dict[str, Any] | None, spawner: Any) -> None:
    spawner.shown = pod
    assert await told_when_over(spawner) == 1


async def test_who_else_asks_hears_it_then_also_where_nothing_was_asked_for(
    spawner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DLSpawner, "_sees_pods", lambda _spawner: False)
    spawner._unasked = True
    assert await told_when_over(spawner) == 1


@pytest.mark.parametrize(
    ("starting", "stopping", "pod"),
    [
        pytest.param(False, True, GOING, id="a job that ran and is stopped"),
        pytest.param(True, False, GOING, id="a pod that somebody else removes while it starts"),
        pytest.param(True, True, GONE, id="a start whose server is stopped before it has failed"),
        pytest.param(True, True, GOING, id="a start whose pod is stopped before it has failed"),
        pytest.param(None, True, GOING, id="a job that an earlier Hub started"),
    ],
)
async def test_every_other_pod_that_goes_has_ended(
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
    """A job that ran and whose pod is as it is shown; what is asked for is kept."""

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


async def test_the_pod_of_an_end_is_deleted_with_its_grace_before_the_hub_is_told(ended: Ended) -> None:
    ended.show("Running", 3)

    assert await ended.spawner.poll() == 3
    assert ended.deleted == [20]


async def test_a_pod_that_has_ended_in_its_start_is_kept_where_that_is_configured(ended: Ended) -> None:
    ended.spawner.delete_stopped_pods = False
    ended.show("Failed", 3, policy="Never")
    ended.spawner._spawn_future, ended.spawner._stop_pending = asyncio.current_task(), True

    assert await ended.spawner.poll() == 3
    assert ended.deleted == []


async def test_who_else_asks_of_such_a_pod_hears_it_when_the_failed_start_is_over(ended: Ended) -> None:
    ended.show("Running", 3)
    assert await told_when_over(ended.spawner) == 3


ASKED = [pytest.param(True, [], id="it is kept"), pytest.param(False, ["jupyter-alice"], id="it can not be kept")]


@pytest.mark.parametrize(("kept", "warned"), ASKED)
async def test_the_log_of_an_end_is_kept_before_its_pod_is_deleted_and_asked_for_once(
    ended: Ended, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kept: bool, warned: list[str]
) -> None:
    asked, answered = list[tuple[str, str]](), asyncio.Event()

    async def log_kept(_manager: ManagerLink, job: str, pod: str) -> bool:
        asked.append((job, pod))
        await answered.wait()
        return kept

    monkeypatch.setattr(ManagerLink, "log_kept", log_kept)
    monkeypatch.setattr(DLSpawner, "_has_manager", True)
    ended.show("Running", 3)
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
    said = [one.getMessage() for one in caplog.records if "not all of its log is kept" in one.getMessage()]
    assert len(said) == len(warned)


async def test_a_pod_of_which_nobody_knows_what_became_of_it_ends_its_server(ended: Ended) -> None:
    ended.show("Unknown")

    assert await ended.spawner.poll() == 1
    assert ended.deleted == [20]
    assert "node-1 does not answer" in ended.spawner._ended


async def test_pods_that_stay_ended_stay_where_the_administrator_wants_to_look_at_them(ended: Ended) -> None:
    ended.spawner.delete_stopped_pods = False
    ended.show("Failed", 3)

    assert await ended.spawner.poll() == 3
    assert ended.deleted == []


async def test_a_pod_that_would_run_on_for_nobody_goes_all_the_same(ended: Ended) -> None:
    ended.spawner.delete_stopped_pods = False
    ended.show("Running", 3)

    assert await ended.spawner.poll() == 3
    assert ended.deleted == [20]


async def test_what_is_kept_for_the_pages_has_no_manifest_and_no_keys(ended: Ended) -> None:
    ended.spawner._created = ended.spawner._waiting = ended.spawner._launch = SimpleNamespace()
    ended.show("Running", 3)
    await ended.spawner.poll()

    assert ended.spawner._failed
    assert [ended.spawner._created, ended.spawner._waiting, ended.spawner._launch] == [None] * 3


async def test_jupyterhubs_pages_can_say_why(ended: Ended) -> None:
    ended.show("Running", 3)
    await ended.spawner.poll()

    assert ended.spawner._failed
    assert "failed with exit code 3" in ended.spawner._spawn_future.exception().jupyterhub_message


async def test_nothing_has_failed_where_a_job_has_finished(ended: Ended) -> None:
    ended.show("Succeeded", 0)

    assert await ended.spawner.poll() == 0
    assert not ended.spawner._failed


@pytest.mark.parametrize(
    ("phase", "node", "seconds"),
    [
        pytest.param("Running", "node-1", 1, id="a node has it and may be silent"),
        pytest.param("Pending", "", 0, id="no node has it"),
        pytest.param("Failed", "node-1", 0, id="it is over"),
    ],
)
async def test_nothing_that_may_run_is_deleted_without_grace(phase: str, node: str, seconds: int, ended: Ended) -> None:
    ended.show(phase, node=node)
    await ended.spawner.stop(now=True)

    assert ended.deleted == [seconds]


async def test_a_grace_period_of_zero_is_one_second_for_a_pod_that_runs(
    ended: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DLSpawner, "_grace_seconds", lambda spawner: 0)
    ended.show("Running")
    await ended.spawner.stop()

    assert ended.deleted == [1]


async def test_a_stop_is_over_for_the_hub_while_a_silent_node_keeps_the_pod(
    ended: Ended, caplog: pytest.LogCaptureFixture
) -> None:
    ended.show("Running")
    ended.known = False
    await ended.spawner.stop()

    assert "stays until its node answers or is removed" in caplog.text


@pytest.mark.parametrize(
    "problem",
    [
        OSError("no room"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"),
        KeyError("a-token"),
        StartRefused("no", reason="x"),
    ],
    ids=lambda problem: type(problem).__name__,
)
async def test_what_a_pod_lacks_and_nobody_can_make_does_not_end_the_job(
    problem: Exception, ended: Ended, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(_spawner: DLSpawner, _pod: Any) -> None:
        raise problem

    monkeypatch.setattr(DLSpawner, "_ensure_children", fails)
    ended.show("Pending")

    assert await ended.spawner.poll() is None
    assert caplog.text.count("trying again later") == 1
    assert "a-token" not in caplog.text


async def test_nothing_is_made_for_a_pod_that_is_about_to_be_stopped(
    ended: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(_spawner: DLSpawner, _pod: Any) -> None:
        raise AssertionError("a stop waits for this")

    monkeypatch.setattr(DLSpawner, "_mend_children", fails)
    ended.show("Pending")
    ended.spawner._stop_pending = True

    assert await ended.spawner.poll() is None


@pytest.mark.parametrize(("begun", "told"), [(True, "The Hub was restarted before"), (False, "removed from outside")])
async def test_a_job_that_a_killed_hub_never_made_was_not_removed_by_anybody(
    begun: bool, told: str, spawner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = make_spawner(monkeypatch)
    killed._begun = begun
    spawner.load_state(killed.get_state())
    spawner.shown = GONE

    assert await spawner.poll() == 1
    assert told in spawner._ended


@pytest.mark.parametrize("settings", [pytest.param(SETTINGS, id="of a template"), pytest.param(None, id="without any")])
async def test_a_start_is_known_as_one_before_it_has_asked_anybody(
    settings: Settings | None, spawner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = make_spawner(monkeypatch, settings=settings)
    start = killed.start()
    start.cancel()  # before its first step: JupyterHub commits what the call has left
    spawner.load_state(killed.orm_spawner.state or {})
    assert spawner._starting, "an earlier pod of its name would be taken for its server"
    spawner.shown = GONE
    await spawner.poll()

    assert "The Hub was restarted before" in spawner._ended


@pytest.mark.parametrize(
    ("sentence", "told"), [("It had to leave.", "It had to leave."), (None, "removed from outside")]
)
async def test_who_was_stopped_by_the_manager_while_the_hub_was_killed_reads_why(
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


async def test_a_pod_that_was_found_after_a_restart_had_been_made(
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


async def test_who_ends_between_our_look_and_kubespawners_reads_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy Hub the watch gets a turn in the middle of a poll: KubeSpawner's part of it looks at the pod anew."""
    monkeypatch.setattr("kubespawner.reflector.shared_client", lambda _group: None)
    watch, spawner, loaded = PodWatch(), make_spawner(monkeypatch), asyncio.get_running_loop().create_future()
    loaded.set_result(None)
    watch.first_load_future = loaded
    monkeypatch.setattr(DLSpawner, "reflectors", {spawner._get_reflector_key("pods"): watch})
    ended, looks = Ended(spawner, monkeypatch), count()

    async def turn() -> None:
        if next(looks) == 1:
            watch.resources[spawner.pod_key] = pod_of({"terminated": {"exitCode": 7}})

    async def delete(_pods: PodRequests, _pod: Any, seconds: int, _trying: float = 0) -> None:
        ended.deleted.append(seconds)
        watch.resources.pop(spawner.pod_key, None)

    monkeypatch.setattr(watch, "turn", turn)
    monkeypatch.setattr(PodRequests, "delete", delete)
    watch.resources[spawner.pod_key] = pod_of({"running": {}})
    spawner._complete_pod = "1"

    assert await spawner.poll() is None
    assert next(looks) >= 2, "KubeSpawner has looked as well"
    assert await spawner.poll() == 7
    assert "failed with exit code 7" in spawner._ended
    assert ended.deleted == [20]


def pod_of(state: dict[str, Any]) -> dict[str, Any]:
    """One whose server runs, or has ended and would be started again."""
    status = {"name": "notebook", "ready": "running" in state, "state": state}
    return {
        "metadata": {"name": "jupyter-alice", "uid": "1"},
        "spec": {"nodeName": "node-1", "restartPolicy": "OnFailure", "terminationGracePeriodSeconds": 20},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": [status]},
    }
