"""The gateway's ciphers equal asyncssh's, and refuse changed packets."""

from __future__ import annotations

import os

import pytest
from asyncssh.encryption import get_encryption, get_encryption_params

from ssh_gateway.transport import fastpath
from ssh_gateway.transport import keys as transport_keys

SUITES = [
    (cipher, mac)
    for cipher in transport_keys.ENCRYPTION_ALGS
    for mac in ([one for one in transport_keys.MAC_ALGS if "-etm" in one] if cipher.endswith("ctr") else [""])
]
PACKETS = [b"\x04" + os.urandom(size - 1) for size in (16, 32, 1024, 32784)]


def theirs(suite: tuple[str, str], keys: bytes) -> object:
    """asyncssh's cipher, always of the same keys."""
    cipher, mac = (name.encode() for name in suite)
    key, iv, _, mac_key, _, etm = get_encryption_params(cipher, mac)
    return get_encryption(cipher, keys[:key], keys[64 : 64 + iv], mac, keys[96 : 96 + mac_key], etm)


@pytest.fixture(params=SUITES, ids="-".join)
def pair(request: pytest.FixtureRequest) -> tuple[object, fastpath.PacketCipher]:
    """asyncssh's cipher and ours of the same keys."""
    keys = os.urandom(192)
    ours = fastpath._own(theirs(request.param, keys))
    assert isinstance(ours, fastpath.PacketCipher), "there is one for everything but MACs without -etm"
    return theirs(request.param, keys), ours


def sealed_by(cipher: object, seq: int, plain: bytes) -> bytes:
    packet, mac = cipher.encrypt_packet(seq, len(plain).to_bytes(4, "big"), plain)  # type: ignore[attr-defined]
    return bytes(packet + mac)


def sealed_by_us(cipher: fastpath.PacketCipher, seq: int, plain: bytes) -> bytes:
    out = memoryview(bytearray(len(plain) + 200))
    return bytes(out[: cipher.seal(seq, memoryview(plain), len(plain), out, 0)])


def test_sealed_packet_equals_asyncssh_s(pair: tuple[object, fastpath.PacketCipher]) -> None:
    peer, ours = pair
    for seq, plain in enumerate(PACKETS, 0xFFFFFFFE - 2):
        assert sealed_by_us(ours, seq, plain) == sealed_by(peer, seq, plain)


def test_packets_of_asyncssh_are_opened_by_both_paths(pair: tuple[object, fastpath.PacketCipher]) -> None:
    peer, ours = pair
    room = memoryview(bytearray(40000))
    for seq, plain in enumerate(PACKETS * 2):
        sealed = sealed_by(peer, seq, plain)
        assert ours.length(seq, sealed[:4], 0) == len(plain)
        if seq % 2:
            first, head = ours.decrypt_header(seq, sealed[:16], 4)
            assert int.from_bytes(head, "big") == len(plain)
            assert ours.decrypt_packet(seq, first, sealed[16 : -ours.tag], 4, sealed[-ours.tag :]) == plain
        else:
            assert ours.opens(seq, memoryview(sealed), 0, len(plain), room)
            assert room[: len(plain)] == plain


@pytest.mark.parametrize("place", [4, 10, -1], ids=["first byte", "inside", "proof"])
def test_changed_packet_is_not_opened(pair: tuple[object, fastpath.PacketCipher], place: int) -> None:
    peer, ours = pair
    sealed = bytearray(sealed_by(peer, 7, PACKETS[1]))
    sealed[place] ^= 1
    assert not ours.opens(7, memoryview(sealed), 0, len(PACKETS[1]), memoryview(bytearray(2000)))


def test_packet_with_another_sequence_number_is_not_opened(pair: tuple[object, fastpath.PacketCipher]) -> None:
    peer, ours = pair
    sealed_by(peer, 1, PACKETS[0])
    second = sealed_by(peer, 2, PACKETS[0])
    assert not ours.opens(1, memoryview(second), 0, len(PACKETS[0]), memoryview(bytearray(2000)))


def test_asyncssh_is_told_of_a_wrong_tag(pair: tuple[object, fastpath.PacketCipher]) -> None:
    _, ours = pair
    ours.opened = b""
    assert ours.decrypt_packet(1, bytes(16), bytes(16), 4, bytes(ours.tag)) is None


def test_old_cryptography_leaves_ciphers_to_asyncssh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastpath, "AVAILABLE", False)
    cipher = theirs(SUITES[0], os.urandom(192))
    assert fastpath._own(cipher) is cipher
