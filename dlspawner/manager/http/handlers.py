"""The base of every handler: its services, the caller, errors in the right form, and headers.

An `IdentityHandler` knows `self.identity` before its method runs. Errors become problem details (RFC 9457) for programs
and the Hub's own error page for people; what a client did wrong is never a 5xx, and no answer holds a traceback.
"""

from __future__ import annotations

import asyncio
import http
import json
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from http.client import responses
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from jinja2 import Environment
from jupyterhub.services.auth import HubOAuthCallbackHandler, HubOAuthenticated
from pydantic import BaseModel, ValidationError
from tornado.web import HTTPError, RequestHandler

from dlspawner import request_log, tracing
from dlspawner.clients.hub import HubError, HubIdentity, HubUnavailable, IdentityKind
from dlspawner.core.endpoints import Target
from dlspawner.manager.admission.service import AdmissionService
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.db.repository import NotLeader
from dlspawner.manager.db.store import Database, DatabaseUnavailable
from dlspawner.manager.http import static_files
from dlspawner.manager.http.api.models.requests import explain
from dlspawner.manager.http.api.models.responses import ProblemModel, as_json
from dlspawner.manager.http.auth import HubServiceInfo, ServiceAuth, identify, identify_again, is_hub, may_enter
from dlspawner.manager.model.access import AccessRight, Viewer, viewer_of
from dlspawner.manager.model.ssh_keys import MIN_RSA_BITS
from dlspawner.manager.state.metrics import ManagerMetrics

NOT_LEADER = "This Manager decides about no jobs: cluster_file, teams_file and templates_dir are not set."
NOT_YET = "This Manager does not decide now: another one does, or it has not seen the cluster yet. Try again soon."


def admission_of(manager: ManagerContext) -> AdmissionService:
    """Returns the admission service; 503 on a Manager that does not lead, 501 on one that never will."""
    leader = manager.leader
    if leader is None:
        raise HttpProblem(501, NOT_LEADER)
    if leader.admission is None:
        raise HttpProblem(503, NOT_YET)
    return leader.admission


class NamedLocks:
    """Locks by name: holders of the same name run one after the other."""

    def __init__(self) -> None:
        self._locks = WeakValueDictionary[tuple[str, ...], asyncio.Lock]()

    def of(self, *name: str) -> asyncio.Lock:
        """Returns the lock, which is there as long as it is held or waited for."""
        return self._locks.setdefault(name, asyncio.Lock())


MAX_JSON = 64 * 1024
MAX_REQUEST = 256 * 1024
TOO_LONG = f"The body is longer than {MAX_REQUEST // 1024} KiB, which is the most that is read here."
NOTHING_HERE = "There is nothing at this address."
_NOT_NOW = (HubError, DatabaseUnavailable, NotLeader)
log = logging.getLogger("dlspawner.manager")
Model = TypeVar("Model", bound=BaseModel)


class OpenRequests:
    """The requests that are being answered: what a stop waits for."""

    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    def begin(self) -> None:
        self._count += 1
        self._none.clear()

    def end(self) -> None:
        self._count -= 1
        if self._count == 0:
            self._none.set()

    async def wait(self) -> None:
        await self._none.wait()


@dataclass(frozen=True, slots=True)
class ManagerContext:
    """All that handlers need; made once by `app`."""

    service: HubServiceInfo
    auth: ServiceAuth
    database: Database
    pages: Environment
    now: Callable[[], datetime]
    leader: LeaderElector | None = None
    metrics: ManagerMetrics = field(default_factory=ManagerMetrics)
    authenticate_prometheus: bool = True
    ssh_target: Target | None = None  # the gateway, for the commands that people copy
    ssh_host_key_file: Path | None = None
    min_rsa_bits: int = MIN_RSA_BITS
    running: OpenRequests = field(default_factory=OpenRequests)
    locks: NamedLocks = field(default_factory=NamedLocks)  # requests that are carried out once


Routes = tuple[tuple[str, type[RequestHandler]], ...]  # patterns below the service's prefix, and their handlers


class HttpProblem(HTTPError):
    """An error answer with a sentence for the caller.

    ``headers`` go with it: those that a handler has set are gone by then.
    """

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None, **more: str) -> None:
        super().__init__(status, reason=http.HTTPStatus(status).phrase)
        self.detail = detail
        self.headers = headers or {}
        self.more = more


