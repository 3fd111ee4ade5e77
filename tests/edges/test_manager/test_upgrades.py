"""A database of an earlier schema, with jobs in it: they are what they were."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import MetaData, insert, table
from sqlalchemy import column as sql_column

from dlspawner.core.job import JobState
from dlspawner.core.resources import PodRequest, ResourceRequest
from dlspawner.core.unix_account import UidRange
from dlspawner.manager.admission.service import AdmissionRequest
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.db.engine import MIGRATIONS, open_engine, upgrade
from dlspawner.manager.db.store import Database
from dlspawner.manager.model.notice import Recipient
from dlspawner.manager.model.records import JobRecord, write_request
from dlspawner.manager.state.job_store import Transaction
from tests.edges.test_manager.office import Office, ask, until, wants
from tests.edges.test_manager.queued import desk, record, state

GPUS = 3
_HEAD, *_EARLIER = (one.revision for one in ScriptDirectory(str(MIGRATIONS)).walk_revisions())
EARLIER = _EARLIER[::-1]
UIDS = UidRange(20_000, 29_999)


def row(
    question: AdmissionRequest, state: JobState, pod: dict[str, Any] | None, at: str, gpus: int = GPUS
) -> dict[str, Any]:
    """A job as schema 0004 has it; it asks for three GPUs, or as many."""
    started = at if state is not JobState.STARTING else None
    return {
        "job": question.job,
        "user_name": question.user,
        "server_name": "",
        "team": "default",
        "template": "tiny",
        "priority": 0,
        "preemptible": False,
        "state": state.value,
        "gpu_type": "gpu",
        "gpus_milli": 1000 * gpus,
        "cpu_milli": 50,
        "memory_bytes": 2**26,
        "charge": write_request(ResourceRequest("gpu", (PodRequest("nvidia.com/gpu", 1000 * gpus, 50, 2**26),))),
        "nodes": json.dumps(["gpu-1"]),
        "submitted": at,
        "request_seconds": 3.0,
        "started": started,
        "ended": at if state is JobState.ENDED else None,
        "pod_uid": pod["metadata"]["uid"] if pod else None,
        "pod_name": pod["metadata"]["name"] if pod else None,
    }


def write_0004(url: str, rows: list[dict[str, Any]]) -> None:
    engine = open_engine(url, 1)
    upgrade(engine, "0004")
    with engine.begin() as connection:
        connection.execute(insert(table("jobs", *map(sql_column, rows[0]))), rows)
    engine.dispose()


@pytest.fixture
async def upgraded(office: Office, db_url: str) -> tuple[AdmissionRequest, AdmissionRequest, AdmissionRequest]:
    """A job that runs, one that starts and one that has ended, of people who had them with schema 0004."""
    runs, starts, ended = (wants(user, gpus=GPUS) for user in ("alice", "bob", "carol"))
    running, starting = await office.make_pod(runs), await office.make_pod(starts)
    await office.bind(running)
    at = office.clock().strftime("%Y-%m-%d %H:%M:%S.000000")
    rows = [
        row(runs, JobState.RUNNING, running, at),
        row(starts, JobState.STARTING, starting, at),
        row(ended, JobState.ENDED, {"metadata": {"uid": "gone", "name": "jupyter-carol"}}, at),
    ]
    write_0004(db_url, rows)
    return runs, starts, ended


async def test_after_an_upgrade_the_jobs_that_had_pods_go_on_and_are_free_when_these_are_gone(
    office: Office, upgraded: tuple[AdmissionRequest, AdmissionRequest, AdmissionRequest]
) -> None:
    runs, starts, ended = upgraded
    async with office.manager() as acting:
        assert [state(acting, one) for one in upgraded] == [JobState.RUNNING, JobState.STARTING, JobState.ENDED]
        assert set(desk(acting).store.records) == {runs.job, starts.job}, "no pod is nobody's"
        assert (await ask(acting, wants("dave", gpus=3))).decision == "wait", "six of eight are held"
        pods = await office.pods()
        assert not any("deletionTimestamp" in pod["metadata"] for pod in pods.values())
        await office.bind(pods["jupyter-bob"])
        await until(lambda: state(acting, starts) is JobState.RUNNING, "it runs as well")
        for pod in pods.values():
            await office.delete(pod, grace=0)
        await until(lambda: {state(acting, runs), state(acting, starts)} == {JobState.ENDED}, "they have ended")
        assert (await ask(acting, wants("erin", gpus=5))).decision == "admit", "dave has three"
        found = await acting.ledger.find(ended.job)
        assert found is not None
        assert [pod.uid for pod in found.seen] == ["gone"]


def at_revision(url: str, revision: str, rows: Mapping[str, list[dict[str, Any]]]) -> set[str]:
    """A database of this revision with as much of these rows, by table, as it has room for; its tables."""
    engine = open_engine(url, 1)
    upgrade(engine, revision)
    there = MetaData()
    there.reflect(engine)
    with engine.begin() as connection:
        for name, some in rows.items():
            known = there.tables.get(name)
            if known is not None and some:
                connection.execute(insert(known), [{k: v for k, v in one.items() if k in known.c} for one in some])
    engine.dispose()
    return set(there.tables)


async def rows_of_everything(office: Office) -> tuple[dict[str, list[dict[str, Any]]], dict[str, AdmissionRequest]]:
    """A row of every table that matters after an upgrade, with their jobs by what these do."""
    now = office.clock().replace(microsecond=0)
    begun = now - timedelta(hours=1)
    jobs = {name: wants(name, gpus=GPUS, preemptible=name == "leaves") for name in ("runs", "leaves", "ended")}
    jobs["waits"] = wants("waits", gpus=5)  # a promise: who leaves gives it what it needs
    pods = {name: await office.make_pod(jobs[name]) for name in ("runs", "leaves")}
    for pod in pods.values():
        await office.bind(pod)
    pods["ended"] = {"metadata": {"uid": "gone", "name": "jupyter-ended"}}
    states = {"runs": JobState.RUNNING, "leaves": JobState.RUNNING, "ended": JobState.ENDED}
    found = {name: row(jobs[name], state, pods[name], "") for name, state in states.items()}
    until = now + timedelta(minutes=4)
    leaving = {"preemptible": True, "notice": until, "requeue": True}
    found["leaves"] |= leaving
    found["waits"] = {**row(jobs["waits"], JobState.QUEUED, None, "", 5), "turns": 3, "started": None}
    for name, one in found.items():
        pod = pods.get(name)
        seen = [{**{k: pod["metadata"][k] for k in ("uid", "name")}, "running": True}] if pod else []
        times = {name: begun if one[name] is not None else None for name in ("submitted", "started", "ended")}
        defaults = {
            "notice": None,
            "due": False,
            "exempt_from_quota": False,
            "reason": "",
            "approved": False,
            "folded": False,
        }
        found[name] = {"requeue": False, "turns": 0, **defaults, **one, **times, "pods": json.dumps(seen)}
    job = {"user_name": "leaves", "server_name": "", "job": jobs["leaves"].job}
    notice = {"id": "n1", "kind": "preempted", "cause": "x", "text": "You have to leave.", "until": until}
    key = {"id": 7, "user_name": "alice", "key": "ssh-ed25519 AAAA", "fingerprint": "SHA256:x", "name": "laptop"}
    return {
        "ssh_keys": [{**key, "added": now}],
        "accounts": [{"user_name": "alice", "uid": 20_007, "made": now}],
        "uid_marks": [{"first": 20_000, "highest": 20_009}],
        "leases": [{"name": "manager", "holder": "before", "epoch": 41, "expires": now - timedelta(hours=1)}],
        "jobs": [*found.values()],
        "job_events": [
            {"job": jobs["ended"].job, "at": now, "state": "ended", "reason": "gone", "detail": ""},
        ],
        "notices": [{**job, **notice, "posted": now, "keep": False}],
        "team_usage": [{"team": "default", "amount": 1e6, "since": now, "rate": 6000}],
    }, jobs


@pytest.mark.parametrize("earlier", EARLIER)
async def test_from_every_earlier_schema_people_keep_their_keys_numbers_jobs_places_and_notices(
    office: Office, db_url: str, earlier: str
) -> None:
    rows, jobs = await rows_of_everything(office)
    tables = await asyncio.to_thread(at_revision, db_url, earlier, rows)
    store = await asyncio.to_thread(Database.open, db_url)
    assert [key.id for key in await store.keys("alice")] == [7]
    numbers = [found.uid for user in ("alice", "bob") if (found := await store.account(user, UIDS, office.clock()))]
    assert ("accounts" not in tables) or numbers == [20_007, 20_010 if "uid_marks" in tables else 20_008]
    assert len(set(numbers)) == 2
    await store.close()
    async with office.manager() as acting:
        book = desk(acting).store
        assert book.term == (42 if "leases" in tables else 1)
        if "jobs" in tables:
            await check_jobs(office, acting, jobs, rows, tables)
        assert (await ask(acting, wants("dave", gpus=3))).decision == "wait", (
            "pods hold six of eight, whoever's they are"
        )


async def check_jobs(
    office: Office,
    acting: LeaderElector,
    jobs: dict[str, AdmissionRequest],
    rows: dict[str, list[dict[str, Any]]],
    tables: set[str],
) -> None:
    """The jobs go on, who waits has its place, and who was told to leave is told the same once, for the same time."""
    assert [state(acting, jobs[name]) for name in jobs] == [
        *(JobState.RUNNING, JobState.RUNNING, JobState.ENDED, JobState.QUEUED)
    ]
    written = {one["job"]: one for one in rows["jobs"]}
    leaves, waits = record(acting, jobs["leaves"]), record(acting, jobs["waits"])
    assert leaves is not None
    assert [pod.name for pod in leaves.seen] == ["jupyter-leaves"]
    assert waits is not None
    assert waits.job.submitted == written[waits.job.id]["submitted"]
    if "notices" in tables:
        assert leaves.job.notice == written[leaves.job.id]["notice"]
        told = desk(acting).store.notices.read(Recipient(user="leaves"), office.clock())
        assert [one.text for one in told] == ["You have to leave."]
    found = await acting.ledger.find(jobs["ended"].job)
    assert found is not None
    assert [pod.uid for pod in found.seen] == ["gone"]
    assert [reason for _, _, reason in await acting.ledger.events(jobs["ended"].job)] == ["gone"]


async def forget_pods(acting: LeaderElector, question: AdmissionRequest) -> None:
    """As a database has it that was upgraded before this was known."""

    def forget(turn: Transaction) -> None:
        known = turn.record(question.job)
        assert known is not None
        turn.write(JobRecord(known.job), "upgraded")

    await desk(acting).store.transact(forget)


async def test_a_job_that_runs_and_has_lost_the_name_of_its_pod_finds_it_again(office: Office) -> None:
    question = wants(gpus=8)
    async with office.manager() as acting:
        await ask(acting, question)
        await office.bind(await office.make_pod(question))
        await until(lambda: state(acting, question) is JobState.RUNNING, "it runs")
        await forget_pods(acting, question)
    async with office.manager() as acting:
        known = record(acting, question)
        assert known is not None
        assert [pod.name for pod in known.seen] == ["jupyter-alice"]
        pods = await office.pods()
        assert "deletionTimestamp" not in pods["jupyter-alice"]["metadata"]


async def test_a_job_that_runs_and_has_no_pod_has_ended(office: Office) -> None:
    question = wants(gpus=8)
    async with office.manager() as acting:
        await ask(acting, question)
        pod = await office.make_pod(question)
        await office.bind(pod)
        await until(lambda: state(acting, question) is JobState.RUNNING, "it runs")
        await forget_pods(acting, question)
    await office.delete(pod, grace=0)
    async with office.manager() as acting:
        assert state(acting, question) is JobState.ENDED
        assert (await ask(acting, wants("bob", gpus=8))).decision == "admit"
