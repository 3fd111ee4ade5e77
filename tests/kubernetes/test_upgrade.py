"""Upgrade of an earlier release beneath running jobs, and the way back, as hub_config/OPERATIONS.md says.

By the chart and by the manifests: its Hub, Manager and gateway are of an earlier commit, and so is what installs them.
What the databases must keep is shown without containers (tests/component/manager/test_rollback.py). Needs a cluster of
ours; nightly.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests

from dlspawner import cli
from tests.component.manager import databases
from tests.component.manager.quota import Sampler
from tests.component.manager.test_rollback import RESTORE
from tests.e2e.deployed import Deployed
from tests.e2e.people import Person, begun, read_until, wait_for
from tests.e2e.test_evictions import listed
from tests.e2e.test_replicas import forwarded
from tests.e2e.test_upgrade import MIGRATION, before
from tests.kubernetes import cluster, deploy, helm, product
from tests.kubernetes.conftest import IMAGE_PREFIX, IMAGE_TAG, Kubectl
from tests.kubernetes.deploy import Deployment, come_up, secret
from tests.kubernetes.instance import ENVIRONMENT, GPUS
from tests.kubernetes.manifests import JOBS, PRODUCT

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.slow,
    pytest.mark.skipif(ENVIRONMENT not in os.environ, reason="the earlier images come to our own node alone"),
]
STREAMS = "until [ -e /tmp/enough ]; do echo line; sleep 0.2; done; echo the end"


@dataclass
class Chart:
    """A release of the chart: its upgrade and the way back are Helm's."""

    kubectl: Kubectl
    source: Path  # of the earlier version
    folder: Path
    password = ("databases", "manager")  # of the Manager's database: the Secret, and its key

    def install(self) -> Deployment:
        return helm.deploy(self.kubectl, IMAGE_PREFIX, product.EARLIER, self.source)

    def upgrade(self) -> None:
        tags = [f"{image}.image.tag={IMAGE_TAG}" for image in ("hub", "proxy.chp", "singleuser")]
        ours = [f"custom.images.{name}={IMAGE_PREFIX}/{image}:{IMAGE_TAG}" for name, image in helm.IMAGES.items()]
        given = [f"--set=jupyterhub.{one}" for one in (*tags, *ours)]
        helm.change("upgrade", helm.whole_chart(self.folder), "--reset-then-reuse-values", *given)

    def roll_back(self) -> None:
        helm.change("rollback", "1")

    def remove(self) -> None:
        helm.remove(self.kubectl)


@dataclass
class Manifests:
    """The demo's overlay of either version with its images, applied at each step."""

    kubectl: Kubectl
    source: Path
    folder: Path
    password = ("manager-database", "password")

    def install(self) -> Deployment:
        return deploy.deploy(self.kubectl, IMAGE_PREFIX, product.EARLIER, self.source)

    def upgrade(self) -> None:
        deploy.deploy(self.kubectl, IMAGE_PREFIX, IMAGE_TAG)

    roll_back = install

    def remove(self) -> None:
        deploy.remove(self.kubectl)


@pytest.fixture(params=[Chart, Manifests])
def way(request: pytest.FixtureRequest, kubectl: Kubectl, tmp_path: Path) -> Iterator[Chart | Manifests]:
    source = before(MIGRATION, tmp_path / "before")
    cluster.import_images(product.earlier(source, cluster.quiet))
    made: Chart | Manifests = request.param(kubectl, source, tmp_path)
    try:
        yield made
    finally:
        made.remove()


@contextlib.contextmanager
def database(kubectl: Kubectl, way: Chart | Manifests) -> Iterator[str]:
    """The Manager's, as libpq reaches it from here."""
    name, key = way.password
    with forwarded("pod/postgresql-0", 5432) as port:
        yield f"postgresql://manager:{secret(kubectl, name)[key]}@127.0.0.1:{port}/manager"


def sql(kubectl: Kubectl, *statements: str, name: str = "postgres") -> str:
    given = [word for one in statements for word in ("-c", one)]
    return kubectl("exec", "-n", PRODUCT, "postgresql-0", "--", "psql", "-h/tmp", "-qtA", f"-d{name}", *given).strip()


