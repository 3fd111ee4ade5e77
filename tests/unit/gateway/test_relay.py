"""The rules of the relay, with fake legs."""

from __future__ import annotations

import pytest

from ssh_gateway.core import packets
from ssh_gateway.session import relay as session_relay
from tests.unit.gateway.wire import (
    Wire,
    channel_open,
    channel_request,
    close,
    confirmation,
    data,
    global_request,
    number,
    pty_request,
)


@pytest.fixture
def both() -> Wire:
    return Wire()


def exit_by(how: bytes, what: bytes) -> bytes:
    return channel_request(how, what, 7, reply=False)


def test_unknown_packets_are_relayed_in_both_directions(both: Wire) -> None:
    both.from_client(b"\xc0what")
    both.from_pod(b"\xc1ever")
    assert (both.pod.sent, both.client.sent) == ([b"\xc0what"], [b"\xc1ever"])
    assert both.uses == 0


HUP = exit_by(b"exit-signal", packets.text(b"HUP") + b"\0" + packets.text(b"") + packets.text(b""))
EXITS = {
    "by a signal": (HUP, True),
    "as shells say it": (exit_by(b"exit-status", number(143)), True),
    "by itself": (exit_by(b"exit-status", number(1)), False),
}


@pytest.mark.parametrize(("ends", "waits"), EXITS.values(), ids=EXITS)
@pytest.mark.parametrize("why", [None, "train was stopped"], ids=["goes on", "stopped"])
def test_end_of_a_program_by_a_signal_waits_until_it_is_known_if_the_job_is_stopped(
    both: Wire, ends: bytes, why: str | None, *, waits: bool
) -> None:
    both.from_client(channel_open(b"session", channel=7))
    both.from_pod(confirmation(7, 0))
    before = len(both.client.sent)
    for payload in (ends, data(7), close(7)):
        both.from_pod(payload)
    assert both.client.sent[before:] == ([data(7)] if waits else [ends, data(7), close(7)])
    assert both.asked == waits
    if waits:
        both.relay.release(why)
        assert both.client.ended == ((11, why) if why else None)
        assert both.client.sent[before + 1 :] == ([] if why else [ends, close(7)])


def test_refused_channel_is_answered_to_the_pod(both: Wire) -> None:
    both.from_pod(channel_open(b"x11", channel=3))
    assert both.client.sent == []
    assert both.pod.sent[0][:5] == bytes([92]) + number(3)


def test_leg_is_not_read_while_the_other_is_full(both: Wire) -> None:
    both.client.full = True
    both.client.flow_changed()
    assert (both.pod.reading, both.client.reading) == (False, True)
    both.client.full = False
    both.client.flow_changed()
    assert both.pod.reading


def test_leg_in_a_key_exchange_is_read(both: Wire) -> None:
    both.client.rekeying = both.pod.rekeying = True
    both.pod.flow_changed()
    assert both.client.reading
    assert both.pod.reading


def test_too_much_pending_data_ends_the_connection(both: Wire) -> None:
    both.pod.rekeying = both.client.rekeying = True
    for _ in range(session_relay.MOST_PENDING // 2**20):
        both.from_client(data(0, bytes(2**20)))
    assert both.client.ended == (2, "too much data during a key exchange")


def test_pending_count_is_reset_when_data_is_sent(both: Wire) -> None:
    for _ in range(3 * session_relay.MOST_PENDING // 2**20):
        both.pod.full = True
        both.from_client(data(0, bytes(2**20)))
        both.pod.full = False
        both.pod.flow_changed()
    assert both.client.ended is None


def test_disconnect_reasons_are_passed_on(both: Wire) -> None:
    both.pod.disconnect_reason = (2, "Too many sessions")
    both.relay.upstream_gone()
    assert both.client.ended == (2, "Too many sessions")
    both.relay.client_gone("the client is gone")
    assert both.pod.ended == (11, "the client is gone")


def test_data_without_a_terminal_is_activity_in_both_directions(both: Wire) -> None:
    both.from_pod(confirmation(client=5, pod=9))
    both.from_client(data(9))
    both.from_pod(data(5))
    assert both.uses == 2


def test_terminal_input_is_activity_and_output_is_not(both: Wire) -> None:
    both.from_pod(confirmation(client=5, pod=9))
    both.from_client(pty_request(9))
    both.from_pod(data(5))
    assert both.uses == 0
    both.from_client(data(9))
    assert both.uses == 1


def test_reused_channel_number_is_another_channel(both: Wire) -> None:
    both.from_pod(confirmation(client=5, pod=9))
    both.from_client(pty_request(9))
    both.from_client(close(9))
    both.from_pod(close(5))
    both.from_pod(confirmation(client=5, pod=9))
    both.from_pod(data(5))
    assert both.uses == 1


def test_requests_and_windows_are_no_activity(both: Wire) -> None:
    both.from_client(global_request(b"keepalive@openssh.com"))
    both.from_pod(bytes([82]))
    both.from_client(bytes([93]) + number(9) + number(100))
    assert both.uses == 0
