"""REST resources, under /services/jobs/api/.

    GET, POST   keys                     a person's own keys
    DELETE      keys/{id}
    PUT         key-suggestions          keys found in the home directory; a job's own token is enough
    GET         users/{name}/keys        for the gateway, by the scope custom:ssh-keys:read
    POST        users/{name}/keys/{id}/used
    PUT         users/{name}/account     for the Hub: the person's uid and gid, the same for ever

Bodies are checked field by field; an unknown field is refused, so that a typing error is not silently ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dlspawner.core.accounts import LARGEST, UidRange
from dlspawner.core.json_values import time
from dlspawner.hubapi import HubIdentity, own_server
from dlspawner.manager import ssh_keys
from dlspawner.manager.identity import may_manage_keys, may_read_keys, may_suggest_keys
from dlspawner.manager.ssh_keys import MAX_INPUT, KeyRejected, PublicKey
from dlspawner.manager.store import AllocatedUid, FoundKey, StoredKey, TooManyKeys
from dlspawner.manager.web import ApiHandler, HttpProblem, HubOnlyHandler, ManagerHandler, log

MAX_SUGGESTIONS = 20
MAX_SOURCE = 200
_KINDS: Mapping[type, str] = {
    str: "text",
    list: "a list",
    int: "a whole number",
    bool: "true or false",
    dict: "an object",
}


class HealthHandler(ManagerHandler):
    """Whether this process answers. Asks neither the Hub nor the database: a restart would cure neither."""

    async def get(self) -> None:
        self.set_header("Content-Type", "application/json")
        self.finish('{"status": "ok"}')


class ReadyHandler(ManagerHandler):
    """Whether requests should be sent here: to the one of several Managers that acts, while the others stand by."""

    async def get(self) -> None:
        acting = self.manager.leader
        if acting is not None and not acting.is_leader:
            raise HttpProblem(503, "This Manager stands by: another one acts.")
        self.set_header("Content-Type", "application/json")
        self.finish('{"status": "ok"}')


class UserApiHandler(ApiHandler):
    """A resource of whoever asks."""

    def current_user_name(self) -> HubIdentity:
        """Who asks, when they may manage their keys."""
        identity = self.check_parameters()
        self.refuse(may_manage_keys(identity, f"{self.manager.service.prefix}keys", by_token=self.by_token))
        return identity


class OwnKeysHandler(UserApiHandler):
    """Their keys."""

    async def get(self) -> None:
        keys = await self.manager.store.keys(self.current_user_name().name)
        self.reply({"keys": [_own(key) for key in keys]})

    async def post(self) -> None:
        person = self.current_user_name()
        body = fields(self.read_object(), {"key": str, "name": str}, {"key"})
        parsed = ssh_keys.parse_keys(body["key"])
        if isinstance(parsed, KeyRejected):
            raise HttpProblem(422, " ".join(parsed.sentences))
        name = ssh_keys.clean_name(body.get("name", ""))
        if name and len(parsed) > 1:
            raise HttpProblem(422, "A name fits one key; these are several, which are named by their comments.")
        limit = self.manager.keys_per_user
        result = await self.manager.store.add_keys(
            person.name, ssh_keys.with_names(parsed, name), self.manager.now(), limit
        )
        if isinstance(result, TooManyKeys):
            raise HttpProblem(409, f"You have {result.present} of at most {result.limit} keys. Remove one first.")
        content = {"keys": [_own(key) for key in result.new], "known": [_own(key) for key in result.known]}
        self.reply(content, 201 if result.new else 200)


class OwnKeyHandler(UserApiHandler):
    """One of their keys."""

    async def delete(self, id_: str) -> None:
        if await self.manager.store.remove_key(self.current_user_name().name, int(id_)) is None:
            raise HttpProblem(404, "You have no such key.")
        self.set_status(204)


class KeySuggestionsHandler(ApiHandler):
    """What a job found; files that hold no acceptable key are passed over, for any file may be called id.pub."""

    async def put(self) -> None:
        identity = self.check_parameters()
        self.refuse(may_suggest_keys(identity))
        found = [_found(item) for item in _items(self.read_object())]
        server = own_server(identity) or ""
        valid = [one for one in found if one is not None]
        await self.manager.store.suggest(identity.name, server, valid, self.manager.now())
        self.set_status(204)


class UserKeysHandler(ApiHandler):
    """A user's keys for the gateway. A name that nobody has is answered like one without keys, by the same work."""

    async def get(self, user: str) -> None:
        self.refuse(may_read_keys(self.check_parameters(), user))
        keys = await self.manager.store.keys(as_name(user))
        self.reply({"keys": [_public(key) for key in keys]})


