"""Every page of the Manager in Debian's Chromium: accessible, light and dark, and as wide as a phone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page

from dlspawner.core.endpoints import read_target
from dlspawner.manager import portal_page, server
from dlspawner.manager.notices import Kind, post
from tests.accessible import TOO_WIDE, VIEWS, violations
from tests.edges.test_manager.office import until, wants
from tests.edges.test_manager.portals import Portal, browsing, portals
from tests.edges.test_manager.world import World

PICTURES = Path("build/portal")
# What answers no person's browser, or answers it with a redirect.
NO_PAGES = ("api/", "health", "ready", "oauth_callback", "metrics", "start", "ssh-", "tensorboard")
NO_PAGES_END = ("/keep", "/stop", "/remove", "/import", "/cancel", "/go-on", "/approve", "/deny", ".csv")
# Of what axe brings and looks for, and the screenshots: a page of ours has no such style.
BY_TOOLS = ("Applying inline style violates", "status of 404")


@dataclass
class Filled:
    """A portal with something on every page, and the jobs to look at."""

    portal: Portal
    runs: str
    ended: str

    def paths(self) -> list[str]:
        """Every address of a page, with something in the place of each name."""
        found = []
        for pattern, _ in server.addresses():
            name = pattern.replace(r"(j-[a-z2-7]{12})", self.runs).replace("([^/]*)/([^/]*)", "alice/big")
            if not name.startswith(NO_PAGES) and not name.endswith(NO_PAGES_END):
                assert "(" not in name, f"say here what {pattern} is to be opened with, or that it is no page"
                found.append(name)
        return [*found, f"jobs/{self.ended}", "nothing-here", "all?state=nonsense"]


@pytest.fixture
async def filled(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Filled]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "cluster" / "kubeconfig"))
    async with portals(world, tmp_path) as portal:
        object.__setattr__(portal.served.manager, "ssh_target", read_target("gate.example:2222"))
        names = {"user": "root-admin", "server": "train", "team": "default"}
        more = {"ssh-host-key": "ssh-ed25519 x", "log-dir": "/home/root-admin/runs"}
        annotations = {f"dlspawner.dev/{name}": value for name, value in {**names, **more}.items()}
        runs = await portal.runs(wants("root-admin", gpus=5, server="train"), annotations=annotations)
        await portal.runs(wants("alice", gpus=1, server="lent", preemptible=True))
        for user, server in (("alice", "big"), ("root-admin", "mine")):
            portal.knows(user, server)
            await portal.waits(wants(user, gpus=4, server=server))
        portal.knows("root-admin", "old")
        ended = await portal.waits(wants("root-admin", gpus=8, server="old"))
        await portal.read("root-admin", f"jobs/{ended.job}/stop", "POST")
        await portal.office.make_node("gpu-2", gpus=4)
        book = portal.served.book
        await until(lambda: "gpu-2" in book.nodes, "the node is seen")
        book.put_node(replace(book.nodes["gpu-2"], cordoned=True))
        job = book.records[runs.job].job
        await book.turn(lambda turn: post(turn, job, Kind.IDLE, "It is unused.", keep=True))
        portal.hub.groups = {"default": frozenset({"alice", "bob"})}
        yield Filled(portal, runs.job, ended.job)


async def wrong(page: Page) -> list[str]:
    return violations((await Axe().run(page)).response)


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("view", VIEWS)
async def test_every_page_is_accessible_and_fits(filled: Filled, view: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    problems: list[str] = []
    async with browsing(filled.portal, "root-admin", forgives=("status of 422", *BY_TOOLS), **VIEWS[view]) as page:
        for path in filled.paths():
            await page.goto(f"{filled.portal.world.jobs}/{path}")
            name = path.replace("/", "-").replace("?", "-") or "mine"
            await page.screenshot(path=PICTURES / f"{view}-{name}.png", full_page=True)
            problems += [f"{path}: {one}" for one in await wrong(page)]
            wide = await page.evaluate(TOO_WIDE)
            problems += [f"{path} is {wide} pixels too wide"] if wide > 0 else []
    assert not problems, "\n".join(problems)


@pytest.mark.slow
@pytest.mark.browser
async def test_pages_without_anything_and_in_trouble_are_accessible(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "cluster" / "kubeconfig"))
    problems: list[str] = []
    async with (
        portals(world, tmp_path) as portal,
        browsing(portal, "alice", forgives=("status of 503", *BY_TOOLS), **VIEWS["light"]) as page,
    ):
        for trouble in ("nothing", "no Hub", "not acting"):
            if trouble == "no Hub":
                portal.hub.servers = None
            elif trouble == "not acting":
                portal.served.acting.desk = None
                monkeypatch.setattr(portal_page, "_AGAIN_SECONDS", "600")  # not while it is being looked at
            for path in ("", "queue", "cluster", "approvals"):
                await page.goto(f"{portal.world.jobs}/{path}")
                name = f"{trouble}-{path or 'mine'}".replace(" ", "-")
                await page.screenshot(path=PICTURES / f"{name}.png", full_page=True)
                problems += [f"{trouble}: {path}: {one}" for one in await wrong(page)]
    assert not problems, "\n".join(problems)
