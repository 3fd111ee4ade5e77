"""The Manager as a process: it starts without a Hub, says what is wrong in a sentence, and stops cleanly."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import requests

from dlspawner.core.link import derive_hub_token
from dlspawner.manager.app import Manager
from tests.component.manager.real_hub import manager_environment, process
from tests.e2e.people import answers, wait_for
from tests.harness.ports import free_port

COMMAND = [sys.executable, "-W", "error", "-m", "dlspawner.manager"]
NO_HUB = "http://127.0.0.1:9/hub/api"


def run(port: int, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Start a Manager that is expected to end at once."""
    env = {**manager_environment(f"http://127.0.0.1:{port}", NO_HUB, "secret-token"), **environment}
    return subprocess.run([*COMMAND, *arguments], env=env, capture_output=True, text=True, timeout=60, check=False)


def test_without_a_hub_it_answers_and_stops_cleanly(tmp_path: Path, db_url: str) -> None:
    port = free_port()
    env = manager_environment(f"http://127.0.0.1:{port}", NO_HUB, "secret-token")
    base, log = f"http://127.0.0.1:{port}/services/jobs", tmp_path / "log"
    with process([*COMMAND, f"--db-url={db_url}"], log, env=env) as manager:
        wait_for(lambda: answers(f"{base}/health"), "it answers")
        assert requests.get(f"{base}/health", timeout=5).json() == {"status": "ok"}
        # What the Hub asks at its own start must not fail, or it waits half a minute.
        assert requests.get(f"{base}/", allow_redirects=False, timeout=5).status_code == 302
        asked = requests.get(f"{base}/api/keys", headers={"Authorization": "token x"}, timeout=15)
        assert (asked.status_code, asked.headers["Retry-After"]) == (503, "5")
        page = requests.get(f"{base}/keys", headers={"Authorization": "token x"}, timeout=15)
        assert (page.status_code, "Try again soon" in page.text) == (503, True)
        # Without files it decides about no jobs, and has the keys.
        hubs = {"Authorization": f"token {derive_hub_token('secret-token')}"}
        pending = requests.get(f"{base}/api/internal/users/alice/waiting", headers=hubs, timeout=15)
        assert (pending.status_code, "decides about no jobs" in pending.json()["detail"]) == (501, True)
        assert requests.get(f"{base}/ready", timeout=5).ok
        manager.send_signal(signal.SIGTERM)
        assert manager.wait(10) == 0
    text = log.read_text()
    assert f"Manager ready at http://127.0.0.1:{port}/services/jobs/" in text
    assert "Traceback" not in text
    assert "secret-token" not in text


def test_a_request_that_is_being_answered_is_not_cut_off_by_a_stop(tmp_path: Path) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as slow_hub:
        api = f"http://127.0.0.1:{slow_hub.getsockname()[1]}/hub/api"
        env = manager_environment(f"http://127.0.0.1:{port}", api, "secret-token")
        database = f"--db-url=sqlite:///{tmp_path / 'm.sqlite'}"
        with process([*COMMAND, database], tmp_path / "log", env=env) as manager:
            wait_for(lambda: answers(f"http://127.0.0.1:{port}/services/jobs/health"), "it answers")
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(b"GET /services/jobs/api/keys HTTP/1.0\r\nAuthorization: token x\r\n\r\n")
                connection, _ = slow_hub.accept()  # the Manager now waits for the Hub
                manager.send_signal(signal.SIGTERM)
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                connection.close()
                client.settimeout(10)
                assert client.recv(4096).startswith(b"HTTP/1.1 401")
            assert manager.wait(10) == 0


def test_a_port_that_is_taken_is_a_sentence_with_port_and_setting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run(port, f"--db-url=sqlite:///{tmp_path / 'm.sqlite'}")
    assert ended.returncode == 1
    assert f"Port {port} on 127.0.0.1 is used by another program" in ended.stderr
    assert "JUPYTERHUB_SERVICE_URL" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "environment", "sentence"),
    [
        ([], {"DLSPAWNER_MANAGER_DB_URL": "postgresql+psycopg://u:hidden@127.0.0.1:9/x"}, "Manager.db_url"),
        ([], {"JUPYTERHUB_API_URL": "", "JUPYTERHUB_API_TOKEN": ""}, "JUPYTERHUB_API_URL, JUPYTERHUB_API_TOKEN"),
        ([], {"JUPYTERHUB_SERVICE_URL": "http://127.0.0.1"}, "names no port"),
    ],
)
def test_fault_at_the_start_is_a_sentence(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], sentence: str
) -> None:
    url = {"DLSPAWNER_MANAGER_DB_URL": f"sqlite:///{tmp_path / 'm.sqlite'}", **environment}
    ended = run(free_port(), *arguments, **url)
    assert ended.returncode == 1
    assert sentence in ended.stderr
    assert "hidden" not in ended.stderr
    assert "Traceback" not in ended.stderr


def test_missing_templates_are_named_at_the_start(tmp_path: Path) -> None:
    ended = run(free_port(), f"--db-url=sqlite:///{tmp_path / 'm.sqlite'}", f"--Manager.template_paths={tmp_path}")
    assert ended.returncode == 1
    assert "The template my_jobs.html is not in" in ended.stderr
    assert "Manager.template_paths" in ended.stderr


def test_every_setting_explains_itself() -> None:
    for name, trait in Manager.class_own_traits(config=True).items():
        assert len(trait.help) > 40, name


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("--GpuMetrics.prometheus_ur=http://p", "GpuMetrics.prometheus_ur: did you mean GpuMetrics.prometheus_url?"),
        ("--ServiceAuth.cache_maxage=5", "ServiceAuth.cache_maxage: did you mean ServiceAuth.cache_max_age?"),
        ("--Manager.db-url=postgresql://user:s3cret@db/x", "did you mean --Manager.db_url=…?"),
        ("--Manager.lease_seconds=nan", "a finite number"),
    ],
    ids=["of a part", "of what the Hub has made", "another dash", "no number"],
)
def test_misspelled_setting_is_a_sentence_and_nothing_begins(setting: str, said: str, tmp_path: Path) -> None:
    done = run(free_port(), setting, DLSPAWNER_MANAGER_DB_URL=f"sqlite:///{tmp_path / 'm.sqlite'}")
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "s3cret" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_settings_of_every_part_and_of_its_ancestors_are_taken() -> None:
    done = run(
        free_port(), "--HubAuth.cache_max_age=7", "--GpuMetrics.prometheus_url=http://p",
        "--Application.log_level=WARN", "--db-url=no-url",
    )  # fmt: skip
    assert "there is no setting" not in done.stderr
    assert "Manager.db_url is not a database URL" in done.stderr, "and then they are looked at"
