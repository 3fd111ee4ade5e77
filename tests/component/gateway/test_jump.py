"""`ssh -J user@gateway job`: the gateway serves itself, to one's own jobs and to nothing else."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os

import pytest

from ssh_gateway.core.proof import TokenOwner, every_server
from tests.component.gateway.peers import Client, Running, Sshd


async def test_a_jump_reaches_ones_own_job_by_name(alice: Client) -> None:
    done = await alice.ssh("-J", "alice@gateway", "alice@train", "echo jumped; exit 3")
    assert (done.out, done.status) == (b"jumped\n", 3), done.err


async def test_the_local_accounts_name_does_not_matter_on_the_inside(alice: Client) -> None:
    done = await alice.ssh("-J", "alice@gateway", "-l", "somebody", "train", "echo jumped")
    assert done.out == b"jumped\n", done.err


async def test_the_full_login_works_inside_and_as_the_host(alice: Client) -> None:
    inside, host = await asyncio.gather(
        alice.ssh("-J", "alice@gateway", "alice+train@train", "echo inside"),
        alice.ssh("-J", "alice@gateway", "alice@alice+train", "echo host"),
    )
    assert (inside.text, host.text) == ("inside\n", "host\n")


async def test_data_jumps_intact_and_files_copy(alice: Client) -> None:
    data = os.urandom(8 * 2**20)
    done = await alice.ssh("-o", "RekeyLimit=1M", "-J", "alice@gateway", "alice@train", "cat", feed=data)
    assert hashlib.sha256(done.out).digest() == hashlib.sha256(data).digest(), done.err


async def test_anything_else_is_refused_with_a_reason(alice: Client) -> None:
    for host, reason in (
        ("trian", "no job trian; yours: train"),
        ("10.0.0.1", "no job 10.0.0.1; yours: train"),
        ("bob+train", "bob+train:22 is none of your jobs: ssh -J reaches those by name, and nothing else"),
    ):
        done = await alice.ssh("-J", "alice@gateway", f"alice@{host}", "echo in")
        assert (done.status, done.out) == (255, b"")
        assert reason in done.err


async def test_a_stream_to_another_port_needs_the_default_server(alice: Client) -> None:
    done = await alice.ssh("-W", "10.0.0.1:80", "alice@gateway")
    assert done.status == 255
    assert "10.0.0.1:80 is none of your jobs, and your default server is not running" in done.err


async def test_the_gateways_port_given_for_a_job_is_told(alice: Client, running: Running) -> None:
    """`ssh -p 2222 -J alice@gateway:2222 alice@train`; no job of somebody else's is told from none."""
    running.places.targets["bob", "eval"] = running.places.targets["alice", "train"]
    for host, reason in (
        ("train", "train:2222 is no port that ssh -J reaches: your job is at port 22, so leave out -p, or Port"),
        ("alice+train", "alice+train:2222 is no port that ssh -J reaches"),
        ("eval", "eval:2222 is none of your jobs, and your default server is not running"),
    ):
        done = await alice.ssh("-J", "alice@gateway", "-p", "2222", f"alice@{host}", "echo in")
        assert done.status == 255
        assert reason in done.err


async def test_the_credential_on_the_inside_must_be_the_same_persons(running: Running, mallory: Client) -> None:
    """Alice's token on the outside, mallory's key on the inside; mallory has a job of the same name."""
    running.people.tokens["alices"] = TokenOwner("alice", every_server)
    running.places.targets["mallory", "train"] = running.places.targets["alice", "train"]
    env, options = mallory.with_token("alices")
    proxy = (
        f"ProxyCommand=ssh -F {mallory.config} {' '.join(options)} -o PubkeyAuthentication=no -W %h:22 alice@gateway"
    )
    for login in ("alice", "mallory", "mallory+train"):
        done = await mallory.ssh("-o", proxy, f"{login}@train", "echo in", env=env)
        assert (done.status, done.out) == (255, b"")
        assert "Permission denied" in done.err


async def test_a_jump_to_one_job_opens_no_other(running: Running, alice: Client) -> None:
    running.places.targets["alice", "eval"] = running.places.targets["alice", "train"]
    done = await alice.ssh("-J", "alice@gateway", "alice+eval@train", "echo in")
    assert (done.status, done.out) == (255, b"")
    assert "this connection leads to train only" in done.err


async def test_a_shell_and_a_jump_share_one_connection(
    running: Running, alice: Client, sshd: Sshd, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ssh_gateway")
    running.places.targets["alice", ""] = sshd.target("")
    control = alice.directory / "c"
    options = ("-S", str(control), "-o", "ControlMaster=auto", "-o", "ControlPersist=3")
    proxy = f"ProxyCommand=ssh -F {alice.config} -S {control} -W %h:%p alice@gateway"
    shell = await alice.ssh(*options, "alice@gateway", "echo shell")
    jump = await alice.ssh("-o", proxy, "alice@train", "echo jump")
    again = await alice.ssh("-S", str(control), "alice@gateway", "echo again")
    assert (shell.text, jump.text, again.text) == ("shell\n", "jump\n", "again\n"), jump.err
    assert ["through=" in line for line in caplog.messages if "event=connect " in line] == [False, True]
    await alice.ssh("-S", str(control), "-O", "exit", "alice@gateway")