def schema(kubectl: Kubectl) -> str:
    return sql(kubectl, "SELECT version_num FROM alembic_version", name="manager")


def pods() -> dict[str, tuple[str, int]]:
    """The uid of each job's pod by server, and how often it was restarted."""
    return {
        pod["metadata"]["labels"]["dlspawner.dev/server"]: (
            pod["metadata"]["uid"],
            sum(one["restartCount"] for one in pod["status"]["containerStatuses"]),
        )
        for pod in listed(JOBS, "pods", "-l", "dlspawner.dev/job")
    }


def jobs(person: Person) -> dict[str, tuple[str, str, str]]:
    return {one["server"]: (one["id"], one["state"], one["submitted"]) for one in person.jobs()}


def are(person: Person, **states: str) -> bool:
    return {server: state for server, (_, state, _) in jobs(person).items()} == states


def test_jobs_outlive_an_upgrade_and_the_way_back(
    way: Chart | Manifests, kubectl: Kubectl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(databases.PROGRAMS), prepend=":")
    stack = Deployed(way.install())
    alice = stack.person("alice")
    ssh = alice.ssh(tmp_path / "ssh")
    watched = SimpleNamespace(kubeconfig=Path(os.environ["KUBECONFIG"]), namespace=JOBS, resource="nvidia.com/gpu")
    with Sampler(watched) as sampler:  # type: ignore[arg-type]
        alice.launch("book", template="ipython", gpus=1, memory="512Mi")
        alice.launch("train", template="ssh", gpus=GPUS - 1, memory="256Mi")
        assert alice.start("waits", template="ssh", gpus=1, memory="256Mi").status_code in {202, 429}
        wait_for(lambda: are(alice, book="running", train="running", waits="queued"), "one waits")
        known, running, older = jobs(alice), pods(), schema(kubectl)
        with database(kubectl, way) as url:
            there = url.replace("://", "+psycopg://")
            assert cli.main(["backup", str(tmp_path / "saved"), f"--manager-db={there}"]) == 0

        with begun(ssh.line("train", STREAMS)) as session:
            read_until(session.stdout, "line")
            way.upgrade()
            come_up(kubectl, stack.url)
            wait_for(lambda: alice.ready("book") and alice.ready("train"), "the new Hub has found both")
            assert schema(kubectl) > older
            assert cli.main(["doctor"]) == 0
            assert (jobs(alice), pods()) == (known, running), "ids, states, times of submission, pods"
            kubectl("exec", "-n", JOBS, "jupyter-alice--train", "--", "touch", "/tmp/enough")
            read_until(session.stdout, "the end")  # the open session continues
        status, header = f"{stack.url}/user/alice/book/api/status", {"Authorization": f"token {alice.token}"}
        wait_for(lambda: requests.get(status, headers=header, timeout=30).ok, "the notebook answers")
        assert ssh.run("train", "echo in").stdout == "in\n"
        alice.stop("book")
        wait_for(lambda: alice.ready("waits"), "what waited has started, by the new release", 120)

        kubectl("scale", "-n", PRODUCT, "deployment/hub", "deployment/manager", "--replicas=0")
        wait_for(lambda: not listed(PRODUCT, "pods", "-l", "app.kubernetes.io/name=manager"), "it has ended", 60)
        sql(kubectl, "ALTER DATABASE manager RENAME TO newer", "CREATE DATABASE manager OWNER manager")
        with database(kubectl, way) as url:
            subprocess.run([*RESTORE, f"--dbname={url}", tmp_path / "saved" / "manager"], check=True)
        way.roll_back()
        come_up(kubectl, stack.url)
        assert schema(kubectl) == older
        wait_for(lambda: are(alice, book="ended", train="running", waits="running"), "the present is seen", 120)
        wait_for(lambda: alice.ready("train") and alice.ready("waits"), "the older Hub has found both")
        assert pods()["train"] == running["train"]
        assert {(job, at) for job, _, at in known.values()} <= {(one["id"], one["submitted"]) for one in alice.jobs()}
        assert ssh.run("train", "echo in").stdout == "in\n"
        for server in ("train", "waits"):
            alice.stop(server)
    assert sampler.most == GPUS, "all were held, and none twice"
