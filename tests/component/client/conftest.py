"""A Hub with its jobs service that answers what a test puts down, and an environment that is logged in to it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

HANGS, CLOSES, HALF, LOG = -1, 0, -2, -3  # instead of a status: no answer, a closed connection, half a log, a log


@dataclass
class Scripted:
    """Answers by path where there is a route, else one after the other, the last one forever."""

    answers: list[tuple[int, Any]] = field(default_factory=list)
    routes: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    url: str = ""
    ended: threading.Event = field(default_factory=threading.Event)

    def next(self, path: str) -> tuple[int, Any]:
        route = path.partition("?")[0].removeprefix("/services/jobs/api/")
        if route in self.routes:
            return LOG if route.endswith("/log") else 200, self.routes[route]
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def queries(self, resource: str) -> list[str]:
        """The queries with which a resource was asked for, in order."""
        return [path.partition("?")[2] for _, path, _ in self.asked if path.partition("?")[0].endswith(resource)]


@pytest.fixture
def server() -> Iterator[Scripted]:
    script = Scripted()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            script.asked.append((self.command, self.path, dict(self.headers.items())))
            status, body = script.next(self.path)
            if status == HANGS:
                script.ended.wait(30)
            if status in {CLOSES, HANGS}:
                self.close_connection = True
                return
            is_log, is_page = status in {HALF, LOG}, isinstance(body, str)
            self.send_response(200 if is_log else status)
            if status == 302:
                self.send_header("Location", body)
            kind = "text/plain" if is_log else "text/html" if is_page else "application/json"
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            content = body.encode("utf-8", "surrogatepass") if is_page else json.dumps(body).encode()
            self.send_header("Content-Length", str(len(content) + (99 if status == HALF else 0)))
            self.close_connection = status == HALF
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = answer  # noqa: N815 - names of http.server

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            pass  # a client that hangs up

    http = Quiet(("127.0.0.1", 0), Handler)
    script.url = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield script
    script.ended.set()
    http.shutdown()
    thread.join()
    http.server_close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, without a login; requests are repeated without a pause."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("dlspawner.client.service._PAUSE_SECONDS", 0.0)
    for name in ("XDG_CONFIG_HOME", "DLSPAWNER_URL", "DLSPAWNER_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def logged_in(server: Scripted, home: Path, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    """The server, to which the environment is logged in."""
    monkeypatch.setenv("DLSPAWNER_URL", server.url)
    monkeypatch.setenv("DLSPAWNER_TOKEN", "secret")
    return server
