"""The certificate that a gateway makes for itself: for one job, for two minutes, for a key that is used once."""

from __future__ import annotations

from typing import Any

import pytest
from asyncssh.public_key import CERT_TYPE_USER, SSHOpenSSHCertificate

from ssh_gateway.core.certificates import UNBOUND
from ssh_gateway.core.packets import RelayPolicy
from ssh_gateway.session import upstream
from ssh_gateway.transport.keys import GatewayKeys
from tests.component.gateway.peers import JOB, Client, Running, Sshd

NOW = 1_780_000_000.9


def test_every_certificate_is_of_a_fresh_key_for_one_job_and_two_minutes(keys: GatewayKeys, sshd: Sshd) -> None:
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


@pytest.mark.parametrize(
    ("age", "let_in"), [(0, True), (100, True), (121, False), (-30, True), (-90, False)],
    ids=["now", "in its time", "after two minutes", "by a slow clock", "by a clock that is wrong"],
)  # fmt: skip
async def test_a_job_s_sshd_takes_a_certificate_for_two_minutes(
    alice: Client, running: Running, monkeypatch: pytest.MonkeyPatch, age: int, *, let_in: bool
) -> None:
    issue = upstream.issue

    def issued_then(*given: Any) -> Any:
        *rest, now = given
        return issue(*rest, now - age)

    monkeypatch.setattr(upstream, "issue", issued_then)
    done = await alice.ssh("alice+train@gateway", "echo in")
    if let_in:
        assert (done.status, done.text) == (0, "in\n"), done.err
    else:
        assert (done.status, done.out) == (255, b"")
        assert "the SSH server of train did not accept the gateway's certificate: tell your administrator" in done.err
