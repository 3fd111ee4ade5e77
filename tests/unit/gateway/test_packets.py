"""Verdicts on packets, and the order of host key proofs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssh_gateway.core.packets import (
    GLOBAL_REQUEST,
    PROVE_HOST_KEYS,
    REFUSED_REQUEST,
    DirectTcpip,
    Proofs,
    RelayPolicy,
    Verdict,
    judge,
    opener,
    read_direct_tcpip,
    request_name,
    text,
    wants_reply,
)

CLOSED, OPEN = RelayPolicy(), RelayPolicy(agent_forwarding=True, x11_forwarding=True)
NUMBER = (7).to_bytes(4, "big")


def global_request(name: bytes, reply: int = 0, rest: bytes = b"") -> bytes:
    return bytes([80]) + text(name) + bytes([reply]) + rest


def channel_request(name: bytes, reply: int = 0, rest: bytes = b"") -> bytes:
    return bytes([98]) + NUMBER + text(name) + bytes([reply]) + rest


def channel_open(name: bytes, rest: bytes = b"") -> bytes:
    return bytes([90]) + text(name) + NUMBER + bytes(8) + rest


@pytest.mark.parametrize(
    "payload",
    {
        "a forward": global_request(b"tcpip-forward", 1, text(b"") + NUMBER),
        "an unknown request": global_request(b"x@example.org", 1),
        "a shell": channel_request(b"shell", 1),
        "a session": channel_open(b"session"),
        "a request cut short": bytes([98, 0]),
        "a name longer than its packet": bytes([80, 255, 255, 255, 255, 65]),
        "nothing but a type": bytes([90]),
    }.values(),
)
def test_permitted_packet_is_forwarded_unchanged(payload: bytes) -> None:
    assert judge(payload, CLOSED) == Verdict(forward=payload)


def test_host_keys_of_the_job_are_not_forwarded() -> None:
    assert judge(global_request(b"hostkeys-00@openssh.com", 0, text(b"key")), CLOSED) == Verdict()


def test_proof_of_host_keys_is_refused_by_the_job() -> None:
    asked = global_request(b"hostkeys-prove-00@openssh.com", 1, text(b"key"))
    assert judge(asked, CLOSED).forward == global_request(REFUSED_REQUEST, 1, text(b"key"))


@pytest.mark.parametrize("name", [b"auth-agent-req@openssh.com", b"agent-req", b"x11-req"])
def test_agent_and_x11_requests_are_refused_in_order_unless_allowed(name: bytes) -> None:
    asked = channel_request(name, 1, b"rest")
    refused = judge(asked, CLOSED)
    assert refused.forward == channel_request(REFUSED_REQUEST, 1, b"rest")
    assert refused.refused == name.decode()
    assert judge(asked, OPEN) == Verdict(forward=asked)


@pytest.mark.parametrize("name", [b"auth-agent@openssh.com", b"agent-connect", b"x11"])
def test_agent_and_x11_channels_of_the_job_are_refused_unless_allowed(name: bytes) -> None:
    refused = judge(channel_open(name), CLOSED)
    assert refused.forward is None
    assert refused.answer[:5] == bytes([92]) + NUMBER
    assert judge(channel_open(name), OPEN).forward == channel_open(name)


def test_direct_tcpip_is_read() -> None:
    payload = channel_open(b"direct-tcpip", text(b"train") + (22).to_bytes(4, "big") + text(b"::1") + NUMBER)
    assert read_direct_tcpip(payload) == DirectTcpip("train", 22)
    assert opener(payload) == NUMBER
    assert read_direct_tcpip(channel_open(b"session")) is None


def test_names_and_wanted_replies_are_read() -> None:
    assert wants_reply(global_request(b"x", 1))
    assert not wants_reply(global_request(b"x", 0))
    assert request_name(channel_request(b"pty-req")) == b"pty-req"
    assert request_name(global_request(b"x")) == b"x"


@given(st.sampled_from([80, 90, 98]), st.binary(max_size=80), st.booleans())
def test_random_packets_are_judged_without_an_error(kind: int, rest: bytes, allowed: bool) -> None:
    payload = bytes([kind]) + rest
    verdict = judge(payload, OPEN if allowed else CLOSED)
    assert verdict.forward is None or verdict.forward[0] == kind
    read_direct_tcpip(payload)
    request_name(payload)
    wants_reply(payload)
    opener(payload)


FAILURE, PROOF = b"\x52", b"\x51proof"


def request(name: bytes, wants_reply: int = 1) -> bytes:
    return bytes([GLOBAL_REQUEST]) + text(name) + bytes([wants_reply])


@pytest.mark.parametrize(
    ("asked", "answers"),
    [
        pytest.param([request(PROVE_HOST_KEYS)], [PROOF], id="alone"),
        pytest.param([request(b"a"), request(PROVE_HOST_KEYS), request(b"b")], [FAILURE, PROOF, FAILURE], id="between"),
        pytest.param([request(b"a", 0), request(PROVE_HOST_KEYS)], [PROOF], id="behind one without a reply"),
        pytest.param([request(PROVE_HOST_KEYS), request(PROVE_HOST_KEYS)], [PROOF, FAILURE], id="one at a time"),
        pytest.param([request(PROVE_HOST_KEYS, 0), request(b"a")], [FAILURE], id="without a wanted reply"),
    ],
)
def test_proof_keeps_the_order_of_replies(asked: list[bytes], answers: list[bytes]) -> None:
    proofs = Proofs()
    for payload in asked:
        proofs.asked(payload, lambda _payload: PROOF)
    assert [proofs.answered(FAILURE) for _ in answers] == answers


def test_unproven_host_key_stays_refused() -> None:
    proofs = Proofs()
    proofs.asked(request(PROVE_HOST_KEYS), lambda _payload: None)
    assert proofs.answered(FAILURE) == FAILURE
