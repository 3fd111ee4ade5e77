"""What nodes had before they went is known to whichever Manager acts next: what would fit there waits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlspawner.clients.kubernetes import NODES
from dlspawner.core.nodes import Node, Taint
from dlspawner.manager.cluster import reconciler
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.db import config_versions
from dlspawner.manager.db.engine import open_engine, upgrade
from tests.edges.test_manager.office import Office, ask, until, wants
from tests.edges.test_manager.queued import desk


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "_EVERY_SECONDS", 0.05)


async def is_written(acting: LeaderElector, *names: str) -> bool:
    return (await acting.ledger.read(config_versions.read)).keys() == {*names}


async def lose(office: Office, acting: LeaderElector, name: str = "gpu-1") -> None:
    await office.cluster.delete(NODES, name)
    await until(lambda: name not in desk(acting).store.cluster_state.rooms, "it is gone")


async def test_what_fitted_on_a_node_that_was_lost_waits_after_a_takeover_as_before(
    office: Office, db_url: str
) -> None:
    await office.make_node("small", gpus=4)
    async with office.manager() as acting:
        await until(lambda: is_written(acting, "gpu-1", "small"), "it is written down")
        await lose(office, acting)
        assert (await ask(acting, wants("alice", gpus=8))).decision == "wait"
    async with office.manager() as other:
        assert (await ask(other, wants("bob", gpus=8))).decision == "wait"


async def test_a_node_that_went_while_nobody_acted_is_remembered(office: Office) -> None:
    await office.make_node("small", gpus=4)
    async with office.manager() as acting:
        await until(lambda: is_written(acting, "gpu-1", "small"), "it is written down")
    await office.cluster.delete(NODES, "gpu-1")
    async with office.manager() as other:
        assert (await ask(other, wants(gpus=8))).decision == "wait"


async def test_a_day_is_a_day_whoever_acts_and_then_it_is_refused(office: Office) -> None:
    await office.make_node("small", gpus=4)
    async with office.manager() as acting:
        await until(lambda: is_written(acting, "gpu-1", "small"), "it is written down")
        await lose(office, acting)
        assert (await ask(acting, wants("alice", gpus=8))).decision == "wait"

        async def is_missed() -> bool:
            return (await acting.ledger.read(config_versions.read))["gpu-1"][1] is not None

        await until(is_missed, "since when it is missed is written down")
    office.clock.moved += timedelta(hours=23)
    async with office.manager() as other:
        assert (await ask(other, wants("bob", gpus=8))).decision == "wait"
        office.clock.moved += timedelta(hours=2)
        await until(lambda: is_written(other, "small"), "it is forgotten")
        assert (await ask(other, wants("carol", gpus=8))).decision == "refuse"


async def test_a_node_that_is_back_as_it_was_is_remembered_no_more(office: Office) -> None:
    async with office.manager() as acting:
        await until(lambda: is_written(acting, "gpu-1"), "it is written down")
        await lose(office, acting)
    await office.make_node()
    async with office.manager() as other:
        assert not desk(other).store.cluster_state.away.rooms


async def test_what_is_read_anew_within_an_epoch_is_remembered_as_well(office: Office) -> None:
    await office.make_node("small", gpus=4)
    async with office.manager() as acting:
        await lose(office, acting)
        await desk(acting).store.load()
        assert (await ask(acting, wants(gpus=8))).decision == "wait"


_NAMES = st.text(alphabet="abz019./-_ äß\"'\\", min_size=1, max_size=12)
_NODES = st.builds(
    Node,
    name=_NAMES,
    gpus=st.lists(st.tuples(_NAMES, st.integers(0, 10**6)), max_size=3).map(tuple),
    cpu_milli=st.integers(0, 10**6),
    memory_bytes=st.integers(0, 10**15),
    labels=st.lists(st.tuples(_NAMES, _NAMES), max_size=3).map(tuple),
    taints=st.lists(st.builds(Taint, _NAMES, _NAMES, _NAMES), max_size=3).map(tuple),
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    made = open_engine(f"sqlite:///{tmp_path_factory.mktemp('sizes') / 'db.sqlite'}", 1)
    upgrade(made)
    yield made
    made.dispose()


@settings(max_examples=50)
@given(nodes=st.lists(_NODES, max_size=4, unique_by=lambda node: node.name), missed=st.booleans())
def test_what_is_read_is_what_was_written(engine, nodes: list[Node], missed: bool) -> None:  # type: ignore[no-untyped-def]
    since = datetime(2026, 1, 1, tzinfo=UTC) if missed else None
    wanted = {node.name: (node, since) for node in nodes}
    with engine.begin() as connection:
        config_versions.write(connection, wanted, config_versions.read(connection).keys())

        assert config_versions.read(connection) == wanted
