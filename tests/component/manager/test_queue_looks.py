"""What is told of a job that waits: of the advice, and when the files do not allow it any more."""

from __future__ import annotations

import re

import pytest

from dlspawner.core.decisions import Alternative
from dlspawner.core.units import GPU
from dlspawner.manager.admission.explain import QueueStatus
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.model.notice import NoticeKind, Recipient
from tests.component.manager.api_client import set_caps
from tests.component.manager.manager_harness import Office, ask, until, wants
from tests.unit.core.factories import queues

LESS, LENT = Alternative("a100", 2 * GPU, False), Alternative("a100", 4 * GPU, True)
OTHER = Alternative("v100", 4 * GPU, False)


@pytest.mark.parametrize(
    ("advice", "keeps", "loses"),
    [
        ((), False, False),
        ((LESS,), True, False),
        ((LENT,), False, True),
        ((OTHER,), False, True),
        ((LESS, OTHER), True, True),
    ],
)
def test_only_fewer_gpus_of_the_same_kind_keep_the_place(
    advice: tuple[Alternative, ...], keeps: bool, loses: bool
) -> None:
    look = QueueStatus(queues("j", "a", 4), "queued", 1, 1, "", advice)
    assert (look.keeps_place, look.loses_place) == (keeps, loses)


def told(office: Office, acting: LeaderElector) -> list[tuple[NoticeKind, str]]:
    assert acting.admission is not None
    found = acting.admission.store.notices.read(Recipient(user="alice"), office.clock())
    return [(one.kind, one.text) for one in found]


async def test_why_a_job_waits_is_found_out_once_until_something_changes(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, asked = wants(gpus=8), []
    async with office.manager() as acting:
        await ask(acting, wants("holder", gpus=8))
        await ask(acting, waits)
        assert acting.admission is not None
        book, looks, why = acting.admission.store, acting.admission.explainer, acting.admission.explainer.why
        monkeypatch.setattr(looks, "why", lambda job, now: asked.append(job.id) or why(job, now))

        def place() -> tuple[int, str]:
            return looks.position(book.records[waits.job].job, book.now())

        first = place()
        assert (first, place(), asked) == (first, first, [waits.job])
        assert first[0] == 1
        assert first[1] != ""
        await ask(acting, wants("other", gpus=8))
        assert (place(), asked) == (first, [waits.job] * 2)


@pytest.mark.parametrize(("gpus", "approval"), [(8, False), (3, True)], ids=["in the queue", "for an approval"])
async def test_who_was_blocked_meanwhile_reads_that_they_may_not_start_jobs(
    office: Office, gpus: int, approval: bool
) -> None:
    teams, waits = office.folder / "teams.yaml", wants(gpus=gpus)
    if approval:
        set_caps(office)
    async with office.manager() as acting:
        await ask(acting, wants("holder", gpus=1))
        assert (await ask(acting, waits)).decision == "wait"
        teams.write_text(f"{teams.read_text()}\nblocked: [alice]\n")
        await until(lambda: told(office, acting) != [], "she is told")
        [(kind, text)] = told(office, acting)
        assert kind is NoticeKind.CANNOT_START
        assert "You can not start jobs here; ask an administrator why. It keeps its place; cancel it if" in text
        assert acting.admission is not None
        look = acting.admission.explainer.explain(acting.admission.store.records[waits.job])
        assert look.sentence == "You can not start jobs here; ask an administrator why."


async def test_who_waits_for_more_than_a_lowered_quota_is_told_until_it_is_raised(office: Office) -> None:
    waits = wants(gpus=8)
    async with office.manager() as acting:
        await ask(acting, wants("holder", gpus=1))
        assert (await ask(acting, waits)).decision == "wait"
        assert told(office, acting) == []
        office.set_quota(4)
        await until(lambda: told(office, acting) != [], "she is told")
        [(kind, text)] = told(office, acting)
        assert kind is NoticeKind.CANNOT_START
        assert re.search("has a quota of 4 GPUs of type gpu; you asked for 8.* It keeps its place", text)
    office.set_quota(8)
    async with office.manager() as acting:
        await until(lambda: told(office, acting) == [], "it is taken back")


async def test_asking_for_less_takes_back_that_it_cannot_start(office: Office) -> None:
    waits = wants(gpus=8)
    async with office.manager() as acting:
        await ask(acting, wants("holder", gpus=4))
        await ask(acting, waits)
        office.set_quota(4)
        await until(lambda: told(office, acting) != [], "she is told")
        assert (await ask(acting, wants(gpus=2, job=waits.job))).decision == "wait"
        assert told(office, acting) == []
