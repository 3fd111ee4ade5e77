"""Pods whose server the Hub does not have: a real API server and database, and what the Hub says of its servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dlspawner.clients.kubernetes import KubernetesClient
from dlspawner.core.job import JobState
from dlspawner.devcluster.api import start
from dlspawner.manager.admission.service import AdmissionRequest
from dlspawner.manager.cluster.orphans import NEEDED, OrphanReaper, still_alone
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.model.activity import ActivityRecord
from dlspawner.manager.model.notice import NoticeKind
from dlspawner.manager.state.job_store import JobStore
from tests.edges.test_manager.office import Office, ask, make_namespace, prepare, until, wants

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
EARLIER = NOW - timedelta(minutes=5)
ALONE = {
    "one that is seen first": ({}, {"a": None}, {"a": NOW}),
    "one that was seen before": ({"a": EARLIER}, {"a": None}, {"a": EARLIER}),
    "one that has a server again": ({"a": EARLIER}, {"b": None}, {"b": NOW}),
    "one that gave a sign before": ({"a": EARLIER}, {"a": EARLIER}, {"a": EARLIER}),
    "one that gave a sign since": ({"a": EARLIER}, {"a": NOW}, {"a": NOW}),
}


@pytest.mark.parametrize("name", ALONE)
def test_alone_since(name: str) -> None:
    since, missed, expected = ALONE[name]
    assert still_alone(since, missed, NOW) == expected


@pytest.fixture
async def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Office]:
    api = await start(tmp_path / "cluster", 0)
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))
    prepare(tmp_path)
    async with await KubernetesClient.connect(api.kubeconfig) as cluster:
        await make_namespace(cluster)
        made = Office(tmp_path, f"sqlite:///{tmp_path / 'manager.sqlite'}", cluster, look_seconds=0.05)
        made.hub.servers = {("alice", ""), ("bob", "")}
        await made.make_node()
        yield made
    await api.stop()


def book(acting: LeaderElector) -> JobStore:
    assert acting.admission is not None
    return acting.admission.store


async def runs(office: Office, acting: LeaderElector, user: str) -> AdmissionRequest:
    question = wants(user)
    await ask(acting, question)
    await office.bind(await office.make_pod(question))
    await until(lambda: book(acting).records[question.job].job.state is JobState.RUNNING, "it runs")
    return question


async def looks(office: Office, seconds: float = 0) -> None:
    """So much later, the Manager looks from the beginning to the end."""
    office.clock.moved += timedelta(seconds=seconds)
    seen = office.hub.checks
    await until(lambda: office.hub.checks > seen + 2, "it has looked")


async def leaving(office: Office) -> set[str]:
    found = {name for name, pod in (await office.pods()).items() if pod["metadata"].get("deletionTimestamp")}
    return {name.removeprefix("jupyter-") for name in found}


async def test_a_pod_that_the_hub_does_not_have_for_long_is_stopped_and_no_other(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    async with office.manager() as acting:
        for user in ("alice", "bob"):
            await runs(office, acting, user)
        office.hub.servers = {("alice", "")}
        await looks(office)
        await looks(office, 890)
        assert await leaving(office) == set()
        assert caplog.text.count("user=bob server= the Hub has no such server; it is stopped after 900 s") == 1
        asked = office.hub.looks
        await looks(office, 20)
        await until(lambda: office.hub.looks > asked, "the Hub is asked about this person")

        async def stopped() -> bool:
            return await leaving(office) == {"bob"}

        await until(stopped, "it is stopped")


async def test_a_hub_that_was_away_meanwhile_begins_the_time_anew(office: Office) -> None:
    async with office.manager() as acting:
        job = await runs(office, acting, "alice")
        office.hub.servers = set()
        await looks(office, 500)
        office.hub.servers = None
        await looks(office, 500)
        office.hub.servers = set()
        await looks(office, 500)
        assert await leaving(office) == set()
        assert book(acting).records[job.job].job.state is JobState.RUNNING


async def test_a_token_that_may_not_see_servers_stops_nobody_and_administrators_are_told(office: Office) -> None:
    office.hub.allows = frozenset({*NEEDED} - {"read:servers"} | {"read:servers!user=alice"})
    async with office.manager() as acting:
        await runs(office, acting, "alice")
        office.hub.servers = set()
        for _ in range(3):
            await looks(office, 1000)
        assert await leaving(office) == set()
        notice = book(acting).notices.pending(("", NoticeKind.HUB_FORBIDS))
        assert notice is not None
        assert "its token lacks read:servers." in notice.text
        office.hub.servers, office.hub.allows = {("alice", "")}, frozenset(NEEDED)
        await until(lambda: book(acting).notices.pending(("", NoticeKind.HUB_FORBIDS)) is None, "it is taken back")


async def test_a_job_that_tells_of_its_kernels_is_somebodys(office: Office) -> None:
    async with office.manager() as acting:
        await runs(office, acting, "alice")
        office.hub.servers = set()
        for _ in range(4):
            assert acting.culler is not None
            acting.culler.report_kernels("alice", "", busy=False, seconds=None)
            await looks(office, 500)
        assert await leaving(office) == set()


async def test_without_limits_the_manager_looks_for_nobodys_owner(office: Office) -> None:
    (office.folder / "teams.yaml").write_text("teams: {default: {title: Everybody}}\n")
    async with office.manager() as acting:
        await runs(office, acting, "alice")
        office.hub.servers, seen = set(), office.hub.lists
        hub: Any = office.hub
        nothing: Any = None
        looking = OrphanReaper(book(acting), hub, nothing, lambda _: ActivityRecord(), office.clock, 1, 900)
        for _ in range(2):
            await looking.reap()
            office.clock.moved += timedelta(seconds=1000)
        assert (await leaving(office), office.hub.lists) == (set(), seen)
