"""Notices in JupyterLab: a real notebook server with a token of a job, a real Manager and a real browser."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from playwright.async_api import Page, async_playwright, expect

from dlspawner.core.job import Job
from dlspawner.manager.culling.culler import Culler
from dlspawner.manager.model.notice import CannotKeep, Notice, NoticeKind
from dlspawner.manager.state.job_store import withdraw
from dlspawner.manager.state.notify import post
from tests.component.manager.manager_harness import until
from tests.component.manager.noticing import Served, harnesses, job_of, serving
from tests.component.manager.real_hub import RealHub, free_port
from tests.harness.chromium import LAUNCH, PATIENCE

pytestmark = pytest.mark.slow
TOKEN = "lab-token"
HOSTILE = "<img src=x onerror=\"document.title='taken'\">"


@dataclass
class Lab:
    """A notebook server of the job alice/lab, and the Manager that it asks."""

    served: Served
    url: str
    job: Job
    process: subprocess.Popen[bytes]

    async def tell(self, kind: NoticeKind = NoticeKind.IDLE, text: str = "Not used.", **more: Any) -> Notice:
        return await self.served.leader.transact(post, self.job, kind, text, **more)

    def open(self) -> list[Notice]:
        return [notice for mine in self.served.store.notices._shown.values() for notice in mine.values()]

    async def ask(self, path: str, method: str = "GET", token: str | None = TOKEN) -> tuple[int, Any]:
        headers = {"Authorization": f"token {token}"} if token else {}
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, f"{self.url}/dlspawner/notices{path}", headers=headers) as answer,
        ):
            return answer.status, await answer.json(content_type=None)


@contextlib.contextmanager
def notebook_server(
    program: str, folder: Path, environment: dict[str, str]
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    port = free_port()
    command = [
        *(sys.executable, "-m", program, "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1"),
        *(f"--ServerApp.port={port}", f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={folder}"),
    ]
    if program == "jupyterlab":
        command += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
        command += [
            "--ServerApp.tornado_settings={'page_config_data': {'hubPrefix': '/hub/'}}"
        ]  # as JupyterHub says it
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "DLSPAWNER"))}
    own = {"HOME": str(folder), "JUPYTER_CONFIG_DIR": str(folder / "c"), "JUPYTER_DATA_DIR": str(folder / "d")}
    with (folder / "lab.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env={**kept, **own, **environment}, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield f"http://127.0.0.1:{port}", process
        finally:
            process.kill()
            process.wait(30)


@pytest.fixture
async def lab(request: pytest.FixtureRequest, real_hub: RealHub, tmp_path: Path) -> AsyncIterator[Lab]:
    """JupyterLab for who looks at it, else the notebook server alone, which starts sooner."""
    program = "jupyterlab" if "page" in request.fixturenames else "jupyter_server"
    token = await asyncio.to_thread(real_hub.server_token, "alice", "lab")
    async with (
        harnesses(tmp_path, f"sqlite:///{tmp_path / 'm.sqlite'}") as harness,
        serving(harness, real_hub) as served,
    ):
        environment = {"DLSPAWNER_MANAGER_URL": served.url, "JUPYTERHUB_API_TOKEN": token}
        with notebook_server(program, tmp_path, environment) as (url, process):
            found = Lab(served, url, job_of("alice", "lab"), process)
            await until(lambda: answers(found), "the notebook server answers", 120)
            yield found


async def answers(lab: Lab) -> bool:
    try:
        return (await lab.ask("/../../api", token=None))[0] == 200
    except aiohttp.ClientError:
        return False


@pytest.fixture
async def page(lab: Lab) -> AsyncIterator[Page]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(**LAUNCH)
        window = await browser.new_page(viewport={"width": 1200, "height": 800})
        window.set_default_timeout(PATIENCE)
        await window.goto(f"{lab.url}/lab?token={TOKEN}")
        yield window
        await browser.close()


def toast(page: Page, text: str) -> Any:
    return page.locator(".Toastify__toast", has_text=text)


@pytest.mark.browser
async def test_notice_is_shown_answered_and_withdrawn(lab: Lab, page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[str] = []

    async def keep_alive(_: Culler, job: str) -> str:
        kept.append(job)
        if len(kept) == 1:
            raise CannotKeep("Not longer than a day.")
        return "It goes on for two hours."

    monkeypatch.setattr(Culler, "keep_alive", keep_alive)
    text = f"Unused {HOSTILE}: this job stops {{when}}."
    await lab.tell(text=text, until=lab.served.manager.now() + timedelta(minutes=5), keep=True)
    notice = toast(page, "Unused")
    await expect(notice).to_contain_text(f"Unused {HOSTILE}: this job stops at ")
    await expect(notice).not_to_contain_text("{when}")
    assert await page.title() != "taken"

    await notice.get_by_role("button", name="Keep it running").click()
    await expect(toast(page, "Not longer than a day.")).to_be_visible()
    await until(lambda: all(one.seen for one in lab.open()), "it counts as read")

    await lab.tell(text="Unused for long.", cause="90", keep=True)
    await toast(page, "Unused for long.").get_by_role("button", name="Keep it running").click()
    await expect(toast(page, "It goes on for two hours.")).to_be_visible()
    await until(lambda: not lab.open(), "it is over")
    assert kept == [lab.job.id] * 2

    await lab.tell(NoticeKind.PREEMPTED, "Team vision needs its GPUs.")
    await expect(toast(page, "Team vision")).to_be_visible()
    await lab.served.leader.transact(withdraw, lab.job.id)
    await expect(toast(page, "Team vision")).to_have_count(0)


@pytest.mark.browser
async def test_status_bar_has_the_time_left_and_the_panel_all_of_a_notice(lab: Lab, page: Page) -> None:
    status = page.get_by_role("button", name="Job stops in")
    await expect(status).to_have_count(0)
    long = f"{'So it is, for many reasons. ' * 12}This is the end of it."
    await lab.tell(text=long, until=lab.served.manager.now() + timedelta(minutes=5, seconds=30), keep=True)
    await expect(status).to_have_text("Job stops in 5 min")
    await status.click()
    panel = page.locator("#dlspawner-notices")
    await expect(panel).to_contain_text(f"{long} (at ")
    await expect(panel).to_contain_text("That is in 5 min.")
    await expect(panel.get_by_role("button", name="Keep it running")).to_be_visible()
    await lab.served.leader.transact(withdraw, lab.job.id)
    await expect(panel).to_contain_text("There are none.")
    await expect(status).to_be_hidden()


@pytest.mark.browser
async def test_dialog_of_a_server_that_is_gone_says_why(lab: Lab, page: Page) -> None:
    await lab.tell(NoticeKind.PREEMPTED, "It is stopped {when} and waits.", until=lab.served.manager.now())
    await expect(toast(page, "It is stopped at ")).to_be_visible()
    lab.process.kill()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("This job was stopped", timeout=90_000)
    await expect(dialog).to_contain_text("and waits.")
    await expect(dialog).not_to_contain_text("unavailable")
    await expect(dialog.get_by_role("button", name="Show the job")).to_be_visible()


@pytest.mark.browser
async def test_dismissed_notice_does_not_come_back(lab: Lab, page: Page) -> None:
    await lab.tell(NoticeKind.IDLE, "Not used.")
    await lab.tell(NoticeKind.LIFETIME, "Too old.")
    await toast(page, "Not used.").get_by_role("button", name="Hide notification").click()
    await page.locator(".jp-Notification-Status").click()
    await page.locator(".jp-Notification-List-Item", has_text="Not used.").get_by_title("Dismiss").click()
    await until(lambda: sorted(bool(one.seen) for one in lab.open()) == [False, True], "one was read")
    await page.reload()
    await expect(toast(page, "Too old.")).to_be_visible()
    await expect(toast(page, "Not used.")).to_have_count(0)


async def test_waiting_for_a_change_is_no_activity(lab: Lab) -> None:
    first = await lab.tell(NoticeKind.IDLE, "Not used.")
    await until(lambda: lab.served.store.notices._readers, "the server follows")
    version = ""

    async def known() -> bool:
        nonlocal version
        _, answer = await lab.ask("?after=")
        version = answer["version"]
        return [one["id"] for one in answer["notices"]] == [first.id]

    await until(known, "the first one is known")
    waiting = asyncio.create_task(lab.ask(f"?after={version}"))
    await lab.tell(NoticeKind.LIFETIME, "Too old.")
    _, answer = await waiting
    assert [one["text"] for one in answer["notices"]] == ["Not used.", "Too old."]
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{lab.url}/api/status", headers={"Authorization": f"token {TOKEN}"}) as status,
    ):
        content = await status.json()
    assert content["last_activity"] == content["started"]


def test_extension_does_nothing_outside_of_a_job() -> None:
    code = (
        "import dlspawner_jupyter, logging, types; app = types.SimpleNamespace(log=logging.getLogger());"
        "dlspawner_jupyter._load_jupyter_server_extension(app)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "JUPYTERHUB_API_TOKEN"}
    subprocess.run([sys.executable, "-W", "error", "-c", code], env=environment, check=True, timeout=60)


@pytest.mark.browser
async def test_link_of_the_page_jobs_opens_a_terminal_and_jupyterlab_asks_for_no_news(lab: Lab, page: Page) -> None:
    await page.goto(f"{lab.url}/lab?terminal")
    await expect(page.locator(".jp-Terminal")).to_be_visible()
    assert "terminal" not in page.url
    await lab.tell(text="Look.")
    await expect(toast(page, "Look.")).to_be_visible()
    await expect(toast(page, "news")).to_have_count(0)
