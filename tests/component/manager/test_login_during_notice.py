"""Others were told to leave for a job that cannot start: they hear at once that they go on, and not when they leave."""

from __future__ import annotations

import pytest

from dlspawner.clients.hub import HubError, HubFailed, HubRejected
from dlspawner.core.job import JobState
from dlspawner.manager.admission import preemption
from dlspawner.manager.model.notice import NoticeKind
from tests.component.manager.leaving import StoppingHub
from tests.component.manager.manager_harness import Office, until
from tests.component.manager.test_preempt_notices import configure, lend, reasons, state, told, wait_for_owner


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption, "_EVERY_SECONDS", 0.02)
    monkeypatch.setattr(preemption, "_LOOK_SECONDS", 0.02)


def answer(office: Office, error: HubError | None) -> None:
    """What the Hub says from now on to whoever wants a start."""
    office.hub.servers = {("alice", ""), ("bob", "")}

    async def starts(_user: str, _server: str) -> None:
        raise error or HubRejected(429, "It is number 1 in the queue and starts by itself.")

    office.hub.starts = starts


@pytest.mark.parametrize(
    ("said", "becomes"),
    [
        (HubRejected(403, "auth has expired for alice, login again"), JobState.LOGIN_REQUIRED),
        (HubFailed("The Hub failed (status 500)."), JobState.QUEUED),
        (HubRejected(400, "The image is not allowed."), JobState.QUEUED),
    ],
    ids=["login", "failure", "refusal"],
)
async def test_a_notice_is_withdrawn_when_it_turns_out_to_be_for_nobody(
    office: Office, said: HubError, becomes: JobState
) -> None:
    office.hub = hub = StoppingHub(cluster=office.cluster)
    configure(office.folder)
    async with office.manager() as acting:
        victim, owner = await lend(office, acting), await wait_for_owner(acting)
        assert told(office, acting) == [NoticeKind.PREEMPTED]
        answer(office, said)
        await until(
            lambda: told(office, acting) == [NoticeKind.PREEMPTION_CANCELLED],
            "the all-clear, long before the notice is over",
        )

        assert (state(acting, victim), state(acting, owner)) == (JobState.RUNNING, becomes)
        assert (await reasons(acting, victim))[-2:] == ["preemption-notice", "preemption-cancelled"]
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
        assert told(office, acting) == [NoticeKind.PREEMPTED]
        answer(office, HubRejected(403, "auth has expired for alice, login again"))
        office.clock.moved += preemption._SURE
        await until(lambda: told(office, acting) == [NoticeKind.PREEMPTION_CANCELLED], "the all-clear")

        assert state(acting, victim) is JobState.RUNNING
