"""The gateway before the real Hub, Manager and jobs: refused users, queued jobs, files jobs that end.

A product of its own, with a teams.yaml that is written while it runs and templates for which little time is enough.
"""

from __future__ import annotations

import contextlib
import re
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e.people import Person, Ssh, begun, read_until, wait_for
from tests.e2e.stack import ROOT, Launched

pytestmark = [pytest.mark.launcher, pytest.mark.slow]

TEAMS = "teams:\n  default: {title: Everybody, quota: {a100: 16, v100: 4}}\nblocked: [%s]\n"
RUNS = "echo in; sleep 600"
LOUD = ("-o", "LogLevel=INFO")
NO_COMMAND = ("-N", "-o", "PermitLocalCommand=yes", "-o", "LocalCommand=echo in")
SENTENCES = {
    "keyless": "the key that you came in with was removed from your keys",
    "revoked": "the token that you came in with was revoked, or has expired",
    "removed": "was removed",  # the account, and with it the key: which of both is known first is open
    "blocked": "your account may not use this gateway: ask an administrator",
}
WINDOW_SECONDS = 60  # the shortest there is
SILENT_SECONDS = 1  # for which an idle terminal keeps its job


@dataclass
class Product:
    """It, and what this file's tests change about it."""

    stack: Launched
    config: Path
    folder: Path
    people: list[Person] = field(default_factory=list)

    def person(self, name: str) -> Person:
        self.people.append(self.stack.person(name))
        return self.people[-1]

    def client(self, person: Person) -> Ssh:
        return person.ssh(self.folder / person.name)

    def block(self, *names: str) -> None:
        new = self.config / "teams.new"
        new.write_text(TEAMS % ", ".join(names))
        new.rename(self.config / "teams.yaml")


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
        found = Product(stack, config, folder)
        found.block()
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


@dataclass
class Ended:
    """The end of a client, and the seconds after its cause."""

    status: int
    said: str
    seconds: float


def ended(process: subprocess.Popen[str], since: float) -> Ended:
    _, said = process.communicate(timeout=90)
    return Ended(process.returncode, said, time.monotonic() - since)


def by_token(client: Ssh, token: str) -> tuple[tuple[str, ...], dict[str, str]]:
    ask = client.folder / "askpass"
    ask.write_text(f"#!/bin/sh\necho '{token}'\n")
    ask.chmod(0o700)
    options = ("-o", "BatchMode=no", "-o", "PubkeyAuthentication=no", "-o", "NumberOfPasswordPrompts=1")
    return options, {"SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"}


def test_revoked_access_ends_open_sessions_within_a_minute_with_the_reason(product: Product) -> None:
    """With `Gateway.recheck_seconds` as it comes, and all at once.

    The Hub removes no user with a job: the removed user has none, and holds the connection that `ssh -J` goes through.
    """
    names = ("keyless", "revoked", "blocked", "stays")
    people = {name: product.person(name) for name in (*names, "removed")}
    clients = {name: product.client(person) for name, person in people.items()}
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: people[name].launch("train", seconds=120, template="ssh"), names))
    (key,) = people["keyless"].manager("GET", "/keys").json()["keys"]
    token = people["revoked"].api("POST", "/users/revoked/tokens", {"note": "for ssh"}).json()
    options, env = by_token(clients["revoked"], token["token"])
    lines = {name: clients[name].line("train", RUNS, options=LOUD) for name in names}
    lines["revoked"] = clients["revoked"].line("train", RUNS, options=(*LOUD, *options))
    lines["removed"] = clients["removed"].line("", options=(*LOUD, *NO_COMMAND))
    with contextlib.ExitStack() as stack:
        open_ = {
            name: stack.enter_context(begun(line, **(env if name == "revoked" else {}))) for name, line in lines.items()
        }
        for process in open_.values():
            wait_until_in(process)

        since = time.monotonic()
        people["keyless"].manager("DELETE", f"/keys/{key['id']}")
        assert people["revoked"].api("DELETE", f"/users/revoked/tokens/{token['id']}").status_code == 204
        assert product.person("admin").api("DELETE", "/users/removed").status_code == 204
        product.block("blocked")

        stays = open_.pop("stays")
        with ThreadPoolExecutor() as pool:
            found = dict(zip(open_, pool.map(lambda process: ended(process, since), open_.values()), strict=True))
        assert stays.poll() is None
    assert {name: one.status for name, one in found.items()} == dict.fromkeys(found, 255)
    for name, sentence in SENTENCES.items():
        assert sentence in found[name].said, found[name]
    assert max(one.seconds for one in found.values()) < 60
    again = clients["blocked"].run("train", "true", options=LOUD)
    assert (again.returncode, SENTENCES["blocked"] in again.stderr) == (255, True), again.stderr
    product.block()


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
