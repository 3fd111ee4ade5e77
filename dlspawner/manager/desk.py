"""The desk: what is answered to the Hub's question whether a job may start. The decision is the core's.

A question has the job's id, and asking again gets the same answer: an answer may be lost, and the Hub then asks again.
What was admitted is reserved in the same turn; the Hub creates the pod before the reservation's deadline or not at all.

Who has to wait is written down as *queued*, and ``queue`` and ``starts`` do the rest; who needs an approval first as
*waiting-approval* (`approval.deciding`). A server has at most one job that waits; the Hub asks for its id (``waiting``)
and asks with it again, so that it is the same job. Whoever asks again for no more than before keeps the place, which is
the first submit time, and an approval; for more, the place is a new one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from dlspawner.core import limits, queueing, quota
from dlspawner.core.amounts import counted
from dlspawner.core.charge import charge
from dlspawner.core.decisions import Admit, Alternative, Reason, Refuse, Wait
from dlspawner.core.jobs import Job, Permissions, State
from dlspawner.core.leaving import will_leave
from dlspawner.core.manifest import Manifest
from dlspawner.core.model import Special, Team
from dlspawner.core.world import World
from dlspawner.manager import hopeless
from dlspawner.manager.approval import deciding
from dlspawner.manager.book import Book, Turn
from dlspawner.manager.ledger import Ledger
from dlspawner.manager.looks import Looks
from dlspawner.manager.namespaces import Namespaces
from dlspawner.manager.notices import Kind, post, withdraw
from dlspawner.manager.queue import Queue
from dlspawner.manager.records import MOST_TURNS, Record, ended, waiting

log = logging.getLogger("dlspawner.manager")

OVER = "This start was cancelled, or has taken too long and its GPUs were given back. Start the job again."
REPLACED = "It takes the place of your earlier request for this server, and asks for more: its place is a new one."
KEPT = "It holds nothing until then, and keeps its submit time."
BEHIND = "Others that wait are being started first."
_LEVEL = "Team %s may not use the priority “%s”; choose one of these: %s."
ELSEWHERE = "This Hub makes jobs where nobody counts their GPUs, so no job can be started. Ask an administrator."
NO_PLACE = "Jobs with special permissions would be made where nobody counts them: ask an administrator."
NOT_YOURS = "Another job has this id already. Start the job again."
_ASKED = 10_000  # servers whose latest start is remembered


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
    namespace: str  # where its pods would be
    pods: tuple[Manifest, ...]
    special: tuple[Special, ...] = ()  # permissions that somebody has to approve
    image: str = ""  # what gets them
    nonce: str = ""  # which its pods will have; none: any will do


@dataclass(frozen=True, slots=True)
class Answer:
    """``decision``: admit, wait or refuse. Of an admission, ``seconds`` until its deadline and the node of each pod."""

    decision: str
    reason: str
    sentences: tuple[str, ...] = ()
    seconds: float = 0.0
    nodes: tuple[str | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """A job that waits, and its place in the queue, from 1."""

    job: Job
    position: int


class Desk:
    """Answers from one book."""

    def __init__(self, book: Book, ledger: Ledger, queue: Queue, looks: Looks, namespaces: Namespaces) -> None:
        self.book, self._ledger, self._queue, self._namespaces = book, ledger, queue, namespaces
        self._reservation = book.reservation
        self.looks = looks
        self._advising = asyncio.Lock()
        self._asked: dict[tuple[str, str], tuple[datetime, str]] = {}

    async def ask(self, question: Question) -> Answer:
        """May this job start now?"""
        place = self._namespaces.of(special=bool(question.special))
        if question.namespace != place or not place:
            log.error(
                "job=%s would be in namespace %s, and Manager.%snamespace is %s: the spawner's has to be the same, and "
                "enable_user_namespaces off",
                *(question.job, question.namespace, "special_" if question.special else "", place or "not set"),
            )
            return _logged(
                question, Answer("refuse", "other-namespace", (NO_PLACE if question.special else ELSEWHERE,))
            )
        answer = await self.book.turn(lambda turn: self._answer(turn, question))
        self._note(question, answer)
        waits = self.book.records.get(question.job)
        if answer.decision != "wait" or waits is None:
            return answer
        async with self._advising:
            await asyncio.sleep(0)  # many may be told to wait at once, and each advice costs as much as many decisions
            advice = self.looks.advice(waits.job, self.book.now())
        return replace(answer, sentences=(*answer.sentences, *_advice(advice)))

    def asked(self, user: str, server: str, since: datetime) -> str | None:
        """The job that the Hub has asked for since then, because somebody wanted it started, and that was not refused.

        Known for the servers of the latest 10,000 starts, and until this Manager ends.
        """
        at, job = self._asked.get((user, server), (since, None))
        return job if at >= since else None

    def _note(self, question: Question, answer: Answer) -> None:
        where = (question.user, question.server)
        if answer.decision == "refuse" or where in self._queue.telling:
            return  # the latter is a start of ours, whose turn has come
        self._asked.pop(where, None)
        self._asked[where] = (self.book.now(), question.job)
        if len(self._asked) > _ASKED:
            del self._asked[next(iter(self._asked))]

    def waiting(self, user: str, server: str | None = None) -> list[Place]:
        """What of this person's waits, at one server or at all of them."""
        book = self.book
        mine = [job for (name, where), job in book.waiting.items() if name == user and server in (None, where)]
        now = book.now()
        return [Place(one, queueing.position(one, book.world, now)) for one in (book.records[job].job for job in mine)]

    def coming(self, user: str, server: str) -> Record | None:
        """The job that waits for this server, or is being started there and does not run yet."""
        book = self.book
        started = (book.records[one.id] for one in book.on(user, server) if one.state is State.STARTING)
        return book.waiter(user, server) or next(started, None)

    async def last(self, user: str, server: str) -> tuple[str, str] | None:
        """Why this server's last job is as it is: reason and detail of its last event."""
        return await self._ledger.last(user, server)

    async def release(self, job: str, user: str, *, passes: bool = False, why: str = "") -> None:
        """The Hub has not made the pod of this reservation, and will not; ``passes``: what was wrong passes by itself.

        A job that had waited waits on then.
        """

        def give_back(turn: Turn) -> None:
            record = turn.record(job)
            if record is None or not record.reserved or record.due or record.job.user != user:
                return
            waits_again = passes and 0 < record.turns < MOST_TURNS and record.job.state is State.STARTING
            if waits_again:
                self._queue.pause(job, turn.now + timedelta(seconds=5))
                hopeless.wait_again(turn, record, "not-created", why)
            else:
                turn.write(ended(record), "not-created", why)

        await self.book.turn(give_back)

    def _answer(self, turn: Turn, question: Question) -> Answer:
        turn.book.asked = turn.world.teams.has_limits(turn.world.cluster)
        if turn.book.stirred.is_set():
            self._queue.give_turns(turn)  # nobody new gets what others wait for
        known = turn.record(question.job)
        if known is not None and (known.job.user, known.job.server) != (question.user, question.server):
            return Answer("refuse", "job-id", (NOT_YOURS,))
        if known is not None and not known.waits:
            left = (known.deadline - turn.now).total_seconds() if known.deadline else 0.0
            may = left > 0 and known.job.state is not State.STOPPING and known.nonce == question.nonce
            admitted = Answer("admit", "known", seconds=left, nodes=_to_prefer(known.job))
            return admitted if may else Answer("refuse", "over", (OVER,))
        if known is None:
            if turn.book.has_ended(question.job) or self._was_cancelled(question):
                return Answer("refuse", "over", (OVER,))
            turn.claim(question.job)
            deciding.forget_denial(turn, question.user, question.server)
        wanted = self._wanted(turn, question)
        if isinstance(wanted, Refuse):
            return _answered(question, wanted)
        other = turn.book.waiter(question.user, question.server)
        if other is not None and other is not known:
            turn.write(ended(other), "replaced", f"by {question.job}")
        if known is None:
            return self._decide(turn, question, Record(wanted, request_seconds=question.request_seconds))
        return self._again(turn, question, known, wanted)

    def _was_cancelled(self, question: Question) -> bool:
        """Whether we ask the Hub for this start just now, for a job that ended before the Hub learned its id."""
        told = self._queue.telling.get((question.user, question.server))
        return told is not None and told not in self.book.records

    def _wanted(self, turn: Turn, question: Question) -> Job | Refuse:
        """The job that is asked for, as a new one."""
        world = turn.world
        charged = charge(question.pods, world.cluster)
        if isinstance(charged, Refuse):
            return charged
        team = world.team(question.team) or Team(question.team)
        level = world.cluster.priority(team, question.priority)
        if level is None:
            allowed = ", ".join(one.name for one in world.cluster.allowed_priorities(team))
            return Refuse(Reason.NOT_ALLOWED, _LEVEL % (team.title or team.name, question.priority, allowed))
        return Job(
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
            special=Permissions(question.special, question.image) if question.special else None,
        )

    def _again(self, turn: Turn, question: Question, known: Record, wanted: Job) -> Answer:
        """A job that waits is asked for again: by its person, or by the Hub that was told to start it."""
        keeps = _no_more(wanted, known.job)
        same = keeps and _options(wanted) == _options(known.job)
        turn.book.hold_back(known.job.id, "")  # its person asks, or the files have changed
        known = turn.book.records[known.job.id]
        record = replace(known, request_seconds=question.request_seconds)
        if record.due and same:
            return self._admit(turn, question, record, known.job.nodes)
        if not keeps and (never := limits.never(wanted, turn.world)) is not None:
            return _answered(question, never)  # and what waits there waits on
        if not same:  # and what it was promised was for another job
            job = replace(wanted, submitted=known.job.submitted, approved=known.job.approved) if keeps else wanted
            record = waiting(replace(record, job=job, yields=None))
        elif record.job.state is State.WAITING_LOGIN:
            record = waiting(record)
        if known.job.state is State.WAITING_LOGIN:
            withdraw(turn, record.job.id, Kind.WAITING_LOGIN)
        withdraw(turn, record.job.id, Kind.CANNOT_START)  # what cannot start is told again, here
        if record.job != known.job:
            turn.write(record, "queued" if same else "changed")
        if known.due and record.job.team != known.job.team:
            post(turn, record.job, Kind.GOES_ON, _moved(known.job, record.job, turn.world))
        return self._decide(turn, question, record, () if keeps else (REPLACED,))

    def _decide(self, turn: Turn, question: Question, record: Record, notes: tuple[str, ...] = ()) -> Answer:
        """Whether it may start now; what may not is in the queue after that."""
        world, job = turn.world, record.job
        found = quota.admit(job, world, turn.now)
        if isinstance(found, Admit) and self._queue.is_behind(job):
            found = Wait(Reason.TURN, BEHIND, queueing.position(job, world, turn.now))
        if isinstance(found, Admit):
            return self._admit(turn, question, record, found.nodes)
        if isinstance(found, Refuse):
            return _answered(question, found)
        record = deciding.settle(turn, record)
        if record.job.state is State.WAITING_APPROVAL:
            sentence = self.looks.why(record.job, turn.now)
            return _logged(question, Answer("wait", Reason.APPROVAL.value, (sentence, KEPT, *notes)))
        position = queueing.position(job, world, turn.now)
        if job.state is State.SUBMITTED:
            turn.write(waiting(record), "queued", found.reason.value)
        sentence = (
            found.sentence if isinstance(found, Wait) else will_leave(job, [world.jobs[name] for name in found.victims])
        )
        where = f"It is number {position} in the queue and starts by itself."
        if self.looks.never(turn.book.records[job.id].job):
            where = "It keeps its place in the queue, and cannot start as things are."
        return _logged(question, Answer("wait", found.reason.value, (sentence, where, *notes)))

    def _admit(self, turn: Turn, question: Question, record: Record, nodes: tuple[str | None, ...]) -> Answer:
        starting = quota.admitted(record.job, nodes, turn.world)
        turns = record.turns + (record.job.state is State.QUEUED)
        deadline = turn.now + self._reservation
        record = replace(record, job=starting, deadline=deadline, due=False, turns=turns, nonce=question.nonce)
        turn.write(record, "admitted")
        withdraw(turn, record.job.id, Kind.CANNOT_START)
        seconds = self._reservation.total_seconds()
        return _logged(question, Answer("admit", Reason.FITS.value, seconds=seconds, nodes=_to_prefer(starting)))


