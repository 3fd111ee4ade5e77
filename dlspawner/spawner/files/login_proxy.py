"""The login proxy of a job: python3 -I -c THIS --unix-socket=true -- COMMAND… {unix_socket}

`jupyter standaloneproxy` starts the command, and knows from the Hub who is there. What jupyter-server-proxy 4.6 then
does with a request is replaced here: it lets WebSockets in without a login, holds bodies of at most 100 MiB in memory,
decodes %2F, and puts its prefix before a redirect that has it already. Here each request is authenticated by its head,
whatever it asks for; from then on its connection is the server's, and every byte passes as it comes. There is one
request per connection, so that no second one passes unseen.

It also kills what has not started within five seconds: on a busy node, everything. And each time it waits twice as long
before it looks again, after 20 s until 41: here each of its looks lasts until there is an answer, or the five seconds
that it gives a look.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from jupyter_server_proxy import handlers, standalone
from tornado import web
from tornado.iostream import IOStream

LONGEST_HEAD = 256 * 1024
PIECE = 64 * 1024
NO_ANSWER = b"HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\n\r\nThe server in this job gave no answer.\n"

look = handlers.SuperviseAndProxyHandler._http_ready_func


async def ready(self: Any, process: Any) -> bool:
    while not await look(self, process):  # noqa: ASYNC110 - another process's socket has no event to wait for
        await asyncio.sleep(0.2)
    return True


class Handler(web.RequestHandler):
    """Takes over from the handler of jupyter-server-proxy as soon as the head of a request is there."""

    unix_socket: str
    ensure_process: Callable[[], Awaitable[None]]

    async def prepare(self) -> None:
        web.authenticated(lambda handler: None)(self)
        if self.current_user is None:
            return  # on the way to the Hub's login
        origin = self.request.headers.get("Origin")
        if self.is_websocket() and origin and urlsplit(origin).netloc.lower() != self.request.host.lower():
            raise web.HTTPError(403, "a page of another site opened this WebSocket")
        await self.ensure_process()
        server = await asyncio.open_unix_connection(self.unix_socket, limit=LONGEST_HEAD)
        await self.relay(self.detach(), *server)

    def decode_argument(self, value: bytes, name: str | None = None) -> str:
        """Other than the original it takes everything: only the token of a login is read from what this decodes."""
        return value.decode("utf-8", "replace")

    def data_received(self, chunk: bytes) -> None:
        """The body of a request that was refused."""

    def is_websocket(self) -> bool:
        return self.request.headers.get("Upgrade", "").lower() == "websocket"

    async def relay(self, browser: IOStream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sending = asyncio.ensure_future(self.send(browser, writer))
        answered = False
        try:
            while not answered:
                head = await reader.readuntil(b"\r\n\r\n")
                answered = re.match(rb"HTTP/1\.1 1(?!01)", head) is None  # 100 Continue and the like come before it
                await browser.write(self.answer_head(head) if answered else head)
            while data := await reader.read(PIECE):
                await browser.write(data)
        except (OSError, EOFError, asyncio.LimitOverrunError):  # one of the two hung up
            if not (answered or browser.closed()):
                await browser.write(NO_ANSWER)
        finally:
            sending.cancel()
            writer.close()
            browser.close()

    async def send(self, browser: IOStream, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(self.request_head())
            while True:
                await writer.drain()
                writer.write(await browser.read_bytes(PIECE, partial=True))
        except OSError:
            if browser.closed():
                writer.close()

    def request_head(self) -> bytes:
        prefix, headers = self.settings["base_url"], self.request.headers.copy()
        for name in ("Keep-Alive", "Proxy-Connection", *(() if self.is_websocket() else ("Upgrade",))):
            headers.pop(name, None)
        headers["Connection"] = "upgrade" if self.is_websocket() else "close"
        for name in ("X-Forwarded-Context", "X-ProxyContextPath", "X-Forwarded-Prefix"):
            headers[name] = prefix
        lines = [f"{self.request.method} {(self.request.uri or '')[len(prefix) :]} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.get_all()]
        return "\r\n".join([*lines, "", ""]).encode("latin1")

    def answer_head(self, head: bytes) -> bytes:
        first, *lines = head[:-4].decode("latin1").split("\r\n")
        if not self.is_websocket():
            lines = [line for line in lines if line.partition(":")[0].lower() not in ("connection", "keep-alive")]
            lines.append("Connection: close")
        cookies = getattr(self, "_new_cookie", {}).values()  # of a login by `?token=`
        lines += [f"Set-Cookie: {cookie.OutputString(None)}" for cookie in cookies]
        return "\r\n".join([first, *map(self.with_prefix, lines), "", ""]).encode("latin1")

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


class LoginProxy(standalone.StandaloneProxyServer):
    def create_app(self) -> web.Application:
        app: web.Application = super().create_app()
        # Its own redirect to the page has a backslash before every hyphen.
        app.add_handlers(".*", [(re.escape(self.base_url), web.RedirectHandler, {"url": f"{self.base_url}/"})])
        return app

    def make_proxy_handler(self) -> tuple[type, dict[str, Any]]:
        base, arguments = super().make_proxy_handler()
        return web.stream_request_body(type("Handler", (Handler, base), {})), arguments


if __name__ == "__main__":
    handlers.SuperviseAndProxyHandler._http_ready_func = ready
    LoginProxy.launch_instance(timeout=120.0)
