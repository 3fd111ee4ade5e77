"""The login proxy of a job that is no notebook.

    python3 -I -c THIS [--server-port=PORT]
    python3 -I -c THIS --unix-socket=true -- COMMAND… {unix_socket}

Behind the Hub's login is the person's own server at PORT, or, without PORT or while nothing listens there, the page on
how to get in; or COMMAND, which listens on the unix socket.

`jupyter standaloneproxy` knows from the Hub who is there, and starts COMMAND. What jupyter-server-proxy 4.6 then does
with a request is replaced: it lets WebSockets in without a login, holds bodies of at most 100 MiB in memory, decodes
%2F, and puts its prefix before a redirect that has it already. Here each request is authenticated by its head, whatever
it asks for; from then on its connection is the server's, and every byte passes as it comes. There is one request per
connection, so that no second one passes unseen.

The person's server is tried at the pod's own address and at its loopback address; one that listens on loopback only is
reached by no process but this proxy. It is not trusted with what a browser tells the login proxy: the Hub's cookies and
tokens are taken out of every request, also `?token=`, which a WebSocket of a browser's may need as it sends no header.
"""

import asyncio
import contextlib
import os
import re
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from jupyter_server_proxy import handlers, standalone
from jupyter_server_proxy.standalone.proxy import make_standalone_proxy
from tornado import web
from tornado.http1connection import HTTP1Connection
from tornado.iostream import IOStream, StreamClosedError

PAGE = Path(os.environ.get("DLSPAWNER_FILES", "/etc/dlspawner")) / "page" / "index.html"
PIECE = 64 * 1024
CONNECT_SECONDS = 5
LINGER_SECONDS = 30  # for a browser that still sends when it has the answer: who hangs up on it takes the answer away
NO_ANSWER = b"HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\n\r\nThe server in this job gave no answer.\n"

look = handlers.SuperviseAndProxyHandler._http_ready_func


async def ready(self: Any, process: Any) -> bool:
    """By itself it kills a command that has not started within five seconds: on a busy node, every one. And each time
    it waits twice as long before it looks again, after 20 s until 41: here each of its looks lasts until there is an
    answer, or the five seconds that it gives a look.
    """
    while not await look(self, process):  # noqa: ASYNC110 - another process's socket has no event to wait for
        await asyncio.sleep(0.2)
    return True


