"""How the Hub asks the Manager when there are several behind one address, or one that cannot be reached."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from dlspawner.core.accounts import Numbers, UidRange
from dlspawner.spawner import manager
from dlspawner.spawner.manager import Manager

UIDS = UidRange(20_000, 29_999)
log = logging.getLogger("test")


@contextlib.asynccontextmanager
async def answering(
    answer: Callable[[web.Request], Awaitable[web.Response]], taken: socket.socket
) -> AsyncIterator[str]:
    """The address of a Manager that answers everything like this."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.SockSite(runner, taken).start()
    yield f"http://127.0.0.1:{taken.getsockname()[1]}"
    await runner.cleanup()


async def test_every_try_has_its_own_connection_so_that_another_manager_may_answer() -> None:
    """Of two Managers behind the address of a Service, which leads each connection to one of them."""
    connections: list[object] = []

    async def answer(request: web.Request) -> web.Response:
        if request.transport not in connections:
            connections.append(request.transport)
        if len(connections) < 3:
            return web.json_response({}, status=503)
        return web.json_response({"uid": 20_000, "gid": 20_000})

    async with answering(answer, socket.create_server(("127.0.0.1", 0))) as url:
        assert await Manager(url, "token", log, seconds=30).account("alice", UIDS) == Numbers(20_000, 20_000)


async def test_a_connection_that_nobody_takes_does_not_use_the_time_of_all_tries(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as one to a machine that is off."""
    monkeypatch.setattr(manager, "_CONNECT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf, contextlib.ExitStack() as stack:
        address = deaf.getsockname()
        with contextlib.suppress(TimeoutError):
            while True:  # until the system takes no more
                stack.enter_context(socket.create_connection(address, timeout=0.2))
        found = Manager(f"http://127.0.0.1:{address[1]}", "token", log, seconds=3)
        with pytest.raises(manager.Refused):
            await found.account("alice", UIDS)
    assert "asking again" in caplog.text


async def test_a_manager_that_was_not_told_how_to_decide_is_asked_once_and_the_sentence_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.method)
        return web.json_response({}, status=501)

    async with answering(answer, socket.create_server(("127.0.0.1", 0))) as url:
        with pytest.raises(manager.Refused, match="was not told how"):
            await Manager(url, "token", log).waiting("alice", "")
        with pytest.raises(manager.Refused, match="was not told how"):
            await Manager(url, "token", log).admission(
                "j-1", {}, lambda said, reason: manager.Refused(*said, reason=reason)
            )
    assert asked == ["GET", "PUT"]
    assert "it has no cluster_file, teams_file and templates_dir" in caplog.text
