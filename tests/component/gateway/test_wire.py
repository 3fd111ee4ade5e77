"""The contract with asyncssh: what `ssh_gateway.transport` takes for granted of its private parts.

When this fails after an upgrade, read asyncssh's changes to `connection.py` before anything else: the relay stands on
these names and on what they do.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from pathlib import Path

import asyncssh
import pytest
from asyncssh import connection, constants
from asyncssh.channel import SSHTCPChannel
from asyncssh.connection import SSHConnection
from asyncssh.kex import get_kex_algs
from asyncssh.packet import SSHPacket
from asyncssh.public_key import decode_ssh_certificate

from ssh_gateway import transport
from ssh_gateway.core import packets
from ssh_gateway.transport import fastpath, reading
from ssh_gateway.transport import keys as transport_keys
from ssh_gateway.transport.keys import GatewayKeys

ATTRIBUTES = (
    "_auth",
    "_auth_complete",
    "_channels",
    "_deferred_packets",
    "_kex_complete",
    "_loop",
    "_next_recv_chan",
    "_owner",
    "_protocol_factory",
    "_transport",
    "_login_timer",
    "_session_id",
    "_all_server_host_keys",
    "_inpbuf",
    "_next_recv_encryption",
    "_packet",
    "_recv_encryption",
    "_recv_handler",
    "_recv_seq",
    "_rekey_bytes",
    "_rekey_bytes_sent",
    "_rekey_seconds",
    "_rekey_time",
    "_send_encryption",
    "_send_seq",
)


def test_nothing_outside_of_the_package_looks_into_asyncssh() -> None:
    package = Path(transport.__file__).parent
    modules = [path for path in package.parent.rglob("*.py") if package not in path.parents]
    assert len(modules) > 30
    inside = re.compile(r"\bfrom asyncssh\.|\bimport asyncssh\.|\basyncssh\.\w*\._")
    assert [path.name for path in modules if inside.search(path.read_text(encoding="utf-8"))] == []
    assert inside.search((package / "fastpath.py").read_text(encoding="utf-8"))


def test_the_version_is_the_one_that_was_read() -> None:
    assert asyncssh.__version__.split(".")[:2] == ["2", "24"], "read asyncssh's changes, then adapt wire, bulk and this"


@pytest.mark.parametrize(
    ("owner", "name", "parameters"),
    [
        (SSHConnection, "_send_kexinit", ["self"]),
        (SSHConnection, "_send_deferred_packets", ["self"]),
        (SSHConnection, "_force_close", ["self", "exc"]),
        (SSHConnection, "_send", ["self", "data"]),
        (SSHConnection, "_cleanup", ["self", "exc"]),
        (SSHConnection, "_send_disconnect", ["self", "code", "reason", "lang"]),
        (SSHConnection, "internal_error", ["self", "exc_info", "error_logger"]),
        (SSHConnection, "_login_timer_callback", ["self"]),
        (SSHConnection, "_cancel_login_timer", ["self"]),
        (SSHConnection, "process_packet", ["self", "pkttype", "pktid", "packet"]),
        (SSHConnection, "send_packet", ["self", "pkttype", "args", "handler"]),
        (SSHConnection, "send_userauth_failure", ["self", "partial_success"]),
        (SSHConnection, "data_received", ["self", "data", "datatype"]),
        (SSHConnection, "connection_lost", ["self", "exc"]),
        (asyncssh.SSHServerConnection, "reload_config", ["self"]),
        (asyncssh.SSHServerConnection, "validate_public_key", ["self", "username", "key_data", "msg", "signature"]),
        (asyncssh.SSHServerConnection, "_validate_openssh_certificate", ["self", "username", "cert"]),
        (asyncssh.SSHServerConnection, "__init__", ["self", "loop", "options", "acceptor", "error_handler", "wait"]),
        (asyncssh.SSHClientConnection, "__init__", ["self", "loop", "options", "acceptor", "error_handler", "wait"]),
        (SSHConnection, "_update_recv_pktlen", ["self", "max_pktsize"]),
        (SSHTCPChannel, "__init__", ["self", "conn", "loop", "encoding", "errors", "window", "max_pktsize"]),
        (SSHTCPChannel, "_flush_send_buf", ["self"]),
        (SSHTCPChannel, "_pause_resume_writing", ["self"]),
        (SSHTCPChannel, "_close_send", ["self"]),
        (SSHTCPChannel, "abort", ["self"]),
        (SSHPacket, "get_full_payload", ["self"]),
    ],
)
def test_a_method_that_is_overridden_or_called_is_there(owner: type, name: str, parameters: list[str]) -> None:
    assert list(inspect.signature(getattr(owner, name)).parameters) == parameters


async def test_the_attributes_are_there(keys: GatewayKeys) -> None:
    options = transport_keys.server_options([keys.host], 0)
    leg = asyncssh.SSHServerConnection(asyncio.get_running_loop(), options)
    assert [name for name in ATTRIBUTES if not hasattr(leg, name)] == []
    assert leg._kex_complete is False
    assert leg._channels == {}


def test_packets_of_channels_are_looked_up_and_everything_else_is_processed() -> None:
    """The seam: an unknown channel's packets reach `process_packet` of the leg through `_Channels`."""
    source = inspect.getsource(SSHConnection._recv_packet)
    assert "handler = self._channels[recv_chan]" in source
    assert "result = handler.process_packet(pkttype, seq, packet)" in source
    assert (constants.MSG_CHANNEL_FIRST, constants.MSG_CHANNEL_LAST) == (packets.CHANNEL_WINDOW_ADJUST, 127)
    assert constants.MSG_GLOBAL_REQUEST == packets.FIRST_RELAYED


