"""Lines on terminals: their channels, and that no window is overrun, with fake legs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssh_gateway.core import packets
from ssh_gateway.session import terminals
from ssh_gateway.session.terminals import TerminalLine
from tests.unit.gateway.wire import (
    WINDOW,
    Wire,
    channel_open,
    channel_request,
    close,
    confirmation,
    data,
    number,
    pty_request,
)

LINE = TerminalLine("1", b"\r\n*** a line ***\r\n")


class Told(Wire):
    """A relay with something to say."""

    def __init__(self) -> None:
        super().__init__([LINE])

    def session(self, client: int = 5, pod: int = 9, window: int = WINDOW) -> None:
        self.from_client(opening(client, window))
        self.from_pod(confirmation(client, pod))

    def terminal(self, client: int = 5, pod: int = 9, window: int = WINDOW) -> None:
        """A session that gets its terminal."""
        self.session(client, pod, window)
        self.from_client(pty_request(pod))
        self.from_pod(answer(client))

    @property
    def said(self) -> list[bytes]:
        return [packet for packet in self.client.sent if packet[0] == packets.CHANNEL_DATA]


@pytest.fixture
def both() -> Told:
    return Told()


def opening(client: int, window: int = WINDOW, kind: bytes = b"session") -> bytes:
    return channel_open(kind, channel=client, window=window)


def asked(name: bytes, rest: bytes = b"") -> bytes:
    return channel_request(name, rest, 9)


def answer(client: int, success: bool = True) -> bytes:
    return bytes([99 if success else 100]) + number(client)


def adjust(pod: int, added: int) -> bytes:
    return bytes([93]) + number(pod) + number(added)


def test_terminal_gets_each_line_once(both: Told) -> None:
    both.terminal()
    assert both.said == [data(5, LINE.content)]
    assert both.client.sent[-2] == answer(5), "the pod's answer goes first"
    both.relay.tell()
    assert len(both.said) == 1
    both.lines.append(TerminalLine("2", b"another"))
    both.relay.tell()
    assert both.said == [data(5, LINE.content), data(5, b"another")]
    both.terminal(6, 10)
    assert both.said[2:] == [data(6, LINE.content), data(6, b"another")], "another terminal of the connection"


def test_session_without_a_terminal_gets_no_line(both: Told) -> None:
    both.session()
    both.from_client(asked(b"exec", packets.text(b"sftp-server")))
    both.from_pod(answer(5))
    both.relay.tell()
    assert both.said == []


def test_refused_terminal_gets_no_line(both: Told) -> None:
    both.session()
    both.from_client(pty_request(9))
    both.from_client(asked(b"exec", packets.text(b"cat")))
    both.from_pod(answer(5, success=False))
    both.from_pod(answer(5))
    both.relay.tell()
    assert both.said == []


def test_replies_are_matched_in_order(both: Told) -> None:
    both.session()
    both.from_client(channel_request(b"env", packets.text(b"LANG") * 2, 9, reply=False))
    both.from_client(asked(b"x11-req"))
    both.from_client(pty_request(9))
    both.from_pod(answer(5, success=False))
    assert both.said == []
    both.from_pod(answer(5))
    assert len(both.said) == 1


@pytest.mark.parametrize("end", ["end of file", "close", "close by the client"])
def test_ended_channel_gets_no_line(both: Told, end: str) -> None:
    both.terminal()
    if end == "close by the client":
        both.from_client(close(9))
    else:
        both.from_pod(close(5) if end == "close" else bytes([96]) + number(5))
    both.lines.append(TerminalLine("2", b"too late"))
    both.relay.tell()
    assert len(both.said) == 1


def test_blocked_client_gets_the_line_later(both: Told) -> None:
    both.client.full = True
    both.terminal()
    assert both.said == []
    both.client.full = False
    both.client.flow_changed()
    assert both.said == [data(5, LINE.content)]


def test_window_for_the_pod_excludes_the_reserve(both: Told) -> None:
    both.terminal()
    assert both.pod.sent[0] == opening(5, WINDOW - terminals.RESERVE)
    both.from_client(adjust(9, len(LINE.content)))
    assert both.pod.sent[-1] == pty_request(9), "what the line took is kept back"
    both.from_client(adjust(9, 1000))
    assert both.pod.sent[-1] == adjust(9, 1000)


def test_line_waits_for_window(both: Told) -> None:
    both.terminal()
    for name in range(10):
        both.lines.append(TerminalLine(f"long {name}", b"x" * 1000))
    both.relay.tell()
    assert len(both.said) == 1 + 4, "4096 bytes of room"
    both.from_client(adjust(9, 2 * terminals.RESERVE))
    assert len(both.said) == 1 + 4 + 4


def test_reserve_of_small_windows_is_small(both: Told) -> None:
    both.terminal(window=16384)
    assert both.pod.sent[0] == opening(5, 16384 - 1024)
    assert len(both.said) == 1
    both.terminal(6, 10, window=2000)
    assert opening(6, 2000) in both.pod.sent
    assert len(both.said) == 1


def test_other_and_truncated_packets_are_unchanged(both: Told) -> None:
    for packet in (opening(5, kind=b"direct-tcpip"), opening(5)[:-1], bytes([90]), bytes([93]), bytes([98])):
        both.from_client(packet)
        assert both.pod.sent[-1] == packet
    for packet in (bytes([91]), bytes([92]), bytes([96]), bytes([99]), bytes([100])):
        both.from_pod(packet)
        assert both.client.sent[-1] == packet


@given(
    st.integers(0, 2**17),
    st.lists(
        st.one_of(st.tuples(st.just("add"), st.integers(0, 9000)), st.tuples(st.just("say"), st.integers(1, 4000)))
    ),
)
def test_window_of_the_pod_never_exceeds_the_client_s(window: int, steps: list[tuple[str, int]]) -> None:
    both = Told()
    both.terminal(window=window)
    consumed = 0
    for step, (what, size) in enumerate(steps):
        if what == "say":
            both.lines.append(TerminalLine(str(step), b"x" * size))
            both.relay.tell()
        else:
            both.from_client(adjust(9, size))
            window += size
        consumed = sum(packets.number_at(packet, 5) for packet in both.said)
        believed = sum(
            packets.number_at(packet, 5 if packet[0] == 93 else 1 + 4 + len("session") + 4)
            for packet in both.pod.sent
            if packet[0] in {90, 93}
        )
        assert believed + consumed <= window
        assert believed >= window - consumed - terminals.RESERVE
