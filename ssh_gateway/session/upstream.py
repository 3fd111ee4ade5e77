"""From a user with access to the connection with the job's sshd: the server is found, or started, then logged in to.

The gateway logs in with a certificate of two minutes for this one job, and accepts one host key.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import asyncssh

from dlspawner import tracing
from ssh_gateway import transport
from ssh_gateway.backends.directory import BackendUnavailable, SshEndpoint
from ssh_gateway.core import routing
from ssh_gateway.core.packets import RelayPolicy
from ssh_gateway.core.proof import Identity, OpenSession, SessionBounds
from ssh_gateway.log import say
from ssh_gateway.session.autostart import StartFailed, WaitingLogin
from ssh_gateway.session.context import Client, SessionRefused
from ssh_gateway.transport import keys

CERTIFICATE_SECONDS = 120
CLOCK_SKEW_SECONDS = 60
RETRY_SECONDS = 0.2

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Access:
    """An identity that may enter a server of its user; ``deferred``: once a packet needs the default server."""

    identity: Identity
    server: str
    deferred: bool = False


async def enter(client: Client, access: Access) -> tuple[SshEndpoint, transport.Upstream]:
    """Returns the server's sshd, found or started, and the connection with it. Raises SessionRefused."""
    with tracing.span("find the job", {"dlspawner.server": access.server}):
        target = await resolve(client, access)
    with tracing.span("connect to the job", {"dlspawner.job": target.job}):
        return target, await connect(client, access, target)


async def resolve(client: Client, access: Access) -> SshEndpoint:
    """Returns the sshd of the server; starts a server that does not run, and waits for it. Raises SessionRefused."""
    name = await find_server(client, access, partial(_start_and_wait, client, access.identity))
    target = await _need(client.gateway.job_directory.endpoint(access.identity.user, name))
    if target is None:
        raise SessionRefused(f"{name or 'your default server'} is not ready: try again in a moment")
    return target


async def find_server(client: Client, access: Access, start: Callable[[str], Awaitable[bool]]) -> str:
    """Returns the exact name for SSH of a server, or of one pod of its job, that the identity can enter.

    SessionRefused with a sentence that helps. ``start`` is called for a server that does not run; it returns True if
    the job runs now, or will for a login that waits.
    """
    gateway, identity, wanted = client.gateway, access.identity, access.server
    user = identity.user
    jobs = await _need(gateway.job_directory.jobs(user))
    found = routing.find_job(wanted, jobs)
    servers: frozenset[str] = frozenset()
    if found is None:
        with contextlib.suppress(BackendUnavailable):
            servers = await gateway.auth_backend.servers(user)
    server = found.server if found else routing.known_as(wanted, servers)
    name = found.name if found else server
    if not identity.opens(server):  # existing or not
        told = routing.printable(name) or "your default server"
        raise SessionRefused(f"this token may not open {told}: make one that may access it")
    may_wait = gateway.autostart.seconds and identity.starts(server)
    comes = found is None or found.condition is routing.JobCondition.STARTING
    if may_wait and comes and await _started(client, user, server, start):
        return name
    mine = [job for job in jobs if identity.opens(job.server)]
    problem = routing.refusal(user, wanted, mine, servers, gateway.hub_public_url)
    if problem is not None or found is None:
        raise SessionRefused(problem or "no such job")
    return name


async def _started(client: Client, user: str, name: str, start: Callable[[str], Awaitable[bool]]) -> bool:
    client.note("start", user=user, server=name)  # logged before the start: a client may disconnect meanwhile
    try:
        return await start(name)
    except StartFailed as problem:
        raise SessionRefused(str(problem)) from problem


async def _start_and_wait(client: Client, identity: Identity, name: str) -> bool:
    """Starts a server and waits until it runs, with progress lines on the login's banner."""
    gateway, user = client.gateway, identity.user
    client.leg.take_longer(gateway.autostart.seconds + gateway.limits.login_seconds)

    async def ready() -> bool:
        with contextlib.suppress(BackendUnavailable):
            return await gateway.job_directory.endpoint(user, name) is not None
        return False

    try:
        runs = await gateway.autostart.start_and_wait(
            WaitingLogin(user, name, ready, lambda: client.leg.ended, client.show)
        )
    except StartFailed:
        gateway.counters.waited(runs=False)
        raise
    if runs:
        gateway.counters.waited(runs=True)
        say("started", conn=client.number, user=user, server=name)
        why = await gateway.revalidator.revalidate(OpenSession(identity, name)) or await gateway.refusal(user)
        if why is not None:
            raise StartFailed(why)
    return runs