class ManagerHandler(RequestHandler):
    manager: ManagerContext

    def initialize(self, manager: ManagerContext) -> None:
        self.manager = manager
        self._counted = False

    def set_default_headers(self) -> None:
        for name in ("Server", "Content-Type"):  # every answer names its content type
            self.clear_header(name)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "same-origin")
        self.set_header("Cache-Control", "no-store")
        self.set_header("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")

    def prepare(self) -> Any:
        self._counted = True
        self.manager.running.begin()
        self.set_header(request_log.HEADER, request_log.accept(self.request.headers.get(request_log.HEADER)))
        if int(self.request.headers.get("Content-Length", 0)) > MAX_REQUEST:  # of which `server` has kept nothing
            raise HttpProblem(413, TOO_LONG)

    def begin_span(self) -> None:
        """For callers that are known: outsiders make no spans."""
        if self.request.method in {"POST", "PUT", "DELETE"}:
            tracing.begin_request(f"{self.request.method} {type(self).__name__}", self.request.headers)

    def read_query(self, model: type[Model]) -> Model:
        """Returns the parameters of the address; 422 with sentences for wrong ones."""
        try:
            given = {name: [one.decode() for one in values] for name, values in self.request.query_arguments.items()}
            return model.model_validate(given)
        except UnicodeDecodeError:
            raise HttpProblem(422, "The query is not UTF-8.") from None
        except ValidationError as error:
            raise HttpProblem(422, explain(error, "parameter", model)) from None

    def on_finish(self) -> None:
        if self._counted:
            self.manager.running.end()
        tracing.end_request(self.get_status())

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        """Operators read faults; refusals are in the access log."""
        if isinstance(value, (HubError, DatabaseUnavailable)):
            log.warning("%s %s: %s (%s)", self.request.method, self.request.path, value, value.__cause__)
        elif isinstance(value, NotLeader):
            return
        elif isinstance(value, HTTPError):
            if not isinstance(value, HttpProblem):
                super().log_exception(typ, value, tb)
        else:
            log.error("%s failed", self._request_summary(), exc_info=(typ, value, tb))

    def _request_summary(self) -> str:
        """Tornado's hook for its own log lines: without the query, which may hold a login's code."""
        return f"{self.request.method} {self.request.path}"

    def send_error(self, status_code: int = 500, **kwargs: Any) -> None:
        _, error, _ = kwargs.get("exc_info", (None, None, None))
        if isinstance(error, _NOT_NOW):
            status_code = 503
        super().send_error(status_code, **kwargs)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        _, error, _ = kwargs.get("exc_info", (None, None, None))
        if status_code in {429, 503}:
            self.set_header("Retry-After", "5")
        if status_code == 503:
            self.set_header("Connection", "close")  # behind the same address there may be a Manager that can
        if isinstance(error, HttpProblem):
            for name, value in error.headers.items():
                self.set_header(name, value)
            self.write_problem(status_code, error.detail, error.more)
        elif isinstance(error, _NOT_NOW):
            if isinstance(error, HubUnavailable):
                self.set_header(HEADER, HUB_UNREACHABLE)
            self.write_problem(status_code, NOT_YET if isinstance(error, NotLeader) else str(error), {})
        else:
            self.write_problem(status_code, _sentence(status_code), {})

    def write_problem(self, status: int, detail: str, more: Mapping[str, str]) -> None:
        """The body of an error, as problem details."""
        self.set_header("Content-Type", "application/problem+json")
        self.finish(
            as_json(
                ProblemModel(
                    type="about:blank", title=responses.get(status, "Error"), status=status, detail=detail, **more
                )
            )
        )


class JsonHandler(ManagerHandler):
    @property
    def admission(self) -> AdmissionService:
        """Returns the admission service; 503 on a Manager that does not lead."""
        return admission_of(self.manager)

    def read_body(self, model: type[Model], most: int = MAX_JSON) -> Model:
        """Returns the body; 400 for what is no JSON object, 422 with sentences for wrong fields."""
        kind = self.request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise HttpProblem(415, "Send the body as application/json.")
        if len(self.request.body) > most:
            raise HttpProblem(413, f"The body is longer than {most // 1024} KiB.")
        try:
            return model.model_validate_json(self.request.body)
        except ValidationError as error:
            if error.errors()[0]["type"] == "json_invalid":
                raise HttpProblem(400, "The body is not JSON.") from None
            if error.errors()[0]["type"] == "model_type" and not error.errors()[0]["loc"]:
                raise HttpProblem(400, "The body must be a JSON object.") from None
            raise HttpProblem(422, explain(error, "field", model)) from None

    def compute_etag(self) -> str | None:
        """Returns None: no client caches the answer (``Cache-Control``), so an ETag would be of no use."""
        return None

    def reply(self, content: BaseModel | Mapping[str, object], status: int = 200) -> None:
        """Send JSON; fields that were not set are left out."""
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.finish(as_json(content))