class Handler(web.RequestHandler):
    """Takes over from the handler of jupyter-server-proxy as soon as the head of a request is there."""

    command: list[str]
    requested_port: int
    unix_socket: str
    ensure_process: Callable[[], Awaitable[None]]

    async def prepare(self) -> None:
        """Becomes the server's connection; what is refused, or has no server, is answered when its body has come."""
        cast(HTTP1Connection, self.request.connection).set_max_body_size(2**63)
        if self.current_user is None:
            return
        origin = self.request.headers.get("Origin")
        if self.is_websocket() and origin and urlsplit(origin).netloc.lower() != self.request.host.lower():
            raise web.HTTPError(403, "a page of another site opened this WebSocket")
        server = await self.connect()
        if server is not None:
            await self.relay(self.detach(), server)

    def data_received(self, chunk: bytes) -> None:
        """The body of a request that is not the server's."""

    @web.authenticated
    def get(self, *_: str) -> None:
        if self.command:
            raise web.HTTPError(502, "the command does not listen")
        body = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
        if self.requested_port:
            said = f"Nothing listens on port {self.requested_port} of this job yet. Reload when your server runs."
            body = body.replace("<body>", f"<body><p role=status>{said}</p>") if "<body>" in body else said + body
        self.set_header("Cache-Control", "no-store")
        self.finish(body)

    head = post = put = patch = delete = options = get

    def decode_argument(self, value: bytes, name: str | None = None) -> str:
        """Other than the original it takes everything: only the token of a login is read from what this decodes."""
        return value.decode("utf-8", "replace")

    def is_websocket(self) -> bool:
        return self.request.headers.get("Upgrade", "").lower() == "websocket"

    async def connect(self) -> socket.socket | None:
        """A connection to the server, if there is one."""
        hosts = os.environ.get("POD_IP", "127.0.0.1"), "127.0.0.1"
        places: list[Any] = [(host, self.requested_port) for host in hosts]
        if self.command:
            await self.ensure_process()
            places = [self.unix_socket]
        elif not self.requested_port:
            return None
        for place in places:
            inet = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
            server = socket.socket(socket.AF_UNIX if self.command else inet)
            server.setblocking(False)
            try:
                await asyncio.wait_for(asyncio.get_running_loop().sock_connect(server, place), CONNECT_SECONDS)
            except OSError:  # TimeoutError is one
                server.close()
            else:
                return server
        return None

    async def relay(self, browser: IOStream, server: socket.socket) -> None:
        """Both directions, until the server has said everything; a socket, from which an early answer is not lost."""
        receive = asyncio.get_running_loop().sock_recv
        sending = asyncio.ensure_future(self.send(browser, server))
        seen, answered = b"", False
        with contextlib.suppress(OSError):  # one of the two hung up
            while not answered and (piece := await receive(server, PIECE)):
                seen += piece
                while not answered and b"\r\n\r\n" in seen:
                    head, _, seen = seen.partition(b"\r\n\r\n")
                    answered = re.match(rb"HTTP/1\.1 1(?!01)", head) is None  # 100 Continue and the like come before it
                    await browser.write((self.answer_head(head) if answered else head) + b"\r\n\r\n")
            await browser.write(seen)
            while piece := await receive(server, PIECE):
                await browser.write(piece)
        with contextlib.suppress(OSError):
            if not answered:
                await browser.write(NO_ANSWER)
            browser.socket.shutdown(socket.SHUT_WR)
            server.shutdown(socket.SHUT_RDWR)
        await asyncio.wait([sending], timeout=LINGER_SECONDS)
        sending.cancel()
        browser.close()
        server.close()

    async def send(self, browser: IOStream, server: socket.socket) -> None:
        """All that the browser sends; dropped when the server does not listen any more."""
        piece = self.request_head()
        with contextlib.suppress(StreamClosedError):
            while True:
                with contextlib.suppress(OSError):
                    await asyncio.get_running_loop().sock_sendall(server, piece)
                piece = await browser.read_bytes(PIECE, partial=True)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def request_head(self) -> bytes:
        """The head without what would let its reader act as the person at the Hub or at this proxy."""
        prefix, headers = self.settings["base_url"], self.request.headers.copy()
        cookies = [one.strip() for line in headers.get_list("Cookie") for one in line.split(";")]
        hubs = ("jupyterhub-", "__Host-jupyterhub-", "_xsrf=", "__Host-_xsrf=")  # _xsrf names the session
        theirs = [one for one in cookies if not one.startswith(hubs)]
        referer = without_token(headers.get("Referer", ""))
        for name in ("Authorization", "Cookie", "Referer", "Keep-Alive", "Proxy-Connection"):
            headers.pop(name, None)
        if not self.is_websocket():
            headers.pop("Upgrade", None)
        headers["Connection"] = "upgrade" if self.is_websocket() else "close"
        for name in ("X-Forwarded-Context", "X-ProxyContextPath", "X-Forwarded-Prefix"):
            headers[name] = prefix
        for name, value in (("Cookie", "; ".join(theirs)), ("Referer", referer)):
            if value:
                headers[name] = value
        lines = [f"{self.request.method} {without_token((self.request.uri or '')[len(prefix) :])} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.get_all()]
        return "\r\n".join([*lines, "", ""]).encode("latin1")

    def answer_head(self, head: bytes) -> bytes:
        first, *lines = head.decode("latin1").split("\r\n")
        if not self.is_websocket():
            lines = [line for line in lines if line.partition(":")[0].lower() not in ("connection", "keep-alive")]
            lines.append("Connection: close")
        cookies = getattr(self, "_new_cookie", {}).values()  # of a login by `?token=`
        lines += [f"Set-Cookie: {cookie.OutputString(None)}" for cookie in cookies]
        return "\r\n".join([first, *map(self.with_prefix, lines)]).encode("latin1")

    def with_prefix(self, line: str) -> str:
        """A line of an answer; a redirect to a page of the server leads to where the browser sees that page."""
        name, _, location = line.partition(":")
        if name.lower() != "location":
            return line
        place, prefix = urlsplit(location.strip()), self.settings["base_url"]
        if place.netloc == self.request.host:
            place = place._replace(scheme="", netloc="")
        if not (place.scheme or place.netloc) and (place.path or "/").startswith("/"):
            inside = f"{place.path}/".startswith(f"{prefix}/")
            place = place if inside else place._replace(path=prefix + place.path)
        return f"{name}: {place.geturl()}"


def without_token(address: str) -> str:
    before, question, query = address.partition("?")
    kept = [one for one in query.split("&") if unquote(one.partition("=")[0]) != "token"]
    return before + (question + "&".join(kept) if kept else "")


class LoginProxy(standalone.StandaloneProxyServer):
    def migrate_config(self) -> None:
        """Nothing is written to the home directory, which may be full: people make room in it by SSH."""

    def create_app(self) -> web.Application:
        app: web.Application = super().create_app()
        # Its own redirect to the page has a backslash before every hyphen.
        app.add_handlers(".*", [(re.escape(self.base_url), web.RedirectHandler, {"url": f"{self.base_url}/"})])
        return app

    def get_proxy_base_class(self) -> tuple[type, dict[str, Any]]:
        """The one for a command, of which there may be none."""
        base: tuple[type, dict[str, Any]] = make_standalone_proxy(handlers.SuperviseAndProxyHandler, {"state": {}})
        return base

    def get_proxy_attributes(self) -> dict[str, Any]:
        named = super().get_proxy_attributes()
        return {name: value for name, value in named.items() if name not in ("port", "unix_socket")}

    def make_proxy_handler(self) -> tuple[type, dict[str, Any]]:
        base, arguments = super().make_proxy_handler()
        return web.stream_request_body(type("Handler", (Handler, base), {})), arguments


if __name__ == "__main__":
    handlers.SuperviseAndProxyHandler._http_ready_func = ready
    LoginProxy.launch_instance(timeout=120.0)
