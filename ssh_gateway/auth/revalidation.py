"""Revalidation of open sessions: all of them are checked again every `seconds`.

A round asks the Manager once for a thousand keys (and for the blocked users), the Hub once for a page of its users, the
cluster once for fifty jobs, and the Hub about each token of an open session; certificates are compared with the clock
and the revocations. Each of these parts runs and judges by itself: a slow Hub delays no other part. A part may fail by
itself, and then ends no session; the blocked users stay known. Until they are known for the first time, no login
succeeds.

The judgements are pure, over data looked up for all sessions at once. Data that could not be looked up ends no session.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from ssh_gateway.auth.trust import RevocationList
from ssh_gateway.backends.cluster import ClusterJobDirectory
from ssh_gateway.backends.directory import BackendUnavailable, HubAndManager
from ssh_gateway.core.proof import CertificateId, OpenSession, TokenOwner
from ssh_gateway.log import say
from ssh_gateway.transport.connection import FAREWELL_SECONDS

AT_ONCE = 8
LEARN_SECONDS = 5.0
ENDS = frozenset({"stopping", "ended"})  # states of a job in the Manager's words

Answer = TypeVar("Answer")
Part = Callable[[], Coroutine[Any, Any, None]]
Check = Callable[[Sequence[OpenSession]], Coroutine[Any, Any, "Checks"]]


class RevalidatedSession(Protocol):
    """A session that is subject to revalidation."""

    def open_session(self) -> OpenSession:
        """Returns the data to check."""

    @property
    def lost(self) -> bool:
        """True if the client's network has vanished."""

    def end(self, why: str) -> None:
        """Ends the session with a sentence for its user."""


Inside = tuple[RevalidatedSession, OpenSession]


@dataclass(slots=True)
class Revalidator:
    """Checks sessions: `run` is the one task; ``blocked`` are the blocked users of the latest round."""

    auth_backend: HubAndManager
    job_directory: ClusterJobDirectory
    seconds: float
    blocked: frozenset[str] | None = None  # None: not known yet
    revocations: RevocationList = field(default_factory=RevocationList)
    sessions: Callable[[], Iterable[RevalidatedSession]] = tuple
    _silent: set[str] = field(default_factory=set)

    async def run(self) -> None:
        """Runs all parts, each round after round."""
        async with asyncio.TaskGroup() as group:
            for part in self._parts():
                group.create_task(self._go_round(part))

    async def _go_round(self, part: Part) -> None:
        while True:
            await part()
            await asyncio.sleep(self.seconds)

    async def round(self) -> None:
        """Checks all sessions once, and ends those without access."""
        async with asyncio.TaskGroup() as group:
            for part in self._parts():
                group.create_task(part())

    def _parts(self) -> tuple[Part, ...]:
        checks = (self._certificates, self._keys, self._users, self._jobs)
        return self._networks, self._tokens, *(partial(self._check, one) for one in checks)

    async def _check(self, check: Check) -> None:
        inside = self._inside()
        await self._judge(inside, await check([held for _, held in inside]))

    def _inside(self) -> list[Inside]:
        return [(session, session.open_session()) for session in self.sessions()]

    @staticmethod
    async def _judge(inside: Iterable[Inside], facts: Checks) -> None:
        """Ends the checked sessions that have lost access by these facts."""
        ends = [
            (session, held.job, why) for session, held in inside if (why := evaluate_access(held, facts)) is not None
        ]
        for session, job, why in ends:
            if job is not None:
                session.end(why)
        if outer := [(session, why) for session, job, why in ends if job is None]:
            # `ssh -J` may go through these: the reason written inside is to be read first.
            await asyncio.sleep(FAREWELL_SECONDS)
            for session, why in outer:
                session.end(why)

    async def revalidate(self, held: OpenSession) -> str | None:
        """Returns the reason to end a connection; for logins that have waited, which are in no round yet."""
        alone = [held]
        checks = (self._certificates(alone), self._keys(alone), self._users(alone))
        async with asyncio.TaskGroup() as group:
            found = [group.create_task(check) for check in (*checks, self._try("tokens", self._token(alone)))]
        facts = [check.result() or Checks() for check in found]
        return next(filter(None, (evaluate_access(held, one) for one in facts)), None)

    async def stop_reason(self, held: OpenSession) -> str | None:
        """Returns why the session's job has ended or is being stopped; None if it runs, or if that is not known."""
        return _of_job(held, await self._jobs([held]))

    async def _jobs(self, inside: Sequence[OpenSession]) -> Checks:
        """Returns which jobs run, and why the others do not, as far as that is known after `LEARN_SECONDS`."""
        entered = {held.job: held for held in inside if held.job is not None}
        live: frozenset[str] | None = None
        reasons: dict[str, str] = {}

        async def ask() -> None:
            for job, held in waiting:
                told = await self.auth_backend.start_status(held.proof.user, held.server or "", job)
                if told.job == job and told.state in ENDS and told.sentence:
                    reasons[job] = told.sentence

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEARN_SECONDS):
                live = await self._try("jobs", self.job_directory.running(entered.keys()))
                waiting = ((job, held) for job, held in entered.items() if live is not None and job not in live)
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(AT_ONCE, len(entered))):
                        group.create_task(self._try("reasons", ask()))
        return Checks(jobs=live, reasons=reasons)

    async def fetch_blocked(self) -> None:
        """Reads the blocked users, unless a round has; gives up after `LEARN_SECONDS`."""
        if self.blocked is not None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEARN_SECONDS):
                found = await self._try("keys", self.auth_backend.access_state(()))
                if found is not None and self.blocked is None:  # a concurrent round's result is newer
                    self.blocked = found.blocked

    async def _networks(self) -> None:
        for session in self.sessions():
            if session.lost:
                session.end(LOST)

    async def _certificates(self, inside: Sequence[OpenSession]) -> Checks:
        badges = {held.proof.certificate for held in inside if held.proof.certificate is not None}
        revoked = frozenset(filter(self.revocations.latest().names, badges)) if badges else frozenset[CertificateId]()
        return Checks(revoked=revoked, now=time.time())

    async def _keys(self, inside: Sequence[OpenSession]) -> Checks:
        keys = {(held.proof.user, held.proof.credential) for held in inside if held.proof.registered}
        told = await self._try("keys", self.auth_backend.access_state(keys))
        if told is not None:
            self.blocked = told.blocked
        gone = told.gone_keys if told else frozenset[tuple[str, str]]()
        return Checks(blocked=self.blocked or frozenset(), gone_keys=gone)

    async def _users(self, inside: Sequence[OpenSession]) -> Checks:
        gone = await self._try("users", self.auth_backend.deleted_users({held.proof.user for held in inside}))
        return Checks(gone_users=gone or frozenset())

    async def _token(self, inside: Sequence[OpenSession]) -> Checks:
        """Checks the one token of all these sessions."""
        token = inside[0].proof.token
        if not token:
            return Checks()
        return Checks(bearers={token: await self.auth_backend.token_owner(token)})

    async def _tokens(self) -> None:
        """Checks the present owner of each token, one by one; the first without an answer ends the round."""
        of_token = dict[str, list[Inside]]()
        for session, held in self._inside():
            if held.proof.token:
                of_token.setdefault(held.proof.token, []).append((session, held))
        waiting = iter(of_token.values())

        async def ask() -> None:
            for inside in waiting:
                facts = await self._token([held for _, held in inside])
                group.create_task(self._judge(inside, facts))

        async with asyncio.TaskGroup() as group:
            for _ in range(min(AT_ONCE, len(of_token))):
                group.create_task(self._try("tokens", ask()))

    async def _try(self, what: str, question: Awaitable[Answer]) -> Answer | None:
        """Returns an answer, or None; the first failure is logged."""
        try:
            answer = await question
        except BackendUnavailable as problem:
            if what not in self._silent:
                say("revalidation", level=logging.WARNING, what=what, result="failed", why=problem)
            self._silent.add(what)
            return None
        self._silent.discard(what)
        return answer


