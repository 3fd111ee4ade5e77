"""Every command of people against a service whose every name means harm: nothing of it reaches the terminal."""

from __future__ import annotations

import io
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dlspawner import cli

HOSTILE = "\x1b[2J\x1b]0;t\x07\x9b1m\u202eexe\u2066\u200b\ufeff\r\n\0</script>\ud800=cmd|' /C calc'!A0"
ID = "j-aaaaaaaaaaaa"
AT = "2026-01-02T12:00:00+00:00"
JOB: dict[str, Any] = {
    **dict.fromkeys(("user", "server", "team", "template", "why", "priority", "gpu_type", "reason"), HOSTILE),
    **{"id": ID, "state": "queued", "position": 1, "gpus": 1, "cpu": 2, "memory_bytes": 3, "preemptible": True},
    **{"nodes": [HOSTILE], "submitted": AT, "started": None, "ended": None, "notice": None},
    "endpoints": [{"name": HOSTILE, "protocol": "http", "url": HOSTILE}, {"name": "ssh", "command": f"ssh {HOSTILE}"}],
    "estimate": {"from": AT, "to": AT, "basis": HOSTILE},
    "stop": {"reason": HOSTILE, "sentence": HOSTILE, "at": AT},
}
SHARE = {**dict.fromkeys(("team", "title", "gpu_type"), HOSTILE), "entitled": 1, "used": 0, "free": 1, "borrowed": 0}
TYPE = {
    "name": HOSTILE,
    "title": HOSTILE,
    "total": 1,
    "free": 1,
    "most_on_one_node": 1,
    "unschedulable": 0,
    "waiting_gpus": 0,
}
EVENT = {"at": AT, "state": "queued", "reason": HOSTILE, "detail": HOSTILE}
APPROVAL = {**JOB, "job": ID, "what": HOSTILE, "why": HOSTILE, "state": "waiting", "id": "f" * 16, "kind": "soft-cap"}
ANSWERS: dict[str, Any] = {
    "/hub/api/user": {"name": "mallory"},
    f"jobs/{ID}/events": {"items": [EVENT], "next": None},
    f"jobs/{ID}/keep-alive": {"sentence": HOSTILE},
    f"jobs/{ID}": JOB,
    "jobs": {"items": [JOB], "next": None},
    "queue": {"items": [JOB], "next": None},
    "quota": {"items": [SHARE], "next": None},
    "cluster": {"gpu_types": [TYPE], "nodes": []},
    "approvals": {"items": [APPROVAL], "next": None},
}
COMMANDS = [
    *(["list"], ["list", "--all"], ["show", ID], ["queue"], ["quota"], ["cluster"], ["approvals"], ["logs", ID]),
    *(["kill", ID], ["keep-alive", ID], ["requeue", ID], ["approve", ID], ["deny", ID], ["show", "nobody"]),
    ["ssh", ID],
]


class Harmful(BaseHTTPRequestHandler):
    """The Hub and the Manager of somebody who means harm; without a token it says no."""

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0].removeprefix("/services/jobs/api/")
        is_log = path.endswith("/log")
        if is_log:
            status, content = 200, HOSTILE.encode("utf-8", "surrogatepass")
        else:
            said = {"detail": HOSTILE, "title": HOSTILE, "status": 409}
            status = 409 if "no" in self.headers["Authorization"] else 200
            content = json.dumps(said if status == 409 else ANSWERS.get(path, JOB)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if is_log else "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_DELETE = answer  # noqa: N815 - names of http.server

    def log_message(self, *_: object) -> None:
        pass


class Terminal(io.StringIO):
    """What a terminal is given."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def harmful() -> Iterator[str]:
    http = ThreadingHTTPServer(("127.0.0.1", 0), Harmful)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{http.server_address[1]}"
    http.shutdown()
    thread.join()
    http.server_close()


@pytest.mark.parametrize("token", ["yes", "no"], ids=["what is answered", "why it is refused"])
@pytest.mark.parametrize(
    "command",
    [*COMMANDS, *([*command, "--json"] for command in COMMANDS if command[0] not in {"logs", "ssh"})],
    ids=lambda words: "-".join(words).replace(ID, "id"),
)
def test_nothing_of_other_peoples_text_moves_the_terminal(
    harmful: str, command: list[str], token: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("DLSPAWNER_URL", harmful)
    monkeypatch.setenv("DLSPAWNER_TOKEN", token)
    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    cli.main(command)
    shown = out.getvalue() + err.getvalue()
    assert shown, "it says something"
    assert "does not" not in shown, "it is the service that has answered"
    assert [ascii(char) for char in shown if not char.isprintable() and char not in "\n\t"] == []
    shown.encode()
