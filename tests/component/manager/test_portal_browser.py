"""Every page of the Manager in Chromium: accessible, light and dark, as wide as a phone, and nothing jumps.

The pages are full (many teams, a long history and log, usage from a real Prometheus, requests in every state), or
empty, or the Hub is away, or this Manager is no leader.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page, TimeoutError

from dlspawner.clients.hub import HubRejected
from dlspawner.clients.prometheus import PrometheusClient
from dlspawner.core.endpoints import read_target
from dlspawner.core.job import JobState
from dlspawner.manager import server
from dlspawner.manager.db import logs
from dlspawner.manager.http.portal import base
from dlspawner.manager.model.log_mark import LogMark
from dlspawner.manager.model.notice import NoticeKind
from dlspawner.manager.state.job_store import JobStore
from dlspawner.manager.state.notify import post
from tests.component.manager import metrics
from tests.component.manager.manager_harness import until, wants
from tests.component.manager.portals import TEAMS, Portal, browsing, portals
from tests.component.manager.real_hub import RealHub
from tests.component.manager.test_advice import put_advice
from tests.component.manager.test_history_page import fill
from tests.component.manager.test_portal_jobs import SSH_AND_BOARD
from tests.harness.accessible import (
    DRAWN,
    JAVASCRIPT,
    JUMPS,
    MOST_JAVASCRIPT,
    PHONE_AT_NIGHT,
    SEEN_ONCE,
    TOO_WIDE,
    VIEWS,
    violations,
)

PICTURES = Path("build/portal")
# What answers no person's browser, or answers it with a redirect.
NO_PAGES = (
    "static/",
    "api/",
    "health",
    "ready",
    "oauth_callback",
    "metrics",
    "new",
    "preview",
    "start",
    "ssh-",
    "tensorboard",
)
NO_PAGES_END = (
    "/cordon",
    "/uncordon",
    "/keep",
    "/stop",
    "/remove",
    "/import",
    "/cancel",
    "/go-on",
    "/approve",
    "/deny",
    "/run",
    ".csv",
)
# Of what axe brings and looks for, and the screenshots: a page of ours has no such style.
BY_TOOLS = ("Applying inline style violates", "status of 404")
PEOPLE = ", ".join(f"somebody-{number}" for number in range(12))
MANY_TEAMS = TEAMS + "".join(
    f"  team-{number}: {{title: The group of {'very ' * (number % 9)}many, quota: {{gpu: {number % 5}}},"
    f" borrow_limit: {number}, user_caps: {{soft: 1, hard: 4}}, admins: [lars, vera], members: [{PEOPLE}]}}\n"
    for number in range(30)
)


# The page of somebody who waits in each state, with what only this one says.
WAITS = {
    "wait/alice/big": "main[data-state=queued]",
    "wait/somebody-1/much": "main[data-state=pending-approval]",
    "wait/somebody-2/never": "main[data-state=queued]:has-text('It cannot start as requested.')",
    "wait/root-admin/weary": "main[data-state=login-required] a:has-text('Log in again')",
    "wait/somebody-3/no": "main[data-state=ended]:has-text('Denied by vera')",
    "wait/root-admin/old": "main[data-state=ended]:has-text('It was cancelled before it started')",
}

# What some pages say when there is nothing, or it cannot be known.
TROUBLES = {
    "nothing": {
        "": "No jobs yet.",
        "queue": "The queue is empty.",
        "history": "No job requested GPUs",
        "jobs": "no such job",
    },
    "no Hub": {"": "The Hub does not answer", "jobs": "runs", "wait": "is being started"},
    "not leader": {"": "does not decide now", "queue": "does not decide now", "wait": "does not decide now"},
}


@dataclass
class Filled:
    """A portal with much on every page, and the jobs to look at; ``measured``: there is a Prometheus."""

    portal: Portal
    runs: str
    ended: str
    measured: bool

    @property
    def full(self) -> dict[str, tuple[str, int]]:
        """Of which parts some pages have how many at least."""
        usage = {f"jobs/{self.runs}/usage": ("[data-chart] canvas", 2)} if self.measured else {}
        log = {f"jobs/{self.ended}/log": ("pre:has-text('999 of the log')", 1)}
        return {
            **{path: (says, 1) for path, says in WAITS.items()},
            "teams": ("section.card", 32),
            "history": ("[data-chart] canvas", 5),
            "cluster/policy": ("[data-chart] canvas", 2),
            "cluster/history": ("[data-chart] canvas", 4),
            "all": ("tbody tr", 50),
            **usage,
            **log,
        }

    def paths(self) -> list[str]:
        """Every address of a page, with something in the place of each name."""
        ended = f"jobs/{self.ended}"
        found = [*addresses(self.runs, "alice/big"), *(path for path in WAITS if path != "wait/alice/big")]
        searched = [f"{ended}?search=running", f"{ended}/log?search=nowhere"]
        return [*found, ended, f"{ended}/log", *searched, "nothing-here", "all?state=nonsense"]


def addresses(job: str, waits: str) -> list[str]:
    """Of every page, with this job, and this request, in the place of each name."""
    found = []
    for pattern, _ in server.ROUTES:
        name = pattern.replace(r"(j-[a-z2-7]{12})", job).replace("([^/]*)/([^/]*)", waits)
        if not name.startswith(NO_PAGES) and not name.endswith(NO_PAGES_END):
            assert "(" not in name, f"say here what {pattern} is to be opened with, or that it is no page"
            found.append(name)
    return found


@pytest.fixture(scope="module")
def prometheus_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of one that knows of two GPUs, one of which was silent for a while; empty where none is installed."""
    if not (metrics.installed("prometheus") and metrics.installed("promtool")):
        yield ""
        return
    pod, folder = "jupyter-root-admin--train", tmp_path_factory.mktemp("prometheus")
    gpus = [
        metrics.Gpu(pod, "GPU-1", lambda seconds: round(50 + 40 * math.sin(seconds / 300))),
        metrics.Gpu(pod, "GPU-2", lambda seconds: None if 2400 < seconds < 3000 else 30),
    ]
    begin = datetime.now(UTC) - timedelta(hours=1)  # of now: tests may run hours after they were collected
    metrics.write_history(folder, gpus, begin, begin + timedelta(hours=3))
    with metrics.prometheus(folder) as url:
        yield url


