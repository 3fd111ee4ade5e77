"""Which terminals are recorded, with legs that are lists: clients that are unusual, and those that try to get away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from ssh_gateway import packets, wire
from ssh_gateway.asciicast import Terminal
from ssh_gateway.packets import Policy
from ssh_gateway.proxy import Relay
from ssh_gateway.recorder import MOST_OF_CONNECTION, RECORDED, Recorder
from ssh_gateway.recordings import BEHIND, Recordings
from tests.gateway.peers import until
from tests.gateway.recorded import read
from tests.gateway.test_proxy import FakeLeg, close, confirmation, data, number
from tests.gateway.test_terminals import WINDOW, answer, opening


async def nobody_asks() -> None:
    raise AssertionError("it is known")


@dataclass
class Wired:
    """A relay whose terminals are recorded."""

    client: FakeLeg
    pod: FakeLeg
    relay: Relay
    recorder: Recorder
    recordings: Recordings
    folder: Path
    notes: list[tuple[str, dict[str, Any]]]

    def sends(self, *payloads: bytes) -> None:
        for payload in payloads:
            assert self.client.receive(payload[0], payload)

    def says(self, *payloads: bytes) -> None:
        for payload in payloads:
            assert self.pod.receive(payload[0], payload)

    def session(self, client: int = 5, pod: int = 9, window: int = WINDOW) -> None:
        self.sends(opening(client, window))
        self.says(confirmation(client, pod))

    async def goes_on(self) -> None:
        """What had to wait for a file has gone on, or was refused."""
        await until(lambda: self.client.reading)

    async def shown(self) -> list[str]:
        await until(lambda: not self.recordings.going_on)
        return [read(path).shown for path in sorted(self.folder.iterdir())]


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[Wired]:
    recordings, notes = Recordings(tmp_path / "recordings"), list[tuple[str, dict[str, Any]]]()
    recordings.check()
    recorder = Recorder(
        recordings,
        must=lambda: True,
        whose=lambda channel, count: Terminal("alice", "train", "1-1", channel, count),
        note=lambda event, **fields: notes.append((event, fields)),
        learn=nobody_asks,
        user="alice",
    )
    client, pod = FakeLeg(), FakeLeg()
    relay = Relay(
        cast("wire.Leg", client), cast("wire.Leg", pod), Policy(), used=lambda: None, lines=tuple, recorder=recorder
    )
    relay.start()
    yield Wired(client, pod, relay, recorder, recordings, tmp_path / "recordings", notes)
    relay.pod_gone()
    await recordings.aclose()


def terminal(pod: int = 9, reply: bool = True, columns: int = 80) -> bytes:
    sizes = number(columns) + number(24) + bytes(8)
    return bytes([98]) + number(pod) + packets.text(b"pty-req") + bytes([reply]) + packets.text(b"vt") + sizes


def shell(pod: int = 9) -> bytes:
    return bytes([98]) + number(pod) + packets.text(b"shell") + b"\1"


def refused(payload: bytes) -> bytes:
    return packets.refused(payload)


async def test_all_that_a_client_sends_waits_for_the_file_in_its_order(both: Wired) -> None:
    both.session()
    before = len(both.pod.sent)
    both.sends(terminal(), shell(), data(9, b"typed"))
    assert (both.pod.sent[before:], both.client.reading) == ([], False)
    await both.goes_on()
    assert both.pod.sent[before:] == [terminal(), shell(), data(9, b"typed")]
    both.says(answer(5), answer(5), data(5, b"shown"), close(5))
    assert both.client.sent[-5:] == [answer(5), data(5, RECORDED.content), answer(5), data(5, b"shown"), close(5)]
    assert await both.shown() == [RECORDED.content.decode() + "shown"]


async def test_terminals_that_are_asked_for_at_once_are_recorded_one_after_the_other(both: Wired) -> None:
    both.session(5, 9)
    both.session(6, 10)
    both.sends(terminal(9), terminal(10), shell(9), shell(10))
    await until(lambda: both.pod.sent[-4:] == [terminal(9), terminal(10), shell(9), shell(10)])
    both.says(data(5, b"five"), data(6, b"six"), close(5), close(6))
    assert await both.shown() == ["five", "six"]


async def test_a_client_that_wants_no_answer_is_told_and_recorded(both: Wired) -> None:
    both.session()
    both.sends(terminal(reply=False), shell())
    await both.goes_on()
    assert both.client.sent[-1] == data(5, RECORDED.content)
    both.says(answer(5), data(5, b"shown"), close(5))
    assert await both.shown() == [RECORDED.content.decode() + "shown"]


async def test_a_second_terminal_on_a_channel_is_refused_and_ends_no_recording(both: Wired) -> None:
    both.session()
    both.sends(terminal())
    await both.goes_on()
    both.says(answer(5))
    both.sends(terminal())
    assert both.pod.sent[-1] == refused(terminal())
    both.says(answer(5, success=False), data(5, b"still"), close(5))
    assert await both.shown() == [RECORDED.content.decode() + "still"]


async def test_what_runs_where_the_pod_granted_no_terminal_is_not_recorded(both: Wired) -> None:
    both.session()
    both.sends(terminal(), shell())
    await both.goes_on()
    both.says(answer(5, success=False), answer(5), data(5, b"a file"))
    assert both.client.sent[-1] == data(5, b"a file")
    assert await both.shown() == [""]


@pytest.mark.parametrize(
    ("window", "asked"),
    [(2000, terminal()), (WINDOW, terminal()[:-16])],
    ids=["no room for the line that says so", "no size"],
)
async def test_a_terminal_that_cannot_be_told_of_is_refused_with_its_shell(
    both: Wired, window: int, asked: bytes
) -> None:
    both.session(window=window)
    both.sends(asked, shell())
    assert both.pod.sent[-2:] == [refused(asked), refused(shell())]
    assert [event for event, _ in both.notes] == ["refused"]
    assert both.client.ended is not None
    assert "Terminals of your team are recorded" in both.client.ended[1]
    assert list(both.folder.iterdir()) == []


async def test_a_channel_of_the_same_number_is_judged_anew(both: Wired) -> None:
    both.session()
    both.sends(terminal())
    await both.goes_on()
    both.sends(close(9))
    both.says(close(5))
    both.session()
    both.sends(terminal(), shell())
    await both.goes_on()
    assert both.pod.sent[-2:] == [terminal(), shell()]
    both.says(data(5, b"second"), close(5))
    assert await both.shown() == ["", "second"]


async def test_a_client_that_leaves_while_its_file_is_made_leaves_an_empty_recording(both: Wired) -> None:
    both.session()
    both.sends(terminal(), shell())
    both.client.end(1, "gone")
    both.relay.client_gone("gone")
    await until(lambda: len(both.notes) == 2)
    assert await both.shown() == [""]
    assert terminal() not in both.pod.sent


async def test_output_waits_for_a_slow_disk_and_goes_on_when_it_is_written(both: Wired) -> None:
    both.session()
    both.sends(terminal())
    await both.goes_on()
    both.says(answer(5))
    content = b"x" * 30000
    many = BEHIND // len(content) + 1
    for _ in range(many):
        both.says(data(5, content))
    assert not both.pod.reading
    assert both.client.sent[-1] == data(5, content), "the client waits for nothing"
    await until(lambda: both.pod.reading)
    both.says(close(5))
    (shown,) = await both.shown()
    assert shown.count("x") == many * len(content)


async def open_terminals(both: Wired, numbers: range) -> None:
    for one in numbers:
        both.session(one, 100 + one)
        both.sends(terminal(100 + one))
        await both.goes_on()
        both.says(answer(one))


async def test_one_more_than_a_connection_may_have_is_refused_in_words_on_the_others_which_go_on(both: Wired) -> None:
    await open_terminals(both, range(MOST_OF_CONNECTION))
    assert len(both.recordings.going_on) == MOST_OF_CONNECTION
    for _ in range(2):
        both.session(50, 150)
        both.sends(terminal(150), shell(150))
        assert both.pod.sent[-2:] == [refused(terminal(150)), refused(shell(150))]
        both.sends(close(150))
        both.says(close(50))
    said = [sent for sent in both.client.sent if b"this connection has 16 already: close some of them" in sent]
    assert [packets.number_at(sent, 1) for sent in said] == list(range(MOST_OF_CONNECTION)), "once on each"
    assert both.client.ended is None
    assert len(both.recordings.going_on) == MOST_OF_CONNECTION
    both.says(close(0))
    await until(lambda: len(both.recordings.going_on) < MOST_OF_CONNECTION)
    await open_terminals(both, range(60, 61))
    assert both.client.sent[-1] == data(60, RECORDED.content)


async def test_whoever_has_too_many_on_other_connections_is_sent_home_with_words(both: Wired) -> None:
    both.recorder.crowd.limit = 2
    elsewhere = both.recorder.crowd.inside
    elsewhere.hear(2, "alice", 2)  # in another worker
    both.session()
    both.sends(terminal(), shell())
    assert both.pod.sent[-2:] == [refused(terminal()), refused(shell())]
    assert both.client.ended is not None
    assert "this one cannot be: you have 2 recorded terminals already: close some of them." in both.client.ended[1]
    assert list(both.folder.iterdir()) == []
    both.client.ended = None
    elsewhere.hear(2, "alice", -1)
    both.session(6, 10)
    both.sends(terminal(10))
    await both.goes_on()
    assert elsewhere["alice"] == 2
    both.says(close(6))
    await until(lambda: elsewhere["alice"] == 1)
    assert both.client.ended is None
