"""The Manager's HTTP server: its port, every address below the service's prefix, what is logged, and its stop.

The Manager serves the files that JupyterHub's page.html loads: its pages can be read while the Hub is away. Files that
no page of ours loads are not among them; an administrator's own templates take other files from the Hub.

Every page is made of the Hub's templates, works without JavaScript, and says nothing that its reader may not know
(`access`). With JavaScript its live parts are looked at again.

GET static/PATH: the style sheet and scripts of the pages (`http.static_files`), for all clients, as the Hub's own are.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Awaitable
from typing import Any

from tornado.http1connection import HTTP1Connection
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPConnection, HTTPHeaders, HTTPMessageDelegate, RequestStartLine, ResponseStartLine
from tornado.netutil import bind_sockets
from tornado.web import Application as WebApplication
from tornado.web import RequestHandler

from dlspawner.manager.http import handlers
from dlspawner.manager.http.api import (
    activity,
    cluster,
    events,
    hub,
    jobs,
    logs,
    metrics,
    openapi,
    pending,
    ssh,
    submit,
)
from dlspawner.manager.http.api import approvals as api_approvals
from dlspawner.manager.http.api import notices as api_notices
from dlspawner.manager.http.api.history import JOB, GpuHoursCsvHandler, GpuHoursHandler, JobUsageHandler
from dlspawner.manager.http.handlers import NOTHING_HERE, HttpProblem, ManagerHandler, Routes
from dlspawner.manager.http.portal import advice, approvals, job, lists, my_jobs, notices, preview, ssh_keys
from dlspawner.manager.http.portal import logs as portal_logs
from dlspawner.manager.http.portal import pending as portal_pending
from dlspawner.manager.http.portal.base import JOB_ID
from dlspawner.manager.http.portal.history import ClusterHistoryPage, HistoryPage, UsagePage
from dlspawner.manager.http.static_files import static_files

_NUMBER, _NAME = r"(\d{1,9})", r"([^/]*)"
_APPROVAL_JOB, _REQUEST = r"(j-[a-z2-7]{12})", r"([0-9a-f]{16})"
APPROVAL_ROUTES: handlers.Routes = (
    ("approvals", approvals.ApprovalsPage),
    (f"approvals/{_REQUEST}/approve", approvals.ApproveButton),
    (f"approvals/{_REQUEST}/deny", approvals.DenyButton),
    ("api/approvals", api_approvals.ApprovalsHandler),
    (f"api/jobs/{_APPROVAL_JOB}/approve", api_approvals.ApproveHandler),
    (f"api/jobs/{_APPROVAL_JOB}/deny", api_approvals.DenyHandler),
)


HISTORY_ROUTES: Routes = (
    ("api/history/gpu-hours", GpuHoursHandler),
    (r"api/history/gpu-hours\.csv", GpuHoursCsvHandler),
)


HISTORY_PAGE_ROUTES: Routes = (("history", HistoryPage), ("cluster/history", ClusterHistoryPage))


USAGE_ROUTES: Routes = ((f"api/jobs/{JOB}/usage", JobUsageHandler), (f"jobs/{JOB}/usage", UsagePage))


_LOG_JOB = r"(j-[a-z2-7]{12})"
LOG_ROUTES: Routes = (
    (f"api/jobs/{_LOG_JOB}/logs", logs.LogsHandler),
    (f"api/jobs/{_LOG_JOB}/log", logs.LogHandler),
    (f"api/jobs/{_LOG_JOB}/pod-events", logs.PodEventsHandler),
    (f"jobs/{_LOG_JOB}/log", portal_logs.LogPage),
)
LOG_TEMPLATES = ("job_log.html",)


PORTAL_JOB = f"({JOB_ID.pattern})"

NODE = r"([a-z0-9.-]{1,253})"
PORTAL_ROUTES: Routes = (
    ("", my_jobs.MyJobsPage),
    ("new", my_jobs.NewJobPage),
    ("start", my_jobs.StartButton),
    ("tensorboard", my_jobs.TensorBoardButton),
    ("remove", my_jobs.RemoveButton),
    ("api/events", events.EventStreamHandler),
    ("queue", lists.QueuePage),
    ("cluster", lists.ClusterPage),
    ("cluster/cordon", lists.CordonButton),
    (advice.PAGE, advice.AdvicePage),
    (f"{advice.PAGE}/run", advice.RunButton),
    (f"{advice.PAGE}/cancel", advice.CancelRunButton),
    (f"cluster/{NODE}/uncordon", lists.UncordonButton),
    ("teams", lists.TeamsPage),
    ("all", lists.AllJobsPage),
    ("preview", preview.PreviewPage),
    (f"jobs/{PORTAL_JOB}", job.JobPage),
    (f"jobs/{PORTAL_JOB}/stop", my_jobs.StopButton),
    (f"jobs/{PORTAL_JOB}/keep", my_jobs.KeepJobButton),
)
# Without which the Manager does not start.
PORTAL_TEMPLATES = (
    "my_jobs.html",
    "queue.html",
    "cluster.html",
    "job.html",
    "teams.html",
    "all_jobs.html",
    "policy.html",
)


_INTERNAL_JOB, _INTERNAL_USER = r"api/internal/jobs/(j-[a-z2-7]{12})", f"api/internal/users/{_NAME}"
# For the Hub alone.
INTERNAL_ROUTES: Routes = (
    (f"{_INTERNAL_JOB}/admission", hub.AdmissionHandler),
    (f"{_INTERNAL_JOB}/released", hub.ReservationReleasedHandler),
    (f"{_INTERNAL_JOB}/left", hub.LeftInClusterHandler),
    (f"{_INTERNAL_JOB}/ending", hub.StopReasonHandler),
    (f"{_INTERNAL_JOB}/log-kept", logs.LogCollectedHandler),
    (f"{_INTERNAL_USER}/account", hub.UnixAccountHandler),
    (f"{_INTERNAL_USER}/renamed", hub.UserRenamedHandler),
    (f"{_INTERNAL_USER}/removed", hub.UserRemovedHandler),
    (f"{_INTERNAL_USER}/waiting", hub.PendingJobsHandler),
    (f"{_INTERNAL_USER}/starting", hub.PrepareStartHandler),
    (f"{_INTERNAL_USER}/interrupted", hub.StartInterruptedHandler),
    ("api/internal/files", hub.GoodFilesHandler),
    ("api/internal/free-gpus", hub.FreeGpusHandler),
    (f"api/internal/templates/{_NAME}/usual-start", hub.UsualStartHandler),
)


REST_JOB = r"(j-[a-z2-7]{12})"
REST_ROUTES: handlers.Routes = (
    ("api/jobs", submit.JobsHandler),
    (f"api/jobs/{REST_JOB}", submit.JobHandler),
    (f"api/jobs/{REST_JOB}/events", jobs.JobEventsHandler),
    (f"api/jobs/{REST_JOB}/cancel", submit.CancelHandler),
    (f"api/jobs/{REST_JOB}/requeue", submit.RequeueHandler),
    ("api/cluster", cluster.ClusterHandler),
    (f"api/nodes/{NODE}/cordon", cluster.CordonHandler),
    (f"api/nodes/{NODE}/uncordon", cluster.UncordonHandler),
    ("api/quota", cluster.QuotaHandler),
    ("api/queue", cluster.QueueHandler),
    (r"api/openapi\.json", openapi.OpenApiHandler),
)


BASE_ROUTES: handlers.Routes = (
    ("health", ssh.HealthHandler),
    ("ready", ssh.ReadyHandler),
    ("oauth_callback", ssh_keys.OAuthCallbackPage),
    ("keys", ssh_keys.KeysPage),
    (f"keys/{_NUMBER}/remove", ssh_keys.RemoveKeyButton),
    (f"keys/suggestions/{_NUMBER}/import", ssh_keys.ImportSuggestionButton),
    ("keys/start-on-connect", ssh_keys.StartOnConnectButton),
    ("api/keys", ssh.OwnKeysHandler),
    (f"api/keys/{_NUMBER}", ssh.OwnKeyHandler),
    ("api/key-suggestions", ssh.KeySuggestionsHandler),
    (f"api/users/{_NAME}/keys", ssh.UserKeysHandler),
    (f"api/users/{_NAME}/keys/{_NUMBER}/used", ssh.KeyUsedHandler),
    ("notices", notices.NoticesPage),
    ("notices/settings", notices.NotificationSettingsButton),
    (r"notices/([0-9a-f]{16})/keep", notices.KeepAliveButton),
    ("api/notices", api_notices.NoticesHandler),
    (r"api/notices/([0-9a-f]{16})/seen", api_notices.NoticeReadHandler),
    (r"api/notices/([0-9a-f]{16})/keep", api_notices.NoticeKeepAliveHandler),
    (f"api/users/{_NAME}/servers/{_NAME}/pending-job", pending.PendingJobHandler),
    (f"wait/{_NAME}/{_NAME}", portal_pending.PendingPage),
    (f"wait/{_NAME}/{_NAME}/cancel", portal_pending.CancelButton),
    (f"wait/{_NAME}/{_NAME}/go-on", portal_pending.StartAgainButton),
    (r"api/jobs/(j-[a-z2-7]{12})/keep-alive", activity.KeepAliveHandler),
    ("api/kernels", activity.KernelReportHandler),
    ("api/wrong-ports", activity.WrongPortHandler),
    ("api/ssh-sessions", activity.SshSessionReportHandler),
    ("api/idle", activity.CullReportHandler),
)


_FOREVER = "public, max-age=31536000, immutable"


class StaticHandler(ManagerHandler):
    """One file. Pages ask with its version, so that browsers keep it, and never an old one."""

    async def get(self, path: str) -> None:
        file = static_files().get(path)
        if file is None:
            raise HttpProblem(404, NOTHING_HERE)
        self.set_header("Content-Type", file.kind)
        self.set_header("Cache-Control", _FOREVER if self.get_query_argument("v", "") == file.version else "no-cache")
        self.finish(file.content)


STATIC_ROUTES = ((r"static/([\w@/.-]+)", StaticHandler),)


_THROWN_AWAY = 256 * 1024 * 1024
# The addresses of every part, as patterns below the service's prefix.
PARTS: tuple[handlers.Routes, ...] = (
    BASE_ROUTES,
    STATIC_ROUTES,
    HISTORY_ROUTES,
    HISTORY_PAGE_ROUTES,
    LOG_ROUTES,
    USAGE_ROUTES,
    metrics.METRICS_ROUTES,
    ssh.ACCESS_ROUTES,
    ssh.CONFIG_ROUTES,
    ssh.START_ROUTES,
    PORTAL_ROUTES,
    INTERNAL_ROUTES,
    REST_ROUTES,
    APPROVAL_ROUTES,
)
DRAIN_SECONDS = 5.0


class ServerCannotStart(Exception):
    """Why not, in a sentence for the administrator."""


def bind(address: str, port: int) -> list[socket.socket]:
    """Take the port; CannotStart when that is impossible."""
    setting = "the url of the service in jupyterhub_config.py, JUPYTERHUB_SERVICE_URL here"
    try:
        return bind_sockets(port, address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            sentence = f"Port {port} on {address} is used by another program. Stop it, or choose another in {setting}."
        else:
            sentence = f"Cannot listen on {address} port {port} ({setting}): {error.strerror or error}"
        raise ServerCannotStart(sentence) from error


def addresses() -> handlers.Routes:
    """Every address, as patterns below the service's prefix."""
    return tuple(route for part in PARTS for route in part)


