"""Three ways to one job: directly to its sshd, through the gateway, and by `ssh -J` through it.

What is done is always the same, and so must be what comes of it: standard output and error, exit status, files. Where
a client names the host in what it says, `Done.err` has HOST in its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TypeVar

import asyncssh
import pytest

from tests.component.gateway.peers import DEADLINE, Done, Running, Sshd, finish, until

DEBIAN = Path(__file__).parents[4] / ".venv" / "debian"  # where the Makefile unpacks the distribution's packages
LIBRARIES = ":".join(str(DEBIAN / folder / "x86_64-linux-gnu") for folder in ("usr/lib", "lib"))

# With which a sshd says that a connection is over; it may say more, but no more of what was asked for.
_ENDS = re.compile(r"Disconnected from user|Connection closed by")

Outcome = TypeVar("Outcome")


class Way(Enum):
    """The value is what a client of OpenSSH calls the host."""

    DIRECT = "direct"
    GATEWAY = "gateway"
    JUMP = "jump"


def program(name: str) -> str:
    """A client of the distribution's, installed or unpacked."""
    for folder in [*os.environ["PATH"].split(":"), str(DEBIAN / "usr/bin"), str(DEBIAN / "bin")]:
        if os.access(Path(folder) / name, os.X_OK):
            return str(Path(folder) / name)
    pytest.skip(f"no {name}: `make test` unpacks it")


