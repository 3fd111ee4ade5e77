"""Audit events of relayed packets, for the log: channels, forwards, commands and their exit statuses. Pure.

Rules:

* Events are requests of either end; the other end's own log says if it did as asked. A command's exit status is an
  event.
* No values of environment variables, and of a command its first word only, unless `commands`: command lines hold
  secrets.
* Texts are as received; `log.line` cuts and escapes them.
* A packet too short for its type makes no event.
* One connection has a budget of lines, so that no client can fill a disk; the number of dropped lines is logged at its
  end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from ssh_gateway.core.packets import AGENT_REQUESTS, CHANNEL_OPEN, CHANNEL_REQUEST, GLOBAL_REQUEST, number_at, text_at

_PROGRAM = re.compile(r"\s*([A-Za-z0-9_./+-]{1,64})(?=[\s;&|<>]|$)")
_STREAMS = frozenset({b"direct-tcpip", b"forwarded-tcpip"})
_PATHS = frozenset({b"direct-streamlocal@openssh.com", b"forwarded-streamlocal@openssh.com"})
_LISTENERS = frozenset({b"tcpip-forward", b"cancel-tcpip-forward"})
_PATH_LISTENERS = frozenset({b"streamlocal-forward@openssh.com", b"cancel-streamlocal-forward@openssh.com"})
_LENT = AGENT_REQUESTS | {b"x11-req"}


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One line: the event's name and fields."""

    name: str
    fields: dict[str, Any] = field(default_factory=dict)


def read_audit_event(payload: bytes, *, by_client: bool, commands: bool = False) -> AuditEvent | None:
    """Returns the audit event of a CHANNEL_OPEN, CHANNEL_REQUEST or GLOBAL_REQUEST, if any."""
    kind = payload[0]
    if kind == CHANNEL_OPEN:
        return _open(payload)
    if kind == CHANNEL_REQUEST:
        return _request(payload, commands) if by_client else _end(payload)
    return _listen(payload) if kind == GLOBAL_REQUEST and by_client else None


def _open(payload: bytes) -> AuditEvent | None:
    name, rest = text_at(payload, 1)
    if name is None:
        return None
    if name in _STREAMS and (address := _address(payload, rest + 12)) is not None:
        return AuditEvent("forward", {"kind": _said(name), "to": address})
    if name in _PATHS and (path := text_at(payload, rest + 12)[0]) is not None:
        return AuditEvent("forward", {"kind": _said(name), "to": _said(path)})
    return AuditEvent("channel", {"kind": _said(name)})


def _request(payload: bytes, commands: bool) -> AuditEvent | None:
    name, rest = text_at(payload, 5)
    what = text_at(payload, rest + 1)[0]
    if name == b"shell":
        return AuditEvent("exec", {"kind": "shell"})
    if name == b"subsystem" and what is not None:
        return AuditEvent("exec", {"kind": "subsystem", "program": _said(what)})
    if name == b"exec" and what is not None:
        return AuditEvent("exec", {"kind": "exec", **_command(_said(what), commands)})
    return AuditEvent("request", {"kind": _said(name)}) if name in _LENT else None


def _end(payload: bytes) -> AuditEvent | None:
    name, rest = text_at(payload, 5)
    if name == b"exit-status" and len(payload) >= rest + 5:
        return AuditEvent("exit", {"status": number_at(payload, rest + 1)})
    if name == b"exit-signal" and (signal := text_at(payload, rest + 1)[0]) is not None:
        return AuditEvent("exit", {"signal": _said(signal)})
    return None


def _listen(payload: bytes) -> AuditEvent | None:
    name, rest = text_at(payload, 1)
    if name in _LISTENERS and (address := _address(payload, rest + 1)) is not None:
        return AuditEvent("listen", {"kind": _said(name), "at": address})
    if name in _PATH_LISTENERS and (path := text_at(payload, rest + 1)[0]) is not None:
        return AuditEvent("listen", {"kind": _said(name), "at": _said(path)})
    return None


def _address(payload: bytes, offset: int) -> str | None:
    host, rest = text_at(payload, offset)
    return None if host is None or len(payload) < rest + 4 else f"{_said(host)}:{number_at(payload, rest)}"


def _command(line: str, whole: bool) -> dict[str, str]:
    if whole:
        return {"command": line}
    first = _PROGRAM.match(line)
    return {"program": first[1]} if first else {}


def _said(text: bytes) -> str:
    return text[:1024].decode("utf-8", "replace")
