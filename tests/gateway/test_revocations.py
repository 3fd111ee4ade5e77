"""Certificates that were taken back, or have expired: what the file may say, and who is sent home for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncssh
import pytest

from ssh_gateway.access import Badge
from ssh_gateway.authorities import Authorities
from ssh_gateway.keys import Keys, KeysUnusable
from ssh_gateway.revocations import REVOKED, UNKNOWN, Revocations, read
from tests.gateway.peers import FakePeople, FakePlaces, Running, gateway
from tests.gateway.test_certificates import holder, keygen
from tests.gateway.test_notices import seen

KEY, CA = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
BADGE = Badge(17, "alice@laptop", KEY.get_fingerprint(), CA.get_fingerprint(), 2e9)
ELSE = replace(BADGE, serial=18, key_id="bob", key="SHA256:k", ca="SHA256:c")
WRITTEN, CAS = (key.export_public_key().decode().strip() for key in (KEY, CA))


@pytest.mark.parametrize(
    "line",
    [
        "serial: 17",
        "serial: 17  # a laptop that was lost",
        "SERIAL:17-17",
        "serial: 0-18446744073709551615 ",
        "id: alice@laptop",
        f"hash: {KEY.get_fingerprint()}",
        f"hash: {CA.get_fingerprint()}",
        f"key: {WRITTEN}",
        WRITTEN,
        f"{CAS} a comment: with a colon",
    ],
    ids=[
        "serial",
        "comment",
        "range",
        "all",
        "id",
        "hash of the key",
        "hash of the CA",
        "key",
        "bare key",
        "bare key of the CA",
    ],
)
def test_a_line_names_a_certificate(line: str) -> None:
    assert read(f"# taken back\n\n{line}\n").names(BADGE)
    assert read(f"# taken back\n\n{line}\n").names(ELSE) is ("-1844" in line)


@pytest.mark.parametrize(
    "line",
    [
        "serial: x",
        "serial: 20-17",
        "serial: 18446744073709551616",
        "id:",
        "hash: SHA256:x",
        "key: x",
        "nonsense",
        "a: b",
    ],
)
def test_what_is_no_such_line_is_a_sentence_with_the_setting(line: str, tmp_path: Path) -> None:
    (tmp_path / "revoked").write_text(f"serial: 3\n{line}\n")
    with pytest.raises(KeysUnusable, match=r"revoked.*Gateway\.revoked_certificates_file"):
        Revocations(tmp_path / "revoked").load()


async def test_ssh_keygen_makes_a_krl_of_the_same_words(tmp_path: Path) -> None:
    words = f"serial: 17\nserial: 20-30\nid: alice@laptop\nhash: {KEY.get_fingerprint()}\nkey: {WRITTEN}\n{WRITTEN}\n"
    read(words)
    (tmp_path / "revoked").write_text(words)
    (tmp_path / "ca.pub").write_text(f"{CAS}\n")
    await keygen("-k", "-f", str(tmp_path / "krl"), "-s", str(tmp_path / "ca.pub"), str(tmp_path / "revoked"))


@pytest.fixture
async def organisation(keys: Keys, people: FakePeople, places: FakePlaces, tmp_path: Path) -> AsyncIterator[Running]:
    """A gateway that trusts the CA in `tmp_path`/ca, but for what is in `tmp_path`/revoked."""
    await keygen("-t", "ed25519", "-N", "", "-f", str(tmp_path / "ca"))
    (tmp_path / "revoked").write_text("")
    async with gateway(
        keys,
        people,
        places,
        authorities=Authorities(tmp_path / "ca.pub"),
        revocations=Revocations(tmp_path / "revoked"),
    ) as found:
        yield found


async def complains(process: asyncio.subprocess.Process, sentence: bytes) -> None:
    """The client, whose input stays open, ends with this on standard error."""
    assert process.stderr is not None
    async with asyncio.timeout(60):
        assert sentence in await process.stderr.read()
        assert await process.wait() == 255


async def test_a_revoked_certificate_lets_nobody_in_and_ends_its_sessions(
    organisation: Running, keys: Keys, tmp_path: Path
) -> None:
    client = await holder(organisation, keys, tmp_path, "-n", "alice", "-z", "17")
    inside = await client.start("ssh", "alice+train@gateway", "echo ready; cat")
    await seen(inside, b"ready")
    (tmp_path / "revoked").write_text("serial: 17\n")
    await complains(inside, b"the certificate that you came in with was revoked")
    done = await client.ssh("alice+train@gateway", "echo in")
    assert (done.status, done.out, REVOKED in done.err) == (255, b"", True)
    (tmp_path / "revoked").write_text("serial: 170\n")
    assert (await client.ssh("alice+train@gateway", "echo in")).text == "in\n"
    (tmp_path / "revoked").write_text("nonsense\n")
    done = await client.ssh("alice+train@gateway", "echo in")
    assert (done.status, UNKNOWN in done.err) == (255, True)


async def test_a_certificate_that_expires_ends_its_sessions(
    organisation: Running, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    until = datetime.now(UTC) + timedelta(hours=1)
    client = await holder(organisation, keys, tmp_path, "-n", "alice", "-V", f"-1m:{until:%Y%m%d%H%M%S}Z")
    inside = await client.start("ssh", "alice+train@gateway", "echo ready; cat")
    await seen(inside, b"ready")
    late = time.time() + 3700
    monkeypatch.setattr("ssh_gateway.rechecks.time.time", lambda: late)
    await complains(inside, b"the certificate that you came in with has expired: get a new one")
