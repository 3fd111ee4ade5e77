"""The caller of a request and its rights: the Manager's only use of the Hub's OAuth, and its rules of access.

A request identifies its caller by a Hub token in its Authorization header or, from a browser, by the cookie of this
service's own OAuth login. With the cookie, everything but reading a page also needs the page's `_xsrf` value, and that
the browser does not say that another site's page has sent it: without these the request is anonymous. Tokens in URLs
are not taken, because URLs end up in logs and histories. Answers of the Hub are kept for half a minute, which is how
long a revoked token lives on here; with what goes on for long, twice that. What the Hub has said of a
*service's* token holds for ten minutes more while the Hub does not answer within two seconds, so that no SSH key
waits for a restart of the Hub. Such a token changes with the Hub's configuration, by a start; if that Hub answers
later than that, or not the Manager, what was taken back lives on for so long.

The Hub itself shows the token of ``core.link``; only its spawners can ask for users' accounts.

The rules are the pure functions `may_…`: each returns None or the sentence that refuses.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from jupyterhub.services.auth import HubOAuth
from tornado.web import HTTPError, RequestHandler
from traitlets import default
from traitlets.config import Configurable

from dlspawner.clients.hub import (
    HubIdentity,
    HubUnavailable,
    IdentityKind,
    fits_header,
    has_scope,
    own_server,
    read_identity,
)
from dlspawner.core.link import derive_hub_token
from dlspawner.manager.model.notice import Recipient

OPEN_SERVERS = "access:servers"
READ_KEYS = "custom:ssh-keys:read"
SEE_ALL = "read:servers"
READ_NOTICES = "custom:notices:read"
DEADLINE_SECONDS = 10.0
# For a Hub that has identified a service before; the gateway waits DEADLINE_SECONDS for the whole of an answer.
DEADLINE_FOR_SERVICES_SECONDS = 2.0
REMEMBERED_SECONDS = 600.0

NOT_A_PERSON = "SSH keys belong to people; this token belongs to the service {name!r}."
FROM_A_SERVER = (
    "This is the own token of the server {server!r}. It may suggest keys; to add or remove them, use the page "
    "{page} or a token of your own from the Hub's token page."
)
NO_NOTICES = f"Notices are for people and their jobs; to read everybody's, a service needs the scope {READ_NOTICES}."
NOT_THE_GATEWAY = f"Reading other people's keys needs the scope {READ_KEYS}, which only the SSH gateway should hold."


class ServiceEnvironmentMissing(Exception):
    """The environment that JupyterHub describes for services is incomplete."""


@dataclass(frozen=True, slots=True)
class HubServiceInfo:
    """The address and name of this service: JupyterHub's own environment variables for services."""

    name: str
    prefix: str  # begins and ends with /
    url: str  # what the Hub's proxy connects to
    api_url: str
    api_token: str = field(repr=False)
    base_url: str  # of the Hub's public address
    hub_host: str  # only with a domain per user
    client_id: str  # for OAuth

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 80

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or "127.0.0.1"

    def cookie_secret(self) -> bytes:
        """Signs login cookies. Made from the token, so that logins survive a restart and a stand-by takes over."""
        return hmac.digest(self.api_token.encode(), b"dlspawner manager: cookies", hashlib.sha256)


