"""Other people's clients: PuTTY's plink, Dropbear's dbclient, paramiko, and the way of VS Code."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from pathlib import Path

import pytest

from tests.component.gateway.clients.forwarding import answer_over, echo_server, echo_socket
from tests.component.gateway.clients.paramiko_client import NO_SIGNALS, SIGNALS
from tests.component.gateway.clients.test_forwards import agent
from tests.component.gateway.clients.ways import Desk, Way
from tests.component.gateway.peers import DEADLINE, Done
from tests.harness.ports import free_port

MIB = 2**20


def login(desk: Desk, client: str, way: Way) -> list[str]:
    return ["plink", "-ssh", *desk.putty(way)] if client == "plink" else ["dbclient", *desk.dropbear(way)]


both = pytest.mark.parametrize("client", ["plink", "dbclient"])


@both
@pytest.mark.parametrize(
    ("command", "feed", "expected"),
    [
        pytest.param("echo out; echo err >&2; exit 7", b"", (7, b"out\n", "err\n"), id="output, errors and status"),
        pytest.param("cat; echo after", b"typed", (0, b"typedafter\n", ""), id="the end of the input"),
    ],
)
async def test_a_command_of_another_client(
    two: Desk, client: str, command: str, feed: bytes, expected: tuple[int, bytes, str]
) -> None:
    async def case(way: Way) -> tuple[int, bytes, str]:
        done = await two.run(*login(two, client, way), command, feed=feed)
        return done.status, done.out, done.err

    assert await two.each(case) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "feed", "expected"),
    [
        pytest.param("head -c 5; exit 3", b"x" * MIB, (3, b"x" * 5, ""), id="a reader that stops"),
        pytest.param("cat", b"\0\xff\r\n" * MIB, (0, b"\0\xff\r\n" * MIB, ""), id="4 MiB there and back"),
    ],
)
@pytest.mark.parametrize("options", [(), ("-C",)], ids=["as it is", "compressed"])
async def test_much_by_plink(
    two: Desk, options: tuple[str, ...], command: str, feed: bytes, expected: tuple[int, bytes, str]
) -> None:
    async def case(way: Way) -> tuple[int, bytes, str]:
        name, *more = login(two, "plink", way)
        done = await two.run(name, *options, *more, command, feed=feed)
        return done.status, done.out, done.err

    assert await two.each(case) == expected


@pytest.mark.slow
@both
@pytest.mark.parametrize("name", ["TERM", "HUP", "INT", "KILL", "SEGV", "USR1"])
async def test_the_signal_that_ended_a_command_of_another_client(two: Desk, client: str, name: str) -> None:
    """Neither says which it was."""

    async def case(way: Way) -> Done:
        return await two.run(*login(two, client, way), f"echo before; kill -{name} $$; echo after")

    status = {"plink": 128, "dbclient": 0}[client]  # the other takes it for a good end
    assert await two.each(case) == Done(status, b"before\n", "")


@pytest.mark.slow
async def test_a_terminal_of_plink(two: Desk) -> None:
    async def case(way: Way) -> tuple[int, bool, bool]:
        *options, host = login(two, "plink", way)
        done = await two.run(*options, "-t", host, "tty; stty -a; exit 3")
        return done.status, "/dev/pts/" in done.text, "speed" in done.text

    assert await two.each(case) == (3, True, True)


@pytest.mark.slow
@both
async def test_forwards_of_another_client(two: Desk, client: str) -> None:
    async def case(way: Way) -> tuple[bytes, bytes]:
        there, here = free_port(), free_port()
        async with echo_server() as port:
            *options, host = login(two, client, way)
            forwards = ("-L", f"{here}:127.0.0.1:{port}", "-R", f"{there}:127.0.0.1:{port}")
            async with two.background(*options, *forwards, host, "echo up; cat") as process:
                assert process.stdout is not None
                assert await asyncio.wait_for(process.stdout.readline(), DEADLINE) == b"up\n"
                return await answer_over(here, b"there"), await answer_over(there, b"back")

    assert await two.each(case) == (b"there", b"back")


PARAMIKO = {
    "commands": [["out\n", "err\n", 7], ["typed", "", 0], ["hello\n", "", 0], ["", "", -1], ["terminal\r\n", "", 0]],
    "bulk": [True, 0],
    "shell": [True, True, 5],
    "files": [[["folder", "link"], "sent", 0o640], 2, True, True],
    "forwards": [
        "there", ["ChannelException", "2", "Connect failed"], "back",
        ["ConnectionRefusedError", "111", "Connection refused"],
    ],
    "requests": [
        True, True, ["ChannelException", "2", "Connect failed"], [False, False, True, True], True, 3,
    ],
    "signals": [
        [[granted, f"caught {name}", n] for n, name in enumerate(SIGNALS, 1) for granted in (True, None)],
        [True, "", -1], [[False]] * len(NO_SIGNALS), False, ["alive\n", "", 0],
    ],
    "breaks": [[True, True, 0]] * 3 + [[None, True, 0]] * 3 + [[False]] * 3 + [[None, True, 0]] * 3,
    "subsystem": ["SSHException", "Channel closed."],
    "many": [[str(n), n] for n in range(40)],
    "agent": [["FINGERPRINT"], 0],
    "sockets": ["there", ["ChannelException", "2", "Connect failed"]],
}  # fmt: skip


QUICK = {"commands", "requests"}


async def paramiko_does(desk: Desk, way: Way, name: str) -> object:
    """What came of one of the cases of `paramiko_client.py`."""
    host, port, user = desk.address(way)
    key = desk.sshd.host_key if way is Way.DIRECT else desk.host_key.export_public_key().decode()
    socket_path = desk.sockets / f"echo-{way.value}"
    async with echo_server() as echo, echo_socket(socket_path), agent(desk, way.value) as agents:
        where = {
            "host": host,
            "port": port,
            "user": user,
            "host_key": key,
            "identity": str(desk.identity),
            "through": desk.running.port if way is Way.JUMP else None,
            "folder": str(desk.job_folder(way)),
            "echo": echo,
            "socket": str(socket_path),
        }
        script = str(Path(__file__).with_name("paramiko_client.py"))
        feed, env = json.dumps(where).encode(), {"SSH_AUTH_SOCK": str(agents)}
        done = await desk.run(sys.executable, "-W", "ignore", script, name, feed=feed, env=env)
    assert done.status == 0, done.err
    return json.loads(done.text.replace(desk.key.get_fingerprint(), "FINGERPRINT"))


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PARAMIKO]
)
async def test_paramiko(desk: Desk, name: str) -> None:
    async def case(way: Way) -> object:
        return await paramiko_does(desk, way, name)

    assert await desk.each(case) == PARAMIKO[name]


# What VS Code's Remote-SSH feeds to `ssh -T -D PORT host bash`: a script that starts a server in the background, waits
# for its port, says so between marks, and stays; everything else goes over the SOCKS port.
VS_CODE = """\
echo '%(id)s: running'
server() { exec python3 -u -c '
import socketserver
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(data)
with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
    print(server.server_address[1])
    server.serve_forever()
'; }
server >%(folder)s/log 2>&1 </dev/null &
while ! [ -s %(folder)s/log ]; do sleep 0.05; done
echo "%(id)s: start"
echo "listeningOn==$(cat %(folder)s/log)=="
echo "osReleaseId==$(. /etc/os-release; echo $ID)=="
echo "%(id)s: end"
cat >/dev/null
kill %%1
exit 0
"""


async def test_the_way_of_vs_code(desk: Desk) -> None:
    async def case(way: Way) -> tuple[list[str], bytes, bytes]:
        socks = free_port()
        options = ("-T", "-D", str(socks), "-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=1")
        async with desk.background("ssh", *options, way.value, "bash") as ssh:
            assert ssh.stdin is not None
            assert ssh.stdout is not None
            ssh.stdin.write((VS_CODE % {"id": "a1b2", "folder": desk.job_folder(way)}).encode())
            said = (await asyncio.wait_for(ssh.stdout.readuntil(b"a1b2: end\n"), DEADLINE)).decode()
            port = int(said.split("listeningOn==")[1].split("==")[0])
            data = os.urandom(MIB)
            first, second = await asyncio.gather(over_socks(socks, port, b"hello"), over_socks(socks, port, data))
            ssh.stdin.close()
            assert await asyncio.wait_for(ssh.wait(), DEADLINE) == 0
        return said.replace(str(port), "PORT").splitlines(), first, b"same" if second == data else b"other"

    said, first, second = await desk.each(case)
    assert said[:3] == ["a1b2: running", "a1b2: start", "listeningOn==PORT=="]
    assert (first, second) == (b"hello", b"same")


async def over_socks(socks: int, port: int, payload: bytes) -> bytes:
    """What comes back from a port of the job, asked for as SOCKS 5 does."""
    reader, writer = await asyncio.open_connection("127.0.0.1", socks)
    writer.write(b"\x05\x01\x00")
    assert await asyncio.wait_for(reader.readexactly(2), DEADLINE) == b"\x05\x00"
    writer.write(b"\x05\x01\x00\x01" + socket.inet_aton("127.0.0.1") + port.to_bytes(2, "big"))
    assert (await asyncio.wait_for(reader.readexactly(10), DEADLINE))[1] == 0
    writer.write(payload)
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(-1), DEADLINE)
    writer.close()
    return answer