class _Bounded(HTTPMessageDelegate):
    """Reads and drops a body that is too long, so that its sender, a proxy above all, is there for the answer."""

    def __init__(self, inner: HTTPMessageDelegate, connection: HTTPConnection) -> None:
        self._inner, self._connection, self._read = inner, connection, 0
        self._headers = HTTPHeaders()

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        self._headers = headers
        if isinstance(self._connection, HTTP1Connection):
            self._connection.set_max_body_size(_THROWN_AWAY)
        return self._inner.headers_received(start_line, headers)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        self._read += len(chunk)
        declared = self._headers.get("Content-Length", "")
        if max(self._read, int(declared) if declared.isdecimal() else 0) > handlers.MAX_REQUEST:
            return None
        return self._inner.data_received(chunk)

    def finish(self) -> None:
        if self._read > handlers.MAX_REQUEST:
            self._headers["Content-Length"] = str(self._read)  # one that came in chunks says so nowhere
        self._inner.finish()

    def on_connection_close(self) -> None:
        self._inner.on_connection_close()


class _Web(WebApplication):
    def start_request(self, server_conn: object, request_conn: HTTPConnection) -> HTTPMessageDelegate:
        return _Bounded(super().start_request(server_conn, request_conn), request_conn)


def make_web(manager: handlers.ManagerContext) -> WebApplication:
    """Every address, under the service's prefix."""
    own: dict[str, Any] = {"manager": manager}
    return _Web(
        [(manager.service.prefix + path, handler, own) for path, handler in addresses()],
        default_handler_class=handlers.NotFound,
        default_handler_args=own,
        cookie_secret=manager.service.cookie_secret(),
        log_function=log_request,
    )


def log_request(handler: RequestHandler) -> None:
    """One line a request, without its query: it may hold what belongs in no log."""
    status, request = handler.get_status(), handler.request
    if request.path.endswith(("/health", "/ready")) and status in {200, 503}:
        return  # asked every few seconds, and what makes the second one 503 has a line of its own
    identity = getattr(handler, "identity", None)
    logging.getLogger("dlspawner.manager.model.access").info(
        "%s %s status=%d ms=%.1f who=%s",
        request.method,
        request.path,
        status,
        1000 * request.request_time(),
        identity.name if identity else "-",
    )


async def drain(server: HTTPServer, running: handlers.OpenRequests) -> None:
    """Accept no more, and give what is being answered a few seconds."""
    server.stop()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(running.wait(), DRAIN_SECONDS)
    await server.close_all_connections()


async def close_hub_client() -> None:
    """Close the connections that HubAuth of JupyterHub 6 keeps; 5.5 keeps none."""
    try:
        from jupyterhub.httpclient import JupyterHubHTTPClient
    except ImportError:
        return
    await JupyterHubHTTPClient.loop_instance().close()
