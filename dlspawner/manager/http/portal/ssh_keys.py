"""The page of a user's SSH keys, and how templates are found.

Every form works without JavaScript: it posts, and is answered by a redirect to the page (or, when something is wrong,
by the page itself with the reason and what was typed, unless that was a private key). What the page then says of what
was done comes from a signed cookie that is read once: a link may contain any address, with any sentence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from jinja2 import BaseLoader, ChoiceLoader, Environment, FileSystemLoader, PrefixLoader
from jupyterhub._data import DATA_FILES_PATH
from jupyterhub.services.auth import HubOAuthCallbackHandler
from tornado.web import HTTPError

from dlspawner.clients.hub import HubIdentity, HubUnavailable
from dlspawner.core.text import escape_hidden
from dlspawner.core.units import shown
from dlspawner.manager.db.store import StoredKey, TooManyKeys
from dlspawner.manager.http.api.base import read_host_keys
from dlspawner.manager.http.auth import identify, may_manage_keys
from dlspawner.manager.http.handlers import HttpProblem, ManagerHandler, PageHandler, log
from dlspawner.manager.http.portal.base import notices_for
from dlspawner.manager.model import ssh_keys
from dlspawner.manager.model.ssh_keys import KeyRejected, PublicKey, describe_type

SAID = "dlspawner-keys-said"  # the cookie


class NonceLoader(BaseLoader):
    """Gives every script that is written in a template the page's nonce; what data smuggles in gets none."""

    def __init__(self, inner: BaseLoader) -> None:
        self._inner = inner

    def get_source(self, environment: Environment, template: str) -> tuple[str, str | None, Callable[[], bool] | None]:
        source, filename, uptodate = self._inner.get_source(environment, template)
        return re.sub(r"<script(?=[\s>])", '<script nonce="{{ csp_nonce }}"', source), filename, uptodate


def make_environment(paths: Sequence[str]) -> Environment:
    """Templates as JupyterHub finds them: ours first, then the Hub's; "templates/…" always names the Hub's own."""
    hub = str(Path(DATA_FILES_PATH) / "templates")
    loader = ChoiceLoader([PrefixLoader({"templates": FileSystemLoader([hub])}, "/"), FileSystemLoader([*paths, hub])])
    environment = Environment(loader=NonceLoader(loader), autoescape=True, finalize=_visible)
    environment.filters["ago"] = ago
    environment.filters["gpus"] = shown
    environment.filters["cpu"] = lambda milli: f"{milli / 1000:.1f}".removesuffix(".0")
    environment.filters["memory"] = lambda count: f"{count / 2**30:.1f}".removesuffix(".0") + " GiB"
    environment.filters["pair"] = lambda text: (text, text)
    environment.filters["key_type"] = lambda key: describe_type(key.partition(" ")[0])
    return environment


def _visible(value: object) -> object:
    """Nothing hides in what pages hold. What is markup already, as after ``|e`` in hidden fields, stays."""
    return escape_hidden(value) if type(value) is str else value


def ago(then: datetime, now: datetime) -> str:
    seconds = abs(int((now - then).total_seconds()))
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            many = seconds // size
            words = f"{many} {unit}{'s' if many > 1 else ''}"
            return f"{words} ago" if then < now else f"in {words}"
    return "just now"


class OAuthCallbackPage(HubOAuthCallbackHandler, PageHandler):
    """The page to which the Hub sends a browser back after login."""

    async def prepare(self) -> None:
        # Not PageHandler's: it would send an anonymous browser to log in. That the current user is known before the
        # Hub's handler asks for it keeps that handler from blocking the whole process on the Hub.
        ManagerHandler.prepare(self)
        self.current_user = None
        self.current_user = await identify(self.manager.auth, self)

    async def get(self) -> None:
        try:
            await HubOAuthCallbackHandler.get(self)
        except HTTPError as error:
            if error.status_code == 502:
                raise HubUnavailable("The Hub did not answer, so the login is not complete. Try again soon.") from error
            # A forged or used code ends here too, as JupyterHub's 500: the fault is the caller's.
            log.info("login not completed: %r", error.log_message)
            raise HttpProblem(
                403, f"The login did not complete. Open {self.manager.service.prefix}keys again."
            ) from error


class KeysPageBase(PageHandler):
    def person(self) -> HubIdentity:
        """Returns the logged-in user."""
        self.refuse(may_manage_keys(self.caller, f"{self.manager.service.prefix}keys", by_token=self.by_token))
        return self.caller

    async def add(self, person: HubIdentity, keys: Sequence[PublicKey]) -> None:
        """Add keys and go back to the page, which says what happened."""
        result = await self.manager.store.add_keys(person.name, keys, self.manager.now(), ssh_keys.MOST_KEYS)
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
        keys, said = await self.manager.store.keys(person.name), self.said()
        self.show(
            "keys.html",
            status,
            keys=keys,
            suggestions=await self.manager.store.suggestions(person.name),
            added=_among(keys, said.get("added", "")),
            known=_among(keys, said.get("known", "")),
            saved="saved" in said,
            removed="removed" in said,
            now=self.manager.now(),
            limit=ssh_keys.MOST_KEYS,
            min_rsa_bits=self.manager.min_rsa_bits,
            ssh_hosts=self.manager.ssh_target is not None,
            start_on_connect=await self.manager.store.starts_by_login(person.name),
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
        await self.manager.store.remove_key(self.person().name, int(id_))
        self.back(removed="1")  # also when it was gone already: that is what was wanted


class StartOnConnectButton(KeysPageBase):
    """Sets if a login starts the job that it is for."""

    async def get(self) -> None:
        self.back()

    async def post(self) -> None:
        wanted = self.get_body_argument("start", "") == "1"
        await self.manager.store.start_by_login(self.person().name, wanted)
        self.back(saved="1")


class ImportSuggestionButton(KeysPageBase):
    """The button beside a key that was found in the home directory."""

    async def get(self, id_: str) -> None:
        self.back()

    async def post(self, id_: str) -> None:
        person = self.person()
        offered = {suggestion.id: suggestion for suggestion in await self.manager.store.suggestions(person.name)}
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
