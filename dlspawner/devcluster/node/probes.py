"""Probes and lifecycle hooks: ask a container how it is, or tell it something.

As the kubelet, with one difference: until a container has answered well for the first time, network probes are
repeated every few milliseconds instead of every ``periodSeconds``, so a pod is Ready the moment its server is. Such
early attempts that fail do not count against ``failureThreshold``.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

Json = Mapping[str, Any]
Exec = Callable[[list[str], float], Awaitable[tuple[int, str]]]
EAGER_SECONDS = 0.03
EAGER_EXEC_SECONDS = 0.25
# A server that needs longer is watched more slowly: half a second more does not matter to it.
EAGER_GROWTH = 1.15
EAGER_MOST = 0.5


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a probe; the text is an Unhealthy event's."""

    ok: bool
    text: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """The addresses of one container."""

    ip: str
    ports: Mapping[str, int]  # by name
    execute: Exec

    def port(self, port: str | int) -> int:
        return self.ports[port] if isinstance(port, str) and port in self.ports else int(port)


async def attempt(action: Json, target: Target, timeout: float) -> Result:
    """One try of an httpGet, tcpSocket or exec action within its time-out."""
    try:
        async with asyncio.timeout(timeout):
            if "httpGet" in action:
                return await _http(action["httpGet"], target)
            if "tcpSocket" in action:
                return await _tcp(action["tcpSocket"], target)
            if "exec" in action:
                code, output = await target.execute(action["exec"].get("command") or [], timeout)
                return Result(code == 0, output.strip())
            if "sleep" in action:
                await asyncio.sleep(int(action["sleep"]["seconds"]))
            return Result(ok=True)
    except TimeoutError:
        return Result(ok=False, text=f"command timed out after {timeout:g}s" if "exec" in action else "timed out")
    except (OSError, aiohttp.ClientError, ValueError) as error:
        return Result(ok=False, text=f"{error}")


async def watch(
    probe: Json,
    target: Target,
    changed: Callable[[bool], None],
    failed: Callable[[str], None],
) -> None:
    """Probe for ever; ``changed`` hears each verdict that passed its threshold, ``failed`` every failed attempt."""
    period = max(float(probe.get("periodSeconds", 10)), 0.01)
    timeout = float(probe.get("timeoutSeconds", 1))
    thresholds = {True: int(probe.get("successThreshold", 1)), False: int(probe.get("failureThreshold", 3))}
    await asyncio.sleep(float(probe.get("initialDelaySeconds", 0)))
    streak, last = 0, False
    eager = min(EAGER_EXEC_SECONDS if "exec" in probe else EAGER_SECONDS, period)
    clock = asyncio.get_running_loop().time
    counts_from = clock() + period
    verdict: bool | None = None
    never_ok = True
    while True:
        result = await attempt(probe, target, timeout)
        never_ok = never_ok and not result.ok
        early = never_ok and clock() < counts_from
        if not early:
            counts_from = clock() + period
            streak = streak + 1 if result.ok == last else 1
            last = result.ok
            if not result.ok:
                failed(result.text)
            if streak >= thresholds[result.ok] and verdict is not result.ok:
                verdict = result.ok
                changed(verdict)
        await asyncio.sleep(eager if never_ok else period)
        eager = min(eager * EAGER_GROWTH, EAGER_MOST, period)


async def _http(action: Json, target: Target) -> Result:
    scheme = str(action.get("scheme", "HTTP")).lower()
    host = action.get("host") or target.ip
    url = f"{scheme}://{host}:{target.port(action['port'])}/{str(action.get('path', '/')).lstrip('/')}"
    headers = {"User-Agent": "kube-probe/1", "Accept": "*/*", "Connection": "close"}
    headers |= {header["name"]: header["value"] for header in action.get("httpHeaders") or []}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # as the kubelet: a probe asks for health, not for identity
    connector = aiohttp.TCPConnector(ssl=context, force_close=True)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(url, headers=headers, allow_redirects=False) as response,
    ):
        if 200 <= response.status < 400:
            return Result(ok=True)
        return Result(ok=False, text=f"HTTP probe failed with statuscode: {response.status}")


async def _tcp(action: Json, target: Target) -> Result:
    _, writer = await asyncio.open_connection(action.get("host") or target.ip, target.port(action["port"]))
    writer.close()
    return Result(ok=True)
