"""The Manager as a process: it starts without a Hub, says what is wrong in a sentence, and stops cleanly.

With a cluster one Manager answers, and another one stands by.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from dlspawner.core.link import derive_hub_token
from dlspawner.manager.app import Manager
from tests.component.manager.manager_harness import wants
from tests.component.manager.quota import QuotaHub
from tests.component.manager.real_hub import manager_environment, process
from tests.e2e.people import answers, wait_for
from tests.harness.ports import free_port

COMMAND = [sys.executable, "-W", "error", "-m", "dlspawner.manager"]
NO_HUB = "http://127.0.0.1:9/hub/api"


def failure(port: int, *arguments: str, **environment: str) -> str:
    """The words of a Manager that ends at once, without a traceback."""
    env = {**manager_environment(f"http://127.0.0.1:{port}", NO_HUB, "secret-token"), **environment}
    command = [*COMMAND, *arguments]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, "Traceback" in ended.stderr) == (1, False), ended.stderr
    return ended.stderr


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
        said = failure(port, f"--db-url=sqlite:///{tmp_path / 'm.sqlite'}")
    assert f"Port {port} on 127.0.0.1 is used by another program" in said
    assert "JUPYTERHUB_SERVICE_URL" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"DLSPAWNER_MANAGER_DB_URL": "postgresql+psycopg://u:hidden@127.0.0.1:9/x"}, "Manager.db_url"),
        ({"JUPYTERHUB_API_URL": "", "JUPYTERHUB_API_TOKEN": ""}, "JUPYTERHUB_API_URL, JUPYTERHUB_API_TOKEN"),
        ({"JUPYTERHUB_SERVICE_URL": "http://127.0.0.1"}, "names no port"),
    ],
)
def test_fault_at_the_start_is_a_sentence(tmp_path: Path, environment: dict[str, str], sentence: str) -> None:
    url = {"DLSPAWNER_MANAGER_DB_URL": f"sqlite:///{tmp_path / 'm.sqlite'}", **environment}
    said = failure(free_port(), **url)
    assert sentence in said
    assert "hidden" not in said


def test_missing_templates_are_named_at_the_start(tmp_path: Path) -> None:
    said = failure(free_port(), f"--db-url=sqlite:///{tmp_path / 'm.sqlite'}", f"--Manager.template_paths={tmp_path}")
    assert "The template my_jobs.html is not in" in said
    assert "Manager.template_paths" in said


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
    words = failure(free_port(), setting, DLSPAWNER_MANAGER_DB_URL=f"sqlite:///{tmp_path / 'm.sqlite'}")
    assert said in words
    assert "s3cret" not in words
    assert list(tmp_path.iterdir()) == []


def test_settings_of_every_part_and_of_its_ancestors_are_taken() -> None:
    said = failure(
        free_port(), "--HubAuth.cache_max_age=7", "--GpuMetrics.prometheus_url=http://p",
        "--Application.log_level=WARN", "--db-url=no-url",
    )  # fmt: skip
    assert "there is no setting" not in said
    assert "Manager.db_url is not a database URL" in said, "and then they are looked at"


@pytest.fixture
def hub(tmp_path: Path, database: str) -> Iterator[QuotaHub]:
    """A cluster, for Managers that tests start."""
    made = QuotaHub(tmp_path, db_url=database, settings=("--Manager.lease_seconds=3",))
    made.prepare()
    try:
        made.start_cluster()
        yield made
        for log in tmp_path.glob("manager*.log"):
            assert "Traceback" not in log.read_text()
    finally:
        for name in [*made.running][::-1]:
            made.stop(name)


def put(hub: QuotaHub, port: int, user: str = "alice", gpus: int = 1) -> requests.Response:
    request = wants(user, gpus)
    fields = ("user", "server", "team", "template", "preemptible", "priority", "requeue", "pods")
    body = {**{name: getattr(request, name) for name in fields}, "request_milliseconds": 3000}
    headers = {"Authorization": f"token {derive_hub_token('manager-token')}"}
    url = f"http://127.0.0.1:{port}/services/jobs/api/internal/jobs/{request.job}/admission"
    return requests.put(url, json={**body, "namespace": hub.namespace}, headers=headers, timeout=30)


def is_up(port: int, what: str) -> bool:
    return requests.get(f"http://127.0.0.1:{port}/services/jobs/{what}", timeout=30).ok


def test_one_answers_the_other_stands_by_and_takes_over_when_the_first_is_killed(hub: QuotaHub, db_url: str) -> None:
    first, second = hub.manager_port, free_port()
    hub.start_manager()
    wait_for(lambda: put(hub, first, gpus=8).status_code == 200, "it leads")
    hub.start_manager("manager-2", second)
    standing_by = put(hub, second)
    assert standing_by.status_code == 503
    assert "does not decide now" in standing_by.json()["detail"]
    assert standing_by.headers["Connection"] == "close", "or a client would keep asking this one"
    assert (is_up(first, "ready"), is_up(second, "ready"), is_up(second, "health")) == (True, False, True)
    hub.kill("manager")
    wait_for(lambda: put(hub, second).status_code == 200, "the other one leads", 60)
    assert is_up(second, "ready")
    answer = put(hub, second, "bob").json()
    assert (answer["decision"], answer["reason"]) == ("wait", "team-quota")


def test_a_way_that_the_network_policies_forbid_and_that_is_open_is_told(hub: QuotaHub) -> None:
    with socket.create_server(("127.0.0.1", 0)) as forbidden:
        address = f"127.0.0.1:{forbidden.getsockname()[1]}"
        hub.settings = (*hub.settings, f"--Manager.forbidden_address={address}")
        hub.start_manager()
        said = f"No network plug-in enforces the NetworkPolicies: {address} answers"
        wait_for(lambda: said in (hub.state / "manager.log").read_text(), "it is told")