@dataclass
class Rig:
    """Alice's computer with the three ways, her files, and the files of the job."""

    directory: Path
    sockets: Path
    sshd: Sshd
    running: Running
    key: asyncssh.SSHKey
    host_key: asyncssh.SSHKey

    def __post_init__(self) -> None:
        for folder in (self.directory, self.home, *map(self.job_folder, Way)):
            folder.mkdir(parents=True, exist_ok=True)
        self.key.write_private_key(str(self.identity))
        self.key.write_public_key(f"{self.identity}.pub")
        self.identity.chmod(0o600)
        gateway = self.host_key.export_public_key().decode().strip()
        (self.directory / "known_hosts").write_text(f"gateway {gateway}\njob {self.sshd.host_key}\n")
        self.config.write_text(
            f"Host direct\n HostName 127.0.0.1\n Port {self.sshd.port}\n User person\n HostKeyAlias job\n"
            f"Host gateway jumphost\n HostName 127.0.0.1\n Port {self.running.port}\n"
            "Host gateway\n User alice+train\n"
            "Host jumphost\n User alice\n"
            "Host jump train\n HostName train\n User alice\n ProxyJump jumphost\n"
            "Host *\n HostKeyAlias gateway\n"
            f" UserKnownHostsFile {self.directory}/known_hosts\n GlobalKnownHostsFile none\n"
            f" StrictHostKeyChecking yes\n IdentityFile {self.identity}\n IdentitiesOnly yes\n ControlPath none\n"
            " IdentityAgent none\n BatchMode yes\n LogLevel INFO\n ConnectTimeout 20\n"
        )

    @property
    def config(self) -> Path:
        return self.directory / "config"

    @property
    def identity(self) -> Path:
        return self.directory / "id"

    @property
    def home(self) -> Path:
        """A home for what clients leave in it."""
        return self.directory / "home"

    @property
    def openssh(self) -> str:
        """The command for programs that start ssh themselves."""
        return f"ssh -F {self.config}"

    def job_folder(self, way: Way) -> Path:
        """A folder of the job that only one way uses."""
        return self.sshd.home / self.directory.name / way.value

    def proxy(self, way: Way, host: str = "%host:%port") -> str | None:
        """The command whose input and output are the way to the host, for clients that know nothing of -J."""
        return f"{self.openssh} -W {host} jumphost" if way is Way.JUMP else None

    def address(self, way: Way) -> tuple[str, int, str]:
        """Host, port and login name, for clients that do not read OpenSSH's configuration."""
        return {
            Way.DIRECT: ("127.0.0.1", self.sshd.port, "person"),
            Way.GATEWAY: ("127.0.0.1", self.running.port, "alice+train"),
            Way.JUMP: ("train", 22, "alice"),
        }[way]

    async def start(
        self, *command: str, env: Mapping[str, str] | None = None, stdin: int = asyncio.subprocess.PIPE
    ) -> asyncio.subprocess.Process:
        """Start a client; `ssh`, `scp` and `sftp` are told the configuration. The caller kills it."""
        name, *arguments = command
        if name in {"ssh", "scp", "sftp"}:
            arguments[:0] = ["-F", str(self.config)]
        return await asyncio.create_subprocess_exec(
            program(name), *arguments, stdin=stdin, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=os.environ
            | {"HOME": str(self.home), "SSH_AUTH_SOCK": "", "LD_LIBRARY_PATH": LIBRARIES}
            | dict(env or {}),
            cwd=self.directory,
        )  # fmt: skip

    @contextlib.asynccontextmanager
    async def background(self, *command: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """A client that is killed in the end."""
        process = await self.start(*command)
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()

    @contextlib.asynccontextmanager
    async def master(self, way: Way, *options: str) -> AsyncIterator[tuple[str, ...]]:
        """A connection that other clients share by the options that it yields."""
        control = ("-S", str(self.sockets / way.value))
        async with self.background("ssh", *control, "-M", *options, way.value, "echo up; cat") as ssh:
            assert await asyncio.wait_for(ssh.stdout.readline(), DEADLINE) == b"up\n"
            yield control

    async def run(
        self, *command: str, feed: bytes = b"", env: Mapping[str, str] | None = None, seconds: float = 2 * DEADLINE
    ) -> Done:
        """Run a client to its end."""
        done = await finish(await self.start(*command, env=env), feed, seconds)
        return replace(done, err=without_names(done.err))

    async def make_ppk(self) -> None:
        """The key as PuTTY wants it."""
        done = await self.run("puttygen", str(self.identity), "-q", "-O", "private", "-o", f"{self.identity}.ppk")
        assert done.status == 0, done.err

    def putty(self, way: Way) -> list[str]:
        """Options of PuTTY's programs, the login last."""
        host, port, user = self.address(way)
        key = self.sshd.host_key if way is Way.DIRECT else self.host_key.export_public_key().decode()
        options = ["-batch", "-P", str(port), "-i", f"{self.identity}.ppk", "-hostkey", fingerprint(key)]
        proxy = self.proxy(way)
        return [*options, *(["-proxycmd", proxy] if proxy else []), f"{user}@{host}"]

    async def make_dropbear_key(self) -> None:
        """The key as Dropbear wants it."""
        done = await self.run("dropbearconvert", "openssh", "dropbear", str(self.identity), f"{self.identity}.db")
        assert done.status == 0, done.err

    def dropbear(self, way: Way) -> list[str]:
        """Options of Dropbear's client, the login last; it hops by itself."""
        host, port, user = self.address(way)
        options = ["-y", "-y", "-i", f"{self.identity}.db"]
        if way is Way.JUMP:
            return [*options, f"alice@127.0.0.1^{self.running.port},{user}@{host}^{port}"]
        return [*options, "-p", str(port), f"{user}@{host}"]

    @property
    def job_log(self) -> Path:
        return self.sshd.directory / "log"

    async def job_said(self, before: str) -> str:
        """What a job's sshd has added to its log of a connection that ends: it does so a moment later."""
        await until(lambda: _ENDS.search(self.job_log.read_text().removeprefix(before)))
        return self.job_log.read_text().removeprefix(before)

    async def each(self, case: Callable[[Way], Awaitable[Outcome]]) -> Outcome:
        """The outcome of a case, which must be the same in every way."""
        outcomes = dict(zip(Way, await asyncio.gather(*map(case, Way)), strict=True))
        for way in (Way.GATEWAY, Way.JUMP):
            assert outcomes[way] == outcomes[Way.DIRECT], (
                f"{way.value} differs from direct: {outcomes[way]!r:.3000} instead of {outcomes[Way.DIRECT]!r:.3000}"
            )
        self.sshd.check()
        return outcomes[Way.DIRECT]

    async def each_runs(self, *command: str, feed: bytes = b"", env: Mapping[str, str] | None = None) -> Done:
        """As `each`, of a command in which HOST is the host and FOLDER the job's folder of that way."""

        async def case(way: Way) -> Done:
            words = [word.replace("HOST", way.value).replace("FOLDER", str(self.job_folder(way))) for word in command]
            done = await self.run(*words, feed=feed, env=env)
            return replace(done, out=done.out.replace(str(self.job_folder(way)).encode(), b"FOLDER"))

        return await self.each(case)


def without_names(said: str) -> str:
    """What a client says, without the names by which hosts differ between the ways."""
    said = re.sub(r"(Connection to|connection to|host) (127\.0\.0\.1|train|gateway|direct|jump)\b", r"\1 HOST", said)
    said = re.sub(r'^Using username ".*"', 'Using username "USER"', said)  # PuTTY's programs do
    said = re.sub(r"^\S*dbclient: .*\n\n?", "", said, flags=re.MULTILINE)  # of host keys, which -y -y leaves out
    return re.sub(r"/(direct|gateway|jump)/", "/WAY/", said)


def fingerprint(key: str) -> str:
    """SHA256:… of a public key as text."""
    return asyncssh.import_public_key(key).get_fingerprint()
