"""What `gateway` starts beside OpenSSH, each as a process of its own: `python -m tests.bench.ssh_ends ROLE …`.

* ``gateway``: a gateway as it is in production, but for the Hub, the Manager and the cluster, which are dictionaries.
* ``pod``: what a job's sshd would be in a thousand pods, in one process.
* ``tcp``: a relay that knows nothing of SSH: what no gateway can be better than.
* ``crowd``: people who log in and do nothing; each line that it reads is how many more.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from pathlib import Path

import asyncssh

from ssh_gateway.auth.rate_limit import PenaltyRules
from ssh_gateway.backends.directory import SshEndpoint
from ssh_gateway.session.context import GatewayLimits
from ssh_gateway.transport.fastpath import READ
from ssh_gateway.transport.keys import load_or_make
from tests.component.gateway.peers import JOB, FakeAuthBackend, FakeJobDirectory, gateway

LOGINS_AT_ONCE = 8
EVERYBODY = GatewayLimits(
    waiting=5000,
    waiting_per_source=5000,
    connections_per_user=5000,
    drain_seconds=0.0,
    rules=PenaltyRules(penalty_seconds=0.0, connections_per_second=0.0),
)


async def be_gateway(folder: str, port: str, job_port: str, idle_port: str) -> None:
    """alice and bob have the job `train`, a real sshd; alice has `idle` as well, which is ``pod``."""
    auth_backend, key = FakeAuthBackend(), asyncssh.read_public_key(f"{folder}/client/id.pub")
    ends = {"train": (job_port, f"{folder}/job/host.pub"), "idle": (idle_port, f"{folder}/pod.pub")}
    job_directory = FakeJobDirectory()
    for user in ("alice", "bob"):
        auth_backend.register(user, key)
        for server, (at, host_key) in ends.items():
            target = SshEndpoint(JOB, user, server, "127.0.0.1", int(at), "person", Path(host_key).read_text().strip())
            job_directory.targets[user, server] = target
    keys = load_or_make(Path(folder) / "gateway")
    async with gateway(keys, auth_backend, job_directory, limits=EVERYBODY, interval=10.0, shared_port=int(port)):
        print("listening", flush=True)
        await told()


async def be_pod(folder: str, port: str) -> None:
    """Takes the gateway's certificates, and keeps whatever is started until the other end has enough."""

    async def idle(process: asyncssh.SSHServerProcess[bytes]) -> None:
        await process.stdin.read()
        process.exit(0)

    key = asyncssh.generate_private_key("ssh-ed25519")
    key.write_public_key(f"{folder}/pod.pub")
    ca = Path(folder, "gateway", "user_ca.pub").read_text()
    trusted = asyncssh.import_authorized_keys(f'cert-authority,principals="{JOB}" {ca}')
    server = await asyncssh.listen(
        *("127.0.0.1", int(port)),
        server_host_keys=[key],
        authorized_client_keys=trusted,
        process_factory=idle,
        encoding=None,
        config=None,
    )
    async with server:
        print("listening", flush=True)
        await told()


async def be_crowd(folder: str, port: str) -> None:
    """Each connection has a session open; the number that is logged in is printed when all of a line are."""
    key = asyncssh.read_private_key(f"{folder}/client/id")
    inside: list[asyncssh.SSHClientConnection] = []
    turn = asyncio.Semaphore(LOGINS_AT_ONCE)

    async def log_in() -> None:
        async with turn:
            conn = await asyncssh.connect(
                *("127.0.0.1", int(port)),
                username="alice+idle",
                client_keys=[key],
                kex_algs=["curve25519-sha256"],
                encryption_algs=["aes128-gcm@openssh.com"],
                known_hosts=None,
                config=None,
                agent_path=None,
            )
            await conn.create_process("wait")
            inside.append(conn)

    while more := await told():
        await asyncio.gather(*(log_in() for _ in range(int(more))))
        print(len(inside), flush=True)
    for conn in inside:
        conn.abort()


async def be_tcp_relay(_folder: str, port: str, job_port: str) -> None:
    """Two threads a connection, each of which writes what it reads, with buffers as large as the gateway's."""

    def copy(source: socket.socket, sink: socket.socket) -> None:
        room = memoryview(bytearray(READ))
        while count := source.recv_into(room):
            sink.sendall(room[:count])
        sink.shutdown(socket.SHUT_WR)

    def serve() -> None:
        while True:
            here, _ = listener.accept()
            there = socket.create_connection(("127.0.0.1", int(job_port)))
            for one in (here, there):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for pair in ((here, there), (there, here)):
                threading.Thread(target=copy, args=pair, daemon=True).start()

    listener = socket.create_server(("127.0.0.1", int(port)))
    threading.Thread(target=serve, daemon=True).start()
    print("listening", flush=True)
    await told()


async def told() -> str:
    """The next line of whoever started this process; empty when there is none any more."""
    return await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


ROLES = {"gateway": be_gateway, "pod": be_pod, "crowd": be_crowd, "tcp": be_tcp_relay}

if __name__ == "__main__":
    asyncio.run(ROLES[sys.argv[1]](*sys.argv[2:]))
