"""A Hub that does not answer for a while, and the gateway, which asks for everybody who logs in with a key."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from dlspawner.clients.hub import HubIdentity, IdentityKind
from dlspawner.manager.http import auth as http_auth
from dlspawner.manager.http.auth import KnownServices
from tests.component.manager.portals import Portal
from tests.component.manager.tcp_proxy import Wire, wired

KEYS = "api/users/alice/keys"


@contextlib.asynccontextmanager
async def by_wire(portal: Portal) -> AsyncIterator[Wire]:
    """The Manager reaches its Hub over this, and keeps no answer of it for longer than it takes."""
    auth = portal.served.manager.auth
    async with wired(portal.real_hub.hub_port) as wire:
        auth.api_url = f"{wire.url}/hub/api"
        auth.cache.max_age = 1e-6
        yield wire


async def status(portal: Portal, token: str, path: str = KEYS) -> int:
    return (await portal.read("", path, token=token)).status


@pytest.mark.parametrize("way", ["hangs", "is gone"])
async def test_the_gateway_is_recognised_while_the_hub_does_not_answer_and_nobody_else_is(
    portal: Portal, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(http_auth, "DEADLINE_SECONDS", 3.0)
    monkeypatch.setattr(http_auth, "DEADLINE_FOR_SERVICES_SECONDS", 0.3)
    gateway, other = portal.real_hub.tokens["gateway"], portal.real_hub.tokens["other"]
    alice = await asyncio.to_thread(portal.real_hub.token, "alice")
    async with by_wire(portal) as wire:
        assert [await status(portal, gateway), await status(portal, other)] == [200, 403]
        assert await status(portal, alice, "api/keys") == 200
        if way == "hangs":
            wire.hang()
        else:
            await wire.cut()
        with monkeypatch.context() as patch:
            patch.setattr(http_auth, "DEADLINE_SECONDS", 60.0)
            since = time.monotonic()
            assert await status(portal, gateway) == 200
            assert time.monotonic() - since < 30, "a login waits for it"
        assert await status(portal, other) == 403, "what it may do is remembered as well"
        assert await status(portal, alice, "api/keys") == 503, "a person's token may have been taken back"
        assert await status(portal, "0" * 32) == 503
        monkeypatch.setattr(portal.served.manager.auth.services, "_said", {})
        assert await status(portal, gateway) == 503, "only what the Hub has said"
        await wire.mend()
        assert await status(portal, gateway) == 200


@pytest.mark.parametrize(
    "answer",
    [
        b'HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{"kind": ',
        b"HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n<h1>Ingress</h1>\n",
        b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
    ],
    ids=["breaks off", "is another", "is the proxy's"],
)
async def test_an_answer_that_is_not_the_hubs_is_none(portal: Portal, answer: bytes) -> None:
    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    gateway, alice = portal.real_hub.tokens["gateway"], await asyncio.to_thread(portal.real_hub.token, "alice")
    async with by_wire(portal), await asyncio.start_server(answers, "127.0.0.1", 0) as other:
        assert await status(portal, gateway) == 200
        portal.served.manager.auth.api_url = f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}/hub/api"
        assert [await status(portal, gateway), await status(portal, alice, "api/keys")] == [200, 503]


def test_what_was_said_holds_for_ten_minutes_and_of_services_only(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(http_auth.time, "monotonic", lambda: now)
    known = KnownServices()
    service, person = (HubIdentity(kind.value, kind, frozenset()) for kind in (IdentityKind.SERVICE, IdentityKind.USER))
    known.learn("a", service)
    known.learn("b", person)
    assert [known.recall(token) for token in ("a", "b", "c")] == [service, None, None]
    now += 599
    assert known.recall("a") == service
    now += 1
    assert known.recall("a") is None
    known.learn("c", service)
    assert len(known._said) == 1, "what holds no more is kept no longer"
    known.learn("c", person)
    assert known.recall("c") is None
    known.learn("c", service)
    known.learn("c", None)
    assert known.recall("c") is None, "the Hub knows this token no more"