class HubOnlyHandler(JsonHandler):
    """Requires the Hub's own token; 403 for any other, an administrator's too."""

    identity: HubIdentity | None = None

    def prepare(self) -> None:
        super().prepare()
        if not is_hub(self.manager.service, self.request.headers.get("Authorization", "")):
            raise HttpProblem(403, "Only the Hub may ask this.")
        self.identity = HubIdentity("hub", IdentityKind.SERVICE, frozenset())
        self.begin_span()


class IdentityHandler(HubOAuthenticated, ManagerHandler):
    """A handler that identifies the caller; `identity` is None for an anonymous request."""

    identity: HubIdentity | None = None

    def initialize(self, manager: ManagerContext) -> None:
        super().initialize(manager)
        self.hub_auth = manager.auth
        # HubOAuth's own helpers, and tornado's pages of errors, ask for tornado's current user, also of a request that
        # cannot be read: unless it is set they block the whole process on the Hub.
        self.current_user = None

    @property
    def caller(self) -> HubIdentity:
        """Returns the caller; an anonymous request ends here."""
        raise NotImplementedError

    @property
    def by_token(self) -> bool:
        """True if this request carries a token, and is not a logged-in browser's."""
        return self.manager.auth.get_token(self, in_cookie=False) is not None

    def viewer(self, right: AccessRight) -> Viewer:
        """Returns the viewer with the jobs that the caller has this right to; 403 with a sentence without any."""
        leader = self.manager.leader
        teams = leader.settings.teams.teams if leader is not None else ()
        found = viewer_of(self.caller, teams, right, by_token=self.by_token)
        if isinstance(found, str):
            raise HttpProblem(403, found)
        return found

    async def prepare(self) -> None:
        super().prepare()
        await self.recognise()
        if self.identity is not None:
            self.begin_span()

    async def recognise(self) -> None:
        """Identifies the caller, also during an answer; 403 for callers without access, HubUnavailable."""
        try:
            self.current_user = self.identity = await identify_again(self.manager.auth, self)
        except HubUnavailable:
            if self.manager.leader is not None:
                self.manager.leader.hub_health.on_answer(False)
            raise
        if self.identity is not None:
            self.refuse(may_enter(self.identity, self.manager.service.name))

    @staticmethod
    def refuse(sentence: str | None) -> None:
        """Answer 403 when a rule of access gave a sentence."""
        if sentence is not None:
            raise HttpProblem(403, sentence)


class ApiHandler(JsonHandler, IdentityHandler):
    def reply(self, content: BaseModel | Mapping[str, object], status: int = 200) -> None:
        self.tell_presence()
        super().reply(content, status)

    def tell_presence(self) -> None:
        """The answer says so while the Hub is away."""
        if self.manager.leader is not None and self.manager.leader.hub_health.unreachable:
            self.set_header(HEADER, HUB_UNREACHABLE)

    @property
    def caller(self) -> HubIdentity:
        if self.identity is None:
            raise HttpProblem(
                401,
                "Say who you are: Authorization: token …, with a token from the Hub's token page. "
                "From a page of this service, send its _xsrf value in X-XSRFToken.",
                {"WWW-Authenticate": 'Bearer realm="JupyterHub"'},
            )
        return self.identity


