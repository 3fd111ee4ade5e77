"""Everyday use through the gateway, by OpenSSH's own clients, into a real sshd."""

from __future__ import annotations

from tests.gateway.peers import Client, Running


async def test_a_command_returns_its_output_its_errors_and_its_exit_status(alice: Client) -> None:
    done = await alice.ssh("alice+train@gateway", "echo out; echo err >&2; exit 7")
    assert (done.out, done.err, done.status) == (b"out\n", "err\n", 7)
