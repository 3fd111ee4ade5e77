"""The portal with 5,000 jobs, and 1,000 pages that listen: `python -m tests.bench.portal`.

A real Hub for the people, an embedded cluster, and one Manager in this process, with SQLite. *First paint* is a whole
answer to a page as the server gives it, asked for one after the other. *A change* is from the end of the turn that
writes a job until each of the listeners, which are in a process of their own, has read of it. *In Chromium* is what the
browser calls first contentful paint, from the request on, with its cache.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles

import aiohttp

from dlspawner.core.job import Job, JobState
from dlspawner.manager.state import event_bus
from tests.bench import rest
from tests.bench.figures import Figure, publish, ratio
from tests.bench.rest import store
from tests.component.manager.portals import Portal, browsing, portals
from tests.component.manager.real_hub import running
from tests.component.manager.test_history_page import fill as fill_history

JOBS, MINE, LISTENERS, CHANGES, LOADS, PAINTS = 5000, 40, 1000, 20, 30, 9
PAGES = {
    **{"": "my jobs", "queue": "queue", "cluster": "cluster", "all": "all jobs", "history": "history"},
    "cluster/history": "history of the cluster",
}


def job(portal: Portal, number: int) -> Job:
    """One of many; every hundredth or so is the reader's, half of all wait."""
    made = rest.job(portal.served, number + 5 * 10**11)
    user = "root-admin" if number % (JOBS // MINE) == 0 else made.user
    state, nodes = (JobState.QUEUED, ()) if number % 2 else (JobState.STOPPING, ("gpu-1",))
    return replace(made, user=user, state=state, nodes=nodes)


THE_HUBS = "the Hub's own home page"


async def paint(portal: Portal) -> list[Figure]:
    """Milliseconds of each page, and of the Hub's own home page of the same person, all in turn."""
    token = await asyncio.to_thread(portal.real_hub.token, "root-admin")
    mine = next(one.job.id for one in portal.served.store.records.values() if one.job.user == "root-admin")
    ours = {f"{portal.served.url}/{path}": title for path, title in PAGES.items()}
    pages = {**ours, f"{portal.served.url}/jobs/{mine}": "a job", f"{portal.real_hub.public}/hub/home": THE_HUBS}
    seconds: dict[str, list[float]] = {title: [] for title in pages.values()}
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"token {token}"}) as program,
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser,
    ):
        await log_in(browser, portal)
        for _ in range(LOADS):
            for url, title in pages.items():
                session, begun = browser if title == THE_HUBS else program, time.perf_counter()
                async with session.get(url, allow_redirects=False) as answer:
                    assert answer.status == 200, (url, answer.status)
                    text = await answer.text()
                seconds[title].append(1000 * (time.perf_counter() - begun))
                # Waiting ones end without their servers.
                assert title != PAGES[""] or text.count("data-server=") >= MINE * 0.9
    assert len(portal.served.store.records) > JOBS * 0.9
    peer = seconds[THE_HUBS]
    ratios = [ratio(title, taken, peer, THE_HUBS) for title, taken in seconds.items() if title != THE_HUBS]
    return [*(figure for title, taken in seconds.items() for figure in painted(title, taken)), *ratios]


# The pages allow no text to be evaluated as a program, which is how Playwright waits.
DRAWN = """() => new Promise((tell) => new PerformanceObserver((seen) => {
  for (const one of seen.getEntriesByName("first-contentful-paint")) tell(one.startTime);
}).observe({type: "paint", buffered: true}))"""


async def paint_in_browser(portal: Portal) -> list[Figure]:
    """Milliseconds until Chromium shows something of each page."""
    found: dict[str, list[float]] = {title: [] for title in PAGES.values()}
    async with browsing(portal, "root-admin", viewport={"width": 1200, "height": 900}) as page:
        for _ in range(PAINTS):
            for path, title in PAGES.items():
                await page.goto(f"{portal.real_hub.jobs}/{path}")
                found[title].append(await page.evaluate(DRAWN))
    return [
        Figure(f"{title}, {JOBS} jobs, in Chromium", median(taken), "ms", aim=500) for title, taken in found.items()
    ]


