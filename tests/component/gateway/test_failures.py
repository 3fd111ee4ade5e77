"""Internal errors: the operator gets the traceback, the client a sentence, and other sessions continue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from asyncssh.packet import MPInt, String

from ssh_gateway.core import packets
from ssh_gateway.session import session as session_module
from ssh_gateway.session.login import ClientConnection
from ssh_gateway.session.session import Session
from ssh_gateway.transport.connection import FAILED, UNREADABLE
from tests.component.gateway.hostile import DENIED, call
from tests.component.gateway.peers import Client, FakeJobDirectory, Running, seen, until
from tests.component.gateway.test_audit import logged
from tests.unit.gateway.test_log import SECRET

__all__ = ["logged"]

P256, SK = "ecdsa-sha2-nistp256", "sk-ecdsa-sha2-nistp256@openssh.com"


@dataclass(frozen=True)
class Fault:
    """A function that fails once, the login that meets it, and another function of the traceback."""

    owner: Any
    name: str
    login: tuple[str, ...] = ("alice+train@gateway",)
    command: str = "cat"
    applies: Callable[..., bool] = lambda *_: True
    through: str = "from_client"

    def begin(self, monkeypatch: pytest.MonkeyPatch) -> None:
        works, left = getattr(self.owner, self.name), [1]

        def broken(*arguments: Any) -> Any:
            if left and self.applies(*arguments):
                left.pop()
                raise KeyError(SECRET)
            return works(*arguments)

        monkeypatch.setattr(self.owner, self.name, broken)


def lines(logged: list[dict[str, str]], event: str) -> list[dict[str, str]]:
    return [one for one in logged if one["event"] == event]


def by_job(_visit: Session, _payload: bytes, by_client: bool, _channel: int | None) -> bool:
    return not by_client


FAULTS = {
    "in a login": Fault(FakeJobDirectory, "endpoint", through="log_in"),
    "in a task of the connection": Fault(session_module, "enter", login=("alice@gateway",), through="_connect_default"),
    "on a client's request": Fault(Session, "_note"),
    "on the job's last words": Fault(Session, "_note", command="exit 3", applies=by_job, through="from_upstream"),
    "on data, which asyncssh does not see": Fault(Session, "_used", through="take"),
    "on a stream of ssh -J": Fault(
        session_module, "find_server", login=("-J", "alice@gateway", "alice@train"), through="serve_stream"
    ),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_internal_error_ends_one_connection_and_is_logged(
    alice: Client,
    logged: list[dict[str, str]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault,
) -> None:
    bystander = await alice.start("ssh", "alice+train@gateway", "cat")
    bystander.stdin.write(b"before\n")
    await seen(bystander, b"before")
    fault.begin(monkeypatch)
    done = await alice.ssh(*fault.login, fault.command, feed=b"typed")
    assert done.status == 255
    assert FAILED in done.err
    (failed,) = lines(logged, "failed")
    assert failed["error"] == "KeyError"
    assert "why" not in failed
    calls = failed["traceback"].split(" > ")
    assert calls[-1].endswith(" broken")
    assert fault.through in {call.split()[-1] for call in calls}
    await until(lambda: failed["conn"] in {one["conn"] for one in lines(logged, "close")})
    assert "a token" not in caplog.text
    bystander.stdin.write(b"after\n")
    await seen(bystander, b"after")
    bystander.kill()
    await bystander.communicate()
    assert (await alice.ssh("alice+train@gateway", "echo in")).text == "in\n"


async def test_error_at_the_end_of_a_connection_is_logged(
    alice: Client, logged: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    Fault(ClientConnection, "_say_farewell").begin(monkeypatch)
    assert (await alice.ssh("alice+train@gateway", "echo in")).text == "in\n"
    await until(lambda: lines(logged, "failed"))
    (failed,) = lines(logged, "failed")
    assert failed["traceback"].endswith(" broken")
    assert "connection_lost" in failed["traceback"]
    assert (await alice.ssh("alice+train@gateway", "echo still in")).text == "still in\n"


def kexinit(key_exchange: bytes, host_key: bytes) -> bytes:
    lists = [key_exchange, host_key, *[b"none"] * 6, b"", b""]
    return packets.in_clear(bytes([20]) + bytes(16) + b"".join(map(packets.text, lists)) + bytes(5))


GREETING = b"SSH-2.0-x\r\n"
ECDH_INIT = packets.in_clear(bytes([30]) + packets.text(bytes(32)))


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        pytest.param(b"SSH-2.0-\xff\xfe\r\n", UNREADABLE, id="a version that is no text"),
        pytest.param(GREETING + packets.in_clear(b""), UNREADABLE, id="an empty packet"),
        pytest.param(GREETING + kexinit(b"\xff", b"none"), UNREADABLE, id="a name of a key exchange that is no text"),
        pytest.param(
            GREETING + kexinit(b"curve25519-sha256", b"none") + ECDH_INIT,
            "Unable to find compatible server host key",
            id="what goes on behind its end",
        ),
    ],
)
async def test_malformed_input_is_no_internal_error(
    running: Running, alice: Client, logged: list[dict[str, str]], said: bytes, answer: str
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(said)
    async with asyncio.timeout(20):
        assert answer.encode() in await reader.read(-1)
    writer.close()
    await until(lambda: not running.server.connections)
    assert (await alice.ssh("alice+train@gateway", "echo in")).text == "in\n"
    assert lines(logged, "failed") == []


def point(kind: str, curve: str, of: bytes, *more: bytes) -> bytes:
    return String(kind) + String(curve) + String(of) + b"".join(more)


def rsa(exponent: int, modulus: int) -> bytes:
    return String("ssh-rsa") + MPInt(exponent) + MPInt(modulus)


NO_KEYS = {
    "RSA, an even exponent": ("rsa-sha2-256", rsa(2, 15)),
    "RSA, negative": ("rsa-sha2-256", rsa(-3, -15)),
    "RSA, an exponent that is too large": ("rsa-sha2-256", rsa(2**5000 + 1, 2**4096 + 1)),
    "a point beside the curve": (P256, point(P256, "nistp256", b"\4" + b"\1" * 64)),
    "no point": (P256, point(P256, "nistp256", b"")),
    "an unknown curve": (P256, point(P256, "nistp999", b"\4" + b"\1" * 64)),
    "a security key beside the curve": (SK, point(SK, "nistp256", b"\4" + b"\1" * 64, String("ssh:"))),
    "too short": ("ssh-ed25519", String("ssh-ed25519") + String(b"x" * 31)),
    "empty": ("ssh-ed25519", b""),
}


@pytest.mark.parametrize("signed", [False, True], ids=["asked", "signed"])
@pytest.mark.parametrize(("kind", "data"), NO_KEYS.values(), ids=NO_KEYS.keys())
async def test_impossible_key_is_denied_without_an_internal_error(
    running: Running, logged: list[dict[str, str]], kind: str, data: bytes, signed: bool
) -> None:
    """Anybody may send one, as often as they like."""
    caller = await call(running)
    signature = (String(String(kind) + String(b"s" * 64)),) if signed else ()
    assert await caller.with_any(b"alice", kind, data, *signature) == DENIED
    assert lines(logged, "failed") == []
    caller.abort()
