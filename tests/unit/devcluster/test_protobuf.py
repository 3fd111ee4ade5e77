"""Bodies in protobuf: a message that kubectl wrote, and every way to damage one."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlspawner.devcluster.api.protobuf import ProtobufError, decode


def _text(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def _enveloped(kind: bytes, raw: bytes) -> bytes:
    return b"k8s\x00" + _text(1, _text(1, b"v1") + _text(2, kind)) + _text(2, raw) + _text(3, b"") + _text(4, b"")


METADATA = _text(1, _text(1, b"s") + _text(2, b"") + _text(8, b"") + _text(11, _text(1, b"a") + _text(2, b"b")))


def test_a_secret() -> None:
    raw = METADATA + _text(2, _text(1, b"token") + _text(2, b"\x00\xff")) + _text(3, b"Opaque")
    assert decode(_enveloped(b"Secret", raw)) == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s", "labels": {"a": "b"}},
        "data": {"token": "AP8="},
        "type": "Opaque",
    }


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"k8s\x00",
        _enveloped(b"Pod", METADATA),
        _enveloped(b"Secret", METADATA + _text(9, b"x")),
        _enveloped(b"Secret", b"\x08\x01"),
        _enveloped(b"Secret", b"\x0a\x7f"),
        _enveloped(b"Secret", b"\xff" * 12),
    ],
)
def test_unreadable_body_is_refused(body: bytes) -> None:
    with pytest.raises(ProtobufError):
        decode(body)


@given(st.binary(max_size=60))
def test_noise_is_refused_or_read_and_never_crashes(noise: bytes) -> None:
    with contextlib.suppress(ProtobufError, UnicodeDecodeError):
        assert decode(_enveloped(b"ConfigMap", noise))["kind"] == "ConfigMap"
