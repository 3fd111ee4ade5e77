"""Access is checked again while sessions live: one round for everybody, every `seconds`, whatever was open before it.

A round asks the Manager once for a thousand keys (and who is blocked), the Hub once for a page of its users, the
cluster once for fifty jobs, and the Hub about each token that somebody came in with; certificates are held against the
clock and the list of those that were revoked. Each of these may fail by itself,
and ends nobody then; who is blocked stays known. Until somebody has told that for the first time, nobody gets in.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ssh_gateway.access import Bearer
from ssh_gateway.directory import People, Places, Standing, Unavailable
from ssh_gateway.logs import say
from ssh_gateway.revocations import Revocations
from ssh_gateway.standing import Facts, Held, verdict
from ssh_gateway.visit import Visit
from ssh_gateway.wire import FAREWELL_SECONDS

AT_ONCE = 8
LEARN_SECONDS = 5.0

Answer = TypeVar("Answer")


@dataclass(slots=True)
class Rechecks:
    """`run` is the one task that asks; ``blocked`` and ``recorded`` are what the latest round was told."""

    people: People
    places: Places
    seconds: float
    blocked: frozenset[str] | None = None  # None: nobody has told yet
    recorded: frozenset[str] | None = None  # the teams whose terminals are; None: nobody has told yet
    revocations: Revocations = field(default_factory=Revocations)
    visits: Callable[[], Iterable[Visit]] = tuple
    _silent: set[str] = field(default_factory=set)

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await self.round()
            await asyncio.sleep(self.seconds)

    async def round(self) -> None:
        """Look once, and send home who may not stay."""
        asked = [(visit, visit.held()) for visit in self.visits()]
        facts = await self._facts([held for _, held in asked])
        ends = [(visit, held.job, why) for visit, held in asked if (why := verdict(held, facts)) is not None]
        for visit, job, why in ends:
            if job is not None:
                visit.end(why)
        if outer := [(visit, why) for visit, job, why in ends if job is None]:
            # Through these `ssh -J` may go: what is said inside is to be read first.
            await asyncio.sleep(FAREWELL_SECONDS)
            for visit, why in outer:
                visit.end(why)

    async def judge(self, held: Held) -> str | None:
        """Why one connection may not go on, asked for it alone: a login that has waited is in no round yet."""
        return verdict(held, await self._facts([held], notes=False))  # a round may have been told something newer

    async def learn_blocked(self) -> None:
        """Ask who is blocked, unless a round was told already; the answer within its time, or none."""
        if self.blocked is None:
            await self._learn()

    async def learn_recorded(self) -> None:
        """Ask which teams are recorded, in the same way."""
        if self.recorded is None:
            await self._learn()

    async def _learn(self) -> None:
        """What a round was told meanwhile is newer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEARN_SECONDS):
                told = await self._try("keys", self.people.standing(()))
                if told is not None and (self.blocked is None or self.recorded is None):
                    self._note(told if self.blocked is None else replace(told, blocked=self.blocked))

    def _note(self, told: Standing) -> None:
        """What holds from now on; who is recorded stays known when a Manager does not say, as one of before."""
        self.blocked = told.blocked
        if told.recorded is not None:
            self.recorded = told.recorded
        elif "recorded" not in self._silent:
            self._silent.add("recorded")
            say("recheck", level=logging.WARNING, what="recorded", result="failed", why="the Manager does not say")

    async def _facts(self, held: Sequence[Held], *, notes: bool = True) -> Facts:
        keys = {(one.proof.user, one.proof.credential) for one in held if one.proof.registered}
        users, jobs = {one.proof.user for one in held}, {one.job for one in held if one.job is not None}
        badges = {one.proof.badge for one in held if one.proof.badge is not None}
        async with asyncio.TaskGroup() as group:
            standing = group.create_task(self._try("keys", self.people.standing(keys)))
            gone = group.create_task(self._try("users", self.people.gone(users)))
            live = group.create_task(self._try("jobs", self.places.live(jobs)))
            bearers = group.create_task(self._bearers({one.proof.token for one in held if one.proof.token}))
        if (told := standing.result()) is not None and notes:
            self._note(told)
        return Facts(
            blocked=self.blocked or frozenset(),
            gone_keys=told.gone_keys if told else frozenset(),
            gone_users=gone.result() or frozenset(),
            jobs=live.result(),
            bearers=bearers.result(),
            revoked=frozenset(filter(self.revocations.latest().names, badges)),
            now=time.time(),
        )

    async def _bearers(self, tokens: set[str]) -> dict[str, Bearer | None]:
        """Whom each token belongs to now; the first that cannot be told ends the asking."""
        waiting, found = iter(tokens), dict[str, Bearer | None]()

        async def ask() -> bool:
            for token in waiting:
                found[token] = await self.people.bearer(token)
            return True

        async with asyncio.TaskGroup() as group:
            for _ in range(min(AT_ONCE, len(tokens))):
                group.create_task(self._try("tokens", ask()))
        return found

    async def _try(self, what: str, question: Awaitable[Answer]) -> Answer | None:
        """An answer, or None; the log says once that there is none."""
        try:
            answer = await question
        except Unavailable as problem:
            if what not in self._silent:
                say("recheck", level=logging.WARNING, what=what, result="failed", why=problem)
            self._silent.add(what)
            return None
        self._silent.discard(what)
        return answer
