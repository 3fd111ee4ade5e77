"""Files without a job: the login of a new user starts it, with any client."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.component.gateway.clients.test_files import mounts
from tests.component.gateway.clients.ways import LIBRARIES, fingerprint, program
from tests.e2e import winscp
from tests.e2e.people import Person, Ssh, Stack

pytestmark = [pytest.mark.launcher, pytest.mark.slow]


@pytest.fixture
def fred(stack: Stack) -> Iterator[Person]:
    person = stack.person("fred")
    yield person
    person.stop("files")
    person.close()


def jobs(person: Person) -> list[dict[str, Any]]:
    """All of this person's, ended ones as well."""
    headers = {"Authorization": f"token {person.token}"}
    url = f"{person.stack.url}/services/jobs/api/jobs?user={person.name}"
    items: list[dict[str, Any]] = requests.get(url, headers=headers, timeout=60).json()["items"]
    return items


def test_logins_start_one_job_without_gpus_for_ones_files(fred: Person, tmp_path: Path) -> None:
    client, known = fred.ssh(tmp_path / "fred"), {one["id"] for one in jobs(fred)}
    (tmp_path / "up").write_bytes(os.urandom(1 << 20))
    batch = f"put {tmp_path}/up data.bin\nget data.bin {tmp_path}/down\n"
    sftp = ("sftp", "-q", "-F", str(client.config), "-b", "-", "fred+files@gateway")
    rsync = ("rsync", "-a", "-e", client.remote_shell, "fred+files@gateway:data.bin", str(tmp_path / "copy"))
    with ThreadPoolExecutor() as pool:
        # A command's standard output is its own, without the login's own lines.
        shell = pool.submit(client.run, "files", "printf out; id -un >&2", options=("-o", "LogLevel=INFO"), seconds=180)
        sent = pool.submit(client.tool, *sftp, text=batch, seconds=180)
    done, moved = shell.result(), sent.result()
    assert (done.returncode, done.stdout) == (0, "out"), done.stderr
    assert done.stderr.strip().endswith("fred")
    assert moved.returncode == 0, moved.stderr
    assert (tmp_path / "down").read_bytes() == (tmp_path / "up").read_bytes()
    assert client.tool(*rsync).returncode == 0
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "up").read_bytes()
    (job,) = [one for one in jobs(fred) if one["id"] not in known]
    assert (job["server"], job["template"], job["gpus"], job["state"]) == ("files", "files", 0, "running")


def test_other_servers_that_never_were_are_not_started(fred: Person, tmp_path: Path) -> None:
    fred.launch("files", template="files")  # another way to start it
    client = fred.ssh(tmp_path / "fred")
    done = client.run("flies", "true")
    assert (done.returncode, "no job flies; yours: files" in done.stderr) == (255, True), done.stderr


# Other people's clients, in one's home and in the team's directory

TEAM = "/data/vision"
FOLDERS = (".", TEAM)


@pytest.fixture(scope="module")
def vic(stack: Stack) -> Iterator[Person]:
    """A user of the team vision, with writable data."""
    admin, person = stack.person("admin"), stack.person("vic")
    assert admin.api("POST", "/groups/vision").status_code in {201, 409}
    assert admin.api("POST", "/groups/vision/users", {"users": ["vic"]}).ok
    yield person
    person.stop("files")
    admin.api("DELETE", "/groups/vision/users", {"users": ["vic"]})
    admin.close()
    person.close()


@pytest.fixture(scope="module")
def desk(vic: Person, tmp_path_factory: pytest.TempPathFactory) -> Ssh:
    """The computer of vic, with a file to send."""
    client = vic.ssh(tmp_path_factory.mktemp("vic"))
    (client.folder / "sent").write_bytes(os.urandom(3 * 2**20 + 17))
    return client


