"""A database of an earlier schema, with jobs in it: they are what they were."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import column as sql_column
from sqlalchemy import insert, table

from dlspawner.core.charge import Charge, PodCharge
from dlspawner.core.jobs import State
from dlspawner.manager.acting import Acting
from dlspawner.manager.book import Turn
from dlspawner.manager.database import open_engine, upgrade
from dlspawner.manager.desk import Question
from dlspawner.manager.records import Record, write_charge
from tests.edges.test_manager.office import Office, ask, until, wants
from tests.edges.test_manager.queued import desk, record, state

GPUS = 3


def row(question: Question, state: State, pod: dict[str, Any] | None, at: str) -> dict[str, Any]:
    """A job as schema 0004 has it; it asks for three GPUs."""
    started = at if state is not State.STARTING else None
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
        "gpus_milli": 1000 * GPUS,
        "cpu_milli": 50,
        "memory_bytes": 2**26,
        "charge": write_charge(Charge("gpu", (PodCharge("nvidia.com/gpu", 1000 * GPUS, 50, 2**26),))),
        "nodes": json.dumps(["gpu-1"]),
        "submitted": at,
        "request_seconds": 3.0,
        "started": started,
        "ended": at if state is State.ENDED else None,
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
async def upgraded(office: Office, db_url: str) -> tuple[Question, Question, Question]:
    """A job that runs, one that starts and one that has ended, of people who had them with schema 0004."""
    runs, starts, ended = (wants(user, gpus=GPUS) for user in ("alice", "bob", "carol"))
    running, starting = await office.make_pod(runs), await office.make_pod(starts)
    await office.bind(running)
    at = office.clock().strftime("%Y-%m-%d %H:%M:%S.000000")
    rows = [
        row(runs, State.RUNNING, running, at),
        row(starts, State.STARTING, starting, at),
        row(ended, State.ENDED, {"metadata": {"uid": "gone", "name": "jupyter-carol"}}, at),
    ]
    write_0004(db_url, rows)
    return runs, starts, ended


async def test_after_an_upgrade_the_jobs_that_had_pods_go_on_and_are_free_when_these_are_gone(
    office: Office, upgraded: tuple[Question, Question, Question]
) -> None:
    runs, starts, ended = upgraded
    async with office.manager() as acting:
        assert [state(acting, one) for one in upgraded] == [State.RUNNING, State.STARTING, State.ENDED]
        assert set(desk(acting).book.records) == {runs.job, starts.job}, "no pod is nobody's"
        assert (await ask(acting, wants("dave", gpus=3))).decision == "wait", "six of eight are held"
        pods = await office.pods()
        assert not any("deletionTimestamp" in pod["metadata"] for pod in pods.values())
        await office.bind(pods["jupyter-bob"])
        await until(lambda: state(acting, starts) is State.RUNNING, "it runs as well")
        for pod in pods.values():
            await office.delete(pod, grace=0)
        await until(lambda: {state(acting, runs), state(acting, starts)} == {State.ENDED}, "they have ended")
        assert (await ask(acting, wants("erin", gpus=5))).decision == "admit", "dave has three"
        found = await acting.ledger.find(ended.job)
        assert found is not None
        assert [pod.uid for pod in found.seen] == ["gone"]


async def forget_pods(acting: Acting, question: Question) -> None:
    """As a database has it that was upgraded before this was known."""

    def forget(turn: Turn) -> None:
        known = turn.record(question.job)
        assert known is not None
        turn.write(Record(known.job), "upgraded")

    await desk(acting).book.turn(forget)


async def test_a_job_that_runs_and_has_lost_the_name_of_its_pod_finds_it_again(office: Office) -> None:
    question = wants(gpus=8)
    async with office.manager() as acting:
        await ask(acting, question)
        await office.bind(await office.make_pod(question))
        await until(lambda: state(acting, question) is State.RUNNING, "it runs")
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
        await until(lambda: state(acting, question) is State.RUNNING, "it runs")
        await forget_pods(acting, question)
    await office.delete(pod, grace=0)
    async with office.manager() as acting:
        assert state(acting, question) is State.ENDED
        assert (await ask(acting, wants("bob", gpus=8))).decision == "admit"
