"""Requests a second of the REST resources with 5,000 jobs: `python -m tests.bench.rest`.

One process has a Manager that acts and, at another port, bare tornado handlers; both use the same pool of connections
to the same database, once SQLite and once PostgreSQL. Another process asks them in turn, a few requests at a time. Both
look whom the token belongs to. A bare handler runs the same statement and answers with the same JSON: what the queue
says of a job it has from an answer of the Manager's that was read before. Starts are refused into the queue by a Hub
that is played; the bare submit is the same admission and the row of its job. *Processor time* is that of the process
with both, so it holds on a busy machine, too. Rounds are many and short, with both sides one right after the other, and
a ratio is the median of theirs: what else the machine does hits single rounds, or both sides of one alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import aiohttp
from tornado.httpserver import HTTPServer
from tornado.web import Application, RequestHandler

from dlspawner.clients.hub import HubRejected
from dlspawner.core.job import Job, JobState
from dlspawner.core.resources import PodRequest, ResourceRequest
from dlspawner.core.text import amount
from dlspawner.manager.db import jobs
from dlspawner.manager.http.api.base import page_path
from dlspawner.manager.http.auth import identify
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.records import JobRecord
from dlspawner.manager.state.job_store import Transaction
from tests.bench.figures import Figure, publish, ratio, seconds_of
from tests.component.manager import databases
from tests.component.manager.manager_harness import until, wants
from tests.component.manager.noticing import Served, harnesses, serving
from tests.component.manager.real_hub import RealHub, free_port, running

JOBS, ROUNDS, EACH, AT_ONCE = 5000, 40, 50, 4
WHO = "root-admin"
OF_ROW = frozenset(
    {
        *("id", "user", "server", "team", "template", "state", "reason", "preemptible", "gpus", "gpu_type", "cpu"),
        *("memory_bytes", "nodes", "submitted", "started", "ended", "notice"),
    }
)
STATES = (JobState.QUEUED, JobState.ENDED, JobState.QUEUED, JobState.STOPPING)
AIM = 1.5


@dataclass
class Case:
    """One kind of request, to the Manager and to the bare handler, and what was measured of each."""

    name: str
    method: str
    paths: list[str]
    bare: list[str]
    rates: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    cpu: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


def told(row: Any, said: Mapping[str, Any]) -> dict[str, Any]:
    """A job as the Manager tells it; ``said``: what does not come from its row."""
    same = ("team", "template", "state", "reason", "preemptible", "gpu_type", "memory_bytes")
    times = ("submitted", "started", "ended", "notice")
    return {
        **{"id": row.job, "user": row.user_name, "server": row.server_name, "nodes": json.loads(row.nodes)},
        **{"gpus": amount(row.gpus_milli), "cpu": amount(row.cpu_milli)},
        **{name: getattr(row, name) for name in same},
        **{name: at and at.isoformat().replace("+00:00", "Z") for name in times for at in [getattr(row, name)]},
        **said,
    }


class Bare(RequestHandler):
    """Who asks, the statement, and its rows as JSON."""

    def initialize(self, served: Served, said: dict[str, dict[str, Any]]) -> None:
        self.served, self.said = served, said

    async def prepare(self) -> None:
        assert await identify(self.served.manager.auth, self) is not None

    async def rows(self, statement: Any, **values: Any) -> list[dict[str, Any]]:
        store = self.served.manager.database
        found = await store.read(lambda connection: connection.execute(statement, values).all())
        return [told(row, self.said.get(row.job) or self.said["new"]) for row in found]

    def answer(self, content: object) -> None:
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(content))

    async def get(self) -> None:
        limit = int(self.get_query_argument("limit"))
        found = await self.rows(jobs._page(frozenset()), limit=limit + 1)
        self.answer({"items": found[:limit], "next": "x" * 80})

    async def post(self) -> None:
        question = wants(WHO, 1, server=json.loads(self.request.body)["server"])
        await self.served.leader.ask(question)
        self.answer((await self.rows(jobs._ONE, id=question.job))[0])


class BareJob(Bare):
    async def get(self, *ids: str) -> None:
        self.answer((await self.rows(jobs._ONE, id=ids[0]))[0])


def job(served: Served, number: int) -> Job:
    """One of many; half of all wait."""
    charge = ResourceRequest("gpu", (PodRequest("nvidia.com/gpu", 1000, 50, 2**26),))
    id_ = f"j-{number:012d}".translate(str.maketrans("0189", "abcd"))
    made = Job(id_, f"user-{number % 500}", "default", served.store.now(), charge, f"s{number}", "tiny")
    return replace(made, state=STATES[number % len(STATES)], nodes=("gpu-1",) if number % 4 == 3 else ())


async def store(served: Served, jobs: Sequence[Job]) -> None:
    """Writes jobs to the database and the memory of the Manager, 500 in a transaction."""

    def write(transaction: Transaction, some: Sequence[Job]) -> None:
        for one in some:
            transaction.write(JobRecord(one), EventReason.QUEUED)

    for begin in range(0, len(jobs), 500):
        some = jobs[begin : begin + 500]
        await served.store.transact(lambda transaction, some=some: write(transaction, some))  # type: ignore[misc]


def plays(served: Served) -> Any:
    """A start of the Hub that waits in the queue."""

    async def start(user: str, server: str) -> None:
        answer = await served.leader.ask(wants(user, 1, server=server))
        assert answer.decision == "wait", answer
        raise HubRejected(429, page_path("/services/jobs/", user, server))

    return start


async def client() -> None:
    """The other process: a line says what to ask; it answers with the seconds of each request."""
    connector = aiohttp.TCPConnector(limit=AT_ONCE)
    async with aiohttp.ClientSession(connector=connector) as session:
        while line := await asyncio.to_thread(sys.stdin.readline):
            wanted = json.loads(line)
            print(json.dumps(await _asked(session, wanted)), flush=True)


async def _asked(session: aiohttp.ClientSession, wanted: dict[str, Any]) -> list[float]:
    session.headers["Authorization"] = f"token {wanted['token']}"
    paths = cycle(wanted["paths"])
    return await seconds_of(
        range(EACH),
        AT_ONCE,
        lambda number: _answer(session, wanted["method"], next(paths), f"{wanted['name']}-{number}"),
    )


@contextlib.asynccontextmanager
async def bare(served: Served, said: dict[str, dict[str, Any]]) -> AsyncIterator[str]:
    """The address of the bare handlers; ``said``: what they cannot know of jobs."""
    own = {"served": served, "said": said}
    server, port = HTTPServer(Application([("/jobs", Bare, own), ("/jobs/(.*)", BareJob, own)])), free_port()
    server.listen(port, "127.0.0.1")
    yield f"http://127.0.0.1:{port}"
    server.stop()
    await server.close_all_connections()


async def listen(case: Case, said: dict[str, dict[str, Any]], token: str) -> None:
    """What the Manager says of every job that is asked for, beside its row; and that both answer alike."""
    async with aiohttp.ClientSession(headers={"Authorization": f"token {token}"}) as session:
        for ours, other in zip(case.paths, case.bare, strict=True):
            content = json.loads(await _answer(session, case.method, ours, "first"))
            found = content.get("items", [content])
            said |= {one["id"]: {name: one[name] for name in one if name not in OF_ROW} for one in found}
            said["new"] = said[found[0]["id"]]
            bare = json.loads(await _answer(session, case.method, other, "second"))
            length, theirs = len(json.dumps(content)), len(json.dumps(bare))
            assert abs(length - theirs) < 0.05 * length, f"{case.name}: {length} and {theirs} bytes"


async def _answer(session: aiohttp.ClientSession, method: str, path: str, server: str) -> str:
    body = {"server": server, "options": {"template": "tiny", "gpus": 1}} if method == "POST" else None
    async with session.request(method, path, json=body) as answer:
        text = await answer.text()
        assert answer.status in {200, 202}, text
        return text


def cases(url: str, bare_url: str, ids: list[str]) -> list[Case]:
    lists = [
        Case(f"list, {n} of {JOBS}", "GET", [f"{url}/api/jobs?limit={n}"], [f"{bare_url}/jobs?limit={n}"])
        for n in (50, 100)
    ]
    detail = Case("detail", "GET", [f"{url}/api/jobs/{one}" for one in ids], [f"{bare_url}/jobs/{one}" for one in ids])
    return [*lists, detail, Case("submit", "POST", [f"{url}/api/jobs"], [f"{bare_url}/jobs"])]


@contextlib.asynccontextmanager
async def beside(*module: str) -> AsyncIterator[Callable[[str], Awaitable[bytes]]]:
    """Asks another process, by one line, for one line."""
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE, "limit": 2**20}
    child = await asyncio.create_subprocess_exec(sys.executable, "-m", *module, **pipes)
    assert child.stdin is not None
    assert child.stdout is not None
    written, read = child.stdin, child.stdout

    async def question(line: str) -> bytes:
        written.write(f"{line}\n".encode())
        return await read.readline()

    yield question
    written.close()
    await child.wait()


async def one_round(case: Case, question: Callable[[str], Awaitable[bytes]], token: str, round_: int) -> None:
    """The Manager and the peer, who is first changes; the first round is to warm up."""
    sides = {"ours": case.paths, "bare": case.bare}
    for side in sorted(sides, reverse=round_ % 2 == 1):
        wanted = {"method": case.method, "paths": sides[side], "token": token, "name": f"{side}{round_}"}
        begun, used = perf_counter(), process_time()
        seconds = json.loads(await question(json.dumps(wanted)))
        if round_:
            case.rates[side].append(EACH / (perf_counter() - begun))
            case.cpu[side].append(1000 * (process_time() - used) / EACH)
            case.seconds[side] += seconds


def figures_of(case: Case, kind: str) -> list[Figure]:
    name, found = f"{case.name}, {kind}", []
    for side, title in (("ours", name), ("bare", f"{name}, bare")):
        found += [
            Figure(f"{title}: requests a second", median(case.rates[side]), "1/s", "higher"),
            Figure(f"{title}: median", 1000 * median(case.seconds[side]), "ms"),
            Figure(f"{title}: processor time of one", median(case.cpu[side]), "ms"),
        ]
    return [
        *found,
        ratio(f"{name}: time of one", case.rates["bare"], case.rates["ours"], "bare tornado", AIM),
        ratio(f"{name}: processor time", case.cpu["ours"], case.cpu["bare"], "bare tornado", AIM),
    ]


async def measure_on(real_hub: RealHub, folder: Path, db_url: str, kind: str) -> list[Figure]:
    os.environ["KUBECONFIG"] = str(folder / "cluster" / "kubeconfig")
    token = await asyncio.to_thread(real_hub.token, WHO)
    said: dict[str, dict[str, Any]] = {}
    async with (
        harnesses(folder, db_url) as harness,
        serving(harness, real_hub) as served,
        bare(served, said) as bare_url,
    ):
        await harness.make_node("gpu-1", 64)
        harness.hub.servers = {(f"user-{number % 500}", f"s{number}") for number in range(JOBS)}
        await until(lambda: served.store.cluster_state.node_infos, "the node is known")
        await store(served, [job(served, number) for number in range(JOBS)])
        await served.leader.settled()
        assert len(served.store.records) > JOBS * 0.7  # the others have ended
        harness.hub.starts = plays(served)
        found = cases(served.url, bare_url, [job(served, number).id for number in range(0, JOBS, 101)])
        async with beside("tests.bench.rest", "client") as question:
            for case in found:
                await listen(case, said, token)
                for round_ in range(ROUNDS + 1):
                    await one_round(case, question, token, round_)
    return [figure for case in found for figure in figures_of(case, kind)]


def measure(folder: Path) -> list[Figure]:
    with contextlib.ExitStack() as stack:
        for name in ("real_hub", "SQLite", "PostgreSQL"):
            (folder / name).mkdir()
        real_hub = stack.enter_context(running(folder / "real_hub"))
        urls = {"SQLite": f"sqlite:///{folder / 'SQLite' / 'm.sqlite'}"}
        if databases.INSTALLED:
            urls["PostgreSQL"] = databases.create(stack.enter_context(databases.postgresql()))
        figures = []
        for kind, url in urls.items():
            figures += asyncio.run(measure_on(real_hub, folder / kind, url, kind))
    return figures


if __name__ == "__main__":
    if sys.argv[1:] == ["client"]:
        asyncio.run(client())
    else:
        publish("bench-rest", measure)