def run(desk: Ssh, *command: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """A client of the distribution's, with a home of its own."""
    env = {**os.environ, "HOME": str(desk.folder), "LD_LIBRARY_PATH": LIBRARIES, "SSH_AUTH_SOCK": ""}
    name, *arguments = command
    return subprocess.run(
        [program(name), *arguments], input=text, env=env, cwd=desk.folder, capture_output=True, text=True, timeout=180,
        check=False,
    )  # fmt: skip


def came_back(desk: Ssh, client: str) -> list[bool]:
    """True if the file that this client has sent to each folder is the one that it got back."""
    sent = (desk.folder / "sent").read_bytes()
    return [(desk.folder / f"{client}-{number}").read_bytes() == sent for number, _ in enumerate(FOLDERS)]


@pytest.mark.parametrize("proof", ["token", "key"])
def test_psftp(desk: Ssh, proof: str) -> None:
    stack = desk.person.stack
    scanned = run(desk, "ssh-keyscan", "-T", "60", "-t", "ed25519", "-p", str(stack.ssh_port), stack.ssh_host).stdout
    host_key = fingerprint(scanned.partition(" ")[2])
    if proof == "key":
        made = run(desk, "puttygen", str(desk.key), "-q", "-O", "private", "-o", f"{desk.key}.ppk")
        assert made.returncode == 0, made.stderr
    proofs = {"token": ("-pw", desk.person.token), "key": ("-i", f"{desk.key}.ppk")}
    client = f"psftp-{proof}"
    lines = [f"put sent {folder}/{client}\nget {folder}/{client} {client}-{n}\n" for n, folder in enumerate(FOLDERS)]
    (desk.folder / "batch").write_text("".join(lines) + "quit\n")
    options = ("-batch", "-P", str(stack.ssh_port), "-hostkey", host_key, *proofs[proof], "-b", "batch")
    done = run(desk, "psftp", *options, f"{desk.login('files')}@{stack.ssh_host}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert came_back(desk, client) == [True, True]


def test_lftp_with_a_token(desk: Ssh) -> None:
    ssh = f"{desk.remote_shell} -a -x -o BatchMode=no -o PubkeyAuthentication=no"
    lines = [f"put sent -o {folder}/lftp; get {folder}/lftp -o lftp-{n}" for n, folder in enumerate(FOLDERS)]
    settings = f"set net:max-retries 1; set cmd:fail-exit yes; set sftp:connect-program {shlex.quote(ssh)}"
    login = f"open -u {desk.login('files')},{desk.person.token} sftp://gateway"
    done = run(desk, "lftp", "--norc", "-c", "; ".join((settings, login, *lines)))
    assert done.returncode == 0, done.stderr
    assert came_back(desk, "lftp") == [True, True]


def test_sshfs(desk: Ssh) -> None:
    if not mounts():
        pytest.xfail(
            "FUSE cannot be used here: only what sshfs asks of ssh is tested, in tests/component/gateway/clients"
        )
    for number, folder in enumerate(FOLDERS):
        mounted = desk.folder / f"mounted-{number}"
        mounted.mkdir()
        options = ("-o", f"ssh_command={desk.remote_shell}", "-o", "idmap=user")
        mount = shlex.join(("sshfs", "-f", f"{desk.login('files')}@gateway:{folder}", str(mounted), *options))
        wait = f"for n in $(seq 1000); do mountpoint -q {mounted} && break; sleep 0.1; done"
        use = f"cp sent {mounted}/sshfs && cp {mounted}/sshfs sshfs-{number}"
        script = f"{mount} & {wait}; {use}; status=$?; umount {mounted}; wait; exit $status"
        done = run(desk, "unshare", "--user", "--map-root-user", "--mount", "bash", "-c", script)
        assert done.returncode == 0, done.stderr
    assert came_back(desk, "sshfs") == [True, True]


def test_the_way_of_winscp(desk: Ssh) -> None:
    stack, person = desk.person.stack, desk.person
    where = {"host": stack.ssh_host, "port": stack.ssh_port, "user": desk.login("files"), "token": person.token}
    script = str(Path(winscp.__file__))
    done = run(desk, sys.executable, "-W", "ignore", script, text=json.dumps({**where, "folders": FOLDERS}))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {folder: [True, winscp.MODIFIED, ["winscp"]] for folder in FOLDERS}
