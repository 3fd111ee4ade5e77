"""ssh-audit, which knows what each algorithm is worth, against the gateway."""

from __future__ import annotations

import json
import sys
from typing import Any

from ssh_gateway.transport import keys
from tests.component.gateway.clients.ways import Desk

# What it warns of, and stays: clients older than OpenSSH 9.9, PuTTY 0.78 and Dropbear 2022 know no other key exchange
# of ours, and whose client knows the one that withstands quantum computers gets that.
QUANTUM = "does not provide protection against post-quantum attacks"
KNOWN = {(algorithm, QUANTUM) for algorithm in ("curve25519-sha256", "curve25519-sha256@libssh.org")}
# What it notes beside them, and stays. It opens 38 connections and counts how many were greeted in a
# second. Here those are counted that wait for a login, 100 of a source, because an office may be one address; and the
# exchanges that are offered take a fraction of a millisecond, other than those that the attack was made for.
TERRAPIN = "Be aware that, while this target properly supports the strict key exchange method"
THROTTLING = "Potentially insufficient connection throttling detected"


async def audit(desk: Desk) -> dict[str, Any]:
    arguments = ("--json", "-p", str(desk.running.port), "127.0.0.1")
    done = await desk.run(sys.executable, "-m", "ssh_audit", *arguments)
    return dict(json.loads(done.out))


async def test_ssh_audit_finds_nothing_wrong(desk: Desk) -> None:
    found = await audit(desk)
    notes = {
        (entry["algorithm"], note)
        for kind in ("kex", "key", "enc", "mac")
        for entry in found[kind]
        for level in ("fail", "warn")
        for note in entry["notes"].get(level, [])
    }
    assert notes == KNOWN
    assert found["cves"] == []
    assert [note for note in found["additional_notes"] if not note.startswith((TERRAPIN, THROTTLING))] == []


async def test_ssh_audit_sees_all_that_is_offered_and_strict_key_exchange(desk: Desk) -> None:
    found = await audit(desk)
    assert [entry["algorithm"] for entry in found["enc"]] == keys.ENCRYPTION_ALGS
    assert [entry["algorithm"] for entry in found["mac"]] == keys.MAC_ALGS
    assert [entry["algorithm"] for entry in found["key"]] == keys.HOST_KEY_ALGS
    kex = [entry["algorithm"] for entry in found["kex"]]
    assert "kex-strict-s-v00@openssh.com" in kex
    assert "mlkem768x25519-sha256" in kex
