"""Whether a server accepts connections and answers, and the refusal if it does not."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import pytest
from certipy import Certipy
from jupyterhub.utils import make_ssl_context

from dlspawner.spawner import reach
from dlspawner.spawner.kube.errors import StartRefused
from tests.harness.ports import free_port
from tests.harness.spawner_builders import make_spawner

URL = "http://127.0.0.1:{}/user/alice/"


async def test_a_server_that_listens_late_is_waited_for() -> None:
    port = free_port()
    waiting = asyncio.create_task(reach.until_accepting(URL.format(port), 60, lambda: True))
    await asyncio.sleep(0)
    with socket.create_server(("127.0.0.1", port)):
        assert await waiting


@pytest.mark.parametrize(("seconds", "alive"), [(0.1, True), (60, False)], ids=["time-out", "it has ended"])
async def test_no_server_accepts(seconds: float, alive: bool) -> None:
    assert not await reach.until_accepting(URL.format(free_port()), seconds, lambda: alive)


@pytest.mark.parametrize(
    ("said", "answers"),
    [
        (b"HTTP/1.1 200 OK\r\n", True),
        (b"HTTP/1.1 403 Forbidden\r\n", True),
        (b"HTTP/1.1 503 Not yet\r\n", False),
        (b"SSH-2.0-OpenSSH_9.2\r\n", False),
        (b"x" * 100_000, False),
    ],
    ids=["200", "403", "503", "another protocol", "no line"],
)
async def test_which_answers_count(said: bytes, answers: bool) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.write(said)
        writer.close()

    asked = list[bytes]()
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert await reach.answers_soon(URL.format(port) + "api", seconds=60) is answers
    assert asked == [b"GET /user/alice/api HTTP/1.1\r\n"]


async def test_a_server_without_an_answer_has_a_time_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert not await reach.answers_soon(URL.format(silent.getsockname()[1]), seconds=0.1)


async def test_few_servers_are_asked_at_once() -> None:
    asking, most, enough = 0, 0, asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asking, most
        await reader.readline()
        asking += 1
        most = max(most, asking)
        if asking == reach._ASKED_AT_ONCE:
            enough.set()
        await enough.wait()
        asking -= 1
        writer.write(b"HTTP/1.1 200 OK\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1000) as server:
        url = URL.format(server.sockets[0].getsockname()[1])
        answers = await asyncio.gather(*(reach.answers_soon(url, seconds=60) for _ in range(200)))

    assert all(answers)
    assert most == reach._ASKED_AT_ONCE


@pytest.fixture
def certificates(tmp_path: Path) -> dict[str, dict[str, str]]:
    """The files of the Hub, a server and another Hub, as internal_ssl makes them."""
    made = Certipy(store_dir=str(tmp_path))
    found = {}
    for name, authority in (("hub", "hub-ca"), ("server", "hub-ca"), ("another hub", "other-ca")):
        if not (tmp_path / authority).exists():
            made.create_ca(authority)
        found[name] = made.create_signed_pair(name, authority, alt_names=["IP:127.0.0.1"])["files"]
    return found


@pytest.mark.parametrize(("hub", "answers"), [("hub", True), ("another hub", False)])
async def test_with_internal_ssl_a_server_answers_only_its_own_hub(
    hub: str, answers: bool, certificates: dict[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 200 OK\r\n")
        writer.close()

    own = certificates["server"]
    tls = make_ssl_context(own["key"], own["cert"], own["ca"], purpose=ssl.Purpose.CLIENT_AUTH)
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/user/alice/api"
        spawner = make_spawner(monkeypatch, settings=None, config={"internal_ssl": True})
        spawner.user.settings = {f"internal_ssl_{name}": certificates[hub][name] for name in ("key", "cert", "ca")}

        assert await reach.answers_soon(url, spawner._tls(), seconds=60) is answers
        assert not await reach.answers_soon(url, seconds=60), "without certificates it is another protocol"
    assert make_spawner(monkeypatch, settings=None)._tls() is None


def test_a_server_that_does_not_answer_is_a_refusal_with_its_port(monkeypatch: pytest.MonkeyPatch) -> None:
    spawner = make_spawner(monkeypatch)
    with pytest.raises(StartRefused) as refused:
        spawner._does_not_answer("http://10.1.2.3:8888/user/alice/")

    assert "nothing answers on its port 8888: start it again" in refused.value.message
    assert "10.1.2.3" not in refused.value.message
    assert spawner.get_state()["dlspawner_ended"] == refused.value.message


@pytest.mark.parametrize(
    ("url", "port"),
    [
        ("https://gate.example.org/user/alice/", 443),
        ("https://[fd00::1]:8888/", 8888),
    ],
)
def test_port_of_an_address(url: str, port: int) -> None:
    assert reach.port_of(url) == port


def test_without_templates_jupyterhub_itself_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    make_spawner(monkeypatch, settings=None)._does_not_answer("http://10.1.2.3:8888/user/alice/")