LOST = "your computer does not answer any more"
BLOCKED = "your account may not use this gateway: ask an administrator"
UNTOLD = "it cannot be checked now whether your account may use this gateway: try again later"


@dataclass(frozen=True, slots=True)
class Checks:
    """The facts of a round; None if unknown; ``bearers`` holds only tokens with an answer."""

    blocked: frozenset[str] = frozenset()
    gone_keys: frozenset[tuple[str, str]] = frozenset()
    gone_users: frozenset[str] = frozenset()
    jobs: frozenset[str] | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)  # of jobs that do not run, in the Manager's words
    bearers: Mapping[str, TokenOwner | None] = field(default_factory=dict)
    revoked: frozenset[CertificateId] = frozenset()
    now: float = 0.0  # seconds since 1970


def evaluate_access(held: OpenSession, facts: Checks) -> str | None:
    """Returns the reason why this connection ends now, as a sentence for the user; None if it may continue."""
    user = held.proof.user
    if user in facts.blocked:
        return BLOCKED
    if user in facts.gone_users:
        return "your account was removed"
    return _of_credential(held, facts) or _of_job(held, facts)


def _of_credential(held: OpenSession, facts: Checks) -> str | None:
    proof = held.proof
    if (proof.user, proof.credential) in facts.gone_keys:
        return "the key that you came in with was removed from your keys"
    if proof.certificate is not None:
        return _of_certificate(proof.certificate, facts)
    return _of_token(held, facts) if proof.token in facts.bearers else None


def _of_certificate(certificate: CertificateId, facts: Checks) -> str | None:
    if facts.now >= certificate.until:
        return "the certificate that you came in with has expired: get a new one"
    return "the certificate that you came in with was revoked" if certificate in facts.revoked else None


def _of_token(held: OpenSession, facts: Checks) -> str | None:
    proof = held.proof
    bearer = facts.bearers[proof.token]
    if bearer is None or bearer.user != proof.user:
        return "the token that you came in with was revoked, or has expired"
    if held.server is not None and not bearer.opens(held.server):
        return f"the token that you came in with may not open {_name(held)} any more"
    return None


def _of_job(held: OpenSession, facts: Checks) -> str | None:
    if held.job is None or facts.jobs is None or held.job in facts.jobs:
        return None
    why = facts.reasons.get(held.job)
    return f"{_name(held)}: {why}" if why else f"{_name(held)} was stopped"


def _name(held: OpenSession) -> str:
    return held.server or "your default server"