@pytest.fixture
async def filled(real_hub: RealHub, prometheus_url: str, tmp_path: Path) -> AsyncIterator[Filled]:
    async with portals(real_hub, tmp_path, MANY_TEAMS) as portal:
        object.__setattr__(portal.served.manager, "ssh_target", read_target("gate.example:2222"))
        portal.offers(endpoints=SSH_AND_BOARD)
        await waits_in_every_state(portal)
        told = {"ssh_host_key": "ssh-ed25519 x", "log_dir": "/home/root-admin/runs"}
        runs = await portal.runs(wants("root-admin", gpus=5, server="train"), **told)
        await portal.runs(wants("alice", gpus=1, server="lent", preemptible=True))
        for user, server in (("alice", "big"), ("root-admin", "mine")):
            portal.knows(user, server)
            await portal.waits(wants(user, gpus=4, server=server))
        portal.knows("root-admin", "old")
        ended = await portal.waits(wants("root-admin", gpus=8, server="old"))
        await portal.read("root-admin", f"jobs/{ended.job}/stop", "POST")
        await portal.harness.make_node("gpu-2", gpus=4)
        store: JobStore = portal.served.store
        await until(lambda: "gpu-2" in store.nodes, "the node is seen")
        store.put_node(replace(store.nodes["gpu-2"], cordoned=True))
        job = store.records[runs.job].job
        await portal.served.leader.transact(post, job, NoticeKind.IDLE, "It is unused.", keep=True)
        portal.hub.groups = {"default": frozenset({"alice", "bob"})}
        await fill(portal)
        await portal.served.leader.repository._database.write(put_advice)
        await prints(portal, ended.job)
        await portal.began_earlier(runs)
        portal.served.leader.prometheus = PrometheusClient(prometheus_url) if prometheus_url else None
        yield Filled(portal, runs.job, ended.job, bool(prometheus_url))
        if portal.served.leader.prometheus is not None:
            await portal.served.leader.prometheus.close()


async def waits_in_every_state(portal: Portal) -> None:
    """Requests in every state; all GPUs are free in the end."""
    leader = portal.served.leader
    give_back = await leader.hold_all_gpus()
    never, weary = wants("somebody-2", server="never", team="team-6"), wants("root-admin", server="weary")
    for request in (never, weary):
        await portal.waits(request)
    less = MANY_TEAMS.replace("quota: {gpu: 1}, borrow_limit: 6", "quota: {gpu: 0}, borrow_limit: 0")
    (portal.harness.folder / "teams.yaml").write_text(less)
    looks = portal.served.leader.admission.explainer  # type: ignore[union-attr]
    await until(lambda: looks.inadmissible(portal.served.store.records[never.job].job), "it can not start any more")
    portal.harness.hub_refuses(HubRejected(403, "auth has expired for root-admin, login again"), weary)
    await give_back()
    await until(lambda: leader.state(weary) is JobState.LOGIN_REQUIRED, "it waits for a login")
    portal.hub.starts = None
    for user, name in (("somebody-1", "much"), ("somebody-3", "no"), ("somebody-2", "never")):
        portal.knows(user, name)
    await portal.waits(wants("somebody-1", gpus=3, server="much", team="team-4"))
    denied = await portal.waits(wants("somebody-3", gpus=3, server="no", team="team-4"))
    assert (await portal.read("vera", f"api/jobs/{denied.job}/deny", "POST")).status == 200


