"""The contract with asyncssh: what `ssh_gateway.transport` takes for granted of its private parts.

When this fails after an upgrade, read asyncssh's changes to `connection.py` before anything else: the relay stands on
these names and on what they do.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from asyncssh import connection, constants
from asyncssh.connection import SSHConnection
from asyncssh.kex import get_kex_algs
from asyncssh.public_key import decode_ssh_certificate

from ssh_gateway import transport
from ssh_gateway.core import packets
from ssh_gateway.transport import fastpath, reading


def test_private_names_of_asyncssh_are_used_only_in_transport() -> None:
    package = Path(transport.__file__).parent
    modules = [path for path in package.parent.rglob("*.py") if package not in path.parents]
    assert len(modules) >= 30
    inside = re.compile(r"\bfrom asyncssh\.|\bimport asyncssh\.|\basyncssh\.\w*\._")
    assert [path.name for path in modules if inside.search(path.read_text(encoding="utf-8"))] == []
    assert inside.search((package / "fastpath.py").read_text(encoding="utf-8"))


def test_version_of_asyncssh_is_the_reviewed_one() -> None:
    assert asyncssh.__version__.split(".")[:2] == ["2", "24"], "read asyncssh's changes, then adapt wire, bulk and this"


SERVER = connection.SSHServerConnection
# The code of asyncssh that `transport` relies on: the lines of a function, in this order.
SOURCES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "packets of unknown channels reach process_packet of the leg": (
        SSHConnection._recv_packet,
        ("handler = self._channels[recv_chan]", "result = handler.process_packet(pkttype, seq, packet)"),
    ),
    "nothing is read before the task of a packet runs": (
        SSHConnection._recv_packet, ("self._recv_handler = lambda: False", "self.create_task(result)"),
    ),
    "input behind a slow packet is read afterwards": (
        SSHConnection._finish_recv_packet, ("self._recv_seq = (seq + 1) & 0xffffffff", "if is_async and self._inpbuf:"),
    ),
    "a packet counts for the sequence and for the next re-key, and goes through _send": (
        SSHConnection.send_packet,
        (
            "self.send_packet(MSG_IGNORE", "self._send(packet + mac)", "self._send_seq = (seq + 1) & 0xffffffff",
            "self._rekey_bytes_sent += pktlen",
        ),
    ),
    "a re-key begins after an amount or a time": (
        SSHConnection.send_packet,
        ("self._rekey_bytes_sent >= self._rekey_bytes", "time.monotonic() >= self._rekey_time"),
    ),
    "a key exchange ends before deferred packets are sent": (
        SSHConnection.send_newkeys, ("self._kex_complete = True", "self._send_deferred_packets()"),
    ),
    "new keys for sending are set before that": (
        SSHConnection.send_newkeys, ("self._send_encryption = next_enc_", "self._send_deferred_packets()"),
    ),
    "new keys for receiving are set before that": (
        SSHConnection.send_newkeys, ("self._next_recv_encryption = next_enc_", "self._send_deferred_packets()"),
    ),
    "a failed task is reaped": (SSHConnection.create_task, ("add_done_callback(partial(self._reap_task,",)),
    **{
        f"errors in {name} end in internal_error": (getattr(SSHConnection, name), ("self.internal_error",))
        for name in ("_reap_task", "_recv_data", "connection_made")
    },
    "errors of an owner at the end are ignored, so the leg calls it itself": (
        SSHConnection._cleanup,
        ("if self._owner:", "self._owner.connection_lost(exc)", "Uncaught exception in owner ignored"),
    ),
    "success waits for the check of a verified signature": (
        SERVER.validate_public_key, ("elif msg:", "key.verify("),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("function", "lines"), SOURCES.values(), ids=SOURCES)
def test_source_of_asyncssh_has_these_lines_in_order(function: Any, lines: tuple[str, ...]) -> None:
    source, at = inspect.getsource(function), 0
    for line in lines:
        at = source.index(line, at)


def test_constants_and_algorithms_of_asyncssh_are_as_expected() -> None:
    assert (constants.MSG_CHANNEL_FIRST, constants.MSG_CHANNEL_LAST) == (packets.CHANNEL_WINDOW_ADJUST, 127)
    assert constants.MSG_GLOBAL_REQUEST == packets.FIRST_RELAYED
    assert connection._DEFAULT_RECV_PKTLEN == fastpath.LONGEST
    assert inspect.getsource(connection).count("self._transport.write(") == 1
    assert b"mlkem768x25519-sha256" in get_kex_algs()


def test_disconnect_is_read() -> None:
    said = bytes([1]) + (2).to_bytes(4, "big") + packets.text(b"too tired") + packets.text(b"")
    assert reading.read_disconnect(said) == (2, "too tired")
    assert reading.read_disconnect(b"\x01\x00") == (asyncssh.DISC_PROTOCOL_ERROR, "")
    rude = packets.disconnect(2, "\x1b[2J\u202egone\n")
    assert reading.read_disconnect(rude) == (2, "?[2J?gone?")


def test_fields_of_a_certificate_are_read() -> None:
    ca, key = (asyncssh.generate_private_key("ssh-rsa", key_size=3072) for _ in range(2))
    made = ca.generate_user_certificate(
        key, "badge", serial=7, principals=["alice"], valid_after=100, valid_before=200, force_command="date",
        source_address=["192.0.2.0/24"], permit_pty=False, sig_alg="rsa-sha2-256",
    )  # fmt: skip
    read = reading.certificate_in(made.public_data)
    assert (read.key_id, read.serial, read.for_users, read.principals) == ("badge", 7, True, ("alice",))
    assert (read.valid_after, read.valid_before, [str(one) for one in read.addresses]) == (100, 200, ["192.0.2.0/24"])
    assert read.bounds.force_command == "date"
    assert "pty" not in read.bounds.permits
    assert "port-forwarding" in read.bounds.permits
    assert reading.is_signed_well(decode_ssh_certificate(made.public_data))
    assert reading.certificate_in(key.public_data) is None
