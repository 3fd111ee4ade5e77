"""Recordings as an administrator switches them on: in teams.yaml, for one team, with all processes as they are run."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import asyncssh
import pytest

from dlspawner.clients.kubernetes import KubernetesClient
from ssh_gateway.keys import Keys, load_or_make
from ssh_gateway.recorder import RECORDED
from tests.edges.test_manager.quota import CLUSTER, GPU, TEMPLATE
from tests.edges.test_manager.world import World
from tests.edges.test_manager.world import running as running_world
from tests.gateway.cluster import create_pod, create_service, job
from tests.gateway.peers import JOB, Client, Sshd
from tests.gateway.recorded import read
from tests.gateway.test_app import ADDRESS, register, started

SERVER = "seen"  # others use the same cluster
TEAMS = """
teams:
  default: {title: Everybody, quota: {gpu: 8}}
  vision: {title: Vision, members: [alice], quota: {gpu: 8}, record_terminals: true}
"""


@pytest.fixture
def told(tmp_path: Path, kubeconfig: Path) -> Iterator[World]:
    """A Hub and a Manager that has read these files."""
    files = tmp_path / "files"
    (files / "templates" / "jobs").mkdir(parents=True)
    (files / "templates" / "jobs" / "tiny.yaml").write_text(json.dumps(TEMPLATE))
    (files / "cluster.yaml").write_text(CLUSTER % GPU)
    (files / "teams.yaml").write_text(TEAMS)
    settings = (
        f"--Manager.cluster_file={files / 'cluster.yaml'}",
        f"--Manager.teams_file={files / 'teams.yaml'}",
        f"--Manager.templates_dir={files / 'templates'}",
        "--Manager.namespace=default",  # not where the jobs are: it did not start them, and would remove them
    )
    world = tmp_path / "world"
    world.mkdir()
    with running_world(world, settings, KUBECONFIG=str(kubeconfig)) as found:
        yield found


@dataclass
class Site:
    """Where jobs run, and the keys of a gateway that may enter them."""

    world: World
    kubeconfig: Path
    folder: Path
    keys: Keys

    @contextlib.asynccontextmanager
    async def at_work(self, name: str, team: str) -> AsyncIterator[Person]:
        """Somebody whose job runs for a team, and who has a key."""
        key, pod, folder = asyncssh.generate_private_key("ssh-ed25519"), f"{name}-{SERVER}", self.folder / name
        self.world.server_token(name, SERVER)
        register(self.world, self.world.token(name), key)
        async with await KubernetesClient.connect(self.kubeconfig) as cluster:
            # One id for all: it is the principal that this sshd lets in.
            port = await create_service(cluster, pod, job(name, SERVER, id=JOB, team=team))
            sshd = Sshd(folder, self.keys.user_ca, port, (), ADDRESS)
            sshd.start()
            try:
                made = job(name, SERVER, id=JOB, team=team, ssh_host_key=sshd.host_key)
                await create_pod(cluster, pod, made, ADDRESS)
                yield Person(name, key, folder, self.keys)
            finally:
                sshd.stop()


@dataclass
class Person:
    name: str
    key: asyncssh.SSHKey
    folder: Path
    keys: Keys

    async def ssh(self, port: int, command: str) -> bytes:
        client = Client(self.folder / "home", port, self.key, self.keys.host)
        done = await client.ssh("-tt", f"{self.name}+{SERVER}@gateway", command)
        assert done.status == 0, done.err
        return done.out


@pytest.mark.slow
async def test_a_team_of_teams_yaml_is_recorded_and_told_so_first_and_no_other_is(
    told: World, kubeconfig: Path, tmp_path: Path
) -> None:
    folder, site = tmp_path / "recordings", Site(told, kubeconfig, tmp_path, load_or_make(tmp_path / "state"))
    async with (
        site.at_work("alice", "vision") as alice,
        site.at_work("bob", "default") as bob,
        started(told, kubeconfig, tmp_path / "state", f"--Gateway.recordings_dir={folder}") as gateway,
    ):
        hers, his = await asyncio.gather(alice.ssh(gateway.port, "echo hers"), bob.ssh(gateway.port, "echo his"))
        assert hers == RECORDED.content + b"hers\r\n"
        assert his == b"his\r\n"
        await gateway.said("result=complete")
        (path,) = folder.iterdir()
        assert f"_alice_{SERVER}_" in path.name
        assert read(path).shown.encode() == hers
        assert read(path).header["title"].startswith(f"alice+{SERVER} ")
