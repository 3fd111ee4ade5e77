"""Reports of a job's kernels and terminals, from the notebook server's lists."""

from __future__ import annotations

import socket
import threading
from datetime import UTC, datetime, timedelta

import pytest

from dlspawner.spawner.files import report_kernels

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def kernel(state: str, seconds: float) -> dict[str, str]:
    at = (NOW - timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")
    return {"id": "k", "execution_state": state, "last_activity": at}


def used(seconds: float) -> dict[str, object]:
    return {"busy": False, "seconds": seconds}


REPORTS = {
    "no kernel": ([], {"busy": False, "seconds": None}),
    "an idle one": ([kernel("idle", 90)], {"busy": False, "seconds": 90.0}),
    "of several the one that was used last": ([kernel("idle", 90), kernel("idle", 5)], {"busy": False, "seconds": 5.0}),
    "one that is busy": ([kernel("idle", 90), kernel("busy", 7200)], {"busy": True, "seconds": 90.0}),
    "one that starts, for ever without a client": ([kernel("starting", 30)], {"busy": False, "seconds": 30.0}),
    "a terminal": ([kernel("idle", 90), {"name": "1", "last_activity": kernel("", 7)["last_activity"]}], used(7.0)),
    "a clock that went back": ([kernel("idle", -60)], {"busy": False, "seconds": 0.0}),
}


@pytest.mark.parametrize("name", REPORTS)
def test_report(name: str) -> None:
    listed, expected = REPORTS[name]
    kernels, terminals = ([one for one in listed if ("id" in one) is kernel] for kernel in (True, False))

    assert report_kernels.report(kernels, terminals, NOW) == expected


ANSWERS = {
    "half a body": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n[",
    "no list of kernels": b'HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n["x"]',
    "an error": b"HTTP/1.1 503 Wait\r\nContent-Length: 0\r\n\r\n",
    "nothing": b"",
}


class _Slept(BaseException):
    """Raised instead of the pause before the next request."""


@pytest.mark.parametrize("name", ANSWERS)
def test_the_list_is_requested_again_after_an_invalid_answer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(_: float) -> None:
        raise _Slept

    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(ANSWERS[name])

        thread = threading.Thread(target=answer)
        thread.start()
        monkeypatch.setenv("JUPYTERHUB_SERVICE_URL", f"http://127.0.0.1:{server.getsockname()[1]}/")
        monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "token")
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        monkeypatch.setattr(report_kernels.time, "sleep", sleep)
        with pytest.raises(_Slept):
            report_kernels.main()
        thread.join(60)
        assert not thread.is_alive(), "the notebook server was asked, not the proxy"
