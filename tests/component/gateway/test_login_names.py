"""Login names: hostile, invalid and differently written ones."""

from __future__ import annotations

import asyncio
import random

import asyncssh
import pytest

from ssh_gateway.core.packets import text
from ssh_gateway.core.proof import TokenOwner, every_server
from tests.component.gateway.hostile import DISCONNECT, USERAUTH_FAILURE, call, drop
from tests.component.gateway.peers import PASSWORD, Client, Running, Sshd, log_lines

PIECES = ["../", "\x1b[2J", "\n", "\u202e", "alice", "+", "train", "%2f", "а", "'", '"', "$(id)", "\t", " "]
PROHIBITED = "\x1b\n\u202e\t"  # of these pieces, by SASLprep (RFC 4013): they end the connection
LONGEST_SENT = 1023  # bytes


def hostile_names(count: int) -> list[str]:
    chosen = random.Random(7)
    return ["".join(chosen.choices(PIECES, k=chosen.randint(1, 12))) for _ in range(count)]


COMMON = bytes([USERAUTH_FAILURE]) + text(b"publickey,keyboard-interactive,password") + b"\0"


def sent_away(why: str) -> bytes:
    """The answer to an invalid name: it repeats the input, and does not tell which users exist."""
    return (
        bytes([DISCONNECT]) + asyncssh.DISC_ILLEGAL_USER_NAME.to_bytes(4, "big") + text(why.encode()) + text(b"en-US")
    )


def answer_to(name: str) -> bytes:
    """What there is to be said to a stranger under this name, word for word."""
    if len(name.encode()) > LONGEST_SENT:
        return sent_away("Username too long")
    found = next((char for char in name if char in PROHIBITED), None)
    return COMMON if found is None else sent_away(f"Prohibited character: {found!r}")


def auth_lines(caplog: pytest.LogCaptureFixture, result: str) -> int:
    lines = log_lines(caplog)
    return sum("event=auth" in one and f"result={result}" in one for one in lines)


async def test_hostile_login_names_get_the_common_answer_and_clean_log_lines(
    running: Running, mallorys_key: asyncssh.SSHKey, caplog: pytest.LogCaptureFixture
) -> None:
    """Unknown, impossible and existing names have the same answer."""
    names = ["nobody", "alice", "alice+train", "аlice+train", "", *hostile_names(60), "x" * 900, "x" * 64_000]

    async def answered(name: str) -> list[bytes]:
        caller = await call(running)
        said = [await caller.with_key(name.encode(), mallorys_key)]
        if not caller.is_closed():
            said.append(await caller.with_password(name.encode()))
        drop(caller)
        return said

    said = dict(zip(names, await asyncio.gather(*map(answered, names)), strict=True))
    due = {name: [answer_to(name)] * (1 + (answer_to(name) == COMMON)) for name in names}
    assert said == due
    common = sum(one == [COMMON] * 2 for one in due.values())
    assert 15 < common < len(due) - 15
    assert auth_lines(caplog, "failed") == 2 * common
    assert all(record.getMessage().isprintable() for record in caplog.records if record.name == "ssh_gateway")
    assert all(len(record.getMessage()) < 2000 for record in caplog.records if record.name == "ssh_gateway")


NO_NAMES = {
    "bytes that are no UTF-8": (
        b"\xff", "'utf-8' codec can't decode byte 0xff in position 5: invalid start byte"
    ),
    "a zero": (b"\0", "Prohibited character: '\\x00'"),
}  # fmt: skip


@pytest.mark.parametrize(("ending", "why"), NO_NAMES.values(), ids=NO_NAMES)
async def test_invalid_login_name_is_disconnected(running: Running, ending: bytes, why: str) -> None:
    for name in (b"alice", b"nobod"):
        assert await (await call(running)).with_password(name + ending) == sent_away(why)
    assert not running.auth_backend.asked


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("ａｌｉｃｅ＋ｔｒａｉｎ", {"ａｌｉｃｅ＋ｔｒａｉｎ", "alice"}),
        ("ALICE+train", {"ALICE", "alice"}),
        ("al\u00adice+train", {"alice"}),
    ],
    ids=["full-width", "capitals", "a soft hyphen"],
)
async def test_login_name_is_taken_as_typed_or_folded(
    running: Running, alice: Client, mallory: Client, name: str, asked: set[str]
) -> None:
    """Folded by SASLprep, then to lower case: what is asked depends on the name alone, and opens nothing more."""
    assert (await alice.ssh("-l", name, "gateway", "echo in")).text == "in\n"
    refused = await mallory.ssh("-l", name, "gateway", "echo in")
    assert (refused.status, refused.out) == (255, b"")
    assert "Permission denied" in refused.err
    assert set(running.auth_backend.asked) == asked


@pytest.mark.parametrize("name", ["Zoe", "ﬁona", "Ångström"])
async def test_user_whose_name_folding_would_change_enters(
    running: Running, mallory: Client, mallorys_key: asyncssh.SSHKey, sshd: Sshd, name: str
) -> None:
    """By key, by token, and by ``ssh -J``; the job of a user with the folded name is another one."""
    running.auth_backend.register(name, mallorys_key)
    running.auth_backend.tokens["hers"] = TokenOwner(name, every_server)
    running.job_directory.targets[name, "train"] = sshd.target()
    for way in (("-l", f"{name}+train", "gateway"), ("-J", f"{name}@gateway", "train"),
                ("-J", f"{name}@gateway", f"{name}+train@{name}+train")):  # fmt: skip
        assert (await mallory.ssh(*way, "echo in")).text == "in\n"
    assert set(running.auth_backend.used) == {(name, 1)}
    env, options = mallory.with_token("hers")
    assert (await mallory.ssh(*options, *PASSWORD, "-l", f"{name}+train", "gateway", "echo in", env=env)).text == "in\n"
