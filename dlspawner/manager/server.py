"""The Manager's HTTP server: its port, every address below the service's prefix, what is logged, and its stop."""

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

from dlspawner.manager import portal, rest, routes, ssh_access, ssh_config, ssh_starts, static, web
from dlspawner.manager.approval import routes as approvals
from dlspawner.manager.history import api as history_api
from dlspawner.manager.history import page as history_page
from dlspawner.manager.history import usage_api
from dlspawner.manager.logs import routes as log_routes
from dlspawner.manager.metrics import api as metrics_api

_THROWN_AWAY = 256 * 1024 * 1024
# The addresses of every part, as patterns below the service's prefix.
PARTS: tuple[web.Routes, ...] = (
    routes.BASE_ROUTES,
    static.STATIC_ROUTES,
    history_api.HISTORY_ROUTES,
    history_page.HISTORY_PAGE_ROUTES,
    log_routes.LOG_ROUTES,
    usage_api.USAGE_ROUTES,
    metrics_api.METRICS_ROUTES,
    ssh_access.ACCESS_ROUTES,
    ssh_config.CONFIG_ROUTES,
    ssh_starts.START_ROUTES,
    portal.PORTAL_ROUTES,
    rest.REST_ROUTES,
    approvals.APPROVAL_ROUTES,
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


def addresses() -> web.Routes:
    """Every address, as patterns below the service's prefix."""
    return tuple(route for part in PARTS for route in part)


class _Bounded(HTTPMessageDelegate):
    """What is too long is read and thrown away, so that its sender, a proxy above all, is there for the answer."""

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
        if max(self._read, int(declared) if declared.isdecimal() else 0) > web.MAX_REQUEST:
            return None
        return self._inner.data_received(chunk)

    def finish(self) -> None:
        if self._read > web.MAX_REQUEST:
            self._headers["Content-Length"] = str(self._read)  # one that came in chunks says so nowhere
        self._inner.finish()

    def on_connection_close(self) -> None:
        self._inner.on_connection_close()


class _Web(WebApplication):
    def start_request(self, server_conn: object, request_conn: HTTPConnection) -> HTTPMessageDelegate:
        return _Bounded(super().start_request(server_conn, request_conn), request_conn)


def make_web(manager: web.ManagerContext) -> WebApplication:
    """Every address, under the service's prefix."""
    own: dict[str, Any] = {"manager": manager}
    return _Web(
        [(manager.service.prefix + path, handler, own) for path, handler in addresses()],
        default_handler_class=web.NotFound,
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
    logging.getLogger("dlspawner.manager.access").info(
        "%s %s status=%d ms=%.1f who=%s",
        request.method,
        request.path,
        status,
        1000 * request.request_time(),
        identity.name if identity else "-",
    )


async def drain(server: HTTPServer, running: web.OpenRequests) -> None:
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
