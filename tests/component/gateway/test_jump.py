"""`ssh -J user@gateway job`: reaches the user's own jobs and nothing else."""

from __future__ import annotations

import pytest

from ssh_gateway.core.proof import TokenOwner, every_server
from tests.component.gateway.peers import Client, Running, Sshd


@pytest.mark.parametrize(
    "host", [("alice@train",), ("-l", "somebody", "train"), ("alice+train@train",), ("alice@alice+train",)],
    ids=["the name", "another local account", "the login inside", "the login as the host"],
)  # fmt: skip
async def test_jump_reaches_the_own_job(alice: Client, host: tuple[str, ...]) -> None:
    done = await alice.ssh("-J", "alice@gateway", *host, "echo jumped; exit 3")
    assert (done.out, done.status) == (b"jumped\n", 3), done.err


async def test_jump_elsewhere_is_refused_with_a_reason(alice: Client) -> None:
    for host, reason in (
        ("trian", "no job trian; yours: train"),
        ("10.0.0.1", "no job 10.0.0.1; yours: train"),
        ("bob+train", "bob+train:22 is none of your jobs: ssh -J reaches those by name, and nothing else"),
    ):
        done = await alice.ssh("-J", "alice@gateway", f"alice@{host}", "echo in")
        assert (done.status, done.out) == (255, b"")
        assert reason in done.err


async def test_stream_to_another_port_needs_the_default_server(alice: Client) -> None:
    done = await alice.ssh("-W", "10.0.0.1:80", "alice@gateway")
    assert done.status == 255
    assert "10.0.0.1:80 is none of your jobs, and your default server is not running" in done.err


async def test_port_of_the_gateway_given_for_a_job_is_told(alice: Client, running: Running) -> None:
    """`ssh -p 2222 -J alice@gateway:2222 alice@train`; a job of another user reads like a missing one."""
    running.places.targets["bob", "eval"] = running.places.targets["alice", "train"]
    for host, reason in (
        ("train", "train:2222 is no port that ssh -J reaches: your job is at port 22, so leave out -p, or Port"),
        ("alice+train", "alice+train:2222 is no port that ssh -J reaches"),
        ("eval", "eval:2222 is none of your jobs, and your default server is not running"),
    ):
        done = await alice.ssh("-J", "alice@gateway", "-p", "2222", f"alice@{host}", "echo in")
        assert done.status == 255
        assert reason in done.err


async def test_inner_credential_of_another_user_is_denied(running: Running, mallory: Client) -> None:
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


async def test_jump_to_one_job_opens_no_other(running: Running, alice: Client) -> None:
    running.places.targets["alice", "eval"] = running.places.targets["alice", "train"]
    done = await alice.ssh("-J", "alice@gateway", "alice+eval@train", "echo in")
    assert (done.status, done.out) == (255, b"")
    assert "this connection leads to train only" in done.err


async def test_shell_and_jump_share_one_connection(
    running: Running, alice: Client, sshd: Sshd, caplog: pytest.LogCaptureFixture
) -> None:
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