async def prints(portal: Portal, job: str) -> None:
    """A thousand lines, some of them long, are kept of this job."""
    lines = [f"{number} of the log {'and so on ' * (number % 40)}{'x' * (number % 200)}" for number in range(1000)]
    parts = logs.compressed("\n".join([*lines, "<script>alert(1)</script>", ""]).encode())
    key = ("a-uid", "notebook", 1)
    reading = logs.LogReading(job, "a-pod", key, LogMark(), datetime.now(UTC), lost=True, whole=True, parts=parts)
    await portal.served.manager.database.write(lambda connection: logs.write(connection, [reading], 2**20))


async def wrong(page: Page) -> list[str]:
    return violations((await Axe().run(page)).response)


async def look(page: Page, filled: Filled, path: str, name: str, part: tuple[str, int] = ("main", 1)) -> list[str]:
    """What is wrong with one page, of which there is a picture then; ``part`` is there so often at least."""
    problems: list[str] = []
    answer = await page.goto(f"{filled.portal.real_hub.jobs}/{path}")
    assert answer is not None
    await page.evaluate(DRAWN)
    jumped = await page.evaluate("window.jumped")
    problems += [f"{path} jumps by {jumped}: {await page.evaluate('window.moved')}"] if jumped > SEEN_ONCE else []
    script = await page.evaluate(JAVASCRIPT)
    problems += [f"{path} has {script} bytes of JavaScript"] if not 0 < script < MOST_JAVASCRIPT else []
    one, many = part
    try:
        await page.locator(one).nth(many - 1).wait_for(state="attached")
    except TimeoutError:
        said = await page.inner_text("main")
        problems.append(f"{path} ({answer.status}) has fewer than {many} of {one}: {said[:500]}")
    name = f"{name}-{path.replace('/', '-').replace('?', '-') or 'mine'}"
    await page.screenshot(path=PICTURES / f"{name}.png", full_page=True)
    problems += [f"{path}: {one}" for one in await wrong(page)]
    wide = await page.evaluate(TOO_WIDE)
    return problems + ([f"{path} is {wide} pixels too wide"] if wide > 0 else [])


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("view", VIEWS)
async def test_every_page_is_accessible_and_fits(filled: Filled, view: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    problems: list[str] = []
    async with browsing(filled.portal, "root-admin", forgives=("status of 422", *BY_TOOLS), **VIEWS[view]) as page:
        await page.context.add_init_script(JUMPS)
        for path in filled.paths():
            problems += await look(page, filled, path, view, filled.full.get(path, ("main", 1)))
    assert not problems, "\n".join(problems)


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize(
    ("user", "view"), [("alice", VIEWS["light"]), ("root-admin", PHONE_AT_NIGHT)], ids=["a person", "an administrator"]
)
async def test_empty_pages_and_error_pages_are_accessible(
    user: str, view: dict[str, Any], real_hub: RealHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(base, "_AGAIN_SECONDS", "600")  # not while it is being looked at
    problems, job = list[str](), f"j-{'a' * 12}"
    async with (
        portals(real_hub, tmp_path) as portal,
        browsing(portal, user, forgives=("status of 503", "status of 403", *BY_TOOLS), **view) as page,
    ):
        filled = Filled(portal, "", "", measured=False)
        await page.context.add_init_script(JUMPS)
        for trouble, said in TROUBLES.items():
            if trouble == "no Hub":
                job = (await portal.runs(wants(user, server="runs"))).job
                assert (await portal.served.leader.ask(wants(user, server="soon"))).decision == "admit"
                portal.hub.servers = None
            elif trouble == "not leader":
                portal.served.leader.admission = None
            for path in addresses(job, f"{user}/soon"):
                name, says = f"{trouble}-{user}".replace(" ", "-"), said.get(path.split("/")[0], "")
                found = await look(page, filled, path, name, (f"main:has-text('{says}')", 1))
                problems += [f"{trouble}: {one}" for one in found]
    assert not problems, "\n".join(problems)
