"""Others were told to leave for a job that cannot start: they hear at once that they go on, and not when they leave."""

from __future__ import annotations

import pytest

from dlspawner.core.jobs import State
from dlspawner.hubapi import HubError, HubFailed, HubRefused
from dlspawner.manager import preempting
from dlspawner.manager.notices import Kind
from tests.edges.test_manager.leaving import StoppingHub
from tests.edges.test_manager.office import Office, until
from tests.edges.test_manager.test_preempt_notices import configure, lend, reasons, state, told, wait_for_owner


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preempting, "_EVERY_SECONDS", 0.02)
    monkeypatch.setattr(preempting, "_LOOK_SECONDS", 0.02)


def answer(office: Office, error: HubError | None) -> None:
    """What the Hub says from now on to whoever wants a start."""
    office.hub.servers = {("alice", ""), ("bob", "")}

    async def starts(_user: str, _server: str) -> None:
        raise error or HubRefused(429, "It is number 1 in the queue and starts by itself.")

    office.hub.starts = starts


@pytest.mark.parametrize(
    ("said", "becomes"),
    [
        (HubRefused(403, "auth has expired for alice, login again"), State.WAITING_LOGIN),
        (HubFailed("The Hub failed (status 500)."), State.QUEUED),
        (HubRefused(400, "The image is not allowed."), State.QUEUED),
    ],
    ids=["login", "failure", "refusal"],
)
async def test_a_notice_is_withdrawn_when_it_turns_out_to_be_for_nobody(
    office: Office, said: HubError, becomes: State
) -> None:
    office.hub = hub = StoppingHub(cluster=office.cluster)
    configure(office.folder)
    async with office.manager() as acting:
        victim, owner = await lend(office, acting), await wait_for_owner(acting)
        assert told(office, acting) == [Kind.PREEMPTED]
        answer(office, said)
        await until(lambda: told(office, acting) == [Kind.GOES_ON], "the all-clear, long before the notice is over")

        assert (state(acting, victim), state(acting, owner)) == (State.RUNNING, becomes)
        assert (await reasons(acting, victim))[-2:] == ["notice", "spared"]
        assert hub.asked == []


async def test_a_login_that_expires_while_the_notice_lasts_is_noticed_before_its_end(office: Office) -> None:
    office.hub = StoppingHub(cluster=office.cluster)
    configure(office.folder)
    (office.folder / "cluster.yaml").write_text(
        (office.folder / "cluster.yaml").read_text().replace("notice_seconds: 60", "notice_seconds: 600")
    )
    async with office.manager() as acting:
        victim, _ = await lend(office, acting), await wait_for_owner(acting)
        answer(office, None)
        await until(lambda: office.hub.started, "it is asked for")
        assert told(office, acting) == [Kind.PREEMPTED]
        answer(office, HubRefused(403, "auth has expired for alice, login again"))
        office.clock.moved += preempting._SURE
        await until(lambda: told(office, acting) == [Kind.GOES_ON], "the all-clear")

        assert state(acting, victim) is State.RUNNING