def test_what_a_channel_is_to_send_leaves_in_one_place_and_within_its_window() -> None:
    """`streams` holds it back there, and lets it send in turns by a smaller window."""
    sending = inspect.getsource(SSHTCPChannel._flush_send_buf)
    assert "while self._send_buf and self._send_window:" in sending
    assert sending.index("self._pause_resume_writing()") < sending.index("if not self._send_buf:")
    assert "self._flush_send_buf()" in inspect.getsource(SSHTCPChannel.write)
    assert "self._send_state = 'close_pending'" in inspect.getsource(SSHTCPChannel.close)
    assert "self._send_buf = []" in inspect.getsource(SSHTCPChannel._close_send)


def test_a_stream_is_a_channel_that_the_leg_makes() -> None:
    asked = inspect.getsource(asyncssh.SSHServerConnection._process_direct_tcpip_open)
    assert "chan = self.create_tcp_channel()" in asked


def test_an_ignore_goes_before_every_packet_only_by_way_of_send_packet() -> None:
    source = inspect.getsource(SSHConnection.send_packet)
    assert "self.send_packet(MSG_IGNORE" in source


def test_the_key_exchange_starts_and_ends_where_the_flow_is_told() -> None:
    assert "self._kex_complete = False" in inspect.getsource(SSHConnection._send_kexinit)
    ending = inspect.getsource(SSHConnection.send_newkeys)
    assert ending.index("self._kex_complete = True") < ending.index("self._send_deferred_packets()")


def test_what_a_packet_does_to_a_connection_beside_what_it_says() -> None:
    """`bulk` does the same for those that asyncssh does not see: numbers, and how much was sent with these keys."""
    sending = inspect.getsource(SSHConnection.send_packet)
    assert "self._send_seq = (seq + 1) & 0xffffffff" in sending
    assert "self._rekey_bytes_sent += pktlen" in sending
    assert "self._rekey_bytes_sent >= self._rekey_bytes" in sending
    assert "time.monotonic() >= self._rekey_time" in sending
    assert "self._recv_seq = (seq + 1) & 0xffffffff" in inspect.getsource(SSHConnection._finish_recv_packet)


def test_what_is_not_complete_can_be_taken_back() -> None:
    """Of a packet whose beginning was read, `_packet` has the first block as it came, and `_inpbuf` the rest."""
    beginning = inspect.getsource(SSHConnection._recv_pkthdr)
    assert "self._packet = self._inpbuf[:self._recv_blocksize]" in beginning
    assert "self._recv_encryption.decrypt_header(self._recv_seq," in beginning
    ending = inspect.getsource(SSHConnection._recv_packet)
    assert "self._recv_encryption.decrypt_packet(" in ending
    assert "seq, self._packet, rest, 4, mac)" in ending
    assert "self._packet = b''" in ending
    assert ending.index("self._recv_handler = lambda: False") < ending.index("self.create_task(result)")


def test_the_longest_packet_is_asyncsshs() -> None:
    assert connection._DEFAULT_RECV_PKTLEN == fastpath.LONGEST


