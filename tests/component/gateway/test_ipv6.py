"""The gateway on all addresses, and a client of IPv6."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.component.gateway.peers import FakeJobDirectory, Lab, Sshd, gateway
from tests.harness.ports import free_port


async def test_clients_of_ipv6_and_ipv4_reach_the_gateway(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    async with lab.gateway(ip="::") as running:
        client = lab.client(running, "client")
        assert (await client.ssh("-o", "HostName=::1", "alice+train@gateway", "echo six")).text == "six\n"
        assert (await client.ssh("alice+train@gateway", "echo four")).text == "four\n"
        assert "source=::1" in caplog.text.replace('"', "")
        assert "source=127.0.0.1" in caplog.text


async def test_job_on_an_ipv6_node_is_reached_and_its_host_key_checked(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    sshd = Sshd(lab.folder / "job", lab.keys.user_ca, free_port(), address="::1")
    sshd.start()
    try:
        job = sshd.target()
        other = replace(job, server="other", host_key=lab.keys.host.export_public_key().decode())
        job_directory = FakeJobDirectory({("alice", "train"): job, ("alice", "other"): other})
        async with gateway(lab.keys, lab.auth_backend, job_directory) as running:
            client = lab.client(running, "client")
            done = await client.ssh("alice+train@gateway", "echo $SSH_CONNECTION; exit 7")
            assert (done.status, done.text.split()[2:]) == (7, ["::1", str(sshd.port)])
            assert "a host key that is not this job's" in (await client.ssh("alice+other@gateway", "true")).err
    finally:
        sshd.stop()
    opened, refused = (line for line in caplog.messages if f"pod=[::1]:{sshd.port} " in f"{line} ")
    assert "event=open" in opened
    assert "result=host-key" in refused
