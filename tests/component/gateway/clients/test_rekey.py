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
from tests.component.gateway.clients.ways import Rig, Way

MIB = 2**20
NEW_KEYS = "SSH2_MSG_NEWKEYS received"  # the first ones are received as well
THERE, BACK = os.urandom(400 * 1024), os.urandom(400 * 1024)
FAST = "KexAlgorithms curve25519-sha256"  # another exchange would take most of the time
LIMIT = "RekeyLimit 128K"
CIPHERS = {name.split("@")[0]: (f"Ciphers {name}",) for name in keys.ENCRYPTION_ALGS}
# By default the first MAC is taken. Packets with the last ones are asyncssh's work alone.
MACS = {"etm": "hmac-sha2-512-etm@openssh.com", "encrypt-and-mac": "hmac-sha2-256"}
SUITES = CIPHERS | {name: ("Ciphers aes256-ctr", f"MACs {mac}") for name, mac in MACS.items()}
# Which ends have a limit, and the cipher with which that is tested in every run.
LIMITED = {
    "job": (True, False, "aes256-gcm"),
    "client": (False, True, "encrypt-and-mac"),
    "both": (True, True, "chacha20-poly1305"),
}


@dataclass(frozen=True)
class Renewed:
    """How often each connection took new keys: the client's, the one to the job, and the outer one of ``-J``."""

    client: int
    job: int
    outer: int | None = None


async def transfer(rig: Rig, way: Way, *options: str) -> Renewed:
    """Send something to the job while it sends something else, with the cipher that its sshd has."""
    outer, before = rig.directory / "outer", rig.job_log.read_text()
    given, got = rig.job_folder(way) / "given", rig.job_folder(way) / "got"
    given.write_bytes(BACK)
    flags = {"Ciphers": "-c", "MACs": "-m"}
    chosen = [(flags[name], value) for name, value in map(str.split, rig.sshd.settings) if name in flags]
    alike = [word for one in chosen for word in one]
    if way is Way.JUMP:  # -J would have both clients write to one standard error
        options += ("-o", f"ProxyCommand={rig.openssh} -v {' '.join(alike)} -W %h:%p jumphost 2>{outer}")
    command = f"cat {given} & cat >{got}; wait"
    done = await rig.run("ssh", "-v", *alike, *options, way.value, command, feed=THERE)
    assert (done.status, done.out == BACK) == (0, True), done.err[-2000:]
    assert got.read_bytes() == THERE
    for _, name in chosen:
        assert name in done.err, done.err[:5000]
    return Renewed(
        client=done.err.count(NEW_KEYS),
        job=(await rig.job_said(before)).count(NEW_KEYS),
        outer=outer.read_text().count(NEW_KEYS) if way is Way.JUMP else None,
    )


@pytest.mark.parametrize(
    ("configured", "job", "client"),
    [
        pytest.param(
            (FAST, *([LIMIT] if job else []), *suite), job, client,
            marks=() if name == quick else pytest.mark.slow, id=f"{who}-{name}",
        )
        for who, (job, client, quick) in LIMITED.items()
        for name, suite in SUITES.items()
    ],
    indirect=["configured"],
)  # fmt: skip
async def test_job_and_client_re_key_while_both_send(configured: Rig, *, job: bool, client: bool) -> None:
    """The gateway keeps the exchanges of either side from the other."""
    options = ("-o", LIMIT.replace(" ", "=")) if client else ()
    found = {way: await transfer(configured, way, *options) for way in Way}
    direct = found[Way.DIRECT]
    assert min(direct.client, direct.job) > 4, found
    for way, outer in ((Way.GATEWAY, None), (Way.JUMP, 1)):
        renewed = found[way]
        assert (renewed.client > 4, renewed.job > 4) == (client, job), found
        assert renewed == Renewed(renewed.client if client else 1, renewed.job if job else 1, outer), found


@pytest.mark.parametrize(
    "configured",
    [
        pytest.param(suite, id=name, marks=() if name == "aes128-gcm" else pytest.mark.slow)
        for name, suite in CIPHERS.items()
    ],
    indirect=True,
)
async def test_gateway_re_keys_by_its_own_limit(configured: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """On each of its connections: neither client nor job has a limit that this much would reach."""
    monkeypatch.setattr(configured.running.server._options, "rekey_bytes", MIB // 16)
    make = keys.client_options

    def with_limit(**parts: object) -> asyncssh.SSHClientConnectionOptions:
        options = make(**parts)  # type: ignore[arg-type]
        options.rekey_bytes = MIB // 16
        return options

    monkeypatch.setattr(keys, "client_options", with_limit)
    found = {way: await transfer(configured, way) for way in Way}
    assert found[Way.DIRECT] == Renewed(client=1, job=1)
    for way in (Way.GATEWAY, Way.JUMP):
        assert min(found[way].client, found[way].job) > 4, found
    outer = found[Way.JUMP].outer
    assert outer > 4, found