class KeyUsedHandler(ApiHandler):
    """The gateway saw a login with this key."""

    async def post(self, user: str, id_: str) -> None:
        self.refuse(may_read_keys(self.check_parameters(), user))
        if not await self.manager.store.key_used(as_name(user), int(id_), self.manager.now()):
            raise HttpProblem(404, "The user has no such key.")
        self.set_status(204)


UIDS = {"first_uid": int, "last_uid": int}


class UnixAccountHandler(HubOnlyHandler):
    """The uid of somebody whose authenticator tells none; the Hub says, from cluster.yaml, which uids may be given."""

    async def put(self, user: str) -> None:
        account = await allocate_account(self, user, fields(self.read_object(), UIDS, set(UIDS)))
        self.reply({"uid": account.uid, "gid": account.uid}, 201 if account.new else 200)


async def allocate_account(handler: HubOnlyHandler, user: str, body: Mapping[str, Any]) -> AllocatedUid:
    """The account that this user has for ever; 409 when every uid is taken."""
    name, uids = as_name(user), UidRange(body["first_uid"], body["last_uid"])
    if not name or not 0 < uids.first <= uids.last <= LARGEST:
        raise HttpProblem(422, "A name, and first_uid to last_uid between 1 and 2147483647, are needed.")
    account = await handler.manager.store.account(name, uids, handler.manager.now())
    if account is None:
        log.error("account user=%s uid=none: %d to %d are all taken", name, uids.first, uids.last)
        raise HttpProblem(409, f"Every uid from {uids.first} to {uids.last} is taken.")
    if account.new:
        log.info("account user=%s uid=%d", name, account.uid)
    return account


def _public(key: StoredKey) -> dict[str, object]:
    return {"id": key.id, "key": key.key, "fingerprint": key.fingerprint, "name": key.name}


def _own(key: StoredKey) -> dict[str, object]:
    return {**_public(key), "added": time(key.added), "last_used": time(key.last_used)}


def as_name(text: str) -> str:
    """A name that a database can be asked for, and an address hold; what none can hold is nobody's name."""
    half = any("\ud800" <= char <= "\udfff" for char in text)  # of a letter: JSON can carry it, UTF-8 can not
    return "" if half or "\0" in text or len(text) > 255 else text


def fields(body: dict[str, Any], types: Mapping[str, type], needed: set[str]) -> dict[str, Any]:
    """`body` with no other fields than these, of these types."""
    for name, value in body.items():
        if name not in types:
            raise HttpProblem(422, f"There is no field {name[:100]!r}; known are {', '.join(sorted(types))}.")
        if not isinstance(value, types[name]) or isinstance(value, bool) != (types[name] is bool):
            raise HttpProblem(422, f"The field {name!r} must be {_KINDS[types[name]]}.")
    missing = needed - set(body)
    if missing:
        raise HttpProblem(422, f"The field {min(missing)!r} is missing.")
    return body


def _items(body: dict[str, Any]) -> list[Any]:
    items: list[Any] = fields(body, {"keys": list}, {"keys"})["keys"]
    if len(items) > MAX_SUGGESTIONS:
        raise HttpProblem(422, f"At most {MAX_SUGGESTIONS} keys can be suggested.")
    return items


def _found(item: Any) -> FoundKey | None:
    """One suggestion, or None for what is not a key."""
    if not isinstance(item, dict):
        raise HttpProblem(422, "Every suggestion must be an object with key and source.")
    read = fields(item, {"key": str, "source": str}, {"key"})
    if len(read["key"]) > MAX_INPUT or ssh_keys.is_private(read["key"]):
        return None
    parsed = ssh_keys.parse_keys(read["key"])
    if isinstance(parsed, KeyRejected):
        return None
    first: PublicKey = parsed[0]
    return FoundKey(first, ssh_keys.clean_name(read.get("source", ""), MAX_SOURCE))
