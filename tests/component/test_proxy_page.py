"""The proxy as `dlspawner.local` starts it: its page while the Hub or a service does not answer."""

from __future__ import annotations

import re
import socket
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests
import yaml
from playwright.sync_api import Page, expect, sync_playwright

from dlspawner.local import processes
from dlspawner.local.state import Options, Ports
from tests.e2e.people import wait_for
from tests.harness.chromium import LAUNCH
from tests.harness.ports import free_port

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "templates" / "proxy" / "error.html"


def answers_when(url: str) -> bool:
    try:
        return requests.get(f"{url}/_chp_healthz", timeout=5).status_code == 200
    except requests.RequestException:
        return False


@pytest.fixture
def behind() -> Iterator[socket.socket]:
    """The listening socket in place of the Hub."""
    with socket.create_server(("127.0.0.1", free_port())) as server:
        yield server


@pytest.fixture
def proxy(behind: socket.socket, tmp_path: Path) -> Iterator[str]:
    port = free_port()
    options = Options(tmp_path, port, free_port(), ROOT / "hub_config", ROOT / "templates")
    ports = Ports(**{name: free_port() for name in Ports.__dataclass_fields__})
    env = defaultdict(str, DLSPAWNER_HUB_URL=f"http://127.0.0.1:{behind.getsockname()[1]}")
    child = processes.children(options, ports, env)["proxy"]
    with (tmp_path / "proxy.log").open("wb") as log:
        process = subprocess.Popen(child.command, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    wait_for(lambda: answers_when(url), "the proxy", 60)
    yield url
    assert process.poll() is None, "the proxy lives on"
    process.terminate()
    process.wait(30)


@pytest.fixture
def browser() -> Iterator[Page]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(**LAUNCH)
        yield chromium.new_page()
        chromium.close()


def check_page(answer: requests.Response) -> None:
    assert (answer.status_code, answer.headers["Content-Type"]) == (503, "text/html")
    assert answer.text == PAGE.read_text()


def test_the_page_of_an_unreachable_service(proxy: str, behind: socket.socket) -> None:
    behind.close()
    check_page(requests.get(f"{proxy}/services/jobs/", timeout=30))
    check_page(requests.post(f"{proxy}/services/jobs/api/jobs", json={}, timeout=30))


def test_the_proxy_survives_a_truncated_answer(proxy: str, behind: socket.socket) -> None:
    def half() -> None:
        connection, _ = behind.accept()
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")
        connection.close()

    thread = threading.Thread(target=half)
    thread.start()
    with requests.get(f"{proxy}/hub/home", timeout=30, stream=True) as answer:  # which the proxy never ends
        assert answer.status_code == 200
        thread.join()
        behind.close()
        check_page(requests.get(f"{proxy}/hub/home", timeout=30))


@pytest.mark.slow
@pytest.mark.browser
def test_the_page_reloads_once_when_a_slow_hub_is_back(proxy: str, behind: socket.socket, browser: Page) -> None:
    went, again = [], threading.Event()

    class Slow(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(200)
            self.end_headers()

        def do_GET(self) -> None:
            went.append(self.path)
            if went.count("/hub/home") > 1:
                again.set()
            again.wait(12)  # the page looks every five
            self.do_HEAD()
            self.wfile.write(b"Good day")

    address = behind.getsockname()
    behind.close()
    browser.goto(f"{proxy}/hub/home")
    expect(browser.get_by_text("JupyterHub does not respond")).to_be_visible()
    with ThreadingHTTPServer(address, Slow) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            expect(browser.get_by_text("Good day")).to_be_visible(timeout=60_000)
        finally:
            server.shutdown()
    assert went.count("/hub/home") == 1


def test_the_page_loads_nothing_else() -> None:
    page = PAGE.read_text()
    (drawn,) = re.findall(r"<path .*/>", (PAGE.parents[1] / "hub" / "logo.svg").read_text())
    assert drawn in page, "the Hub's logo"
    assert not re.search(r'(?:src|href)="(?:https?:|//|/hub/static)|@import|url\(', page)
    assert "Running jobs are not affected" in page


def test_the_page_is_in_the_deployment() -> None:
    deployment = next(iter(yaml.safe_load_all((ROOT / "hub_config/kubernetes/base/proxy.yaml").read_text())))
    pod = deployment["spec"]["template"]["spec"]
    command = pod["containers"][0]["command"]
    place = next(word.partition("=")[2] for word in command if word.startswith("--error-path="))
    mount = next(one for one in pod["containers"][0]["volumeMounts"] if one["mountPath"] == place)
    name = next(one for one in pod["volumes"] if one["name"] == mount["name"])["configMap"]["name"]
    maps = yaml.safe_load((ROOT / "templates/kustomization.yaml").read_text())["configMapGenerator"]
    files = next(one for one in maps if one["name"] == name)["files"]
    assert files == ["proxy/error.html"], "the proxy looks for this name, whatever the status"
