"""Re-keys by client, job or gateway, or by all of them, with every cipher.

Each end says how often it took new keys: the client by ``-v``, the job's sshd in its log, in which only one way may be
at a time. Data that arrives proves nothing: it does without any new keys as well.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import asyncssh
import pytest

from ssh_gateway.transport import keys
from tests.component.gateway.clients.ways import Desk, Way

MIB = 2**20
NEW_KEYS = "SSH2_MSG_NEWKEYS received"  # the first ones are received as well
DATA = os.urandom(8 * MIB)
THERE, BACK = os.urandom(400 * 1024), os.urandom(400 * 1024)
FAST = "KexAlgorithms curve25519-sha256"  # another exchange would take most of the time
OTHER_MAC = ("Ciphers aes256-ctr", "MACs hmac-sha2-512-etm@openssh.com")  # by default the first one is taken


def every_cipher(*settings: str, quick: str) -> list[object]:
    """Settings of sshds with one cipher each, which is then the one of the pod's leg; all but one cipher are slow."""
    marks = {name: () if name == quick else (pytest.mark.slow,) for name in keys.ENCRYPTION_ALGS}
    return [
        pytest.param((*settings, f"Ciphers {name}"), marks=marks[name], id=name.split("@")[0])
        for name in keys.ENCRYPTION_ALGS
    ]


def with_another_mac(*settings: str) -> object:
    """As the rows of `every_cipher`."""
    return pytest.param((*settings, *OTHER_MAC), marks=pytest.mark.slow, id="aes256-ctr and hmac-sha2-512")


@dataclass(frozen=True)
class Renewed:
    """How often each connection took new keys: the client's, the one to the job, and the outer one of ``-J``."""

    client: int
    job: int
    outer: int | None = None

    def exceeds(self, *, client: int, job: int, outer: int = 0) -> bool:
        return self.client > client and self.job > job and (self.outer is None or self.outer > outer)


@dataclass(frozen=True)
class Talk:
    """A command, what it is fed with, and what it must answer."""

    command: str
    there: bytes
    back: bytes


async def there_and_back(desk: Desk, way: Way, *options: str) -> Renewed:
    """Send much to the job and back, with the cipher that its sshd has."""
    return await renewed(desk, way, options, Talk("cat", DATA, DATA))


async def both_at_once(desk: Desk, way: Way, *options: str) -> Renewed:
    """Send something to the job while it sends something else, with the cipher that its sshd has."""
    given, got = desk.job_folder(way) / "given", desk.job_folder(way) / "got"
    given.write_bytes(BACK)
    found = await renewed(desk, way, options, Talk(f"cat {given} & cat >{got}; wait", THERE, BACK))
    assert got.read_bytes() == THERE
    return found


async def renewed(desk: Desk, way: Way, options: tuple[str, ...], talk: Talk) -> Renewed:
    """How often keys were new meanwhile."""
    outer, before = desk.directory / "outer", desk.job_log.read_text()
    flags = {"Ciphers": "-c", "MACs": "-m"}
    chosen = [(flags[name], value) for name, value in map(str.split, desk.sshd.settings) if name in flags]
    alike = [word for one in chosen for word in one]
    if way is Way.JUMP:  # -J would have both clients write to one standard error
        options += ("-o", f"ProxyCommand={desk.openssh} -v {' '.join(alike)} -W %h:%p jumphost 2>{outer}")
    done = await desk.run("ssh", "-v", *alike, *options, way.value, talk.command, feed=talk.there)
    assert (done.status, done.out == talk.back) == (0, True), done.err[-2000:]
    for _, name in chosen:
        assert name in done.err, done.err[:5000]
    return Renewed(
        client=done.err.count(NEW_KEYS),
        job=(await desk.job_said(before)).count(NEW_KEYS),
        outer=outer.read_text().count(NEW_KEYS) if way is Way.JUMP else None,
    )


async def in_turn(desk: Desk, *options: str) -> dict[Way, Renewed]:
    """The same one way after the other."""
    return {way: await there_and_back(desk, way, *options) for way in Way}


@pytest.mark.parametrize(
    "restless", every_cipher("RekeyLimit 1M", quick="chacha20-poly1305@openssh.com"), indirect=True
)
async def test_job_and_client_re_key_after_every_mib(restless: Desk) -> None:
    for way, renewed in (await in_turn(restless, "-o", "RekeyLimit=1M")).items():
        assert renewed.exceeds(client=7, job=5), (way, renewed)


SOON = ("RekeyLimit 128K", FAST)


@pytest.mark.parametrize(
    "restless", [*every_cipher(*SOON, quick="aes256-gcm@openssh.com"), with_another_mac(*SOON)], indirect=True
)
async def test_job_alone_re_keys_while_both_send(restless: Desk) -> None:
    found = {way: await both_at_once(restless, way) for way in Way}
    assert found[Way.DIRECT].exceeds(client=4, job=4), found
    for way, outer in ((Way.GATEWAY, None), (Way.JUMP, 1)):
        assert found[way] == Renewed(client=1, job=found[way].job, outer=outer), found
        assert found[way].job > 4, found


@pytest.mark.parametrize(
    "restless", [*every_cipher(FAST, quick="aes128-gcm@openssh.com"), with_another_mac(FAST)], indirect=True
)
async def test_client_alone_re_keys_while_both_send(restless: Desk) -> None:
    """Nothing of it is seen by the job behind a gateway."""
    found = {way: await both_at_once(restless, way, "-o", "RekeyLimit=128K") for way in Way}
    assert found[Way.DIRECT].exceeds(client=4, job=4), found
    for way, outer in ((Way.GATEWAY, None), (Way.JUMP, 1)):
        assert found[way] == Renewed(client=found[way].client, job=1, outer=outer), found
        assert found[way].client > 4, found


@pytest.mark.parametrize("restless", every_cipher(quick="aes128-gcm@openssh.com"), indirect=True)
async def test_gateway_re_keys_after_every_mib(restless: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """On each of its connections: neither client nor job has a limit that this much would reach."""
    monkeypatch.setattr(restless.running.server._options, "rekey_bytes", MIB)
    make = keys.client_options

    def with_limit(**parts: object) -> asyncssh.SSHClientConnectionOptions:
        options = make(**parts)  # type: ignore[arg-type]
        options.rekey_bytes = MIB
        return options

    monkeypatch.setattr(keys, "client_options", with_limit)
    renewed = await in_turn(restless)
    assert renewed[Way.DIRECT] == Renewed(client=1, job=1)
    for way in (Way.GATEWAY, Way.JUMP):
        assert renewed[way].exceeds(client=5, job=5, outer=5), renewed
