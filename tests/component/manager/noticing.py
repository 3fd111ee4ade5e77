"""A Manager in the test's own process for real tokens of a real Hub."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tornado.httpserver import HTTPServer
from traitlets.config import Application

from dlspawner.clients.kubernetes import KubernetesClient
from dlspawner.core.job import Job, JobState
from dlspawner.core.link import derive_hub_token
from dlspawner.devcluster.api import start
from dlspawner.manager import server as http
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.http import handlers
from dlspawner.manager.http.auth import make_auth, read_service
from dlspawner.manager.http.portal import ssh_keys
from dlspawner.manager.state.job_store import JobStore
from tests.component.manager.manager_harness import Office, make_namespace, prepare
from tests.component.manager.world import ROOT, World, free_port, manager_environment

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


@contextlib.asynccontextmanager
async def offices(folder: Path, db_url: str) -> AsyncIterator[Office]:
    """An empty cluster for Managers; KUBECONFIG has to be set to `folder`/cluster/kubeconfig."""
    api = await start(folder / "cluster", 0)
    prepare(folder)
    async with await KubernetesClient.connect(api.kubeconfig) as cluster:
        await make_namespace(cluster)
        yield Office(folder, db_url, cluster)
    await api.stop()


def book_of(acting: LeaderElector) -> JobStore:
    assert acting.admission is not None
    return acting.admission.store


def job_of(user: str = "alice", server: str = "train", number: int = 2) -> Job:
    return Job(f"j-{str(number) * 12}", user, "default", NOW, server=server, state=JobState.RUNNING)


@dataclass
class Served:
    """The address of a Manager, and what is in it."""

    url: str
    acting: LeaderElector
    manager: handlers.ManagerContext

    @property
    def book(self) -> JobStore:
        return book_of(self.acting)

    @property
    def hubs_token(self) -> str:
        return derive_hub_token(self.manager.service.api_token)


@contextlib.asynccontextmanager
async def serving(office: Office, world: World) -> AsyncIterator[Served]:
    """Pages and REST of a Manager of `office`, for the users of `world`'s Hub."""
    port = free_port()
    service = read_service(manager_environment(f"http://127.0.0.1:{port}", world.hub_api, world.tokens["manager"]))
    async with office.manager() as acting:
        manager = handlers.ManagerContext(
            service=service,
            auth=make_auth(service, Application()),
            store=acting.ledger._store,
            pages=ssh_keys.make_environment([str(ROOT / "templates" / "hub")]),
            now=office.clock,
            leader=acting,
        )
        server = HTTPServer(http.make_web(manager), xheaders=True)
        server.listen(port, "127.0.0.1")
        try:
            yield Served(f"http://127.0.0.1:{port}/services/jobs", acting, manager)
        finally:
            await http.drain(server, manager.running)
            await http.close_hub_client()
