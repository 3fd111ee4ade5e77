"""The other ends: a real unprivileged sshd as a job would run it, OpenSSH's clients, and fakes for the directory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from dlspawner.clients.manager import AccessState, StartStatus
from ssh_gateway.auth.rate_limit import PenaltyRules
from ssh_gateway.auth.revalidation import Revalidator
from ssh_gateway.auth.trust import RevocationList, TrustedCas
from ssh_gateway.backends.activity import ActivityReporter
from ssh_gateway.backends.directory import BackendUnavailable, SshEndpoint
from ssh_gateway.core.packets import RelayPolicy
from ssh_gateway.core.proof import RegisteredKey, SshSessionState, TokenOwner
from ssh_gateway.core.routing import JobCondition, JobEndpoint
from ssh_gateway.server import GatewayServer
from ssh_gateway.session.context import GatewayLimits
from ssh_gateway.session.relay import Relay
from ssh_gateway.session.terminals import NoticeFollower
from ssh_gateway.transport.keys import GatewayKeys

JOB = "j-aaaaaaaaaaaa"
DEADLINE = 30.0
DENIED = "Permission denied (publickey,keyboard-interactive,password)."
PASSWORD = ("-o", "PreferredAuthentications=password")
HELD_UP = "too many failed logins from your address: try again in "
MIB = 2**20
DEAR = PenaltyRules(penalty_seconds=600.0)  # time pays nothing meanwhile, however slow this machine is


def find_sshd() -> str:
    """OpenSSH's server: $DLSPAWNER_SSHD, on the PATH, or where Debian keeps it."""
    found = os.environ.get("DLSPAWNER_SSHD") or shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin")
    assert found, "OpenSSH's server is needed: apt-get install openssh-server, or set DLSPAWNER_SSHD"
    return str(Path(found).resolve())


