"""The page of a user's SSH keys.

Every form works without JavaScript: it posts, and is answered by a redirect to the page (or, when something is wrong,
by the page itself with the reason and what was typed, unless that was a private key). What the page then says of what
was done comes from a signed cookie that is read once: a link may contain any address, with any sentence.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from dlspawner.clients.hub import HubIdentity
from dlspawner.manager.db.store import StoredKey, TooManyKeys
from dlspawner.manager.http.api.base import read_host_keys
from dlspawner.manager.http.auth import may_manage_keys
from dlspawner.manager.http.handlers import PageHandler
from dlspawner.manager.http.portal.base import notices_for
from dlspawner.manager.model import ssh_keys
from dlspawner.manager.model.ssh_keys import KeyRejected, PublicKey

SAID = "dlspawner-keys-said"  # the cookie


class KeysPageBase(PageHandler):
    def person(self) -> HubIdentity:
        """Returns the logged-in user."""
        self.refuse(may_manage_keys(self.caller, f"{self.manager.service.prefix}keys", by_token=self.by_token))
        return self.caller

    async def add(self, person: HubIdentity, keys: Sequence[PublicKey]) -> None:
        """Add keys and go back to the page, which says what happened."""
        result = await self.manager.database.add_keys(person.name, keys, self.manager.now(), ssh_keys.MOST_KEYS)
        if isinstance(result, TooManyKeys):
            await self.show_keys(person, 409, problems=(result.sentence,))
            return
        self.back(added=_ids(result.new), known=_ids(result.known))

    def back(self, **said: str) -> None:
        """Redirect to the page, which says this once."""
        page = f"{self.manager.service.prefix}keys"
        if said:
            told, secure = json.dumps(said), self.request.protocol == "https"
            self.set_signed_cookie(SAID, told, None, path=page, httponly=True, samesite="Strict", secure=secure)
        self.redirect(page, status=303)

    def said(self) -> dict[str, str]:
        """Returns the sentence about the user's latest action, shown once."""
        if self.get_cookie(SAID) is None:
            return {}
        self.clear_cookie(SAID, path=f"{self.manager.service.prefix}keys")
        told: dict[str, str] = json.loads(self.get_signed_cookie(SAID) or "{}")
        return told

    async def show_keys(self, person: HubIdentity, status: int = 200, **values: object) -> None:
        """The page, with what was done just now, or what is wrong, in `values`."""
        keys, said = await self.manager.database.keys(person.name), self.said()
        self.show(
            "keys.html",
            status,
            keys=keys,
            suggestions=await self.manager.database.suggestions(person.name),
            added=_among(keys, said.get("added", "")),
            known=_among(keys, said.get("known", "")),
            saved="saved" in said,
            removed="removed" in said,
            now=self.manager.now(),
            limit=ssh_keys.MOST_KEYS,
            min_rsa_bits=self.manager.min_rsa_bits,
            ssh_hosts=self.manager.ssh_target is not None,
            start_on_connect=await self.manager.database.starts_by_login(person.name),
            ssh_pinned=bool(read_host_keys(self.manager.ssh_host_key_file)),
            told=notices_for(self),
            **values,
        )


class KeysPage(KeysPageBase):
    async def get(self) -> None:
        await self.show_keys(self.person())

    async def post(self) -> None:
        person = self.person()
        text = self.get_body_argument("key", "")
        name = ssh_keys.clean_name(self.get_body_argument("name", ""))
        parsed = ssh_keys.parse_keys(text, self.manager.min_rsa_bits)
        if isinstance(parsed, KeyRejected):
            kept = "" if parsed.private else text[: ssh_keys.MAX_INPUT]
            await self.show_keys(person, 422, problems=parsed.sentences, pasted=kept, typed_name=name)
            return
        await self.add(person, ssh_keys.with_names(parsed, name))


class RemoveKeyButton(KeysPageBase):
    async def get(self, id_: str) -> None:
        self.back()

    async def post(self, id_: str) -> None:
        await self.manager.database.remove_key(self.person().name, int(id_))
        self.back(removed="1")  # also when it was gone already: that is what was wanted


class StartOnConnectButton(KeysPageBase):
    """Sets if a login starts the job that it is for."""

    async def get(self) -> None:
        self.back()

    async def post(self) -> None:
        wanted = self.get_body_argument("start", "") == "1"
        await self.manager.database.start_by_login(self.person().name, wanted)
        self.back(saved="1")


class ImportSuggestionButton(KeysPageBase):
    """The button beside a key that was found in the home directory."""

    async def get(self, id_: str) -> None:
        self.back()

    async def post(self, id_: str) -> None:
        person = self.person()
        offered = {suggestion.id: suggestion for suggestion in await self.manager.database.suggestions(person.name)}
        chosen = offered.get(int(id_))
        if chosen is None:
            self.back()  # imported already, or a newer job found other keys
            return
        await self.add(person, [PublicKey(chosen.key, chosen.name or chosen.source)])


def _ids(keys: Sequence[StoredKey]) -> str:
    return ",".join(str(key.id) for key in keys)


def _among(keys: Sequence[StoredKey], ids: str) -> list[StoredKey]:
    wanted = set(ids.split(","))
    return [key for key in keys if str(key.id) in wanted]
