"""Clients whose network vanishes: run by `unshare --net`, with a gateway and a job there, and clients beyond a veth.

    python -m tests.component.gateway.vanishing FOLDER

Prints what has come true, a line each.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import asyncssh

from ssh_gateway.transport import connection, sockets
from ssh_gateway.transport.keys import GatewayKeys
from tests.component.gateway.peers import Client, FakeAuthBackend, FakeJobDirectory, Sshd, gateway, until
from tests.harness.ports import free_port

HERE, THERE = "198.51.100.1", "198.51.100.2"
CARD = "02:00:00:00:00:02"
NOISE = "while echo noise; do sleep 0.1; done"


def ip(words: str, *where: str) -> None:
    subprocess.run([*where, "ip", *words.split()], check=True)


async def main(folder: Path) -> None:
    sockets.LOST_SECONDS, connection.ANSWER_SECONDS = 2.0, 1.0
    beyond = await asyncio.create_subprocess_exec("unshare", "--net", "sh", "-c", "echo in; exec sleep 600", stdout=-1)
    await beyond.stdout.readline()
    inside = ["nsenter", "--net", "-t", str(beyond.pid)]
    ip("link set lo up")
    ip(f"link add here type veth peer name there address {CARD} netns {beyond.pid}")
    for name, address, where in (("here", HERE, []), ("there", THERE, inside)):
        ip(f"address add {address}/24 dev {name}", *where)
        ip(f"link set {name} up", *where)
    keys = GatewayKeys(*(asyncssh.generate_private_key("ssh-ed25519") for _ in range(2)))
    key, auth_backend, sshd = (
        asyncssh.generate_private_key("ssh-ed25519"),
        FakeAuthBackend(),
        Sshd(folder / "job", keys.user_ca, 0),
    )
    auth_backend.register("alice", key)
    sshd.port = free_port()
    sshd.start()
    job_directory = FakeJobDirectory({("alice", "train"): sshd.target()})
    try:
        async with gateway(keys, auth_backend, job_directory, ip="::", interval=0.2) as running:
            near = Client(folder / "near", running.port, key, keys.host)
            port = free_port()
            listens = ("-o", "ExitOnForwardFailure=yes", "-R", f"{port}:127.0.0.1:9", "alice+train@gateway")

            async def far(*words: str) -> asyncio.subprocess.Process:
                command = (*inside, "ssh", "-F", str(near.config), "-o", f"HostName={HERE}", *words)
                ssh = await asyncio.create_subprocess_exec(*command, stdin=-1, stdout=-1)
                assert await asyncio.wait_for(ssh.stdout.readline(), 30) == b"in\n"
                return ssh

            suspended = await near.begin("alice+train@gateway", "echo in; cat /dev/zero")
            suspended.send_signal(signal.SIGSTOP)
            holder = await near.begin(*listens, "echo in; cat")
            done = await near.ssh(*listens, "echo in")
            print(
                "a port stays with a client that is there"
                if done.status == 255 and "remote port forwarding failed" in done.err
                else done
            )
            holder.stdin.close()
            await holder.wait()
            vanished = [await far(*listens, "echo in; cat"), await far("alice+train@gateway", f"echo in; {NOISE}")]
            # Nobody says that the computer is gone: what is sent to its network card is lost.
            ip(f"neighbour replace {THERE} lladdr {CARD} dev here nud permanent")
            ip(f"address delete {THERE}/24 dev there", *inside)
            done = await near.ssh(*listens, "echo in")
            print("a port is taken over from one that is not" if done.text == "in\n" else done)
            await until(lambda: len(running.server.connections) == 1 == len(running.server.upstreams), 60)
            print("one that is sent something is ended")
            suspended.send_signal(signal.SIGCONT)
            assert await asyncio.wait_for(suspended.stdout.readexactly(2**24), 60)
            print("a suspended one stays")
            for ssh in (suspended, *vanished):
                ssh.kill()
                await ssh.communicate()
    finally:
        beyond.kill()
        await beyond.communicate()
        sshd.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