def test_everything_that_is_sent_goes_through_one_method() -> None:
    """`bulk` sends what it has sealed before anything of asyncssh's, or packets would overtake each other."""
    assert "self._send(packet + mac)" in inspect.getsource(SSHConnection.send_packet)
    assert inspect.getsource(connection).count("self._transport.write(") == 1


@pytest.mark.parametrize("method", ["_reap_task", "_recv_data", "connection_made"])
def test_every_error_in_a_task_and_on_a_packet_ends_up_in_one_method(method: str) -> None:
    assert "self.internal_error" in inspect.getsource(getattr(SSHConnection, method))
    assert "add_done_callback(partial(self._reap_task," in inspect.getsource(SSHConnection.create_task)


def test_what_fails_in_an_owner_that_is_told_of_the_end_is_kept_quiet() -> None:
    """Why a leg tells it itself."""
    source = inspect.getsource(SSHConnection._cleanup)
    assert "if self._owner:" in source
    assert "self._owner.connection_lost(exc)" in source
    assert "Uncaught exception in owner ignored" in source


def test_what_came_behind_a_packet_that_took_its_time_is_read_on_unless_it_is_taken_away() -> None:
    """Also when that packet has ended the connection."""
    source = inspect.getsource(SSHConnection._finish_recv_packet)
    assert "if is_async and self._inpbuf:" in source
    assert "while self._inpbuf and self._recv_handler():" in inspect.getsource(SSHConnection._recv_data)


def test_new_keys_are_there_before_what_waited_for_them_is_sent() -> None:
    ending = inspect.getsource(SSHConnection.send_newkeys)
    for name in ("self._send_encryption = next_enc_", "self._next_recv_encryption = next_enc_"):
        assert 0 <= ending.index(name) < ending.index("self._send_deferred_packets()")


def test_success_waits_for_the_judgement_of_a_verified_signature() -> None:
    source = inspect.getsource(connection.SSHServerConnection.validate_public_key)
    assert "elif msg:" in source
    assert "key.verify(" in source


def test_the_post_quantum_key_exchange_is_there() -> None:
    assert b"mlkem768x25519-sha256" in get_kex_algs()


def test_a_disconnect_is_read_and_a_broken_one_too() -> None:
    said = bytes([1]) + (2).to_bytes(4, "big") + packets.text(b"too tired") + packets.text(b"")
    assert reading.read_disconnect(said) == (2, "too tired")
    assert reading.read_disconnect(b"\x01\x00") == (asyncssh.DISC_PROTOCOL_ERROR, "")
    rude = packets.disconnect(2, "\x1b[2J\u202egone\n")
    assert reading.read_disconnect(rude) == (2, "?[2J?gone?")


async def test_what_the_server_offers_is_what_is_meant(keys: GatewayKeys) -> None:
    options = transport_keys.server_options([keys.host], 60)
    assert options.kex_algs[0] == b"curve25519-sha256"  # what Dropbear guesses, see FACTS
    offered = [*options.kex_algs, *options.encryption_algs, *options.mac_algs, *options.signature_algs]
    assert not [name for name in offered if b"sha1" in name or b"cbc" in name or name == b"ssh-rsa"]
    assert list(options.server_host_keys) == [b"ssh-ed25519"]
    assert options.compression_algs == [b"none"]


def test_a_certificate_tells_what_is_read_of_it_and_ends_in_its_signature() -> None:
    ca, key = (asyncssh.generate_private_key("ssh-rsa", key_size=3072) for _ in range(2))
    made = ca.generate_user_certificate(
        key, "badge", serial=7, principals=["alice"], valid_after=100, valid_before=200, force_command="date",
        source_address=["192.0.2.0/24"], permit_pty=False, sig_alg="rsa-sha2-256",
    )  # fmt: skip
    read = reading.certificate_in(made.public_data)
    assert read is not None
    assert (read.key_id, read.serial, read.for_users, read.principals) == ("badge", 7, True, ("alice",))
    assert (read.valid_after, read.valid_before, [str(one) for one in read.addresses]) == (100, 200, ["192.0.2.0/24"])
    assert read.bounds.force_command == "date"
    assert "pty" not in read.bounds.permits
    assert "port-forwarding" in read.bounds.permits
    assert reading.is_signed_well(decode_ssh_certificate(made.public_data))
    assert reading.certificate_in(key.public_data) is None
