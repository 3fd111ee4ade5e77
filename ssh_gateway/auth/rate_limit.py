"""Rate limits of logins: failed logins cost seconds, which pass with time. Pure.

Rules:

* As with OpenSSH's PerSourcePenalties, a wrong token is charged after its failure. A login that cannot be judged costs
  nothing: users do not pay for a Hub or a Manager that does not answer. Nor does a connection without a login: behind
  the same address others have the right keys. Of those there is a rate, and a number.
* An address (of IPv6 its /64) owes seconds; some are free, logins wait for the rest. The debt is at most ten minutes,
  and a refused connection costs nothing: a client that waits as long as the refusal says is admitted.
* A name owes as well, existing or not. That delays only tokens for this name, never keys, and no token from an address
  from which the user logged in lately: guessing at a name does not lock its owner out. A token that is not judged costs
  the name nothing: however many clients guess, the wait is short, and a token is judged each time it ends.
* Addresses shared by many users (balancers, a NAT) owe nothing, and their connections have no rate limit. No user
  counts as known at one, because an attacker may use the same address: tokens from there always wait for the debt of
  their name.
* Streams of ``ssh -J`` have the rate of connections for each user: a loop of them costs no key exchange.
* Memory is bounded: of too many entries, the ones longest without news are forgotten.
"""

from __future__ import annotations

import ipaddress
import math
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Protocol

from ssh_gateway.core.addresses import Network, read_address


@dataclass(slots=True)
class AuthAttempts:
    """The attempts of one connection. A query for an acceptable key is no failure, but the number of queries is
    limited.

    Guesses are counted when they begin: a client may drop one before its answer, and begin the next.
    """

    limit: int
    failed: int = 0
    guesses: int = 0
    questions: int = 0

    def may_guess(self) -> bool:
        """Counts a guess at a secret; False above the limit."""
        self.guesses += 1
        return self.guesses <= self.limit

    def may_ask(self) -> bool:
        """Counts a query; False above the limit."""
        self.questions += 1
        return self.questions <= 4 * self.limit

    def exhausted(self) -> bool:
        """Counts a failure; True if it was the last permitted one."""
        self.failed += 1
        return self.failed >= self.limit


class UnauthenticatedConnection(Protocol):
    @property
    def begun(self) -> bool:
        """True once a login was attempted."""

    def make_room(self) -> None:
        """Ends the connection for a newer one, because too many have not logged in."""


@dataclass(slots=True)
class UnauthenticatedLimit:
    """Limits unauthenticated connections: in total and from one source ("" is a shared address).

    None is refused: above a limit an older one makes room. So connections without a login hold up no login.
    """

    limit: int
    limit_per_source: int
    waiting: dict[UnauthenticatedConnection, str] = field(default_factory=dict)

    def enter(self, one: UnauthenticatedConnection, source: str) -> UnauthenticatedConnection | None:
        """Counts a connection in, which may `leave`; returns the one to end for it, which is counted out.

        That is the oldest, one without a login attempt first, from the same source or else from the one with most.
        """
        crowds = Counter(self.waiting.values())
        leaves = crowded = None
        if source and crowds[source] >= self.limit_per_source:
            crowded = source
        elif len(self.waiting) >= self.limit:
            crowded = crowds.most_common(1)[0][0]
        if crowded is not None:
            there = [other for other, place in self.waiting.items() if place == crowded]
            leaves = next((other for other in there if not other.begun), there[0])
            del self.waiting[leaves]
        self.waiting[one] = source
        return leaves

    def leave(self, one: UnauthenticatedConnection) -> None:
        """Removes a connection that has authenticated, or has closed."""
        self.waiting.pop(one, None)


@dataclass(slots=True)
class SessionLimit:
    limit: int
    inside: Counter[str] = field(default_factory=Counter)

    def enter(self, user: str) -> str | None:
        """Counts a connection in, which must `leave` once; or returns the sentence that refuses it."""
        if self.inside[user] >= self.limit:
            return f"you have {self.limit} connections already: close some of them"
        self.inside[user] += 1
        return None

    def leave(self, user: str) -> None:
        self.inside[user] -= 1
        if not self.inside[user]:
            del self.inside[user]


ENTRIES = 20_000
# In penalties of `PenaltyRules.penalty_seconds` each.
FREE = 12
FREE_OF_A_NAME = 24
MOST = 120
BURST_SECONDS = 20.0  # worth of connections at the permitted rate may come at once
KNOWN_SECONDS = 7 * 86400.0


@dataclass(frozen=True, slots=True)
class PenaltyRules:
    """The costs of failures; 0 switches a cost off."""

    penalty_seconds: float = 5.0
    connections_per_second: float = 10.0
    shared: tuple[Network, ...] = ()


