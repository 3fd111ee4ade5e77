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
    history,
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
from dlspawner.manager.http.handlers import NOTHING_HERE, HttpProblem, ManagerHandler, Routes
from dlspawner.manager.http.portal import advice, approvals, job, lists, my_jobs, notices, preview, ssh_keys
from dlspawner.manager.http.portal import history as portal_history
from dlspawner.manager.http.portal import logs as portal_logs
from dlspawner.manager.http.portal import pending as portal_pending
from dlspawner.manager.http.portal.base import JOB_ID
from dlspawner.manager.http.static_files import static_files
from dlspawner.request_log import request_id

_NUMBER, _NAME, _NODE = r"(\d{1,9})", r"([^/]*)", r"([a-z0-9.-]{1,253})"
_JOB, _REQUEST = f"({JOB_ID.pattern})", r"([0-9a-f]{16})"  # a request for an approval, or a notice
_INTERNAL_JOB, _INTERNAL_USER = f"api/internal/jobs/{_JOB}", f"api/internal/users/{_NAME}"


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


# Every address, as a pattern below the service's prefix.
ROUTES: Routes = (
    ("health", metrics.HealthHandler),
    ("ready", metrics.ReadyHandler),
    ("oauth_callback", handlers.OAuthCallbackPage),
    (r"static/([\w@/.-]+)", StaticHandler),
    # Pages.
    ("", my_jobs.MyJobsPage),
    ("new", my_jobs.NewJobPage),
    ("start", my_jobs.StartButton),
    ("tensorboard", my_jobs.TensorBoardButton),
    ("remove", my_jobs.RemoveButton),
    (f"jobs/{_JOB}", job.JobPage),
    (f"jobs/{_JOB}/stop", my_jobs.StopButton),
    (f"jobs/{_JOB}/keep", my_jobs.KeepJobButton),
    (f"jobs/{_JOB}/log", portal_logs.LogPage),
    (f"jobs/{_JOB}/usage", portal_history.UsagePage),
    ("queue", lists.QueuePage),
    ("cluster", lists.ClusterPage),
    ("cluster/cordon", lists.CordonButton),
    (f"cluster/{_NODE}/uncordon", lists.UncordonButton),
    ("cluster/history", portal_history.ClusterHistoryPage),
    (advice.PAGE, advice.AdvicePage),
    (f"{advice.PAGE}/run", advice.RunButton),
    (f"{advice.PAGE}/cancel", advice.CancelRunButton),
    ("history", portal_history.HistoryPage),
    ("teams", lists.TeamsPage),
    ("all", lists.AllJobsPage),
    ("preview", preview.PreviewPage),
    ("approvals", approvals.ApprovalsPage),
    (f"approvals/{_REQUEST}/approve", approvals.ApproveButton),
    (f"approvals/{_REQUEST}/deny", approvals.DenyButton),
    ("notices", notices.NoticesPage),
    ("notices/settings", notices.NotificationSettingsButton),
    (f"notices/{_REQUEST}/keep", notices.KeepAliveButton),
    (f"wait/{_NAME}/{_NAME}", portal_pending.PendingPage),
    (f"wait/{_NAME}/{_NAME}/cancel", portal_pending.CancelButton),
    (f"wait/{_NAME}/{_NAME}/go-on", portal_pending.StartAgainButton),
    ("keys", ssh_keys.KeysPage),
    (f"keys/{_NUMBER}/remove", ssh_keys.RemoveKeyButton),
    (f"keys/suggestions/{_NUMBER}/import", ssh_keys.ImportSuggestionButton),
    ("keys/start-on-connect", ssh_keys.StartOnConnectButton),
    ("ssh-config", ssh.SshConfigFileHandler),
    ("ssh-known-hosts", ssh.KnownHostsFileHandler),
    # REST, for people and programs.
    ("api/jobs", submit.JobsHandler),
    (f"api/jobs/{_JOB}", submit.JobHandler),
    (f"api/jobs/{_JOB}/events", jobs.JobEventsHandler),
    (f"api/jobs/{_JOB}/cancel", submit.CancelHandler),
    (f"api/jobs/{_JOB}/requeue", submit.RequeueHandler),
    (f"api/jobs/{_JOB}/approve", api_approvals.ApproveHandler),
    (f"api/jobs/{_JOB}/deny", api_approvals.DenyHandler),
    (f"api/jobs/{_JOB}/keep-alive", activity.KeepAliveHandler),
    (f"api/jobs/{_JOB}/logs", logs.LogsHandler),
    (f"api/jobs/{_JOB}/log", logs.LogHandler),
    (f"api/jobs/{_JOB}/pod-events", logs.PodEventsHandler),
    (f"api/jobs/{_JOB}/usage", history.JobUsageHandler),
    (f"api/users/{_NAME}/servers/{_NAME}/pending-job", pending.PendingJobHandler),
    ("api/queue", cluster.QueueHandler),
    ("api/quota", cluster.QuotaHandler),
    ("api/cluster", cluster.ClusterHandler),
    (f"api/nodes/{_NODE}/cordon", cluster.CordonHandler),
    (f"api/nodes/{_NODE}/uncordon", cluster.UncordonHandler),
    ("api/approvals", api_approvals.ApprovalsHandler),
    ("api/notices", api_notices.NoticesHandler),
    (f"api/notices/{_REQUEST}/seen", api_notices.NoticeReadHandler),
    (f"api/notices/{_REQUEST}/keep", api_notices.NoticeKeepAliveHandler),
    ("api/events", events.EventStreamHandler),
    ("api/history/gpu-hours", history.GpuHoursHandler),
    (r"api/history/gpu-hours\.csv", history.GpuHoursCsvHandler),
    ("api/idle", activity.CullReportHandler),
    ("api/metrics", metrics.MetricsHandler),
    ("api/keys", ssh.OwnKeysHandler),
    (f"api/keys/{_NUMBER}", ssh.OwnKeyHandler),
    ("api/ssh-config", ssh.SshConfigHandler),
    ("api/ssh-settings", ssh.SshSettingsHandler),
    (r"api/openapi\.json", openapi.OpenApiHandler),
    # For jobs and the SSH gateway.
    ("api/kernels", activity.KernelReportHandler),
    ("api/wrong-ports", activity.WrongPortHandler),
    ("api/key-suggestions", ssh.KeySuggestionsHandler),
    (f"api/users/{_NAME}/keys", ssh.UserKeysHandler),
    (f"api/users/{_NAME}/keys/{_NUMBER}/used", ssh.KeyUsedHandler),
    ("api/ssh-sessions", activity.SshSessionReportHandler),
    ("api/ssh-access", ssh.SshAccessHandler),
    (f"api/ssh-starts/{_NAME}/{_NAME}", ssh.SshStartHandler),
    # For the Hub alone.
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
# Without which the Manager does not start.
TEMPLATES = (
    *("my_jobs.html", "job.html", "job_log.html", "usage.html", "queue.html", "wait.html", "all_jobs.html"),
    *("cluster.html", "cluster_history.html", "policy.html", "history.html", "teams.html"),
    *("approvals.html", "told.html", "keys.html", "error.html"),
)
_THROWN_AWAY = 256 * 1024 * 1024
DRAIN_SECONDS = 5.0


class ServerCannotStart(Exception):
    """Why not, in a sentence for the administrator."""


def bind(address: str, port: int) -> list[socket.socket]:
    """Take the port, with ``::`` of IPv4 as well; ServerCannotStart when that is impossible."""
    setting = "the url of the service in jupyterhub_config.py, JUPYTERHUB_SERVICE_URL here"
    try:
        return bind_sockets(port, None if address == "::" else address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            sentence = f"Port {port} on {address} is used by another program. Stop it, or choose another in {setting}."
        else:
            sentence = f"Cannot listen on {address} port {port} ({setting}): {error.strerror or error}"
        raise ServerCannotStart(sentence) from error


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
        [(manager.service.prefix + path, handler, own) for path, handler in ROUTES],
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
        "%s %s status=%d ms=%.1f who=%s request=%s",
        request.method,
        request.path,
        status,
        1000 * request.request_time(),
        identity.name if identity else "-",
        request_id.get() or "-",
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