async def log_in(browser: aiohttp.ClientSession, portal: Portal) -> None:
    """The Hub's own pages take no tokens."""
    url = f"{portal.real_hub.public}/hub/login"
    async with browser.get(url) as answer:
        xsrf = answer.cookies["_xsrf"].value
    form = {"username": "root-admin", "password": "any", "_xsrf": xsrf}
    async with browser.post(url, data=form) as answer:
        assert answer.status == 200, await answer.text()


def painted(title: str, taken: list[float]) -> list[Figure]:
    aim = None if title == THE_HUBS else 500
    named = title if title == THE_HUBS else f"{title}, {JOBS} jobs"
    return [
        Figure(f"{named}: median", median(taken), "ms", aim=aim),
        Figure(f"{named}: 95 %", quantiles(taken, n=20)[-1], "ms", aim=aim),
    ]


async def listen(url: str, token: str) -> None:
    """The other process: prints a line when all listen, and the time at which each was told of each change."""
    told: list[float] = []
    ready = asyncio.Semaphore(0)

    async def one(session: aiohttp.ClientSession) -> None:
        async with session.get(f"{url}/api/events") as answer:
            assert answer.status == 200, answer.status
            async for line in answer.content:
                if line.startswith(b"event: ready"):
                    ready.release()
                elif line.startswith(b"event: changed"):
                    told.append(time.time())

    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"Authorization": f"token {token}"}
    async with aiohttp.ClientSession(headers=headers, connector=connector, timeout=timeout) as session:
        tasks = [asyncio.create_task(one(session)) for _ in range(LISTENERS)]
        for _ in range(LISTENERS):
            await ready.acquire()
        print("ready", flush=True)
        sys.stdin.readline()
        while await asyncio.to_thread(sys.stdin.readline):
            heard, told = told, []
            print(*(f"{at:.4f}" for at in heard), flush=True)
        for task in tasks:
            task.cancel()


async def fan_out(portal: Portal) -> list[Figure]:
    """Seconds until a change has reached all listeners."""
    event_bus.PER_SHARE = LISTENERS + 1
    token = await asyncio.to_thread(portal.real_hub.token, "root-admin")
    delays: list[float] = []
    async with rest.beside("tests.bench.portal", portal.served.url, token) as question:
        assert await question("begin") == b"ready\n"
        for number in range(CHANGES):
            await store(portal.served, [job(portal, number)])
            written = time.time()
            await asyncio.sleep(2)
            heard = [float(at) for at in (await question("heard")).split()]
            assert len(heard) >= LISTENERS, len(heard)
            delays += [at - written for at in heard[:LISTENERS]]
    return [
        Figure(f"a change, {LISTENERS} pages that listen: median", median(delays), "s"),
        Figure(f"a change, {LISTENERS} pages that listen: 99 %", quantiles(delays, n=100)[-1], "s", aim=1),
    ]


async def measure(folder: Path) -> list[Figure]:
    for name in ("real_hub", "harness"):
        (folder / name).mkdir()
    with running(folder / "real_hub") as real_hub:
        os.environ["KUBECONFIG"] = str(folder / "harness" / "cluster" / "kubeconfig")
        async with portals(real_hub, folder / "harness") as portal:
            changes = await fan_out(portal)
            await store(portal.served, [job(portal, number) for number in range(JOBS)])
            await fill_history(portal)
            return [*await paint(portal), *await paint_in_browser(portal), *changes]


def main() -> None:
    if len(sys.argv) == 3:
        asyncio.run(listen(*sys.argv[1:]))
        return
    publish("bench-portal", lambda folder: asyncio.run(measure(folder)))


if __name__ == "__main__":
    main()