class PageHandler(IdentityHandler):
    """A page for people, made of the Hub's own templates."""

    async def prepare(self) -> None:
        await super().prepare()
        if self.identity is not None or self.request.method not in {"GET", "HEAD"}:
            return
        self.redirect(self.get_login_url())

    @property
    def caller(self) -> HubIdentity:
        if self.identity is None:  # a form without its page's XSRF value
            raise HttpProblem(403, STALE_PAGE)
        return self.identity

    def read_query(self, model: type[Model]) -> Model:
        """Returns the parameters of a form: those that were filled in, of several the last."""
        given = {name: self.get_query_arguments(name, strip=False)[-1:] for name in model.model_fields}
        try:
            return model.model_validate({name: values for name, values in given.items() if any(values)})
        except ValidationError as error:
            raise HttpProblem(422, explain(error, "parameter", model)) from None

    def show(self, template: str, status: int = 200, **values: object) -> None:
        """Render a page; only scripts and styles that the templates themselves hold take effect."""
        self.set_status(status)
        nonce = secrets.token_urlsafe(16)
        self.set_header("Content-Security-Policy", policy(nonce, self.manager.service.hub_host))
        self.set_header("Content-Type", "text/html; charset=utf-8")
        namespace = {**page_namespace(self.manager.service, self.identity), **self._navigation()}
        xsrf = self.xsrf_token.decode("ascii")
        page = self.manager.pages.get_template(template)
        self.finish(page.render({**namespace, "csp_nonce": nonce, "xsrf_token": xsrf, "xsrf": xsrf, **values}))

    def _navigation(self) -> dict[str, object]:
        """Returns the pages of this viewer for the template navigation.html."""
        leader, who = self.manager.leader, self.identity
        teams = leader.settings.teams.teams if leader is not None else ()
        return {
            "has_jobs": leader is not None,
            "is_admin": who is not None and who.admin,
            "is_team_admin": who is not None and any(who.name in team.admins for team in teams),
        }

    def write_problem(self, status: int, detail: str, more: Mapping[str, str]) -> None:
        self.show(
            "error.html", status, status_code=status, status_message=responses.get(status, "Error"), message=detail
        )


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


class NotFound(PageHandler):
    """Any other path: a page for browsers, problem details for programs. No login is needed for it."""

    async def prepare(self) -> None:
        ManagerHandler.prepare(self)
        self.current_user = None
        raise HttpProblem(404, _sentence(404))

    def write_problem(self, status: int, detail: str, more: Mapping[str, str]) -> None:
        if "text/html" in self.request.headers.get("Accept", ""):
            super().write_problem(status, detail, more)
        else:
            ManagerHandler.write_problem(self, status, detail, more)


@dataclass(frozen=True, slots=True)
class PageUser:
    """The fields of the user that JupyterHub's page.html reads."""

    name: str

    @property
    def json_escaped_name(self) -> str:
        """Safe inside a JavaScript string in HTML, where the template switches escaping off."""
        escaped = json.dumps(self.name)[1:-1]
        return escaped.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def page_namespace(service: HubServiceInfo, identity: HubIdentity | None) -> dict[str, object]:
    """The variables of JupyterHub's page.html, 5.5 and 6.x, seen from a service."""
    hub = f"{service.hub_host}{service.base_url}hub/"
    admin = identity is not None and identity.admin

    def static_url(path: str, include_version: bool = True) -> str:
        own = static_files.static_files().get(path) if include_version else None
        return f"{service.prefix}static/{path}?v={own.version}" if own else f"{hub}static/{path}"

    return {
        "base_url": hub,
        "prefix": service.base_url,
        "service_prefix": service.prefix,
        "user": PageUser(identity.name) if identity else None,
        "static_url": static_url,
        "login_url": f"{hub}login",
        "logout_url": f"{hub}logout",
        "parsed_scopes": {"admin-ui"} if admin else set(),  # only whether page.html links to the admin page
        "no_spawner_check": True,
        "admin_access": False,
        "services": [],
    }


def policy(nonce: str, hub_host: str) -> str:
    """Content-Security-Policy of pages. Bootstrap's style sheet holds its icons as data: images.

    Browsers hold what a form's answer redirects to against ``form-action`` as well: with a domain per user that is the
    Hub's own, and from there the person's.
    """
    here = f"'self' {hub_host}".strip()
    people = hub_host.replace("://", "://*.", 1)
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src 'nonce-{nonce}' 'strict-dynamic'",
            f"style-src {here} 'nonce-{nonce}'",
            f"img-src {here} data:",
            f"font-src {here}",
            f"connect-src {here}",
            f"form-action {here} {people}".strip(),
            "base-uri 'none'",
            "frame-ancestors 'none'",
        ]
    )


def _sentence(status: int) -> str:
    known = {
        404: NOTHING_HERE,
        405: "This address does not take that method.",
        400: "The request could not be understood.",
        500: "Something went wrong here; the administrators find it in the log.",
    }
    return known.get(status, f"{responses.get(status, 'Error')}.")


STALE_PAGE = "This page was open too long to be trusted. Go back, load it again and repeat what you did."

HEADER, HUB_UNREACHABLE = "Dlspawner-Hub", "away"  # of answers that are given meanwhile