def _moved(before: Job, after: Job, world: World) -> str:
    """What somebody reads whose job changed teams while it waited, as the Hub said when its turn came."""
    old, new = (
        f"“{team.title or team.name}”" if (team := world.team(one.team)) else f"“{one.team}”" for one in (before, after)
    )
    return f"Your job does not count for team {old} any more: it is now one of team {new}, at the place it gets there."


def _to_prefer(job: Job) -> tuple[str | None, ...]:
    """The nodes that its pods are to prefer; where jobs without GPUs go, Kubernetes' scheduler knows best."""
    return job.nodes if job.charge.gpu_type is not None else ()


def _no_more(wanted: Job, known: Job) -> bool:
    """Whether a job asks for nothing that another one does not ask for, so that it can have that one's place."""
    same = (wanted.team, wanted.preemptible, wanted.charge.gpu_type) == (
        *(known.team, known.preemptible, known.charge.gpu_type),
    )
    asked, before = _amounts(wanted), _amounts(known)
    return same and wanted.priority <= known.priority and all(a <= b for a, b in zip(asked, before, strict=True))


def _options(job: Job) -> tuple[object, ...]:
    """What a turn was given for, beside team and GPU type."""
    special = None if job.special is None else (job.special.special, job.special.image)
    return (job.charge, job.template, job.priority, job.requeue, special)


def _amounts(job: Job) -> tuple[int, int, int]:
    pods = job.charge.pods
    return job.charge.gpus, sum(pod.cpu_milli for pod in pods), sum(pod.memory_bytes for pod in pods)


def _answered(question: Question, found: Refuse) -> Answer:
    return _logged(question, Answer("refuse", found.reason.value, (found.sentence,)))


def _logged(question: Question, answer: Answer) -> Answer:
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
