"""Who gets no terminal because it has to be recorded and cannot be, and while nobody can tell whether it has to."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace

import pytest

from ssh_gateway import rechecks
from ssh_gateway.directory import Standing, Unavailable
from ssh_gateway.recorder import RECORDED
from ssh_gateway.recordings import Recordings
from tests.gateway.peers import FakePeople, finish, until
from tests.gateway.recorded import TEAM, Around
from tests.gateway.test_audit import logged, of

__all__ = ["logged"]


@pytest.mark.parametrize("how", ["no folder", "a folder that is gone"])
async def test_a_terminal_that_cannot_be_recorded_is_refused_in_words_and_files_are_not(
    around: Around, how: str, logged: list[dict[str, str]]
) -> None:
    async with around.gateway(Recordings() if how == "no folder" else None) as recorded:
        await until(lambda: recorded.running.server.records("vision") is True)
        if how != "no folder":
            recorded.folder.rmdir()
        done = await recorded.ssh("echo it ran")
        assert done.status == 255
        assert b"it ran" not in done.out
        assert "Terminals of your team are recorded, and this one cannot be: tell your administrator." in done.err
        assert (await recorded.client.ssh("alice+train@gateway", "cat", feed=b"a file")).out == b"a file"
    (refusal,) = of(logged, "refused")
    assert refusal["what"] == "terminal"
    assert "Gateway.recordings_dir" in refusal["why"]


class SilentPeople(FakePeople):
    """A Manager that says once who is blocked, or nobody would get in, but of no teams; then it is away."""

    asking = 0

    async def standing(self, keys: Collection[tuple[str, str]]) -> Standing:
        self.asking += 1
        if self.asking == 1:
            return replace(await super().standing(keys), recorded=None)
        raise Unavailable("the Manager does not answer")


async def test_while_nobody_can_tell_whether_a_team_is_recorded_only_a_gateway_that_records_nobody_grants_terminals(
    around: Around,
) -> None:
    around.people = SilentPeople(around.people.keys)
    async with around.gateway() as recorded:
        done = await recorded.ssh("echo it ran")
        assert (done.status, b"it ran" in done.out) == (255, False)
        assert "nobody can tell right now" in done.err
    around.people = SilentPeople(around.people.keys)
    async with around.gateway(Recordings()) as recorded:
        assert (await recorded.ssh("echo it ran")).out == b"it ran\r\n"


class LatePeople(FakePeople):
    """A Manager that says once who is blocked, but of no teams; then it says nothing until it is told to."""

    def __init__(self, people: FakePeople) -> None:
        super().__init__(people.keys)
        self.recorded = TEAM
        self.asking = 0
        self.speaks = asyncio.Event()

    async def standing(self, keys: Collection[tuple[str, str]]) -> Standing:
        self.asking += 1
        if self.asking == 1:
            return replace(await super().standing(keys), recorded=None)
        await self.speaks.wait()
        return await super().standing(keys)


@pytest.mark.parametrize("folder", [True, False], ids=["and is recorded", "and is refused where there is no folder"])
async def test_a_terminal_waits_until_it_is_known_whether_it_is_recorded_and_files_do_not(
    around: Around, folder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rechecks, "LEARN_SECONDS", 30.0)
    around.people = people = LatePeople(around.people)
    async with around.gateway(None if folder else Recordings()) as recorded:
        assert (await recorded.client.ssh("alice+train@gateway", "cat", feed=b"a file")).out == b"a file"
        terminal = await recorded.client.start("ssh", "-tt", "alice+train@gateway", "echo it ran")
        await until(lambda: people.asking >= 3 or terminal.returncode is not None)  # a round, and the terminal
        people.speaks.set()
        done = await finish(terminal)
        assert (done.status, b"it ran" in done.out, RECORDED.content in done.out) == (
            0 if folder else 255,
            folder,
            folder,
        )
        assert ("this one cannot be: tell your administrator" in done.err) is not folder
        if folder:
            (cast,) = await recorded.written()
            assert "it ran" in cast.shown


@pytest.mark.parametrize("folder", [True, False], ids=["a gateway that records", "a gateway without a folder"])
@pytest.mark.parametrize("silence", ["no answer", "an answer without the teams"])
async def test_what_nobody_tells_in_time_is_refused_by_a_gateway_that_records(
    around: Around, folder: bool, silence: str, monkeypatch: pytest.MonkeyPatch, logged: list[dict[str, str]]
) -> None:
    monkeypatch.setattr(rechecks, "LEARN_SECONDS", 0.3)
    around.people = people = LatePeople(around.people)
    people.recorded = None
    if silence != "no answer":
        people.speaks.set()
    async with around.gateway(None if folder else Recordings()) as recorded:
        done = await recorded.ssh("echo it ran")
        assert (b"it ran" in done.out, "nobody can tell right now" in done.err) == (not folder, folder)
        assert [one["what"] for one in of(logged, "refused")] == ["terminal"] * folder
        assert recorded.files == [] if folder else True
