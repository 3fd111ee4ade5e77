"""Admissions through the Manager's REST, each durable before it is answered: `python -m tests.bench.admissions`.

The Manager is a process of its own on the
embedded cluster, once with SQLite (`synchronous=FULL`) and once with PostgreSQL (its defaults); whoever asks is
DLSpawner's own client, in this process. The peer is the rate at which one connection can insert the same row into the
same kind of database, a transaction each.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import sqlalchemy

from dlspawner.clients.kubernetes import KubernetesClient
from dlspawner.core import naming
from dlspawner.manager.db.engine import open_engine
from dlspawner.spawner.kube.errors import StartRefused
from dlspawner.spawner.manager_link import ManagerLink
from tests.bench.figures import Figure, publish, seconds_of
from tests.component.manager import databases
from tests.component.manager.manager_harness import ManagerHarness, make_namespace, prepare, wants
from tests.component.manager.real_hub import free_port, manager_environment, process
from tests.contract.conftest import Server
from tests.e2e.people import answers, wait_for

ROUNDS, EACH, AT_ONCE = 5, 200, 4
NODES, GPUS_EACH = 32, 64
NO_HUB = "http://127.0.0.1:9/hub/api"
TOKEN = "secret-token"
log = logging.getLogger(__name__)


def question(number: int) -> dict[str, Any]:
    asked = wants(f"u{number}", 1)
    names = ("user", "server", "team", "template", "preemptible", "priority", "requeue", "namespace")
    return {**{name: getattr(asked, name) for name in names}, "request_milliseconds": 3000, "pods": [*asked.pods]}


def _no_wait(said: list[str], reason: str) -> StartRefused:
    raise AssertionError(f"{reason}: {said}")


def bare_inserts(url: str, count: int) -> float:
    """Rows a second: as many bytes as a job and its event, one durable transaction each."""
    engine = open_engine(url, 1)
    text = json.dumps(question(1)) * 3
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE IF NOT EXISTS bare (id TEXT PRIMARY KEY, content TEXT)"))
        connection.commit()
        begun = time.perf_counter()
        for _ in range(count):
            row = {"id": secrets.token_hex(8), "content": text}
            connection.execute(sqlalchemy.text("INSERT INTO bare VALUES (:id, :content)"), row)
            connection.commit()
        taken = time.perf_counter() - begun
    engine.dispose()
    return count / taken


@contextlib.contextmanager
def manager(folder: Path, db_url: str) -> Iterator[str]:
    """Its address."""
    url = f"http://127.0.0.1:{free_port()}"
    env = {
        **manager_environment(url, NO_HUB, TOKEN),
        "KUBECONFIG": str(folder / "cluster" / "kubeconfig"),
        "PATH": os.environ["PATH"],
    }
    command = [
        *(sys.executable, "-m", "dlspawner.manager", f"--db-url={db_url}", "--Manager.namespace=jobs"),
        f"--Manager.cluster_file={folder / 'cluster.yaml'}",
        f"--Manager.teams_file={folder / 'teams.yaml'}",
        f"--Manager.templates_dir={folder}",
        "--Manager.reservation_seconds=3000",
    ]
    with process(command, folder / "manager.log", env=env):
        wait_for(lambda: answers(f"{url}/services/jobs/health"), "the Manager")
        yield f"{url}/services/jobs"


def admissions(folder: Path, kind: str, db_url: str, bare_url: str) -> list[Figure]:
    """The Manager and the peer in turn; the first round of each is to warm up."""
    rates, ratios, seconds = [], [], []
    with manager(folder, db_url) as url:
        client = ManagerLink(url, TOKEN, log)

        async def ask(number: int) -> None:
            await client.admission(naming.job_id(secrets.token_bytes(8)), question(number), _no_wait)

        for round_ in range(ROUNDS + 1):
            begun = time.perf_counter()
            taken = asyncio.run(seconds_of(range(round_ * EACH, (round_ + 1) * EACH), AT_ONCE, ask))
            rate = EACH / (time.perf_counter() - begun)
            bare = bare_inserts(bare_url, EACH)
            if round_:
                rates.append(rate)
                ratios.append(rate / bare)
                seconds += taken
    name = f"admissions by REST, {kind}"
    return [
        Figure(f"{name}: a second, {AT_ONCE} at once", median(rates), "1/s", "higher", 100),
        Figure(f"{name}: median", 1000 * median(seconds), "ms"),
        Figure(f"{name}: p99", 1000 * quantiles(seconds, n=100)[98], "ms", "lower", 50),
        Figure(f"{name}: ratio to bare inserts", median(ratios), "ratio", "higher", None, "one connection"),
    ]


def with_each_database(state: Path) -> list[Figure]:
    urls = [f"sqlite:///{state / name}.sqlite" for name in ("manager", "bare")]
    figures = admissions(state, "SQLite", *urls)
    if databases.INSTALLED:
        with databases.postgresql() as directory:
            urls = [databases.create(directory) for _ in range(2)]
            figures += admissions(state, "PostgreSQL", *urls)
    return figures


async def among_nodes(state: Path, kubeconfig: Path) -> list[Figure]:
    """Measured beside nodes that report."""
    async with await KubernetesClient.connect(kubeconfig) as cluster:
        await make_namespace(cluster)
        harness = ManagerHarness(state, "", cluster)
        for number in range(NODES):
            await harness.make_node(f"gpu-{number}", GPUS_EACH)
        return await asyncio.to_thread(with_each_database, state)


def measure(state: Path) -> list[Figure]:
    prepare(state, NODES * GPUS_EACH)
    server = Server(state / "cluster")
    server.start()
    try:
        return asyncio.run(among_nodes(state, server.kubeconfig))
    finally:
        server.stop()


if __name__ == "__main__":
    publish("bench-admissions", measure)
