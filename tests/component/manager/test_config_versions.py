"""Files that are broken while a Manager starts or takes over: what was in use last is in use."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import pytest

from dlspawner.clients.kubernetes import EVENTS
from dlspawner.errors import InvalidConfiguration
from dlspawner.manager.db import config_versions
from dlspawner.manager.db.store import DatabaseUnavailable
from dlspawner.manager.model.notice import NoticeKind, Recipient
from dlspawner.manager.state import config_reload
from tests.component.manager import quota
from tests.component.manager.manager_harness import Leader, ManagerHarness, until, wants

NEW = "teams:\n  vision: {title: Vision, quota: {gpu: 3}}\n  default: {title: Everybody, quota: {gpu: 5}}\n"
BROKEN = "teams: ["


def teams(leader: Leader) -> dict[str, int | None]:
    cluster_state = leader.service.store.cluster_state
    return {team.name: cluster_state.quota(team.name, "gpu") for team in cluster_state.teams.teams}


async def begin_with(harness: ManagerHarness, leader: Leader, text: str) -> None:
    """The files are changed while this Manager acts."""
    (harness.folder / "teams.yaml").write_text(text)
    await until(lambda: teams(leader) == {"vision": 3000, "default": 5000}, "they are read")


async def test_manager_that_takes_over_uses_the_files_that_the_other_one_had_read(
    harness: ManagerHarness, db_url: str
) -> None:
    waits = replace(wants(gpus=3), team="vision")
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(harness.manager())
        async with harness.manager(waits=False) as second:
            await first.hold_all_gpus()
            await begin_with(harness, first, NEW)
            assert (await first.ask(waits)).decision == "wait"
            (harness.folder / "teams.yaml").write_text(BROKEN)
            await stack.aclose()
            await until(lambda: second.admission is not None, "the other one acts")
            assert teams(second) == {"vision": 3000, "default": 5000}
            notices = second.service.store.notices
            await until(
                lambda: notices.pending(("", NoticeKind.CONFIG_INVALID)) is not None, "administrators have a notice"
            )
            told = [one.kind for one in notices.read(Recipient(user="alice"), harness.clock())]
            assert NoticeKind.CANNOT_START not in told, "its team is there"


async def test_changed_files_are_used_also_if_the_database_was_away_when_they_were_read(
    harness: ManagerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    persist, problems = config_reload.persist, [DatabaseUnavailable("away")]

    async def fails_once(*given: Any) -> None:
        if problems:
            raise problems.pop()
        await persist(*given)

    async with harness.manager() as leader:
        monkeypatch.setattr(config_reload, "persist", fails_once)
        await begin_with(harness, leader, NEW)
        assert not problems
        await until(lambda: stored(leader, NEW), "they are stored")


async def stored(leader: Leader, text: str) -> bool:
    return (await leader.repository.read(config_versions.read_versions))["teams"] == text


async def test_a_manager_that_starts_while_a_file_is_broken_goes_on_with_the_last_good_version(
    harness: ManagerHarness, db_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POD_NAME", "manager-1")
    monkeypatch.setenv("POD_UID", "its-uid")
    file = harness.folder / "teams.yaml"
    async with harness.manager() as leader:
        await begin_with(harness, leader, NEW)
    file.write_text(BROKEN)
    async with harness.manager() as leader:
        assert teams(leader) == {"vision": 3000, "default": 5000}
        notices = leader.service.store.notices
        await until(
            lambda: notices.pending(("", NoticeKind.CONFIG_INVALID)) is not None, "administrators have a notice"
        )
        assert "the last good version, from the database, is:" in caplog.text
        assert f"{file}:1" in caplog.text
        told = notices.pending(("", NoticeKind.CONFIG_INVALID))
        assert told is not None
        assert "It is in line 1 of teams.yaml: this is not YAML: expected the node content" in told.text
        async for event in harness.cluster.watch(EVENTS, fields="involvedObject.uid=its-uid"):
            if event.type == "ADDED":
                assert (event.object["involvedObject"]["name"], event.object["message"]) == ("manager-1", told.text)
                break
        file.write_text(quota.TEAMS % 8)
        await until(lambda: teams(leader) == {"default": 8000}, "it is whole again")
        await until(lambda: notices.pending(("", NoticeKind.CONFIG_INVALID)) is None, "and it is withdrawn")


async def test_a_template_that_is_gone_or_broken_is_kept_with_the_files_that_name_it(harness: ManagerHarness) -> None:
    async with harness.manager():
        pass
    (harness.folder / "jobs" / "tiny.yaml").write_text("no template")
    (harness.folder / "jobs" / "another.yaml").write_text("command: [")
    async with harness.manager() as leader:
        assert [one.name for one in leader.settings.templates] == ["tiny"]


async def test_broken_files_without_a_good_version_are_a_mistake_still(harness: ManagerHarness) -> None:
    (harness.folder / "teams.yaml").write_text(BROKEN)
    with pytest.raises(InvalidConfiguration):
        async with harness.manager():
            pass
