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
from tests.component.manager.printing import WAITS, PrintingHarness, job, kept, printed, shown, text, until_ended


async def test_log_of_a_stopped_job_is_complete(printing_harness: PrintingHarness) -> None:
    request = job()
    async with printing_harness.manager() as leader:
        pod = await printing_harness.start(leader, request, f"echo hello; {WAITS}")
        await shown(leader, request, "hello")
        await printing_harness.delete(pod)
        await printing_harness.gone(pod)
        await until_ended(leader, request)
        await printed(leader.repository, request, "goodbye")
        assert await text(leader.repository, request) == "hello\ngoodbye\n"
        (log,) = await kept(leader.repository, request)
        assert (log.whole, log.lost, log.size) == (True, False, 14)


async def test_log_of_a_finished_job_is_complete(printing_harness: PrintingHarness) -> None:
    request = job()
    async with printing_harness.manager() as leader:
        await printing_harness.start(leader, request, "seq 1 20000; printf 'no line end'; exit 3")
        await printed(leader.repository, request, "no line end")
        assert await text(leader.repository, request) == "".join(f"{n}\n" for n in range(1, 20001)) + "no line end\n"


async def test_kept_waits_for_the_log(printing_harness: PrintingHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    request = job()
    async with printing_harness.manager() as leader:
        pod = await printing_harness.start(leader, request, f"echo early; {WAITS}")
        await shown(leader, request, "early")
        assert leader.log_reader is not None
        logs, uid = leader.log_reader.collector, pod["metadata"]["uid"]
        assert not await logs.kept(uid, 0.1), "it goes on"
        asked = asyncio.create_task(logs.kept(uid, 60))
        await printing_harness.cluster.delete(PODS, pod["metadata"]["name"], NAMESPACE, grace=0)
        assert not await asked, "it is gone"

        second = job("bob")
        pod = await printing_harness.start(leader, second, "echo so much; exit 3")
        assert await logs.kept(pod["metadata"]["uid"], 60)
        assert await text(leader.repository, second) == "so much\n"

        async def refuses(*_: object) -> AsyncIterator[bytes]:
            raise KubernetesRejected("there is none", status=400)
            yield b""

        monkeypatch.setattr(KubernetesClient, "log", refuses)
        pod = await printing_harness.start(leader, job("carol"), "exit 3")
        assert await logs.kept(pod["metadata"]["uid"], 60), "there is nothing more to keep"


async def test_log_of_a_stopping_job_is_kept_once_across_managers(printing_harness: PrintingHarness) -> None:
    request = job()
    ends = "n=0; while [ $n -lt 400 ]; do n=$((n+1)); echo line $n; sleep 0.02; done; exit 0"
    async with printing_harness.manager() as leader:
        pod = await printing_harness.start(
            leader, request, f"trap '{ends}' TERM; echo line 0; while :; do sleep 0.05; done"
        )
        await shown(leader, request, "line 0\n")
        await printing_harness.delete(pod)
        await asyncio.sleep(1)
    async with printing_harness.manager():
        await asyncio.sleep(1)
    async with printing_harness.manager() as leader:
        await printed(leader.repository, request, "line 400\n")
        assert await text(leader.repository, request) == "".join(f"line {n}\n" for n in range(401))


async def test_the_end_of_a_long_log_is_kept(printing_harness: PrintingHarness) -> None:
    most = 128 * 1024
    printing_harness.keeping = replace(printing_harness.keeping, most=most)
    request = job()
    async with printing_harness.manager() as leader:
        await printing_harness.start(leader, request, "seq 1 100000")
        await printed(leader.repository, request, "99999\n100000\n")
        (log,) = await kept(leader.repository, request)
        assert most / 2 < log.size <= most + db_logs.PART
        assert log.lost


async def test_restarted_container_has_a_log_of_each_run(printing_harness: PrintingHarness) -> None:
    request = job()
    async with printing_harness.manager() as leader:
        await printing_harness.start(leader, request, "echo hello; exit 1", restart="Always")

        async def twice() -> bool:
            # Read in the moment of the restart, the first run's is the second one's beginning until it is read again.
            return len(await kept(leader.repository, request)) >= 2 and bool(await text(leader.repository, request, 0))

        await until(twice, "the log of its first run, and its second run", 120)
        first, second, *_ = await kept(leader.repository, request)
        assert (first.key[2], second.key[2]) == (0, 1)
        assert await text(leader.repository, request, 0) == "hello\n"


async def test_log_read_during_a_restart_is_not_that_of_the_next_run(
    printing_harness: PrintingHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes has no number of a run in a request: a late request is answered with the next run."""
    request, in_time = job(), KubernetesClient.log

    async def again(pod: str) -> bool:
        statuses = (await printing_harness.cluster.get(PODS, pod, NAMESPACE))["status"].get("containerStatuses") or [{}]
        return statuses[0].get("restartCount", 0) > 0

    async def late(cluster: KubernetesClient, pod: str, namespace: str, wanted: LogRequest) -> AsyncIterator[bytes]:
        if not wanted.previous:
            await until(lambda: again(pod), "the container runs again")
        async for piece in in_time(cluster, pod, namespace, wanted):
            yield piece

    monkeypatch.setattr(KubernetesClient, "log", late)
    async with printing_harness.manager() as leader:
        await printing_harness.start(leader, request, "date +%s.%N; sleep 3; exit 1", restart="Always")

        async def each() -> bool:
            runs = len(await kept(leader.repository, request))
            texts = [await text(leader.repository, request, run) for run in range(runs)]
            return len(texts) >= 2 and len(set(texts)) == len(texts) and all(one.count("\n") == 1 for one in texts)

        await until(each, "each run has its own log")


async def test_logs_are_pruned_days_after_the_end_of_the_job(printing_harness: PrintingHarness) -> None:
    going, ended = job("bob"), job()
    async with printing_harness.manager() as leader:
        await printing_harness.start(leader, going, "echo hello; exit 1", restart="Always")
        pod = await printing_harness.start(leader, ended, "echo hello")
        await printed(leader.repository, going, "hello")
        await printed(leader.repository, ended, "hello")
        await printing_harness.delete(pod)
        await until_ended(leader, ended)
        assert leader.log_reader is not None
        assert not await leader.repository.write_as_leader(
            leader.log_reader.collector.term,
            lambda connection: db_logs.sweep(connection, printing_harness.clock() - timedelta(days=7)),
        )
        assert await kept(leader.repository, ended)
    printing_harness.clock.moved = timedelta(days=8)
    async with printing_harness.manager() as leader:

        async def forgotten() -> bool:
            return not await kept(leader.repository, ended)

        await until(forgotten, "it is forgotten")
        assert await text(leader.repository, going, 0) == "hello\n"
