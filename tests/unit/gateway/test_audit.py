"""Audit events of packets: rows, hostile texts and nonsense."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssh_gateway.core.packets import text
from ssh_gateway.log import line
from ssh_gateway.session.audit import AuditEvent, read_audit_event
from tests.unit.gateway.wire import channel_open, channel_request, global_request, number

LINE = re.compile(r'event=[a-z-]+( [a-z_]+=([A-Za-z0-9_.@+:/,\[\]-]+|"([^"\\\x00-\x1f\x7f-\U0010ffff]|\\.)*"))*')


STREAM = text(b"db.example") + number(5432) + text(b"127.0.0.1") + number(40000)


# What a packet of the client's leaves in the log.
OF_CLIENT: dict[str, tuple[bytes, str | None]] = {
    "a session": (channel_open(b"session"), "channel kind=session"),
    "-L": (channel_open(b"direct-tcpip", STREAM), "forward kind=direct-tcpip to=db.example:5432"),
    "-L to a socket": (
        channel_open(b"direct-streamlocal@openssh.com", text(b"/run/x") + text(b"") + number(0)),
        "forward kind=direct-streamlocal@openssh.com to=/run/x",
    ),
    "-R": (
        global_request(b"tcpip-forward", text(b"localhost") + number(0)),
        "listen kind=tcpip-forward at=localhost:0",
    ),
    "-R of a socket": (
        global_request(b"streamlocal-forward@openssh.com", text(b"/run/y")),
        "listen kind=streamlocal-forward@openssh.com at=/run/y",
    ),
    "a shell": (channel_request(b"shell"), "exec kind=shell"),
    "sftp": (channel_request(b"subsystem", text(b"sftp")), "exec kind=subsystem program=sftp"),
    "a command": (channel_request(b"exec", text(b"mysql -psecret x")), "exec kind=exec program=mysql"),
    "a command that begins with a secret": (channel_request(b"exec", text(b"KEY=secret cmd")), "exec kind=exec"),
    "-A": (channel_request(b"auth-agent-req@openssh.com"), "request kind=auth-agent-req@openssh.com"),
    "the environment": (channel_request(b"env", text(b"TOKEN") + text(b"secret")), None),
    "a signal": (channel_request(b"signal", text(b"INT")), None),
}
OF_JOB: dict[str, tuple[bytes, str | None]] = {
    "a status": (channel_request(b"exit-status", number(3)), "exit status=3"),
    "killed": (channel_request(b"exit-signal", text(b"KILL") + b"\0" + text(b"") + text(b"")), "exit signal=KILL"),
    "a connection by -R": (channel_open(b"forwarded-tcpip", STREAM), "forward kind=forwarded-tcpip to=db.example:5432"),
    "a window": (channel_open(b"x11", text(b"::1") + number(6010)), "channel kind=x11"),
    "what only clients ask for": (channel_request(b"shell"), None),
}


def said(event: AuditEvent | None) -> str | None:
    return event and line(event.name, **event.fields).removeprefix("event=")


@pytest.mark.parametrize(("payload", "event"), OF_CLIENT.values(), ids=OF_CLIENT)
def test_request_of_a_client_is_an_event(payload: bytes, event: str | None) -> None:
    assert said(read_audit_event(payload, by_client=True)) == event


@pytest.mark.parametrize(("payload", "event"), OF_JOB.values(), ids=OF_JOB)
def test_request_of_a_job_is_an_event(payload: bytes, event: str | None) -> None:
    assert said(read_audit_event(payload, by_client=False)) == event


def test_whole_command_is_logged_on_request() -> None:
    found = read_audit_event(channel_request(b"exec", text(b"mysql -psecret x")), by_client=True, commands=True)
    assert found == AuditEvent("exec", {"kind": "exec", "command": "mysql -psecret x"})


HOSTILE = [
    pytest.param(b"x\n2026-01-01T00:00:00.000Z INFO event=auth result=accepted user=root", id="a line of its own"),
    pytest.param(b"x\r\x1b[2K\x1b[31mred\x07\x9b0m", id="a terminal's commands"),
    pytest.param(b'x" result=accepted user="root', id="the end of a quotation"),
    pytest.param("\u202egnp.exe \u2066 \u0430lice \U0001f4a3".encode(), id="look-alikes and right to left"),
    pytest.param(b"\xff\xfe\x00\x80", id="no UTF-8"),
    pytest.param(b"A" * 65536, id="64 KiB"),
]


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("by_client", [True, False], ids=["from the client", "from the job"])
def test_hostile_text_is_one_short_line_of_ascii(hostile: bytes, by_client: bool) -> None:
    address = text(hostile) + number(1) + text(hostile) + number(2)
    for payload in (
        channel_open(hostile),
        channel_open(b"direct-tcpip", address),
        channel_open(b"forwarded-streamlocal@openssh.com", text(hostile)),
        channel_request(b"exec", text(hostile)),
        channel_request(b"subsystem", text(hostile)),
        channel_request(b"exit-signal", text(hostile)),
        global_request(b"tcpip-forward", text(hostile) + number(1)),
    ):
        event = read_audit_event(payload, by_client=by_client, commands=True)
        if event is not None:
            written = line(event.name, **event.fields)
            assert LINE.fullmatch(written), written
            assert len(written) < 1500


@given(st.sampled_from([80, 90, 98]), st.binary(max_size=60), st.booleans())
def test_random_packet_is_an_event_or_none(kind: int, rest: bytes, by_client: bool) -> None:
    event = read_audit_event(bytes([kind]) + rest, by_client=by_client, commands=True)
    assert event is None or LINE.fullmatch(line(event.name, **event.fields))