async def _need(question: Awaitable[Answer]) -> Answer:
    """Returns an answer of a backend; SessionRefused if the backend is unavailable."""
    try:
        return await question
    except BackendUnavailable as problem:
        raise SessionRefused(str(problem)) from problem


async def connect(client: Client, access: Access, target: SshEndpoint) -> transport.Upstream:
    """Logs in to the job's sshd; retries an sshd that does not listen yet until the time is over.

    Raises SessionRefused.
    """
    gateway = client.gateway
    await gateway.end_lost(access.identity.user, target.job)
    version = keys.version_for_job(str(client.leg.get_extra_info("client_version", "")))
    try:
        host_key = asyncssh.import_public_key(target.host_key)
        async with asyncio.timeout(gateway.limits.connect_seconds):
            while True:
                credential = issue(gateway.keys.user_ca, target, gateway.policy, access.identity.bounds, time.time())
                try:
                    return await transport.connect(
                        keys.client_options(
                            login=target.login,
                            credential=credential,
                            host_key=host_key,
                            host=target.host,
                            port=target.port,
                            version=version,
                            owner=PodSide,
                        )
                    )
                except (OSError, asyncssh.ConnectionLost):
                    await asyncio.sleep(RETRY_SECONDS)
    except (TimeoutError, asyncssh.Error, ValueError) as error:
        result, problem = _found(error)
        job = {"server": target.server, "job": target.job, "pod": target.address}
        why, user = str(error) or None, access.identity.user
        say("pod", level=logging.WARNING, conn=client.number, user=user, **job, result=result, why=why)
        name = target.server or "your default server"
        raise SessionRefused(f"the SSH server of {name} {problem}") from error


def issue(
    user_ca: asyncssh.SSHKey, target: SshEndpoint, policy: RelayPolicy, bounds: SessionBounds, now: float
) -> tuple[asyncssh.SSHKey, asyncssh.SSHCertificate]:
    """Returns a fresh key and a certificate for it that opens this one job; the job's clock may differ by a minute."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    certificate = user_ca.generate_user_certificate(
        key,
        f"job {target.job} through the gateway",
        serial=secrets.randbits(63),
        principals=[target.job],
        valid_after=int(now) - CLOCK_SKEW_SECONDS,
        valid_before=int(now) + CERTIFICATE_SECONDS,
        force_command=bounds.force_command,
        permit_agent_forwarding=policy.agent_forwarding and "agent-forwarding" in bounds.permits,
        permit_x11_forwarding=policy.x11_forwarding and "X11-forwarding" in bounds.permits,
        permit_port_forwarding="port-forwarding" in bounds.permits,
        permit_pty="pty" in bounds.permits,
        permit_user_rc="user-rc" in bounds.permits,
    )
    return key, certificate


def _found(error: Exception) -> tuple[str, str]:
    """Returns the result of a failed login to a job: a word for the log, and the sentence for the user."""
    match error:
        case TimeoutError():
            return "no-answer", "does not answer yet: try again in a moment"
        case asyncssh.HostKeyNotVerifiable():
            return (
                "host-key",
                "answered with a host key that is not this job's; nothing was sent there: tell your administrator",
            )
        case asyncssh.PermissionDenied():
            return "not-accepted", "did not accept the gateway's certificate: tell your administrator"
        case _:
            return "failed", "could not be reached: tell your administrator"


class PodSide(asyncssh.SSHClient):
    """Notices the end of the connection to the pod."""

    lost: Callable[[], None] | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self.lost is not None:
            self.lost()


def on_lost(leg: transport.Upstream, lost: Callable[[], None]) -> None:
    """Calls ``lost`` when the connection ends; at once if it has ended already."""
    owner = leg.get_owner()
    if isinstance(owner, PodSide) and not leg.is_closed():
        owner.lost = lost
    else:
        asyncio.get_running_loop().call_soon(lost)
