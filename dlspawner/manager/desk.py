"""The desk: what is answered to the Hub's question whether a job may start. The decision is the core's.

A question has the job's id, and asking again gets the same answer: an answer may be lost, and the Hub then asks again.
What was admitted is reserved in the same turn; the Hub creates the pod before the reservation's deadline or not at all.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import assert_never

from dlspawner.core import quota
from dlspawner.core.advice import advise
from dlspawner.core.amounts import counted
from dlspawner.core.charge import charge
from dlspawner.core.decisions import Admit, Alternative, Decision, Preempt, Reason, Refuse, Wait
from dlspawner.core.jobs import Job, State
from dlspawner.core.manifest import Manifest
from dlspawner.core.model import Team
from dlspawner.manager.book import Book, Turn
from dlspawner.manager.ledger import Ledger
from dlspawner.manager.records import Record

log = logging.getLogger("dlspawner.manager")

OVER = "This start has taken too long and its GPUs were given back. Start the job again."
_LEVEL = "Team %s may not use the priority “%s”: choose another one."
NOT_YOURS = "Another job has this id already. Start the job again."


@dataclass(frozen=True, slots=True)
class Question:
    """A job that wants to start: whose, and the essentials of its final pods."""

    job: str
    user: str
    server: str
    team: str
    template: str
    preemptible: bool
    priority: str  # the level's name; empty for the team's lowest
    requeue: bool
    request_seconds: float
    pods: tuple[Manifest, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """``decision``: admit, wait or refuse; ``seconds``: of an admission, until its deadline."""

    decision: str
    reason: str
    sentences: tuple[str, ...] = ()
    seconds: float = 0.0


class Desk:
    """Answers from one book."""

    def __init__(self, book: Book, ledger: Ledger, reservation_seconds: float) -> None:
        self.book, self._ledger = book, ledger
        self._reservation = timedelta(seconds=reservation_seconds)

    async def ask(self, question: Question) -> Answer:
        """May this job start now?"""
        kept = self.book.records.get(question.job)
        ended = kept is None and await self._ledger.find(question.job) is not None
        return await self.book.turn(lambda turn: self._answer(turn, question, ended))

    async def release(self, job: str, user: str) -> None:
        """The Hub has not made the pod of this reservation, and will not."""

        def give_back(turn: Turn) -> None:
            record = turn.record(job)
            if record is not None and record.reserved and record.job.user == user:
                turn.write(ended(record), "not-created")

        await self.book.turn(give_back)

    def _answer(self, turn: Turn, question: Question, ended: bool) -> Answer:
        turn.book.asked = True
        known = turn.record(question.job)
        if known is not None and (known.job.user, known.job.server) != (question.user, question.server):
            return Answer("refuse", "job-id", (NOT_YOURS,))
        if known is not None:
            left = (known.deadline - turn.now).total_seconds() if known.deadline else 0.0
            return Answer("admit", "known", seconds=left) if left > 0 else Answer("refuse", "over", (OVER,))
        if ended:
            return Answer("refuse", "over", (OVER,))
        return self._decide(turn, question)

    def _decide(self, turn: Turn, question: Question) -> Answer:
        world = turn.world
        charged = charge(question.pods, world.cluster)
        if isinstance(charged, Refuse):
            return _answered(question, charged)
        team = world.team(question.team) or Team(question.team)
        level = world.cluster.priority(team, question.priority)
        if level is None:
            return _answered(
                question, Refuse(Reason.NOT_ALLOWED, _LEVEL % (team.title or team.name, question.priority))
            )
        job = Job(
            id=question.job,
            user=question.user,
            team=question.team,
            submitted=turn.now,
            charge=charged,
            server=question.server,
            template=question.template,
            priority=level.level,
            preemptible=question.preemptible,
            requeue=question.requeue,
        )
        found = quota.admit(job, world, turn.now)
        if isinstance(found, Admit):
            starting = replace(job, state=State.STARTING, nodes=tuple(found.nodes))
            deadline = turn.now + self._reservation
            turn.write(Record(starting, deadline, question.request_seconds), "admitted")
        advice = advise(job, world, turn.now) if isinstance(found, Wait | Preempt) else ()
        return _answered(question, found, advice, self._reservation.total_seconds())


def ended(record: Record) -> Record:
    """The job's end."""
    return replace(record, job=replace(record.job, state=State.ENDED))


def _answered(question: Question, found: Decision, advice: Sequence[Alternative] = (), seconds: float = 0.0) -> Answer:
    match found:
        case Admit():
            answer = Answer("admit", found.reason.value, seconds=seconds)
        case Refuse():
            answer = Answer("refuse", found.reason.value, (found.sentence,))
        case Wait():
            answer = Answer("wait", found.reason.value, (found.sentence, *_advice(advice)))
        case Preempt():
            sentence = "The GPUs that your team is entitled to are lent to preemptible jobs."
            answer = Answer("wait", found.reason.value, (sentence, *_advice(advice)))
        case _:
            assert_never(found)
    log.info(
        "admission team=%s job=%s user=%s server=%s decision=%s reason=%s",
        question.team,
        question.job,
        question.user,
        question.server,
        answer.decision,
        answer.reason,
    )
    return answer


def _advice(advice: Sequence[Alternative]) -> tuple[str, ...]:
    told = [f"{counted(one.gpus)} of type {one.gpu_type}{', preemptible' if one.preemptible else ''}" for one in advice]
    if not told:
        return ()
    return (f"What would start at once: {', or '.join(told)}.",)
