"""The connection to a job's sshd: a certificate for two minutes, the one host key to accept, and sentences for
failures.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import Any

import asyncssh

from ssh_gateway import transport
from ssh_gateway.backends.directory import SshEndpoint
from ssh_gateway.core.certificates import SessionBounds
from ssh_gateway.core.packets import RelayPolicy
from ssh_gateway.transport import keys

CERTIFICATE_SECONDS = 120
CLOCK_SKEW_SECONDS = 60
RETRY_SECONDS = 0.2


class UpstreamUnreachable(Exception):
    """The job's sshd cannot be reached; the message is for the user, ``fields`` are for the log."""

    def __init__(self, message: str, fields: dict[str, Any]) -> None:
        super().__init__(message)
        self.fields = fields


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


async def connect_upstream(  # noqa: PLR0913, PLR0917  (address, credentials, bounds)
    target: SshEndpoint,
    user_ca: asyncssh.SSHKey,
    policy: RelayPolicy,
    bounds: SessionBounds,
    clients_version: str,
    seconds: float,
) -> transport.Upstream:
    """Logs in to the job's sshd; retries an sshd that does not listen yet until the time is over."""
    try:
        host_key = asyncssh.import_public_key(target.host_key)
        async with asyncio.timeout(seconds):
            while True:
                try:
                    return await transport.connect(
                        keys.client_options(
                            login=target.login,
                            credential=issue(user_ca, target, policy, bounds, time.time()),
                            host_key=host_key,
                            host=target.host,
                            port=target.port,
                            version=keys.version_for_job(clients_version),
                            owner=PodSide,
                        )
                    )
                except (OSError, asyncssh.ConnectionLost):
                    await asyncio.sleep(RETRY_SECONDS)
    except (TimeoutError, asyncssh.Error, ValueError) as error:
        result, problem = _found(error)
        sentence = f"the SSH server of {target.server or 'your default server'} {problem}"
        why = str(error) or None
        raise UpstreamUnreachable(
            sentence, {"job": target.job, "pod": target.address, "result": result, "why": why}
        ) from error


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