@dataclass(slots=True)
class DebtTable:
    """Seconds owed under each name, at most ``most``."""

    most: float
    entries: int = ENTRIES
    _paid_at: OrderedDict[str, float] = field(default_factory=OrderedDict)

    def add(self, name: str, seconds: float, now: float) -> None:
        at = min(max(self._paid_at.get(name, now), now) + seconds, now + self.most)
        self._paid_at[name] = at
        self._paid_at.move_to_end(name)
        if at <= now:
            del self._paid_at[name]
        elif len(self._paid_at) > self.entries:
            self._paid_at.popitem(last=False)

    def owed(self, name: str, now: float) -> float:
        """Returns the seconds until the debt is paid."""
        return max(0.0, self._paid_at.get(name, now) - now)

    def count(self, now: float) -> int:
        return sum(at > now for at in self._paid_at.values())

    def __len__(self) -> int:
        return len(self._paid_at)


class Penalties:
    """The debts of all addresses, as the socket reports them, and names; ``now`` comes from a monotonic clock."""

    def __init__(self, rules: PenaltyRules) -> None:
        self._rules = rules
        self._unit = rules.penalty_seconds
        self._sources = DebtTable(MOST * self._unit)
        self._names = DebtTable(MOST * self._unit)
        self._arrivals = DebtTable(math.inf)
        self._known = DebtTable(KNOWN_SECONDS)
        self._said = DebtTable(60.0)

    def source_of(self, address: str) -> str:
        """Returns the source that owes for this address; "" for a shared address."""
        found = read_address(address)
        if found is None:
            return address
        if any(found in network for network in self._rules.shared):
            return ""
        return str(found) if found.version == 4 else str(ipaddress.ip_network((found, 64), strict=False))

    def arrives(self, address: str, now: float) -> str | None:
        """Counts a new connection; or returns the sentence that refuses it, uncounted."""
        return self.refusal(address, now) or self._too_often(
            self.source_of(address), "too many connections from your address", now
        )

    def opens(self, address: str, name: str, now: float) -> str | None:
        """Counts a stream of ``ssh -J`` at the rate of its user; or returns the sentence that refuses it."""
        return self.refusal(address, now) or self._too_often(f"streams of {name}", "too many streams", now)

    def _too_often(self, who: str, what: str, now: float) -> str | None:
        rate = self._rules.connections_per_second
        if not who or not rate:
            return None
        if (owed := self._arrivals.owed(who, now)) > BURST_SECONDS:
            return f"{what}: try again in {_seconds(owed - BURST_SECONDS)}"
        self._arrivals.add(who, 1 / rate, now)
        return None

    def refusal(self, address: str, now: float) -> str | None:
        """Returns why no login may continue at this address now, or None."""
        wait = self._above(self.source_of(address), now)
        if wait <= 0:
            return None
        return f"too many failed logins from your address: try again in {_seconds(wait)}"

    def _above(self, place: str, now: float) -> float:
        """Returns the seconds owed above the free ones; a shared address owes nothing."""
        return self._sources.owed(place, now) - FREE * self._unit if place else 0.0

    def _above_of_name(self, place: str, name: str, now: float) -> float:
        """The same of a name, for tokens from this source: nothing at a source from which the user logged in lately."""
        if place and self._known.owed(_pair(place, name), now):
            return 0.0
        return self._names.owed(name, now) - FREE_OF_A_NAME * self._unit

    def token_refusal(self, address: str, name: str, now: float) -> str | None:
        """Returns why tokens for this name are not judged now, or None."""
        wait = self._above_of_name(self.source_of(address), name, now)
        if wait <= 0:
            return None
        return f"too many wrong tokens for this name: use a registered key, or try again in {_seconds(wait)}"

    def token_failed(self, address: str, name: str, now: float, *, judged: bool) -> None:
        """Charges a failed token to its address, and to its name if the token was ``judged``."""
        if place := self.source_of(address):
            self._sources.add(place, self._unit, now)
        if judged:
            self._names.add(name, self._unit, now)

    def proven(self, address: str, name: str, now: float) -> None:
        """Notes a user's login from an address; not for shared ones, where the next client may be another."""
        if place := self.source_of(address):
            self._known.add(_pair(place, name), KNOWN_SECONDS, now)

    def worth_a_line(self, address: str, now: float) -> bool:
        """True if a refusal is to be logged: once a minute for each source, so that a flood does not fill the log."""
        place = self.source_of(address) or "shared"
        if self._said.owed(place, now):
            return False
        self._said.add(place, 60.0, now)
        return True

    def penalised(self, now: float) -> tuple[int, int]:
        """Returns the number of penalised addresses and of penalised names."""
        return self._sources.count(now), self._names.count(now)


def _pair(place: str, name: str) -> str:
    return f"{place} {name}"


def _seconds(wait: float) -> str:
    whole = max(1, math.ceil(wait))
    return f"{whole} second" if whole == 1 else f"{whole} seconds"
