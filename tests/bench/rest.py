"""Requests a second of the REST resources with 5,000 jobs: `python -m tests.bench.rest`.

One process has a Manager that acts and, at another port, bare tornado handlers; both use the same pool of connections
to the same database, once SQLite and once PostgreSQL. Another process asks them in turn, a few requests at a time. A
bare list or detail runs the one query of the job's own rows and dumps them as JSON: it does not ask who asks, and
tells nothing of the queue. Starts are refused into the queue by a Hub that is played; the bare submit is the same
admission and the row of its job. *Processor time* is that of the process with both, so it holds on a busy machine, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import aiohttp
from sqlalchemy import select
from tornado.httpserver import HTTPServer
from tornado.web import Application, RequestHandler

from dlspawner.core.charge import Charge, PodCharge
from dlspawner.core.jobs import Job, State
from dlspawner.hubapi import HubRefused
from dlspawner.manager import jobrows
from dlspawner.manager.book import Turn
from dlspawner.manager.records import OF_POD, Record
from dlspawner.manager.schema import jobs
from dlspawner.manager.waiting_page import page_path
from tests.bench.figures import Figure, publish, ratio
from tests.edges.test_manager import databases
from tests.edges.test_manager.noticing import Served, offices, serving
from tests.edges.test_manager.office import ask, settled, until, wants
from tests.edges.test_manager.world import ROOT, World, free_port, running

JOBS, ROUNDS, EACH, AT_ONCE = 5000, 6, 200, 4
WHO = "root-admin"
STATES = (State.QUEUED, State.ENDED, State.QUEUED, State.STOPPING)
AIM = 1.5


@dataclass
class Case:
    """One kind of request, to the Manager and to the bare handler, and what was measured of each."""

    name: str
    method: str
    paths: list[str]
    bare: list[str]
    rates: dict[str, list[float]] = field(default_factory=lambda: {"ours": [], "bare": []})
    cpu: dict[str, list[float]] = field(default_factory=lambda: {"ours": [], "bare": []})
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"ours": [], "bare": []})


class Bare(RequestHandler):
    """The query and nothing else."""

    def initialize(self, served: Served) -> None:
        self.served = served

    async def rows(self, query: Any) -> None:
        store = self.served.manager.store
        found = await store.read(lambda connection: connection.execute(query).all())
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps([dict(row._mapping) for row in found], default=str))

    async def get(self) -> None:
        query = select(*jobrows._COLUMNS).where(~jobs.c.job.startswith(OF_POD))
        order = jobs.c.submitted.desc(), jobs.c.job.desc()
        await self.rows(query.order_by(*order).limit(int(self.get_query_argument("limit")) + 1))

    async def post(self) -> None:
        question = wants(WHO, 1, server=json.loads(self.request.body)["server"])
        await ask(self.served.acting, question)
        await self.rows(select(*jobrows._COLUMNS).where(jobs.c.job == question.job))


class BareJob(Bare):
    async def get(self, *ids: str) -> None:
        await self.rows(select(*jobrows._COLUMNS, jobs.c.pods).where(jobs.c.job == ids[0]))


def job(served: Served, number: int) -> Job:
    """One of many; half of all wait."""
    charge = Charge("gpu", (PodCharge("nvidia.com/gpu", 1000, 50, 2**26),))
    id_ = f"j-{number:012d}".translate(str.maketrans("0189", "abcd"))
    made = Job(id_, f"user-{number % 500}", "default", served.book.now(), charge, f"s{number}", "tiny")
    return replace(made, state=STATES[number % len(STATES)], nodes=("gpu-1",) if number % 4 == 3 else ())


async def fill(served: Served) -> None:
    """All of them are in the database, and those that have not ended in the book."""

    def write(turn: Turn, numbers: range) -> None:
        for number in numbers:
            turn.write(Record(job(served, number)), "queued")

    for begin in range(0, JOBS, 500):
        numbers = range(begin, begin + 500)
        await served.book.turn(lambda turn, numbers=numbers: write(turn, numbers))  # type: ignore[misc]
    await settled(served.acting)
    assert len(served.book.records) > JOBS * 0.7


def plays(served: Served) -> Any:
    """A start of the Hub that waits in the queue."""

    async def start(user: str, server: str) -> None:
        answer = await ask(served.acting, wants(user, 1, server=server))
        assert answer.decision == "wait", answer
        raise HubRefused(429, page_path("/services/jobs/", user, server))

    return start


async def client() -> None:
    """The other process: a line says what to ask; it answers with the seconds of each request."""
    connector = aiohttp.TCPConnector(limit=AT_ONCE)
    async with aiohttp.ClientSession(connector=connector) as session:
        while line := await asyncio.to_thread(sys.stdin.readline):
            wanted = json.loads(line)
            print(json.dumps(await _asked(session, wanted)), flush=True)


async def _asked(session: aiohttp.ClientSession, wanted: dict[str, Any]) -> list[float]:
    numbers, seconds = iter(range(EACH)), []

    async def one_after_the_other(paths: Iterator[str]) -> None:
        for number in numbers:
            body = {"server": f"{wanted['name']}-{number}", "options": {"template": "tiny", "gpus": 1}}
            more: dict[str, Any] = {"json": body} if wanted["method"] == "POST" else {}
            begun = time.perf_counter()
            async with session.request(
                wanted["method"], next(paths), headers={"Authorization": f"token {wanted['token']}"}, **more
            ) as answer:
                text = await answer.text()
                assert answer.status in {200, 202}, text
            seconds.append(time.perf_counter() - begun)

    paths = cycle(wanted["paths"])
    await asyncio.gather(*(one_after_the_other(paths) for _ in range(AT_ONCE)))
    return seconds


@contextlib.asynccontextmanager
async def bare(served: Served) -> AsyncIterator[str]:
    """The address of the bare handlers."""
    own = {"served": served}
    server, port = HTTPServer(Application([("/jobs", Bare, own), ("/jobs/(.*)", BareJob, own)])), free_port()
    server.listen(port, "127.0.0.1")
    yield f"http://127.0.0.1:{port}"
    server.stop()
    await server.close_all_connections()


def cases(url: str, bare_url: str, ids: list[str]) -> list[Case]:
    lists = [
        Case(f"list, {n} of {JOBS}", "GET", [f"{url}/api/jobs?limit={n}"], [f"{bare_url}/jobs?limit={n}"])
        for n in (50, 100)
    ]
    detail = Case("detail", "GET", [f"{url}/api/jobs/{one}" for one in ids], [f"{bare_url}/jobs/{one}" for one in ids])
    return [*lists, detail, Case("submit", "POST", [f"{url}/api/jobs"], [f"{bare_url}/jobs"])]


async def one_round(case: Case, child: asyncio.subprocess.Process, token: str, round_: int) -> None:
    """The Manager and the peer, who is first changes; the first round is to warm up."""
    assert child.stdin is not None
    assert child.stdout is not None
    sides = {"ours": case.paths, "bare": case.bare}
    for side in sorted(sides, reverse=round_ % 2 == 1):
        wanted = {"method": case.method, "paths": sides[side], "token": token, "name": f"{side}{round_}"}
        begun, used = time.perf_counter(), time.process_time()
        child.stdin.write(json.dumps(wanted).encode() + b"\n")
        seconds = json.loads(await child.stdout.readline())
        if round_:
            case.rates[side].append(EACH / (time.perf_counter() - begun))
            case.cpu[side].append(1000 * (time.process_time() - used) / EACH)
            case.seconds[side] += seconds


def told(case: Case, kind: str) -> list[Figure]:
    name, found = f"{case.name}, {kind}", []
    for side, title in (("ours", name), ("bare", f"{name}, bare")):
        found += [
            Figure(f"{title}: requests a second", median(case.rates[side]), "1/s", "higher"),
            Figure(f"{title}: median", 1000 * median(case.seconds[side]), "ms"),
            Figure(f"{title}: p99", 1000 * quantiles(case.seconds[side], n=100)[98], "ms"),
            Figure(f"{title}: processor time of one", median(case.cpu[side]), "ms"),
        ]
    return [
        *found,
        ratio(f"{name}: time of one", case.rates["bare"], case.rates["ours"], "bare tornado", AIM),
        ratio(f"{name}: processor time", case.cpu["ours"], case.cpu["bare"], "bare tornado", AIM),
    ]


async def measure(world: World, folder: Path, db_url: str, kind: str) -> list[Figure]:
    os.environ["KUBECONFIG"] = str(folder / "cluster" / "kubeconfig")
    token = await asyncio.to_thread(world.token, WHO)
    async with offices(folder, db_url) as office, serving(office, world) as served, bare(served) as bare_url:
        await office.make_node("gpu-1", 64)
        office.hub.servers = {(f"user-{number % 500}", f"s{number}") for number in range(JOBS)}
        await until(lambda: served.book.world.rooms, "the node is known")
        await fill(served)
        office.hub.starts = plays(served)
        found = cases(served.url, bare_url, [job(served, number).id for number in range(0, JOBS, 101)])
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.bench.rest", "client"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=2**20,
        )
        for case in found:
            for round_ in range(ROUNDS + 1):
                await one_round(case, child, token, round_)
        assert child.stdin is not None
        child.stdin.close()
        await child.wait()
    return [figure for case in found for figure in told(case, kind)]


def main() -> None:
    if sys.argv[1:] == ["client"]:
        asyncio.run(client())
        return
    with tempfile.TemporaryDirectory() as made, contextlib.ExitStack() as stack:
        folder = Path(made)
        for name in ("world", "SQLite", "PostgreSQL"):
            (folder / name).mkdir()
        world = stack.enter_context(running(folder / "world"))
        urls = {"SQLite": f"sqlite:///{folder / 'SQLite' / 'm.sqlite'}"}
        if databases.INSTALLED:
            urls["PostgreSQL"] = databases.create(stack.enter_context(databases.postgresql()))
        figures = []
        for kind, url in urls.items():
            figures += asyncio.run(measure(world, folder / kind, url, kind))
        load = Figure("load of the machine in the last minute", os.getloadavg()[0], "")
    publish([*figures, load], ROOT / "build" / "bench-rest.json")


if __name__ == "__main__":
    main()
