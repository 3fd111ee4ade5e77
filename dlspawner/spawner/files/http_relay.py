"""The server behind the login proxy of a job that is no notebook: python3 http_relay.py SOCKET [PORT]

The login proxy authenticates users at the Hub, and forwards admitted connections to a unix socket. Behind the socket is
the server that the person runs in the job at PORT, or, without PORT or while nothing listens there, the page on how to
get in. A unix socket, because a port would be open without login to whoever reaches this pod's address.

The server is tried at the pod's own address and at its loopback address; one that listens on loopback only is reached
by nobody but this proxy. The person's program is not trusted with what a browser tells the login proxy: the Hub's
cookies and tokens are taken out of every request, also `?token=`, which a WebSocket of a browser's needs because it can
send no header. The proxy opens one connection per request, so the head of a connection is the head of its only request.
"""

import asyncio
import contextlib
import os
import sys
from pathlib import Path
from urllib.parse import unquote_to_bytes

PAGE = Path(os.environ.get("DLSPAWNER_FILES", "/etc/dlspawner")) / "page" / "index.html"
LONGEST_HEAD = 256 * 1024
CONNECT_SECONDS = 5


def without_credentials(head: bytes) -> bytes:
    """The head of a request without what would let its reader act as the person at the Hub or at this proxy."""
    first, *rest = head.split(b"\r\n")
    lines = [_without_hub_cookies(line) for line in rest if _name(line) != b"authorization"]
    return b"\r\n".join([_without_token(first), *(line for line in lines if line is not None)])


def _name(line: bytes) -> bytes:
    return line.partition(b":")[0].strip().lower()


def _without_token(line: bytes) -> bytes:
    """A line that ends in an address, or in one and the protocol, without the `token` of its query."""
    before, question, query = line.partition(b"?")
    asked, *after = query.split(b" ")
    kept = [one for one in asked.split(b"&") if unquote_to_bytes(one.partition(b"=")[0]) != b"token"]
    return b" ".join([before + (question + b"&".join(kept) if kept else b""), *after]) if question else line


def _without_hub_cookies(line: bytes) -> "bytes | None":
    if _name(line) == b"referer":
        return _without_token(line)
    if _name(line) != b"cookie":
        return line
    cookies = [one.strip() for one in line.partition(b":")[2].split(b";")]
    theirs = [one for one in cookies if not one.startswith((b"jupyterhub-", b"_xsrf="))]  # _xsrf names the session
    return b"Cookie: " + b"; ".join(theirs) if theirs else None


def page(port: "int | None") -> bytes:
    """The page on how to get in, as an answer; with a word on the server that is not there."""
    try:
        body = PAGE.read_bytes()
    except OSError:
        body = b""
    if port is not None:
        said = f"<p role=status>Nothing listens on port {port} of this job yet. Reload when your server runs.</p>"
        body = body.replace(b"<body>", b"<body>" + said.encode()) if b"<body>" in body else said.encode() + body
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Cache-Control: no-store\r\nConnection: close\r\n\r\n" + body


async def server(port: int) -> "tuple[asyncio.StreamReader, asyncio.StreamWriter] | None":
    """A connection to the person's server, if there is one."""
    for address in (os.environ.get("POD_IP", ""), "127.0.0.1"):
        if address:
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                return await asyncio.wait_for(asyncio.open_connection(address, port), CONNECT_SECONDS)
    return None


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(64 * 1024):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


class Door:
    """The server of the login proxy's connections."""

    def __init__(self, port: "int | None") -> None:
        self.port = port
        # The proxy's first connection only tests that this program listens: a server that hangs must not answer it.
        self.asked = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = None
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if self.port is not None and self.asked:
                there = await server(self.port)
            self.asked = True
            if there is None:
                writer.write(page(self.port))
                await writer.drain()
            else:
                there[1].write(without_credentials(head))
                await relay(reader, writer, *there)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client hung up, or sent no request
        finally:
            writer.close()
            if there is not None:
                there[1].close()


async def relay(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    theirs: asyncio.StreamReader,
    to_them: asyncio.StreamWriter,
) -> None:
    """Both directions, until the server has said everything."""
    sending = asyncio.ensure_future(copy(reader, to_them))
    try:
        await copy(theirs, writer)
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def main(socket: str, port: "int | None") -> None:
    listening = await asyncio.start_unix_server(Door(port).serve, socket, limit=LONGEST_HEAD)
    async with listening:
        await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None))
