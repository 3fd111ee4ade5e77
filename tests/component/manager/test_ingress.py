"""Below a path and behind an HAProxy that ends TLS, as an Ingress does: all that people open, from one address."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.component.gateway.clients.ways import DEBIAN, LIBRARIES
from tests.component.manager.quota import QuotaHub, running
from tests.component.manager.test_queue_hub import ADMIN
from tests.e2e.browsing import WITH_SERVERS_PYTHON, log_in, run_cell, start_from_form
from tests.e2e.people import Person
from tests.e2e.test_tensorboard import WRITE
from tests.harness.chromium import LAUNCH, PATIENCE
from tests.harness.ports import free_port
from tests.kubernetes.certificates import Authority, pem

pytestmark = [pytest.mark.slow, pytest.mark.browser]
FONTS = "/font-roboto/"  # TensorBoard asks for its own at the root, and does without
HAPROXY = """
defaults
    mode http
    timeout connect 30s
    timeout client 120s
    timeout server 120s
    timeout tunnel 1h
frontend web
    bind 127.0.0.1:{port} ssl crt {certificate}
    http-request deny deny_status 421 unless {{ path_beg {prefix}/ }}
    http-request set-header X-Forwarded-Proto https
    option forwardfor
    default_backend proxy
backend proxy
    server proxy 127.0.0.1:{proxy}
"""


@dataclass
class IngressHub(QuotaHub):
    """With the templates and files of a first look, and the gateway; everything is below a path."""

    prefix: str = "/lab/gpu"
    front: int = field(default_factory=free_port)
    ssh_port: int = field(default_factory=free_port)

    @property
    def authority(self) -> Path:
        return self.state / "authority.pem"

    @property
    def home(self) -> str:
        return f"https://127.0.0.1:{self.front}{self.prefix}"

    def prepare(self) -> None:
        self.extra = "c.KubeSpawner.storage_pvc_ensure = True\n"

    def env(self) -> dict[str, str]:
        public = {"JUPYTERHUB_PUBLIC_URL": f"{self.home}/services/jobs/", "DLSPAWNER_PUBLIC_URL": f"{self.home}/"}
        return {**super().env(), **public, "DLSPAWNER_SSH_PORT": str(self.ssh_port)}

    def start_proxy(self) -> None:
        super().start_proxy()
        certificate, config = self.state / "front.pem", self.state / "haproxy.cfg"
        authority = Authority.create("tests")
        certificate.write_bytes(b"".join(authority.issue("front", served=("127.0.0.1",))))
        self.authority.write_bytes(pem(authority.certificate))
        config.write_text(HAPROXY.format(port=self.front, certificate=certificate, prefix=self.prefix, proxy=self.port))
        found = shutil.which("haproxy", path=f"{os.environ['PATH']}:{DEBIAN}/usr/sbin")
        if found is None:
            pytest.skip("no haproxy: `make test` unpacks it")
        self.run_with("front", [found, "-db", "-q", "-f", str(config)], {"LD_LIBRARY_PATH": LIBRARIES})


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[IngressHub]:
    with running(IngressHub(tmp_path)) as made:
        made.start_gateway(made.ssh_port, made.home)
        yield made


@pytest.fixture
def page(hub: IngressHub) -> Iterator[Page]:
    """What it asks another address for fails the test, and a cookie of a login that is not secure."""
    asked: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**LAUNCH)
        context = browser.new_context(ignore_https_errors=True, viewport={"width": 1200, "height": 900})
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("request", lambda request: asked.append(request.url))
        yield page
        assert {cookie["name"] for cookie in context.cookies() if not cookie["secure"]} == {"_xsrf"}
        browser.close()
    ours = (f"{hub.home}/", "data:", "blob:")
    assert [url for url in asked if not url.startswith(ours) and FONTS not in url] == []


def test_notebook_notices_tensorboard_and_ssh_from_one_address(
    hub: IngressHub, page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(hub.authority))
    ssh_at = {"ssh_host": "127.0.0.1", "ssh_port": hub.ssh_port}
    front = cast("Any", SimpleNamespace(url=hub.home, password=lambda _: hub.password, **ssh_at))
    log_in(page, front, "alice")
    start_from_form(page, front, "train", "Notebook", gpus=0)
    page.wait_for_url(f"{hub.home}/user/alice/train/lab**", timeout=2 * PATIENCE)
    run_cell(page, WITH_SERVERS_PYTHON.format(WRITE), "stdout='written")

    alice, admin = Person(front, "alice", hub.password), Person(front, "admin", ADMIN)
    node = json.loads(hub.kubectl("get", "pods", "-o", "json"))["items"][0]["spec"]["nodeName"]
    drained = {"reason": "New kernel.", "drain_at": "2031-05-04T12:00:00+02:00"}
    admin.manager("POST", f"/nodes/{node}/cordon", drained)
    expect(page.locator(".Toastify__toast", has_text="New kernel.")).to_be_visible()

    ssh = alice.ssh(tmp_path / "ssh")
    assert ssh.run("train", "ls runs").stdout == "first\n"
    assert hub.home in ssh.run("", "true").stderr, "the way to a job that does not run"

    page.goto(f"{hub.home}/services/jobs/")
    page.locator("section[data-server=train]").get_by_role("button", name="TensorBoard").click()
    page.wait_for_url(f"{hub.home}/user/alice/train-tb/**", timeout=2 * PATIENCE)
    expect(page.get_by_text("loss").first).to_be_visible(timeout=2 * PATIENCE)
