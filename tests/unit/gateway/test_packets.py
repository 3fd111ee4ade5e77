"""Verdicts on packets, and the order of host key proofs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssh_gateway.core.packets import (
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
from tests.unit.gateway.wire import channel_open, channel_request, global_request, number

CLOSED, OPEN = RelayPolicy(), RelayPolicy(agent_forwarding=True, x11_forwarding=True)
NUMBER = number(7)


@pytest.mark.parametrize(
    "payload",
    {
        "a forward": global_request(b"tcpip-forward", text(b"") + NUMBER),
        "an unknown request": global_request(b"x@example.org"),
        "a shell": channel_request(b"shell"),
        "a session": channel_open(b"session"),
        "a request cut short": bytes([98, 0]),
        "a name longer than its packet": bytes([80, 255, 255, 255, 255, 65]),
        "nothing but a type": bytes([90]),
    }.values(),
)
def test_permitted_packet_is_forwarded_unchanged(payload: bytes) -> None:
    assert judge(payload, CLOSED) == Verdict(forward=payload)


def test_host_keys_of_the_job_are_not_forwarded() -> None:
    assert judge(global_request(b"hostkeys-00@openssh.com", text(b"key"), reply=False), CLOSED) == Verdict()


def test_proof_of_host_keys_is_refused_by_the_job() -> None:
    asked = global_request(b"hostkeys-prove-00@openssh.com", text(b"key"))
    assert judge(asked, CLOSED).forward == global_request(REFUSED_REQUEST, text(b"key"))


@pytest.mark.parametrize("name", [b"auth-agent-req@openssh.com", b"agent-req", b"x11-req"])
def test_agent_and_x11_requests_are_refused_in_order_unless_allowed(name: bytes) -> None:
    asked = channel_request(name, b"rest")
    refused = judge(asked, CLOSED)
    assert refused.forward == channel_request(REFUSED_REQUEST, b"rest")
    assert refused.refused == name.decode()
    assert judge(asked, OPEN) == Verdict(forward=asked)


@pytest.mark.parametrize("name", [b"auth-agent@openssh.com", b"agent-connect", b"x11"])
def test_agent_and_x11_channels_of_the_job_are_refused_unless_allowed(name: bytes) -> None:
    refused = judge(channel_open(name, channel=7), CLOSED)
    assert refused.forward is None
    assert refused.answer[:5] == bytes([92]) + NUMBER
    assert judge(channel_open(name, channel=7), OPEN).forward == channel_open(name, channel=7)


def test_direct_tcpip_is_read() -> None:
    payload = channel_open(b"direct-tcpip", text(b"train") + number(22) + text(b"::1") + NUMBER, channel=7)
    assert read_direct_tcpip(payload) == DirectTcpip("train", 22)
    assert opener(payload) == NUMBER
    assert read_direct_tcpip(channel_open(b"session")) is None


def test_names_and_wanted_replies_are_read() -> None:
    assert wants_reply(global_request(b"x"))
    assert not wants_reply(global_request(b"x", reply=False))
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
PROVE, OTHER = global_request(PROVE_HOST_KEYS), global_request(b"a")


@pytest.mark.parametrize(
    ("asked", "answers"),
    [
        pytest.param([PROVE], [PROOF], id="alone"),
        pytest.param([OTHER, PROVE, OTHER], [FAILURE, PROOF, FAILURE], id="between"),
        pytest.param([global_request(b"a", reply=False), PROVE], [PROOF], id="behind one without a reply"),
        pytest.param([PROVE, PROVE], [PROOF, FAILURE], id="one at a time"),
        pytest.param([global_request(PROVE_HOST_KEYS, reply=False), OTHER], [FAILURE], id="without a wanted reply"),
    ],
)
def test_proof_keeps_the_order_of_replies(asked: list[bytes], answers: list[bytes]) -> None:
    proofs = Proofs()
    for payload in asked:
        proofs.asked(payload, lambda _payload: PROOF)
    assert [proofs.answered(FAILURE) for _ in answers] == answers


def test_unproven_host_key_stays_refused() -> None:
    proofs = Proofs()
    proofs.asked(PROVE, lambda _payload: None)
    assert proofs.answered(FAILURE) == FAILURE
