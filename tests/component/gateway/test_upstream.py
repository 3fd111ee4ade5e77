"""Connections to jobs: the certificates that the gateway issues, and jobs that cannot be reached."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import asyncssh
import pytest
from asyncssh.public_key import CERT_TYPE_USER, SSHOpenSSHCertificate

from ssh_gateway import transport
from ssh_gateway.core.packets import RelayPolicy
from ssh_gateway.core.proof import UNBOUND, SessionBounds
from ssh_gateway.session import upstream
from ssh_gateway.session.context import GatewayLimits
from ssh_gateway.transport.keys import GatewayKeys, client_options
from tests.component.gateway.peers import DEADLINE, JOB, Lab, Sshd, log_lines
from tests.harness.ports import free_port

CA = asyncssh.generate_private_key("ssh-ed25519")


@pytest.mark.parametrize("policy", [RelayPolicy(), RelayPolicy(True, True)], ids=["closed", "open"])
@pytest.mark.parametrize("bounds", [UNBOUND, SessionBounds(frozenset({"pty"}))], ids=["unbound", "only a terminal"])
def test_certificate_permits_what_policy_and_login_permit(policy: RelayPolicy, bounds: SessionBounds) -> None:
    target: Any = SimpleNamespace(job="j-1")
    _, certificate = upstream.issue(CA, target, policy, bounds, 1e9)
    found = set(certificate.options) - {"force-command"}
    allowed = {"port-forwarding", "pty", "user-rc"}
    allowed |= {"agent-forwarding"} if policy.agent_forwarding else set()
    allowed |= {"X11-forwarding"} if policy.x11_forwarding else set()
    assert found == {f"permit-{name}" for name in allowed & bounds.permits}


NOW = 1_780_000_000.9


def test_certificate_has_a_fresh_key_one_job_and_two_minutes(keys: GatewayKeys, sshd: Sshd) -> None:
    made = [upstream.issue(keys.user_ca, sshd.target(), RelayPolicy(), UNBOUND, NOW) for _ in range(2)]
    assert len({key.public_data for key, _ in made}) == 2
    assert len({certificate._serial for _, certificate in made}) == 2
    for key, certificate in made:
        assert isinstance(certificate, SSHOpenSSHCertificate)
        assert certificate.key.public_data == key.public_data
        assert certificate.principals == [JOB]
        assert certificate._cert_type == CERT_TYPE_USER
        assert certificate._valid_before - int(NOW) == 120
        assert int(NOW) - certificate._valid_after == 60, "for a clock that is a minute late, and none later"


@contextlib.asynccontextmanager
async def silent() -> AsyncIterator[int]:
    """The port of a server that accepts connections and sends nothing."""
    held: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _reader, writer: held.append(writer), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in held:
            writer.close()


NO_ANSWER = "the SSH server of train does not answer yet: try again in a moment"
UNREACHABLE: dict[str, tuple[dict[str, Any], str, str]] = {
    "another host key": (
        {"host_key": asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()},
        "answered with a host key that is not this job's",
        "result=host-key why=",
    ),
    "another job behind the address": (
        {"job": "j-bbbbbbbbbbbb"}, "did not accept the gateway's certificate", "result=not-accepted why=",
    ),
    "a closed port": ({"port": free_port()}, NO_ANSWER, "result=no-answer"),
    "a silent server": ({}, NO_ANSWER, "result=no-answer"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "told", "logged"), UNREACHABLE.values(), ids=UNREACHABLE)
async def test_unreachable_job_is_told_and_logged(
    lab: Lab, caplog: pytest.LogCaptureFixture, change: dict[str, Any], told: str, logged: str
) -> None:
    limits = GatewayLimits(connect_seconds=0.5 if told == NO_ANSWER else 15.0, drain_seconds=0.0)
    async with silent() as port, lab.gateway(limits=limits) as running:
        target = replace(lab.job_directory.targets["alice", "train"], **(change or {"port": port}))
        lab.job_directory.targets["alice", "train"] = target
        done = await lab.client(running).ssh("alice+train@gateway", "echo in")
    assert (done.status, done.out, told in done.err) == (255, b"", True), done.err
    (line,) = log_lines(caplog, "event=pod ")
    where = f"user=alice server=train job={target.job} pod={target.host}:{target.port}"
    assert f"{where} {logged}" in line


async def test_a_connection_whose_login_is_cancelled_as_it_is_made_leaves_no_error(
    keys: GatewayKeys, sshd: Sshd, caplog: pytest.LogCaptureFixture
) -> None:
    class Cancelling(upstream.PodSide):
        def connection_made(self, _conn: asyncssh.SSHClientConnection) -> None:
            login.cancel()

        def connection_lost(self, _exc: Exception | None) -> None:
            ended.set()

    target, ended = sshd.target(), asyncio.Event()
    options = client_options(
        login=target.login,
        credential=upstream.issue(keys.user_ca, target, RelayPolicy(), UNBOUND, NOW),
        host_key=asyncssh.import_public_key(target.host_key),
        host=target.host,
        port=target.port,
        version="test",
        owner=Cancelling,
    )
    login = asyncio.create_task(transport.connect(options))
    with pytest.raises(asyncio.CancelledError):
        await login
    await asyncio.wait_for(ended.wait(), DEADLINE)
    del options
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
