"""Logs of jobs in the database, with the embedded cluster and its node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest

from dlspawner.clients.kubernetes import PODS, KubernetesClient, KubernetesRejected, LogRequest
from dlspawner.manager.db import logs as db_logs
from tests.component.manager.manager_harness import NAMESPACE, until
from tests.component.manager.printing import WAITS, PrintingOffice, job, kept, printed, shown, text, until_ended


async def test_log_of_a_stopped_job_is_complete(printing_office: PrintingOffice) -> None:
    question = job()
    async with printing_office.manager() as acting:
        pod = await printing_office.start(acting, question, f"echo hello; {WAITS}")
        await shown(acting, question, "hello")
        await printing_office.delete(pod)
        await printing_office.gone(pod)
        await until_ended(acting, question)
        await printed(acting.repository, question, "goodbye")
        assert await text(acting.repository, question) == "hello\ngoodbye\n"
        (log,) = await kept(acting.repository, question)
        assert (log.whole, log.lost, log.size) == (True, False, 14)


async def test_log_of_a_finished_job_is_complete(printing_office: PrintingOffice) -> None:
    question = job()
    async with printing_office.manager() as acting:
        await printing_office.start(acting, question, "seq 1 20000; printf 'no line end'; exit 3")
        await printed(acting.repository, question, "no line end")
        assert await text(acting.repository, question) == "".join(f"{n}\n" for n in range(1, 20001)) + "no line end\n"


async def test_kept_waits_for_the_log(printing_office: PrintingOffice, monkeypatch: pytest.MonkeyPatch) -> None:
    question = job()
    async with printing_office.manager() as acting:
        pod = await printing_office.start(acting, question, f"echo early; {WAITS}")
        await shown(acting, question, "early")
        assert acting.log_reader is not None
        logs, uid = acting.log_reader.collector, pod["metadata"]["uid"]
        assert not await logs.kept(uid, 0.1), "it goes on"
        asked = asyncio.create_task(logs.kept(uid, 60))
        await printing_office.cluster.delete(PODS, pod["metadata"]["name"], NAMESPACE, grace=0)
        assert not await asked, "it is gone"

        second = job("bob")
        pod = await printing_office.start(acting, second, "echo so much; exit 3")
        assert await logs.kept(pod["metadata"]["uid"], 60)
        assert await text(acting.repository, second) == "so much\n"

        async def refuses(*_: object) -> AsyncIterator[bytes]:
            raise KubernetesRejected("there is none", status=400)
            yield b""

        monkeypatch.setattr(KubernetesClient, "log", refuses)
        pod = await printing_office.start(acting, job("carol"), "exit 3")
        assert await logs.kept(pod["metadata"]["uid"], 60), "there is nothing more to keep"


async def test_log_of_a_stopping_job_is_kept_once_across_managers(printing_office: PrintingOffice) -> None:
    question = job()
    ends = "n=0; while [ $n -lt 400 ]; do n=$((n+1)); echo line $n; sleep 0.02; done; exit 0"
    async with printing_office.manager() as acting:
        pod = await printing_office.start(
            acting, question, f"trap '{ends}' TERM; echo line 0; while :; do sleep 0.05; done"
        )
        await shown(acting, question, "line 0\n")
        await printing_office.delete(pod)
        await asyncio.sleep(1)
    async with printing_office.manager():
        await asyncio.sleep(1)
    async with printing_office.manager() as acting:
        await printed(acting.repository, question, "line 400\n")
        assert await text(acting.repository, question) == "".join(f"line {n}\n" for n in range(401))


async def test_the_end_of_a_long_log_is_kept(printing_office: PrintingOffice) -> None:
    most = 128 * 1024
    printing_office.keeping = replace(printing_office.keeping, most=most)
    question = job()
    async with printing_office.manager() as acting:
        await printing_office.start(acting, question, "seq 1 100000")
        await printed(acting.repository, question, "99999\n100000\n")
        (log,) = await kept(acting.repository, question)
        assert most / 2 < log.size <= most + db_logs.PART
        assert log.lost


async def test_restarted_container_has_a_log_of_each_run(printing_office: PrintingOffice) -> None:
    question = job()
    async with printing_office.manager() as acting:
        await printing_office.start(acting, question, "echo hello; exit 1", restart="Always")

        async def twice() -> bool:
            # Read in the moment of the restart, the first run's is the second one's beginning until it is read again.
            return len(await kept(acting.repository, question)) >= 2 and bool(
                await text(acting.repository, question, 0)
            )

        await until(twice, "the log of its first run, and its second run", 120)
        first, second, *_ = await kept(acting.repository, question)
        assert (first.key[2], second.key[2]) == (0, 1)
        assert await text(acting.repository, question, 0) == "hello\n"


async def test_log_read_during_a_restart_is_not_that_of_the_next_run(
    printing_office: PrintingOffice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes has no number of a run in a request: a late request is answered with the next run."""
    question, in_time = job(), KubernetesClient.log

    async def again(pod: str) -> bool:
        statuses = (await printing_office.cluster.get(PODS, pod, NAMESPACE))["status"].get("containerStatuses") or [{}]
        return statuses[0].get("restartCount", 0) > 0

    async def late(cluster: KubernetesClient, pod: str, namespace: str, wanted: LogRequest) -> AsyncIterator[bytes]:
        if not wanted.previous:
            await until(lambda: again(pod), "the container runs again")
        async for piece in in_time(cluster, pod, namespace, wanted):
            yield piece

    monkeypatch.setattr(KubernetesClient, "log", late)
    async with printing_office.manager() as acting:
        await printing_office.start(acting, question, "date +%s.%N; sleep 3; exit 1", restart="Always")

        async def each() -> bool:
            runs = len(await kept(acting.repository, question))
            texts = [await text(acting.repository, question, run) for run in range(runs)]
            return len(texts) >= 2 and len(set(texts)) == len(texts) and all(one.count("\n") == 1 for one in texts)

        await until(each, "each run has its own log")


async def test_logs_are_pruned_days_after_the_end_of_the_job(printing_office: PrintingOffice) -> None:
    going, ended = job("bob"), job()
    async with printing_office.manager() as acting:
        await printing_office.start(acting, going, "echo hello; exit 1", restart="Always")
        pod = await printing_office.start(acting, ended, "echo hello")
        await printed(acting.repository, going, "hello")
        await printed(acting.repository, ended, "hello")
        await printing_office.delete(pod)
        await until_ended(acting, ended)
        assert acting.log_reader is not None
        assert not await acting.repository.write_as_leader(
            acting.log_reader.collector.term,
            lambda connection: db_logs.sweep(connection, printing_office.clock() - timedelta(days=7)),
        )
        assert await kept(acting.repository, ended)
    printing_office.clock.moved = timedelta(days=8)
    async with printing_office.manager() as acting:

        async def forgotten() -> bool:
            return not await kept(acting.repository, ended)

        await until(forgotten, "it is forgotten")
        assert await text(acting.repository, going, 0) == "hello\n"
