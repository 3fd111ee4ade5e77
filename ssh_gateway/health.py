"""Whether this process serves, for Kubernetes' probes: any HTTP request on a port of its own is answered with 200.

It says that the event loop runs and the SSH port is open, no more: a restart cures neither the Hub nor the cluster. Not
a probe of the SSH port: that would be a visitor every few seconds, with a log line and a key exchange.
"""

from __future__ import annotations

import asyncio

from ssh_gateway import listening

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n"
SECONDS = 5.0


async def serve(ip: str, port: int) -> asyncio.Server:
    """Listen; the caller closes what it is given."""
    return await asyncio.start_server(_answer, sock=listening.listen(ip, port), limit=8192)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        async with asyncio.timeout(SECONDS):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(ANSWER)
            await writer.drain()
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        pass  # whoever it was did not ask for anything; OSError includes the time-out
    finally:
        writer.close()