def read_service(environ: Mapping[str, str]) -> HubServiceInfo:
    """Returns the service that the environment describes; ServiceEnvironmentMissing names all that is missing."""
    needed = ["JUPYTERHUB_SERVICE_URL", "JUPYTERHUB_API_URL", "JUPYTERHUB_API_TOKEN"]
    missing = [name for name in needed if not environ.get(name)]
    if missing:
        raise ServiceEnvironmentMissing(
            f"The Manager runs as a service of JupyterHub and needs {', '.join(missing)} in its environment."
        )
    name = environ.get("JUPYTERHUB_SERVICE_NAME") or "jobs"
    base_url = environ.get("JUPYTERHUB_BASE_URL") or "/"
    prefix = environ.get("JUPYTERHUB_SERVICE_PREFIX") or f"{base_url.rstrip('/')}/services/{name}/"
    try:
        port = urlsplit(environ["JUPYTERHUB_SERVICE_URL"]).port
    except ValueError:
        port = None
    if port is None:
        raise ServiceEnvironmentMissing(f"JUPYTERHUB_SERVICE_URL ({environ['JUPYTERHUB_SERVICE_URL']}) names no port.")
    return HubServiceInfo(
        name=name,
        prefix="/" + prefix.strip("/") + "/",
        url=environ["JUPYTERHUB_SERVICE_URL"],
        api_url=environ["JUPYTERHUB_API_URL"],
        api_token=environ["JUPYTERHUB_API_TOKEN"],
        base_url="/" + f"{base_url.strip('/')}/".lstrip("/"),
        hub_host=environ.get("JUPYTERHUB_HOST", ""),
        client_id=environ.get("JUPYTERHUB_CLIENT_ID") or f"service-{name}",  # JupyterHub's default for services
    )


@dataclass(slots=True)
class KnownServices:
    """The known tokens of services, for the time in which the Hub does not answer; it holds digests of tokens.

    A Manager that has started since knows of none.
    """

    _said: dict[bytes, tuple[float, HubIdentity]] = field(default_factory=dict)

    def learn(self, token: str, identity: HubIdentity | None) -> None:
        """The Hub's answer, which is half a minute old at most; a token that is no service's any more is forgotten."""
        key, now = _digest(token), time.monotonic()
        self._said = {one: said for one, said in self._said.items() if one != key and said[0] > now}
        if identity is not None and identity.kind is IdentityKind.SERVICE:
            self._said[key] = (now + REMEMBERED_SECONDS, identity)

    def recall(self, token: str) -> HubIdentity | None:
        until, identity = self._said.get(_digest(token), (0.0, None))
        return identity if time.monotonic() < until else None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()


class ServiceAuth(HubOAuth):
    """HubOAuth that takes tokens from the Authorization header only, and remembers for seconds, not minutes."""

    def __init__(self, **traits: Any) -> None:
        super().__init__(**traits)
        self.services = KnownServices()

    @default("cache_max_age")
    def _seconds(self) -> int:
        return 30

    def get_token(self, handler: RequestHandler, in_cookie: bool = True) -> str | None:
        match = self.auth_header_pat.match(handler.request.headers.get(self.auth_header_name, ""))
        token = match.group(1).strip() if match else ""
        if fits_header(token):
            return token
        cookie: str | None = self._get_token_cookie(handler) if in_cookie else None
        return cookie

    async def _get_user_cookie(self, handler: RequestHandler) -> dict[str, Any] | None:
        request = handler.request
        if is_cross_site(request.method or "", request.headers, request.host):
            return None
        found: dict[str, Any] | None = await super()._get_user_cookie(handler)
        return found


def is_cross_site(method: str, headers: Mapping[str, str], host: str) -> bool:
    """True if a browser reports that a page of another site sends a request with effects.

    A person's own server is another site only where it has a domain of its own (JupyterHub.subdomain_host).

    ``Sec-Fetch-Site`` is right behind any proxy; browsers without it say where a form comes from.
    """
    if method in {"GET", "HEAD", "OPTIONS"}:
        return False
    site, origin = headers.get("Sec-Fetch-Site"), headers.get("Origin")
    if site is not None:
        return site not in {"same-origin", "none"}
    return origin is not None and origin.partition("://")[2].lower() != host.lower()


def make_auth(service: HubServiceInfo, parent: Configurable) -> ServiceAuth:
    return ServiceAuth(
        parent=parent,
        api_url=service.api_url,
        api_token=service.api_token,
        base_url=service.prefix,
        hub_host=service.hub_host,
        hub_prefix=f"{service.base_url}hub/",
        oauth_client_id=service.client_id,
        access_scopes={f"access:services!service={service.name}"},
    )


