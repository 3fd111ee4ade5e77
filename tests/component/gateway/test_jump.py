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


ELSEWHERE = {
    "a typing error": (("alice@trian",), "no job trian; yours: train"),
    "an address": (("alice@10.0.0.1",), "no job 10.0.0.1; yours: train"),
    "a job of another user": (
        ("alice@bob+train",),
        "bob+train:22 is none of your jobs: ssh -J reaches those by name, and nothing else",
    ),
    "the gateway's port": (
        ("-p", "2222", "alice@train"),
        "train:2222 is no port that ssh -J reaches: your job is at port 22, so leave out -p, or Port",
    ),
    "that port of a login": (("-p", "2222", "alice@alice+train"), "alice+train:2222 is no port that ssh -J reaches"),
    "that port of another user's job, as of a missing one": (
        ("-p", "2222", "alice@eval"),
        "eval:2222 is none of your jobs, and your default server is not running",
    ),
    "another job than the stream leads to": (("alice+eval@train",), "this connection leads to train only"),
}


@pytest.mark.parametrize(("host", "reason"), ELSEWHERE.values(), ids=ELSEWHERE)
async def test_jump_elsewhere_is_refused_with_a_reason(
    alice: Client, running: Running, host: tuple[str, ...], reason: str
) -> None:
    running.job_directory.targets["bob", "eval"] = running.job_directory.targets["alice", "train"]
    if reason.endswith("train only"):
        running.job_directory.targets["alice", "eval"] = running.job_directory.targets["alice", "train"]
    done = await alice.ssh("-J", "alice@gateway", *host, "echo in")
    assert (done.status, done.out, reason in done.err) == (255, b"", True), done.err


async def test_inner_credential_of_another_user_is_denied(running: Running, mallory: Client) -> None:
    """Alice's token on the outside, mallory's key on the inside; mallory has a job of the same name."""
    running.auth_backend.tokens["alices"] = TokenOwner("alice", every_server)
    running.job_directory.targets["mallory", "train"] = running.job_directory.targets["alice", "train"]
    env, options = mallory.with_token("alices")
    proxy = (
        f"ProxyCommand=ssh -F {mallory.config} {' '.join(options)} -o PubkeyAuthentication=no -W %h:22 alice@gateway"
    )
    for login in ("alice", "mallory", "mallory+train"):
        done = await mallory.ssh("-o", proxy, f"{login}@train", "echo in", env=env)
        assert (done.status, done.out) == (255, b"")
        assert "Permission denied" in done.err


async def test_shell_and_jump_share_one_connection(
    running: Running, alice: Client, sshd: Sshd, caplog: pytest.LogCaptureFixture
) -> None:
    running.job_directory.targets["alice", ""] = sshd.target("")
    control = alice.directory / "c"
    options = ("-S", str(control), "-o", "ControlMaster=auto", "-o", "ControlPersist=3")
    proxy = f"ProxyCommand=ssh -F {alice.config} -S {control} -W %h:%p alice@gateway"
    shell = await alice.ssh(*options, "alice@gateway", "echo shell")
    jump = await alice.ssh("-o", proxy, "alice@train", "echo jump")
    again = await alice.ssh("-S", str(control), "alice@gateway", "echo again")
    assert (shell.text, jump.text, again.text) == ("shell\n", "jump\n", "again\n"), jump.err
    assert ["through=" in line for line in caplog.messages if "event=connect " in line] == [False, True]
    await alice.ssh("-S", str(control), "-O", "exit", "alice@gateway")
