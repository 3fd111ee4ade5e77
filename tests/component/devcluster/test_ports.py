"""NodePorts, and a real sshd behind one."""

import asyncio
import os
import pty
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from dlspawner.clients.kubernetes import SECRETS, SERVICES
from tests.component.devcluster.conftest import SECONDS, World, is_ready

ECHO = """
import os, socket
server = socket.create_server((os.environ["POD_IP"], 9000))
while True:
    client, _ = server.accept()
    total = 0
    while data := client.recv(262144):
        total += len(data)
    client.sendall(str(total).encode())
    client.close()
"""


async def _service(world: World, app: str, target: int | str) -> int:
    spec = {"type": "NodePort", "selector": {"app": app}, "ports": [{"port": 80, "targetPort": target}]}
    service = await world.cluster.create(SERVICES, {"metadata": {"name": app, "namespace": "jobs"}, "spec": spec})
    return int(service["spec"]["ports"][0]["nodePort"])


async def _connect(ip: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                return await asyncio.open_connection(ip, port)
            except ConnectionRefusedError:  # the node has not heard of the Service yet
                await asyncio.sleep(0.01)


async def test_a_node_port_works_at_every_node_in_bulk_and_with_half_close(world: World) -> None:
    port = await _service(world, "echo", "sink")
    probe = {"tcpSocket": {"port": "sink"}}
    ports = [{"name": "sink", "containerPort": 9000}]
    await world.pod("echo", ["python3", "-c", ECHO], readinessProbe=probe, ports=ports)
    await world.ready("echo")
    size = 64 * 2**20
    for node in world.agent.nodes:
        reader, writer = await _connect(node.ip, port)
        writer.write(bytes(size))
        writer.write_eof()
        async with asyncio.timeout(SECONDS):
            assert await reader.read() == str(size).encode()
        writer.close()


async def test_a_node_port_without_a_ready_pod_is_closed_at_once(world: World) -> None:
    port = await _service(world, "nobody", 1)
    reader, writer = await _connect(world.agent.nodes[0].ip, port)
    async with asyncio.timeout(10):
        assert await reader.read() == b""
    writer.close()


async def test_a_deleted_service_gives_its_port_back(world: World) -> None:
    port = await _service(world, "brief", 1)
    _, writer = await _connect(world.agent.nodes[0].ip, port)
    writer.close()
    await world.cluster.delete(SERVICES, "brief", "jobs")
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                _, writer = await asyncio.open_connection(world.agent.nodes[0].ip, port)
                writer.close()
            except (ConnectionRefusedError, ConnectionResetError):
                return
            await asyncio.sleep(0.01)


def _sshd() -> str | None:
    return os.environ.get("DLSPAWNER_SSHD") or shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    return tmp_path


@pytest.mark.skipif(_sshd() is None, reason="no sshd on this machine")
async def test_ssh_with_a_terminal_into_an_unprivileged_sshd_through_a_node_port(world: World, keys: Path) -> None:
    program = str(_sshd())
    files = {
        "host": (keys / "host").read_text(),
        "authorized": (keys / "user.pub").read_text(),
        "passwd": "alice:x:1000:1000::/home/alice:/bin/bash\n",
        "group": "alice:x:1000:\n",
    }
    await world.cluster.create(SECRETS, {"metadata": {"name": "ssh", "namespace": "jobs"}, "stringData": files})
    options = ("UsePAM=no", "StrictModes=no", "PidFile=none", "AuthorizedKeysFile=/etc/ssh-job/authorized")
    command = [
        program,
        "-D",
        "-e",
        "-f",
        "/dev/null",
        "-h",
        "/etc/ssh-job/host",
        "-p",
        "2222",
        "-o",
        "ListenAddress=$(POD_IP)",
    ]
    extra: dict[str, Any] = {}
    libraries = [{"name": "LD_LIBRARY_PATH", "value": os.environ.get("LD_LIBRARY_PATH", "")}]
    if program.startswith("/tmp/"):  # containers have a /tmp of their own
        top = "/".join(program.split("/")[:3])
        extra = {
            "v": [{"name": "tools", "hostPath": {"path": top}}],
            "m": [{"name": "tools", "mountPath": top, "readOnly": True}],
        }
    await world.pod(
        "sshd",
        [*command, *(word for option in options for word in ("-o", option))],
        readinessProbe={"tcpSocket": {"port": 2222}},
        env=libraries,
        spec_volumes=[
            {"name": "ssh", "secret": {"secretName": "ssh", "defaultMode": 0o400}},
            {"name": "home", "emptyDir": {}},
            *extra.get("v", []),
        ],
        volumeMounts=[
            {"name": "ssh", "mountPath": "/etc/ssh-job"},
            {"name": "ssh", "mountPath": "/etc/passwd", "subPath": "passwd"},
            {"name": "ssh", "mountPath": "/etc/group", "subPath": "group"},
            {"name": "home", "mountPath": "/home/alice"},
            *extra.get("m", []),
        ],
    )
    port = await _service(world, "sshd", 2222)
    pod = await world.until("sshd", lambda pod: is_ready(pod) or pod["status"].get("phase") == "Failed")
    assert is_ready(pod), world.log("sshd")
    _, writer = await _connect(world.agent.nodes[1].ip, port)
    writer.close()
    args = [
        "ssh",
        "-F",
        "/dev/null",
        "-tt",
        "-p",
        str(port),
        "-i",
        str(keys / "user"),
        "-o",
        "StrictHostKeyChecking=no",
    ]
    args += ["-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", f"alice@{world.agent.nodes[1].ip}"]
    assert await _in_terminal([*args, "tty; id -un; pwd; exit 7"]) == (7, ["/dev/pts/0", "alice", "/home/alice"])


async def _in_terminal(args: list[str]) -> tuple[int, list[str]]:
    master, slave = pty.openpty()
    os.set_blocking(master, False)
    process = await asyncio.create_subprocess_exec(*args, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    seen = b""
    until = time.monotonic() + SECONDS
    while True:
        try:
            seen += os.read(master, 4096)
        except BlockingIOError:
            if time.monotonic() > until:
                process.kill()
            await asyncio.sleep(0.01)
        except OSError:
            break
    os.close(master)
    return await process.wait(), seen.decode().split()