@dataclass
class Sshd:
    """A job's sshd: uid 1000 of a user namespace, the account `person`, trusting one CA for one principal.

    `keys` may come in directly as well, which no job allows: to compare with.
    """

    directory: Path
    user_ca: asyncssh.SSHKey
    port: int
    settings: tuple[str, ...] = ()
    address: str = "127.0.0.1"
    keys: tuple[asyncssh.SSHKey, ...] = ()
    host: asyncssh.SSHKey = field(default_factory=lambda: asyncssh.generate_private_key("ssh-ed25519"))
    process: subprocess.Popen[bytes] | None = None

    @property
    def host_key(self) -> str:
        return (self.directory / "host.pub").read_text().strip()

    @property
    def home(self) -> Path:
        return self.directory / "home"

    def start(self) -> None:
        directory = self.directory
        self.home.mkdir(parents=True)
        self.host.write_private_key(directory / "host")
        (directory / "host").chmod(0o600)
        self.host.write_public_key(directory / "host.pub")
        self.user_ca.write_public_key(directory / "ca.pub")
        (directory / "principals").write_text(f"{JOB}\n")
        (directory / "keys").write_bytes(b"".join(key.export_public_key() for key in self.keys))
        (directory / "passwd").write_text(f"person:x:1000:1000::{self.home}:/bin/bash\n")
        (directory / "group").write_text("person:x:1000:\n")
        (directory / "sshd_config").write_text(
            "\n".join(
                (
                    f"ListenAddress {self.address}",
                    f"Port {self.port}",
                    f"HostKey {directory}/host",
                    f"TrustedUserCAKeys {directory}/ca.pub",
                    f"AuthorizedPrincipalsFile {directory}/principals",
                    f"AuthorizedKeysFile {directory}/keys" if self.keys else "AuthorizedKeysFile none",
                    "PasswordAuthentication no",
                    "KbdInteractiveAuthentication no",
                    "UsePAM no",
                    "StrictModes no",
                    "PidFile none",
                    "MaxStartups 1000",
                    "MaxSessions 100",
                    "AcceptEnv LANG GREETING",
                    "Subsystem sftp internal-sftp",
                    *self.settings,
                )
            )
        )
        with (directory / "log").open("wb") as log:
            self.process = subprocess.Popen(
                # It ends with a killed test run as well. Set last: a new namespace forgets it.
                self.as_person(f"setpriv --pdeathsig KILL {find_sshd()} -D -e -f {directory}/sshd_config"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait()

    def as_person(self, command: str) -> list[str]:
        """A shell's command as the job runs it: by uid 1000 of a user namespace, the only account there is.

        It is the first process of its namespace, so that all others there end with it, as a pod's do.
        """
        binds = " && ".join(f"mount --bind {self.directory}/{name} /etc/{name}" for name in ("passwd", "group"))
        inside = f"exec unshare --user --map-user=1000 --map-group=1000 --pid --fork --kill-child {command}"
        return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", f"{binds} && {inside}"]

    def _wait(self) -> None:
        until = time.monotonic() + DEADLINE
        while time.monotonic() < until and self.process is not None and self.process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection((self.address, self.port), 1) as probe:
                if probe.recv(4) == b"SSH-":
                    return
            time.sleep(0.02)
        self.stop()
        raise AssertionError((self.directory / "log").read_text())

    def stop(self) -> None:
        """Kill it and all processes of its namespace, one after the other: an sshd may tell how its program ended."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def check(self) -> None:
        assert self.process is not None
        assert self.process.poll() is None, (self.directory / "log").read_text()[-2000:]

    def target(self, server: str = "train") -> SshEndpoint:
        return SshEndpoint(JOB, "alice", server, self.address, self.port, "person", self.host_key)


@dataclass
class FakeAuthBackend:
    """The Hub and the Manager, as dictionaries."""

    keys: dict[str, list[RegisteredKey]] = field(default_factory=dict)
    tokens: dict[str, TokenOwner] = field(default_factory=dict)
    stopped: dict[str, frozenset[str]] = field(default_factory=dict)
    used: list[tuple[str, int]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    reports: list[tuple[str, str, datetime]] = field(default_factory=list)
    sessions: list[list[SshSessionState]] = field(default_factory=list)  # that the Manager was told of
    down: bool = False  # the Hub
    manager_down: bool = False
    unanswered: frozenset[str] = frozenset()  # kinds of requests to which the Manager has no answer
    requests: list[tuple[str, ...]] = field(default_factory=list)  # all: the kind, then of whom
    held: dict[tuple[str, ...], asyncio.Event] = field(default_factory=dict)  # requests, or kinds, that wait
    guesses: int = 0  # wrong tokens that were checked
    starts: list[tuple[str, str]] = field(default_factory=list)
    looks: int = 0
    stages: list[StartStatus | Callable[[], StartStatus]] = field(default_factory=lambda: [StartStatus("off")])
    blocked: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()

    def register(self, user: str, key: asyncssh.SSHKey) -> None:
        keys = self.keys.setdefault(user, [])
        keys.append(RegisteredKey(len(keys) + 1, key.public_data, key.get_fingerprint()))

    async def registered_keys(self, user: str) -> tuple[RegisteredKey, ...]:
        await self._answer_as_manager("registered_keys", user)
        self.asked.append(user)
        return tuple(self.keys.get(user, ()))

    async def key_used(self, user: str, key: RegisteredKey) -> None:
        await self._answer_as_manager("key_used", user)
        self.used.append((user, key.id))

    async def token_owner(self, token: str) -> TokenOwner | None:
        await self._answer("token_owner", token)
        self.guesses += token not in self.tokens
        return self.tokens.get(token)

    async def servers(self, user: str) -> frozenset[str]:
        await self._answer("servers", user)
        return self.stopped.get(user, frozenset())

    async def start(self, user: str, server: str) -> StartStatus:
        self.starts.append((user, server))
        await self._answer_as_manager("start", user, server)
        return self._next_start()

    async def start_status(self, user: str, server: str, job: str) -> StartStatus:
        self.looks += 1
        await self._answer_as_manager("start_status", user, server)
        return self._next_start()

    def _next_start(self) -> StartStatus:
        """What a test has put down, one after the other; the last one for ever."""
        found = self.stages.pop(0) if len(self.stages) > 1 else self.stages[0]
        if callable(found):
            found = found()
        assert isinstance(found, StartStatus)
        return found

    async def access_state(self, keys: Collection[tuple[str, str]]) -> AccessState:
        await self._answer_as_manager("access_state")
        known = {(user, key.fingerprint) for user, keys in self.keys.items() for key in keys}
        return AccessState(self.blocked, frozenset(keys) - known)

    async def deleted_users(self, users: Collection[str]) -> frozenset[str]:
        await self._answer("deleted_users", *sorted(users))
        return self.removed & frozenset(users)

    async def report_activity(self, user: str, servers: Mapping[str, datetime]) -> None:
        await self._answer("report_activity", user)
        self.reports += [(user, server, at) for server, at in servers.items()]

    async def report_sessions(self, gateway: str, sessions: Collection[SshSessionState]) -> None:
        await self._answer_as_manager("report_sessions")
        self.sessions.append(list(sessions))

    async def _answer(self, *request: str) -> None:
        await self._hold(request)
        if self.down:
            raise BackendUnavailable("the Hub does not answer: try again later")

    async def _answer_as_manager(self, *request: str) -> None:
        await self._hold(request)
        if self.manager_down or request[0] in self.unanswered:
            raise BackendUnavailable("the keys service does not answer: try again later, or use a token")

    async def _hold(self, request: tuple[str, ...]) -> None:
        self.requests.append(request)
        for held in (request, request[:1]):
            if held in self.held:
                await self.held[held].wait()

    def count(self, what: str) -> int:
        """The number of requests of one kind, answered or not."""
        return sum(request[0] == what for request in self.requests)


@dataclass
class FakeJobDirectory:
    """The cluster, as a dictionary of targets."""

    targets: dict[tuple[str, str], SshEndpoint] = field(default_factory=dict)
    others: dict[str, list[JobEndpoint]] = field(default_factory=dict)
    down: bool = False

    async def jobs(self, user: str) -> tuple[JobEndpoint, ...]:
        self._answer()
        ready = [
            JobEndpoint(found.server, JobCondition.READY, pod=name.removeprefix(found.server).removeprefix("."))
            for (owner, name), found in self.targets.items()
            if owner == user
        ]
        return (*ready, *self.others.get(user, ()))

    async def endpoint(self, user: str, server: str) -> SshEndpoint | None:
        self._answer()
        return self.targets.get((user, server))

    async def running(self, jobs: Collection[str]) -> frozenset[str]:
        self._answer()
        return frozenset(target.job for target in self.targets.values()) & frozenset(jobs)

    def _answer(self) -> None:
        if self.down:
            raise BackendUnavailable("the cluster does not answer: try again later")


@dataclass
class Running:
    """A gateway that listens, with everything behind it at hand."""

    server: GatewayServer
    auth_backend: FakeAuthBackend
    job_directory: FakeJobDirectory
    port: int


@contextlib.asynccontextmanager
async def gateway(
    keys: GatewayKeys,
    auth_backend: FakeAuthBackend,
    job_directory: FakeJobDirectory,
    *,
    limits: GatewayLimits | None = None,
    policy: RelayPolicy | None = None,
    interval: float = 0.05,
    notices: NoticeFollower | None = None,
    authorities: TrustedCas | None = None,
    revocations: RevocationList | None = None,
    ip: str = "127.0.0.1",
    shared_port: int = 0,
) -> AsyncIterator[Running]:
    """A gateway on a free port of the loopback, or on one that others may have too, in this event loop."""
    activity = ActivityReporter(auth_backend, interval)
    revalidator = Revalidator(auth_backend, job_directory, interval, revocations=revocations or RevocationList())
    server = GatewayServer(
        keys=keys,
        auth_backend=auth_backend,
        job_directory=job_directory,
        activity=activity,
        hub_public_url="http://hub.example/",
        limits=limits or GatewayLimits(failure_seconds=0.1, drain_seconds=0.0, rules=PenaltyRules(penalty_seconds=0.0)),
        policy=policy,
        notices=notices,
        revalidator=revalidator,
        authorities=authorities,
    )
    _, port = await server.start(ip, shared_port, shared=bool(shared_port))
    reporting = asyncio.create_task(activity.run(), name="report activity")
    checking = asyncio.create_task(revalidator.run(), name="revalidation")
    try:
        yield Running(server, auth_backend, job_directory, port)
    finally:
        reporting.cancel()
        checking.cancel()
        await asyncio.gather(reporting, checking, return_exceptions=True)
        await server.stop()


@dataclass(frozen=True)
class Done:
    """Exit status and output of a client."""

    status: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()


@dataclass
class Client:
    """OpenSSH's clients with one key and one configuration."""

    directory: Path
    port: int
    key: asyncssh.SSHKey | None
    host_key: asyncssh.SSHKey

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        identity = "none"
        if self.key is not None:
            identity = str(self.directory / "id")
            self.key.write_private_key(identity)
            Path(identity).chmod(0o600)
        known = self.directory / "known_hosts"
        public = self.host_key.export_public_key().decode().strip()
        known.write_text(f"[127.0.0.1]:{self.port} {public}\ngateway {public}\n")
        self.config.write_text(
            "Host gateway *\n"
            f" UserKnownHostsFile {known}\n GlobalKnownHostsFile none\n StrictHostKeyChecking yes\n"
            f" IdentityFile {identity}\n IdentitiesOnly yes\n IdentityAgent none\n ControlPath none\n"
            " HostKeyAlias gateway\n BatchMode yes\n LogLevel INFO\n ConnectTimeout 20\n"
            f"Host gateway\n HostName 127.0.0.1\n Port {self.port}\n"
        )

    @property
    def config(self) -> Path:
        return self.directory / "config"

    async def start(self, *command: str, env: Mapping[str, str] | None = None) -> asyncio.subprocess.Process:
        """Start a client; `-F` is put in. The caller kills it."""
        program, *arguments = command
        return await asyncio.create_subprocess_exec(
            program,
            "-F",
            str(self.config),
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "SSH_AUTH_SOCK": "", **(env or {})},
        )

    async def begin(self, *arguments: str, env: Mapping[str, str] | None = None) -> asyncio.subprocess.Process:
        """A session of which the command has written `in`; the caller ends it."""
        process = await self.start("ssh", *arguments, env=env)
        assert await asyncio.wait_for(process.stdout.readline(), DEADLINE) == b"in\n"
        return process

    async def run(
        self, *command: str, feed: bytes = b"", env: Mapping[str, str] | None = None, seconds: float = DEADLINE
    ) -> Done:
        """Run `ssh …`, `scp …` or `sftp …` to its end."""
        process = await self.start(*command, env=env)
        return await finish(process, feed, seconds)

    async def ssh(self, *arguments: str, feed: bytes = b"", env: Mapping[str, str] | None = None) -> Done:
        return await self.run("ssh", *arguments, feed=feed, env=env)

    def with_token(self, token: str) -> tuple[dict[str, str], list[str]]:
        """Environment and options with which OpenSSH takes `token` as its password, unasked."""
        helper = self.directory / "askpass"
        helper.write_text('#!/bin/sh\nprintf "%s\\n" "$TOKEN_TO_TYPE"\n')
        helper.chmod(0o755)
        env = {"SSH_ASKPASS": str(helper), "SSH_ASKPASS_REQUIRE": "force", "TOKEN_TO_TYPE": token}
        return env, ["-o", "BatchMode=no", "-o", "NumberOfPasswordPrompts=1"]


async def finish(process: asyncio.subprocess.Process, feed: bytes = b"", seconds: float = DEADLINE) -> Done:
    """Feed a client, wait for its end; SIGKILL after the deadline, because OpenSSH sometimes ignores SIGTERM."""
    try:
        out, err = await asyncio.wait_for(process.communicate(feed), seconds)
    except TimeoutError:
        process.kill()
        out, err = await process.communicate()
        raise AssertionError(f"no end within {seconds} s: {out[-2000:]!r} {err.decode(errors='replace')}") from None
    return Done(process.returncode or 0, out or b"", err.decode(errors="replace"))


async def with_token(client: Client, token: str, login: str, *options: str) -> tuple[int, str, str]:
    env, more = client.with_token(token)
    done = await client.ssh(*more, *options, f"{login}@gateway", "echo in", env=env)
    return done.status, done.text, done.err


async def guesses(running: Running, name: str, most: int = 100, source: str | None = None) -> str:
    """Guess passwords on one connection, from an address of this machine's, until it ends; why it ended."""

    class Guesser(asyncssh.SSHClient):
        left = most

        def password_auth_requested(self) -> str | None:
            Guesser.left -= 1
            return f"guess {Guesser.left}" if Guesser.left >= 0 else None

    try:
        local = (source, 0) if source else None
        await connect(running.port, username=name, preferred_auth="password", client_factory=Guesser, local_addr=local)
    except (asyncssh.Error, OSError) as problem:
        return str(problem)
    raise AssertionError("a guess was right")


async def knock(port: int) -> bytes:
    """The answer to a connection that sends nothing."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    heard = b""
    with contextlib.suppress(OSError):  # dropped without words
        heard = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    return heard


async def seen(process: asyncio.subprocess.Process, text: bytes) -> bytes:
    """The output of a client until it contains a text."""
    shown = b""
    async with asyncio.timeout(60):
        while text not in shown:
            some = await process.stdout.read(65536)
            assert some, shown
            shown += some
    return shown


def resident() -> int:
    """Bytes of this process (gateway included) that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def connect(port: int, **options: Any) -> Any:
    """asyncssh's client, logged in to a gateway that it does not check, without any configuration of the machine."""
    given = {
        "username": "alice+train",
        "known_hosts": None,
        "config": None,
        "agent_path": None,
        "client_keys": None,
        **options,
    }
    return asyncssh.connect("127.0.0.1", port, **given)


def log_lines(caplog: pytest.LogCaptureFixture, part: str = "") -> list[str]:
    """The lines of the gateway's log that contain a text."""
    found = [record.getMessage() for record in caplog.records if record.name == "ssh_gateway"]
    return [line for line in found if part in line]


def the_relay(running: Running) -> Relay:
    (visitor,) = running.server.connections
    assert visitor.session is not None
    assert visitor.session._relay is not None
    return visitor.session._relay


def listens(path: Path) -> bool:
    """True if a server listens: the socket's file exists a moment before."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


async def until(condition: object, seconds: float = DEADLINE) -> None:
    """Wait for a condition (a function without arguments)."""
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come about"
        await asyncio.sleep(0.01)


@dataclass(frozen=True)
class Lab:
    """The parts of gateways that a test starts with its own settings."""

    keys: GatewayKeys
    auth_backend: FakeAuthBackend
    job_directory: FakeJobDirectory
    alices_key: asyncssh.SSHKey
    folder: Path

    def gateway(self, **options: Any) -> contextlib.AbstractAsyncContextManager[Running]:
        return gateway(
            self.keys,
            options.pop("auth_backend", self.auth_backend),
            options.pop("job_directory", self.job_directory),
            **options,
        )

    def client(self, running: Running, name: str = "alice") -> Client:
        """OpenSSH's clients with alice's key."""
        return Client(self.folder / name, running.port, self.alices_key, self.keys.host)