async def identify(auth: ServiceAuth, handler: RequestHandler) -> HubIdentity | None:
    """Returns the caller; None for one unknown to the Hub; raises HubUnavailable when the Hub does not answer."""
    token = auth.get_token(handler, in_cookie=False)
    remembered = auth.services.recall(token) if token is not None else None
    try:
        identity = await _ask_hub(
            auth, handler, DEADLINE_SECONDS if remembered is None else DEADLINE_FOR_SERVICES_SECONDS
        )
    except HubUnavailable:
        if remembered is None:
            raise
        return remembered
    if token is not None:
        auth.services.learn(token, identity)
    return identity


async def _ask_hub(auth: ServiceAuth, handler: RequestHandler, seconds: float) -> HubIdentity | None:
    try:
        async with asyncio.timeout(seconds):
            model: dict[str, Any] | None = await auth.get_user(handler, sync=False)
    except TimeoutError as error:
        raise HubUnavailable("The Hub does not answer, so no login or token can be checked. Try again soon.") from error
    except (aiohttp.ClientError, ValueError) as error:  # it broke off in its answer, or something else answered
        raise HubUnavailable("The Hub's answer could not be understood. Try again soon.") from error
    except HTTPError as error:
        if error.status_code < 500:
            raise
        raise HubUnavailable("The Hub cannot say who you are. Try again soon.") from error
    return None if model is None else read_identity(model)


async def identify_again(auth: ServiceAuth, handler: RequestHandler) -> HubIdentity | None:
    """As `identify`, for an answer that goes on for long: HubOAuth asks once for a whole request."""
    vars(handler).pop("_cached_hub_user", None)
    return await identify(auth, handler)


def is_hub(service: HubServiceInfo, header: str) -> bool:
    return hmac.compare_digest(header.encode(), f"token {derive_hub_token(service.api_token)}".encode())


def may_enter(identity: HubIdentity, service: str) -> str | None:
    """Returns the refusal of a caller without JupyterHub's scope for this service; None for one that has the scope."""
    if has_scope(identity.scopes, "access:services", service=service):
        return None
    return f"This needs the scope access:services!service={service}, which this token or its owner does not hold."


def may_manage_keys(identity: HubIdentity, page: str, *, by_token: bool) -> str | None:
    """People, for themselves. Keys open all of their jobs: so must the token, and one inside a job does not."""
    if identity.kind is not IdentityKind.USER:
        return NOT_A_PERSON.format(name=identity.name)
    server = own_server(identity)
    if server is not None:
        return FROM_A_SERVER.format(server=server or "default", page=page)
    opens = not by_token or has_scope(identity.scopes, OPEN_SERVERS, user=identity.name)
    return None if opens else f"This needs a token with the scope {OPEN_SERVERS}!user={identity.name}: keys open jobs."


def may_suggest_keys(identity: HubIdentity) -> str | None:
    """Any token of a person, for that person: above all the one inside a job."""
    return None if identity.kind is IdentityKind.USER else NOT_A_PERSON.format(name=identity.name)


def may_read_keys(identity: HubIdentity, user: str) -> str | None:
    """The gateway, by a scope of its own; being an administrator is not enough."""
    return None if has_scope(identity.scopes, READ_KEYS, user=user) else NOT_THE_GATEWAY


def may_read_notices(identity: HubIdentity) -> str | None:
    """People and their jobs, each their own (`recipient_of`); of services the gateway, by a scope of its own."""
    if identity.kind is IdentityKind.USER or has_scope(identity.scopes, READ_NOTICES):
        return None
    return NO_NOTICES


def recipient_of(identity: HubIdentity, *, by_token: bool) -> Recipient:
    """Returns the recipient of notices: a user; with a server's own token that server; a service with the right reads
    all.

    The notices of administrators need a browser, or a token that may see all jobs.
    """
    if identity.kind is IdentityKind.SERVICE:
        return Recipient(everything=True)
    server = own_server(identity)
    whole = not by_token or has_scope(identity.scopes, SEE_ALL)
    return Recipient(identity.name, server, admin=identity.admin and server is None and whole)
