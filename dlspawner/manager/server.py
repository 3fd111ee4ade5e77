"""The Manager's HTTP server: its port, every address below the service's prefix, what is logged, and its stop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application as WebApplication
from tornado.web import RequestHandler

from dlspawner.manager import portal, rest, routes, ssh_access, ssh_config, web
from dlspawner.manager.approval import routes as approvals
from dlspawner.manager.history import api as history_api
from dlspawner.manager.history import page as history_page
from dlspawner.manager.history import usage_api
from dlspawner.manager.logs import routes as log_routes
from dlspawner.manager.metrics import api as metrics_api

MAX_REQUEST = 256 * 1024
# The addresses of every part, as patterns below the service's prefix.
PARTS: tuple[web.Routes, ...] = (
    routes.ROUTES,
    history_api.ROUTES,
    history_page.ROUTES,
    log_routes.ROUTES,
    usage_api.ROUTES,
    metrics_api.ROUTES,
    ssh_access.ROUTES,
    ssh_config.ROUTES,
    portal.ROUTES,
    rest.ROUTES,
    approvals.ROUTES,
)
DRAIN_SECONDS = 5.0


class CannotStart(Exception):
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
        raise CannotStart(sentence) from error


def addresses() -> web.Routes:
    """Every address, as patterns below the service's prefix."""
    return tuple(route for part in PARTS for route in part)


def make_web(manager: web.Manager) -> WebApplication:
    """Every address, under the service's prefix."""
    own: dict[str, Any] = {"manager": manager}
    return WebApplication(
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


async def drain(server: HTTPServer, running: web.Running) -> None:
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
