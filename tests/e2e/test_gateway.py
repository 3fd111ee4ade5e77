"""The gateway before the real Hub, Manager and jobs: queued jobs, and files jobs that end.

A product of its own, with a teams.yaml and templates for which little time is enough.
"""

from __future__ import annotations

import re
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e.people import Person, Ssh, begun, read_until, wait_for
from tests.e2e.stack import ROOT, Launched

pytestmark = [pytest.mark.launcher, pytest.mark.slow]

TEAMS = "teams:\n  default: {title: Everybody, quota: {a100: 16, v100: 4}}\n"
LOUD = ("-o", "LogLevel=INFO")
WINDOW_SECONDS = 60  # the shortest there is
SILENT_SECONDS = 1  # for which an idle terminal keeps its job


@dataclass
class Product:
    """It, and what this file's tests change about it."""

    stack: Launched
    folder: Path
    people: list[Person] = field(default_factory=list)

    def person(self, name: str) -> Person:
        self.people.append(self.stack.person(name))
        return self.people[-1]

    def client(self, person: Person) -> Ssh:
        return person.ssh(self.folder / person.name)


@pytest.fixture(scope="module")
def product() -> Iterator[Product]:
    """Below the checkout, as conftest's: jobs have a /tmp of their own."""
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="e2e-", dir=build) as name:
        folder = Path(name)
        config, templates = folder / "config", folder / "templates"
        shutil.copytree(ROOT / "hub_config", config, ignore=shutil.ignore_patterns("kubernetes", "grafana", "images"))
        shutil.copytree(ROOT / "templates", templates)
        jobs = templates / "jobs"
        files, ssh = (jobs / "files.yaml").read_text(), (jobs / "ssh.yaml").read_text()
        (jobs / "files.yaml").write_text(files.replace("window_seconds: 600", f"window_seconds: {WINDOW_SECONDS}"))
        train = ssh.replace("gpus: {default: 0", "gpus: {default: 4").replace(
            "gpu_type: {}", "gpu_type: {default: v100}"
        )
        (jobs / "train.yaml").write_text(f"{train}\nstart_on_connect: true\n")
        stack = Launched(folder / "state", more=(f"--config={config}", f"--templates={templates}"))
        cluster = config / "cluster.yaml"
        usual, wanted = "silent_ssh_seconds: 3600", f"silent_ssh_seconds: {SILENT_SECONDS}"
        assert usual in cluster.read_text()
        cluster.write_text(cluster.read_text().replace(usual, wanted))
        (config / "teams.yaml").write_text(TEAMS)
        found = Product(stack, folder)
        stack.start()
        try:
            yield found
        finally:
            for person in found.people:
                person.close()
            stack.stop()


def wait_until_in(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stderr is not None
    if process.stdout.readline() != "in\n":
        raise AssertionError(process.stderr.read())


@pytest.fixture
def full(product: Product) -> Iterator[Person]:
    """A user with a job that holds all V100s."""
    holder = product.person("holder")
    holder.launch("holds", seconds=120, template="ssh", gpus=4, gpu_type="v100")
    yield holder
    if holder.server("holds"):
        holder.stop("holds")


def test_login_to_a_queued_job_shows_its_position_and_waits_for_gpus(product: Product, full: Person) -> None:
    ivy = product.person("ivy")
    client = product.client(ivy)
    with begun(client.line("train", "echo in; nvidia-smi -L 2>/dev/null | wc -l", options=LOUD)) as ssh:
        said = read_until(ssh.stderr, "number 1 in the queue")
        assert "train is queued: number 1 in the queue" in said
        assert not select.select([ssh.stdout], [], [], 0)[0]
        full.stop("holds")
        wait_until_in(ssh)
        assert ssh.wait(60) == 0
    (job,) = ivy.jobs()
    assert (job["server"], job["gpus"], job["state"]) == ("train", 4, "running")
    ivy.stop("train")


@pytest.fixture(scope="module")
def unused(product: Product) -> Iterator[Path]:
    """The terminal of a user that has left it: begun before what takes long, and looked at afterwards."""
    away = product.person("away")
    client, seen = product.client(away), product.folder / "seen"
    command = ["ssh", "-F", str(client.config), "-tt", f"{client.login('files')}@gateway", "echo in; exec cat"]
    with seen.open("wb") as output:
        ssh = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output)
    try:
        wait_for(lambda: "in\n" in seen.read_text(), "the terminal", 120)
        yield seen
    finally:
        ssh.kill()
        ssh.communicate()


def test_idle_terminal_shows_the_warning_and_the_stop(unused: Path) -> None:
    warning = r"\*\*\* [^*\n]+ unused for \d+ s\. The job stops [^*\n]+ unless it is used; files stay\. \*\*\*"
    wait_for(lambda: re.search(warning, unused.read_text()), f"the warning; see {unused}", 180)
    wait_for(lambda: "This job is being stopped." in unused.read_text(), "the end, as no warning is use", 120)
    wait_for(lambda: "files: The job was stopped because it was not used for" in unused.read_text(), "the reason")


def sftp(client: Ssh, line: str) -> None:
    command = ("sftp", "-q", "-F", str(client.config), "-b", "-", f"{client.login('files')}@gateway")
    done = client.tool(*command, text=f"{line}\n", seconds=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("unused")  # so that both take their time at once
def test_idle_files_job_is_culled_and_restarted_by_a_login_and_a_used_one_stays(product: Product) -> None:
    quiet, busy = product.person("quiet"), product.person("busy")
    client = product.client(quiet)
    with begun(product.client(busy).line("files", "echo in; while sleep 1; do echo flows; done", options=LOUD)) as flow:
        wait_until_in(flow)
        last_byte = time.monotonic()  # or a little later
        sftp(client, f"put {client.config} kept")
        wait_for(lambda: not quiet.server("files"), "the job that nobody uses is gone", 240)
        assert time.monotonic() - last_byte >= WINDOW_SECONDS
        assert (flow.poll(), busy.ready("files").get("name")) == (None, "files")
    (ended_one,) = quiet.jobs()
    assert (ended_one["template"], ended_one["gpus"], ended_one["stop"]["reason"]) == ("files", 0, "idle")

    sftp(client, f"get kept {product.folder}/back")
    assert (product.folder / "back").read_text() == client.config.read_text()
    jobs = quiet.jobs()
    assert sorted(job["state"] == "running" for job in jobs) == [False, True]
    quiet.stop("files")
    busy.stop("files")
