"""Rows of jobs and quotas on the portal's pages, as values."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from dlspawner.clients.hub import HubServer
from dlspawner.core import naming
from dlspawner.core.config import ClusterConfig, CpuMemory, Culling, GpuType, Team, TeamQuota, TeamsConfig
from dlspawner.core.idle import IdleRule, JobActivity
from dlspawner.core.job import Job, JobState
from dlspawner.core.resources import PodRequest, ResourceRequest
from dlspawner.core.scheduling.cluster_state import ClusterState
from dlspawner.core.template import ActivitySource, JobPorts
from dlspawner.manager.admission.explain import QueueStatus
from dlspawner.manager.db.jobs import LastEnd
from dlspawner.manager.http.portal.base import QuotaShare, quota_shares
from dlspawner.manager.http.portal.job import port_rows, ssh_lines
from dlspawner.manager.http.portal.my_jobs import RowContext, ServerRow, ServerState, latest, next_stop, rows
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.job_history import end_sentence
from dlspawner.manager.model.records import JobRecord, PodRef, StopReason, as_ended

HOUR = timedelta(hours=1)
NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
READY = HubServer("train", True, None, False, "/user/alice/train/", {"template": "notebook"}, None)
STOPPED = replace(READY, ready=False, stopped=True)
NAMED = naming.PodIdentity(
    "j-2", "alice", "train", "vision", "notebook", 2, ssh_host_key="key", log_dir="/home/alice/runs"
)

IDLE = StopReason(EventReason.IDLE, "Not used.")


def job(state: JobState = JobState.RUNNING, gpus: int = 2000, **more: object) -> Job:
    charge = ResourceRequest("a100", (PodRequest("nvidia.com/gpu", gpus),))
    made = Job("j-2", "alice", "vision", NOW - timedelta(hours=1), charge, "train", "notebook", state=state)
    return replace(made, **{"started": NOW if state is JobState.RUNNING else None, **more})  # type: ignore[arg-type]


def facts(record: JobRecord | None = None, **more: object) -> RowContext:
    given: dict[str, object] = {
        "user": "alice",
        "titles": {"notebook": "Notebook", "tensorboard": "TensorBoard"},
        "servers": {"train": READY},
        "records": {"train": record} if record else {},
        "statuses": {},
        "pods": {"uid": NAMED},
        "ended": {},
        "teams": {"vision": "Vision"},
        "gateway": ("gate", 2222),
    }
    return RowContext(**{**given, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("more", "rules", "expected"),
    [
        pytest.param({}, {}, (NOW + HOUR, "unless it is used"), id="idle window"),
        pytest.param({}, {"lifetime": HOUR / 2}, (NOW + HOUR / 2, "end of its lifetime"), id="lifetime"),
        pytest.param({}, {"lifetime": HOUR, "culling": Culling(dry_run=True)}, None, id="dry run"),
        pytest.param({"notice": NOW + HOUR / 3}, {"lifetime": HOUR}, (NOW + HOUR / 3, "preempted"), id="notice"),
    ],
)
def test_card_says_until_when(
    more: dict[str, object], rules: dict[str, object], expected: tuple[datetime, str] | None
) -> None:
    rule = IdleRule(HOUR, None, frozenset({ActivitySource.HTTP}), None, Culling(dry_run=False))
    activity = JobActivity(started=NOW, http=NOW)
    assert next_stop(job(**more), replace(rule, **rules), activity, NOW) == expected  # type: ignore[arg-type]


def row(record: JobRecord | None = None, **more: object) -> ServerRow:
    (found,) = rows(facts(record, **more))
    return found


def running(**more: object) -> JobRecord:
    return JobRecord(job(**more), pods=(PodRef("uid", "pod", True),))  # type: ignore[arg-type]


def test_running_job_has_all_links() -> None:
    found = row(running())
    assert (found.state, found.is_ready, found.can_stop) == (ServerState.RUNNING, True, True)
    assert found.summary == "Notebook, 2 GPUs of type a100, team Vision"
    assert found.ssh == "ssh -p 2222 alice+train@gate"
    assert (found.log_dir, found.shows_logs) == ("/home/alice/runs", True)
    assert not row(running(), servers={"train": replace(READY, ready=False)}).is_ready


def test_running_job_on_a_silent_node_says_so() -> None:
    found = row(running(nodes=("node-1",)), silent=frozenset({"node-1"}))
    assert "node-1 does not answer" in found.sentence


@pytest.mark.parametrize(
    ("chosen", "shown"),
    [({}, "runs"), ({"log_dir": "s3://bucket/x"}, "s3://bucket/x"), ({"log_dir": "/job/runs"}, "")],
    ids=["the template's", "its own", "gone with the job"],
)
def test_stopped_server_offers_its_tensorboard(chosen: dict[str, object], shown: str) -> None:
    last = LastEnd("j-1", NOW, "finished", "", None)
    server = replace(STOPPED, user_options={"template": "notebook", **chosen})
    found = row(servers={"train": server}, ended={"train": last}, log_dirs={"notebook": "runs"})
    assert (found.log_dir, found.shows_logs) == (shown, bool(shown))


@pytest.mark.parametrize(
    ("reason", "stop", "word"),
    [
        ("finished", None, "ended"),
        ("failed", None, "failed"),
        ("gone", IDLE, "culled"),
        ("gone", StopReason(EventReason.PREEMPTED, "Others need it."), "preempted"),
        ("of another version", None, "ended"),
    ],
)
def test_badge_of_a_stopped_server_is_how_its_last_job_ended(reason: str, stop: StopReason | None, word: str) -> None:
    assert row(servers={"train": STOPPED}, ended={"train": LastEnd("j-1", NOW, reason, "", stop)}).outcome == word


def test_ports_of_the_host_are_named_as_in_the_template_as_long_as_the_job_holds_them() -> None:
    ports, pods = (
        (JobPorts("master", 2),),
        (PodRef("uid", "first", True), PodRef("other", "first----worker-0", True, role="worker-0")),
    )
    record = JobRecord(job(ports=((20000, 20001, 20002, 20003), (20004, 20005, 20006))), pods=pods)
    assert port_rows(record, ports) == [
        ("Ports of first", "ssh 20000, notebook 20001, master 20002,20003"),
        ("Ports of worker-0", "ssh 20004, master 20005,20006"),
    ]
    assert ssh_lines(record, ("gate", 22)) == [("worker-0", "ssh alice+train.worker-0@gate")]
    assert port_rows(replace(record, pods=()), ())[0] == ("Ports", "20000,20001,20002,20003"), "of an older template"
    assert port_rows(as_ended(record), ports) == []


STARTS = replace(READY, ready=False, pending="spawn")
LOGIN = "It can start now: log in to the Hub again."
DUE = JobRecord(job(JobState.STARTING), awaiting_start=True)
STATES: dict[str, tuple[JobRecord | None, HubServer, ServerState, str]] = {
    "its turn has come": (DUE, STOPPED, ServerState.QUEUED, "Starting: its resources are reserved."),
    "it waits for a login": (JobRecord(job(JobState.LOGIN_REQUIRED)), STOPPED, ServerState.QUEUED, LOGIN),
    "it is being started": (JobRecord(job(JobState.STARTING)), STARTS, ServerState.STARTING, "Starting."),
    "it does not answer yet": (
        JobRecord(job()),
        STARTS,
        ServerState.RUNNING,
        "Running; its server does not answer yet.",
    ),
    "it runs": (JobRecord(job()), READY, ServerState.RUNNING, ""),
    "it is being stopped, and why": (
        JobRecord(job(JobState.STOPPING), stop=IDLE),
        READY,
        ServerState.STOPPING,
        "Not used.",
    ),
    "it is stopped by the Hub": (
        JobRecord(job(JobState.STOPPING)),
        READY,
        ServerState.STOPPING,
        "Stopping.",
    ),
    "only the Hub knows that it runs": (None, READY, ServerState.RUNNING, ""),
    "only the Hub knows that it starts": (None, STARTS, ServerState.STARTING, "Starting."),
    "only the Hub knows that it stops": (
        None,
        replace(READY, pending="stop"),
        ServerState.STOPPING,
        "Stopping.",
    ),
}


@pytest.mark.parametrize(("record", "server", "state", "sentence"), STATES.values(), ids=STATES)
def test_state_and_sentence(record: JobRecord | None, server: HubServer, state: ServerState, sentence: str) -> None:
    found = row(record, servers={"train": server})
    assert (found.state, found.sentence) == (state, sentence)


def test_stopped_server_shows_the_end_of_its_last_job() -> None:
    last = LastEnd(
        "j-1", NOW, "gone", "", StopReason(EventReason.IDLE, "It was stopped because it was not used for 2 h.")
    )
    found = row(servers={"train": STOPPED}, ended={"train": last})
    assert (found.sentence, found.since) == ("It was stopped because it was not used for 2 h.", NOW)
    assert row(servers={"train": READY}, ended={"train": last}).sentence == ""


@pytest.mark.parametrize("server", ["", "train"])
@pytest.mark.parametrize(
    "options", [{}, {"template": "notebook"}], ids=["whose form was looked at", "that was refused"]
)
def test_a_server_that_never_had_a_job_is_not_listed(server: str, options: dict[str, object]) -> None:
    known = replace(STOPPED, name=server, user_options=options)
    assert rows(facts(servers={server: known})) == ()
    ended = {server: LastEnd("j-1", NOW, "gone", "", None)}
    assert len(rows(facts(servers={server: known}, ended=ended))) == 1


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.PENDING_APPROVAL, JobState.LOGIN_REQUIRED])
def test_blocked_user_reads_so_instead_of_a_position(state: JobState) -> None:
    waits = JobRecord(job(state))
    look = QueueStatus(waits.job, state.value, 3, 5, "Vera can approve it.", ())
    found = row(waits, statuses={"train": look}, servers={"train": STOPPED}, blocked=True)
    assert (found.state, found.position, found.can_stop) == (ServerState.QUEUED, 0, True)
    assert found.sentence == "You can not start jobs here; ask an administrator why."
    assert row(running(), blocked=True).sentence == ""


def test_of_two_jobs_on_a_server_the_lasting_one_is_shown() -> None:
    leaves = JobRecord(job(JobState.STOPPING, id="j-1"))
    stays = JobRecord(job(JobState.QUEUED, submitted=NOW - timedelta(days=1)))
    others = JobRecord(replace(job(), id="j-3", user="bob"))
    pod = JobRecord(replace(job(), id="pod-1"))
    assert latest({"1": leaves, "2": stays, "3": others, "4": pod}, "alice") == {"train": stays}


@pytest.mark.parametrize(
    ("reason", "detail", "stop", "sentence"),
    [
        ("gone", "", StopReason(EventReason.IDLE, "Not used."), "Not used."),
        ("gone", "", None, "It was stopped."),
        ("disappeared", "", None, "Its pod is gone: whether it had ended or was removed was not seen."),
        ("disappeared", "", StopReason(EventReason.IDLE, "Not used."), "Not used."),
        ("start-refused", "No such image.", None, "The Hub refused to start it: No such image."),
        ("start-refused", "", None, "The Hub refused to start it."),
        ("failed", "It failed with exit code 3.", None, "It failed with exit code 3."),
        ("failed", "exit code 3.", StopReason(EventReason.IDLE, "Not used."), "Not used."),
        ("failed", "", None, "Its program has failed."),
        ("finished", "", None, "The job has finished."),
        ("not-created", "no quota", None, "The cluster refused its pod: no quota"),
        ("denied", "", None, "Denied."),
        ("replaced", "by j-3", None, "It was replaced by a newer request for the same server."),
        ("of a later version", "secret", None, "It has ended."),
    ],
)
def test_sentence_of_an_end(reason: str, detail: str, stop: StopReason | None, sentence: str) -> None:
    assert end_sentence(reason, detail, stop) == sentence


# Quotas

KINDS = tuple(
    GpuType(name, name.upper(), "nvidia.com/gpu", CpuMemory(1000, 2**30), 8, (("type", name),))
    for name in ("a100", "t4")
)
VISION = Team("vision", "Vision", quota=(TeamQuota("a100", 4),))


def cluster_state(*jobs: Job, teams: TeamsConfig | None = None) -> ClusterState:
    made = ClusterState(ClusterConfig(KINDS, CpuMemory(1000, 1), CpuMemory(1000, 1)), teams or TeamsConfig((VISION,)))
    for one in jobs:
        made.put(one)
    return made


def test_quota_share_of_a_team() -> None:
    jobs = (job(gpus=3000), job(id="j-3", preemptible=True, gpus=1000))
    (found,) = quota_shares(cluster_state(*jobs), (VISION,))
    assert (found.title, found.kind, found.quota) == ("Vision", "A100", 4000)
    assert found.sentence == "3 of 4 GPUs used, 1 free, 1 borrowed"
    assert found.bars == (60.0, 0.0, 20.0, 20.0)
    (found,) = quota_shares(cluster_state(job(), job(JobState.QUEUED, id="j-4", gpus=1000, nodes=("n1",))), (VISION,))
    assert found.sentence == "2 of 4 GPUs used, 1 reserved for queued jobs, 1 free"
    assert found.bars == (50.0, 25.0, 0.0, 25.0)
    assert quota_shares(cluster_state(teams=TeamsConfig((Team("vision"),))), (Team("vision"),)) == (), (
        "neither quota nor use"
    )
    adapters = Team("vision", extended_quota=(("rdma/hca", 4),))
    (found,) = quota_shares(cluster_state(teams=TeamsConfig((adapters,))), (adapters,))
    assert (found.kind, found.sentence) == ("rdma/hca", "0 of 4 used, 4 free")


@pytest.mark.parametrize(
    ("quota", "guaranteed", "borrowed", "sentence", "bars"),
    [
        (4000, 0, 0, "0 of 4 GPUs used, 4 free", (0.0, 0.0, 0.0, 100.0)),
        (2000, 4000, 0, "4 of 2 GPUs used, 2 more than the quota", (100.0, 0.0, 0.0, 0.0)),
        (0, 0, 2000, "0 of 0 GPUs used, 0 free, 2 borrowed", (0.0, 0.0, 100.0, 0.0)),
        (None, 1000, 0, "1 GPU used; no quota is set", (100.0, 0.0, 0.0, 0.0)),
    ],
    ids=["nothing is used", "the quota was lowered", "no quota of this type", "nobody has a quota"],
)
def test_bars_match_the_sentence(
    quota: int | None, guaranteed: int, borrowed: int, sentence: str, bars: tuple[float, float, float, float]
) -> None:
    found = QuotaShare("vision", "Vision", "a100", "A100", quota, guaranteed, borrowed)
    assert (found.sentence, found.bars) == (sentence, bars)


@pytest.mark.parametrize("reason", EventReason)
def test_reason_has_texts_for_user_and_operator(reason: EventReason) -> None:
    assert reason.user_text
    assert reason.operator_text
    assert len(reason.value) <= 40, "as the table's column"
