"""The person in the container: numbers and names of a unix account, and the files ``passwd`` and ``group``.

Numbers come from an authenticator (``read_unix_ids``), from the Manager's allocation, or from the spawner's own
configuration; names are the product's (``naming.unix_name``). Rules:

* A number is used as it was given or not at all. Any other value is ``InvalidIds``, never replaced by another
  source's: files that belong to a wrong number outlive the mistake.
* No user is root, ``nobody``, or -1, neither by uid nor by gid.
* A group has a name in the container, or ``id`` complains; a group without a known name is called after its number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dlspawner.core import naming

LARGEST = 2**31 - 1  # of what Kubernetes takes as runAsUser
NOBODY = frozenset({65534, 65535})
_TAKEN_GROUPS = frozenset({"root", "nogroup", "nobody", "tty"})
_NUMBER = re.compile(r"[0-9]{1,10}", re.ASCII)


@dataclass(frozen=True, slots=True)
class UnixGroup:
    """A unix group; ``name`` is its source's name until it is in a ``UnixAccount``."""

    name: str
    gid: int


@dataclass(frozen=True, slots=True)
class UnixIds:
    """The owner of files: uid, own group, and further groups."""

    uid: int
    gid: int
    groups: tuple[UnixGroup, ...] = ()

    def joining(self, teams: Iterable[UnixGroup]) -> UnixIds:
        """The same with groups that are not there yet, by number."""
        known = {group.gid for group in self.groups}
        new = {group.gid: group for group in teams if group.gid not in known}
        return UnixIds(self.uid, self.gid, (*self.groups, *new.values()))


@dataclass(frozen=True, slots=True)
class UnixAccount:
    """The person inside the container. A group with the number ``gid`` only tells how the own group is called."""

    name: str
    uid: int
    gid: int
    groups: tuple[UnixGroup, ...]
    home: str


@dataclass(frozen=True, slots=True)
class UidRange:
    """The uids, and gids of the same numbers, that are handed out to people one by one; both ends belong to it."""

    first: int = 20_000
    last: int = 59_999

    def __contains__(self, number: int) -> bool:
        return self.first <= number <= self.last


@dataclass(frozen=True, slots=True)
class AuthStateKeys:
    """The places of the numbers in an authenticator's ``auth_state``; dots lead into inner objects."""

    uid: str = "uid"
    gid: str = "gid"
    groups: str = "supplementary_groups"


@dataclass(frozen=True, slots=True)
class InvalidIds:
    """Why what an authenticator says cannot be an account; a phrase for the operator's log."""

    why: str


def read_unix_ids(state: Mapping[str, object], keys: AuthStateKeys, least_uid: int) -> UnixIds | InvalidIds | None:
    """The numbers in an ``auth_state``; ``None`` when it says nothing of them.

    A number may be an int, its digits, or a list of one of these, as LDAP answers. Without a gid it is the uid's.
    Groups are a list of numbers, or an object of names and numbers.
    """
    uid, gid, groups = (_at(state, path) for path in (keys.uid, keys.gid, keys.groups))
    if uid is None:
        said = [path for path, value in ((keys.gid, gid), (keys.groups, groups)) if value is not None]
        return InvalidIds(f"auth_state has {' and '.join(said)} but no {keys.uid}") if said else None
    number = _number(uid)
    if number is None or number < least_uid:
        return InvalidIds(f"auth_state's {keys.uid} is {_shown(uid)}, not a uid of {least_uid} or more")
    own = number if gid is None else _number(gid)
    if own is None:
        return InvalidIds(f"auth_state's {keys.gid} is {_shown(gid)}, not a gid")
    more = _groups(groups)
    if more is None:
        return InvalidIds(f"auth_state's {keys.groups} is {_shown(groups)}, not a list of gids or an object name: gid")
    return UnixIds(number, own, more)


def read_email(state: Mapping[str, object], key: str) -> str:
    """The e-mail address in an ``auth_state``, or the first of a list of them; empty without one."""
    found = _at(state, key)
    first = found[0] if isinstance(found, list | tuple) and found else found
    return first if isinstance(first, str) and "@" in first and len(first) <= 255 else ""


def _at(state: object, path: str) -> object:
    for key in path.split("."):
        state = state.get(key) if isinstance(state, Mapping) else None
    return state


def _number(value: object) -> int | None:
    """A number that a person or a group may have."""
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= LARGEST or value in NOBODY:
        return None
    return value


def _groups(value: object) -> tuple[UnixGroup, ...] | None:
    if value is None:
        return ()
    if isinstance(value, Mapping):
        pairs = [(str(name), _number(gid)) for name, gid in value.items()]
    elif isinstance(value, list | tuple):
        pairs = [("", _number(gid)) for gid in value]
    else:
        return None
    found = {gid: UnixGroup(name, gid) for name, gid in pairs if gid is not None}
    return tuple(found.values()) if all(gid is not None for _, gid in pairs) else None


def _shown(value: object) -> str:
    return repr(value)[:60]


def account(name: str, numbers: UnixIds, home: str) -> UnixAccount:
    """The account of this unix name; group names become safe in ``/etc/group`` and different from each other."""
    groups, taken = [], set(_TAKEN_GROUPS)
    if all(group.gid != numbers.gid for group in numbers.groups):
        taken.add(name)
    for group in numbers.groups:
        called = naming.unix_name(group.name) if group.name else f"g{group.gid}"
        if called in taken:
            called = f"{called[:20]}-{group.gid}"
        taken.add(called)
        groups.append(UnixGroup(called, group.gid))
    return UnixAccount(name, numbers.uid, numbers.gid, tuple(groups), home)


def passwd(who: UnixAccount, shell: str) -> str:
    """Returns the accounts in the container: root, the owner of the image's files; the user with their shell; nobody.

    A user with uid 0 (a special permission) logs in by their own name all the same; a sshd that root runs wants an
    account of its own for connections before their login.
    """
    lines = ["root:x:0:0:root:/root:/bin/sh"]
    lines.append(f"{who.name}:x:{who.uid}:{who.gid}:{who.name}:{who.home}:{shell}")
    if not who.uid:
        lines.append("sshd:x:65533:65534:sshd:/run/sshd:/usr/sbin/nologin")
    lines.append("nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin")
    return "\n".join(lines) + "\n"


def group(who: UnixAccount) -> str:
    """The groups in the container. Without a group tty sshd gives terminals to the person, which needs no privilege."""
    lines = ["root:x:0:"]
    if who.gid and all(one.gid != who.gid for one in who.groups):
        lines.append(f"{who.name}:x:{who.gid}:")
    lines += [f"{one.name}:x:{one.gid}:{who.name}" for one in who.groups]
    lines.append("nogroup:x:65534:")
    return "\n".join(lines) + "\n"


def write_groups(groups: Iterable[UnixGroup]) -> str:
    """Names and numbers of groups as the text of an annotation: a pod's own fields know only the numbers."""
    return json.dumps({group.name: group.gid for group in groups if group.name}, separators=(",", ":"))


def read_groups(text: str) -> tuple[UnixGroup, ...]:
    """Returns the groups that ``write_groups`` wrote; nothing for any other text."""
    try:
        found = json.loads(text)
    except ValueError:
        return ()
    return (_groups(found) or ()) if isinstance(found, dict) else ()
