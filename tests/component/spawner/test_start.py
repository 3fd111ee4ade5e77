"""The start script with a real sshd and a real ssh: an unprivileged account, a certificate of the gateway's CA."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from dlspawner.core import unix_account
from dlspawner.spawner import owned_objects
from tests.e2e.people import wait_for
from tests.harness.ports import free_port

SBIN = "/usr/sbin:/usr/local/sbin:/sbin"
SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:{SBIN}")


@dataclass
class Job:
    """A directory with the job's files, and the account that the script runs as."""

    files: Path
    home: Path
    port: int
    process: Any = None  # of the script, in a job that runs

    @property
    def temporary(self) -> Path:
        return self.files.parent / "tmp"

    def command(self, *command: str, **env: str) -> list[str]:
        """The script in a user namespace where we are uid 1000 and the files passwd and group are the job's."""
        given = {
            "PATH": f"{os.environ['PATH']}:{SBIN}",
            "HOME": str(self.home),
            "POD_IP": "127.0.0.1",
            "DLSPAWNER_FILES": str(self.files),
            "TMPDIR": str(self.temporary),
            **({"LD_LIBRARY_PATH": os.environ["LD_LIBRARY_PATH"]} if "LD_LIBRARY_PATH" in os.environ else {}),
            **env,
        }
        inside = [
            "env",
            "-i",
            *(f"{key}={value}" for key, value in given.items()),
            "sh",
            f"{self.files}/start",
            *command,
        ]
        binds = """
            for name in passwd group; do mount --bind "$0/$name" "/etc/$name"; done
            mount -t tmpfs profile /etc/profile.d; cp "$0/profile.sh" /etc/profile.d/dlspawner.sh
            exec "$@"
        """
        uid_1000 = ["unshare", "-U", "--map-user=1000", "--map-group=1000"]
        return ["unshare", "-Urm", "sh", "-ec", binds, str(self.files), *uid_1000, *inside]

    def ssh_line(self, *command: str, terminal: bool = False) -> list[str]:
        options = ["-F", "none", "-i", str(self.files / "user"), "-o", f"CertificateFile={self.files}/user-cert.pub"]
        options += ["-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR"]
        options += ["-o", f"UserKnownHostsFile={self.files}/known_hosts", "-p", str(self.port)]
        terminals = ["-tt"] if terminal else ["-T"]
        return ["ssh", *options, *terminals, "alice@127.0.0.1", *command]

    def ssh(self, *command: str, terminal: bool = False, given: str = "") -> subprocess.CompletedProcess[str]:
        line = self.ssh_line(*command, terminal=terminal)
        return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False, input=given)

    def listens(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False


def keygen(*arguments: str) -> None:
    subprocess.run(["ssh-keygen", "-q", *arguments], check=True, capture_output=True)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    files, home = tmp_path / "files", tmp_path / "home"
    for made in (files, home, tmp_path / "tmp"):
        made.mkdir()
    port = free_port()
    key = owned_objects.make_host_key()
    keygen("-t", "ed25519", "-N", "", "-f", str(files / "user_ca"))
    keygen("-t", "ed25519", "-N", "", "-f", str(files / "user"))
    keygen("-s", str(files / "user_ca"), "-I", "alice", "-n", "j-job", str(files / "user.pub"))
    account = unix_account.UnixAccount("alice", 1000, 1000, (), str(home))
    texts = {
        owned_objects.HOST_KEY: key.private,
        "principals": "j-job\n",
        "passwd": unix_account.passwd(account, f"{files}/shell"),
        "group": unix_account.group(account),
        "start": owned_objects.packaged("start.sh"),
        "shell": owned_objects.packaged("shell"),
        "profile.sh": owned_objects.packaged("profile.sh"),
        "report_ssh_keys.py": owned_objects.packaged("report_ssh_keys.py"),
        "report_kernels.py": owned_objects.packaged("report_kernels.py"),
        "watch_ports.py": owned_objects.packaged("watch_ports.py"),
        "sshd_config": f"{owned_objects.packaged('sshd_config')}Port {port}\n",
        "known_hosts": f"[127.0.0.1]:{port} {key.public}\n",
    }
    for name, text in texts.items():
        (files / name).write_text(text)
    (files / "shell").chmod(0o555)
    (files / owned_objects.HOST_KEY).chmod(0o440)  # as fsGroup makes it, on a node that gives the files to the person
    return Job(files, home, port)


@pytest.fixture
def started(job: Job) -> Iterator[Job]:
    """The job with a command that stays, once sshd answers."""
    env = {
        "NVIDIA_VISIBLE_DEVICES": "0,1",
        "JUPYTERHUB_API_TOKEN": "hub-token",
        "SHELL": "/bin/bash",
        "DLSPAWNER_LOG_DIR": str(job.home / "runs"),
        **TEMPLATES,
    }
    with (job.home.parent / "log").open("wb") as log:
        job.process = subprocess.Popen(job.command("sleep", "600", **env), stderr=log, start_new_session=True)
    try:
        wait_for(lambda: job.listens() or job.process.poll() is not None, "sshd", 60)
        assert job.process.poll() is None, (job.home.parent / "log").read_text()
        yield job
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.process.pid, signal.SIGKILL)
        job.process.wait()


# Variables as templates set them, and as only a few programs can pass them on.
TEMPLATES = {
    "WANDB_API_KEY": "their-key",
    "TOKENIZERS_PARALLELISM": "false",
    "MEM_FRACTION": "0.9",
    "LINES": "two\n  lines\nexport JUPYTERHUB_X=1\n",
    "ODD": 'a "b" \\c $HOME `id` #d',
    "QUOTES": 'it\'s "x\\" Y=injected',
    "EMPTY": "",
    **{f"LONG_{number}": "x" * 100_000 for number in range(5)},
}
needs_sshd = pytest.mark.skipif(SSHD is None, reason="sshd is not installed")


@needs_sshd
def test_a_certificate_gets_a_shell_with_the_environment_of_the_job_but_for_the_hubs(started: Job) -> None:
    (started.home / ".bashrc").write_text("export FROM_BASHRC=1\n")
    program = f"{sys.executable} -c 'import json, os; print(json.dumps(dict(os.environ)))'"
    by_command = started.ssh(program)
    by_login = started.ssh(terminal=False, given=f"exec {program}\n")

    for seen in (by_command, by_login):
        assert seen.returncode == 0, seen.stderr
        environment = json.loads(seen.stdout)
        assert {name: environment.get(name) for name in TEMPLATES} == TEMPLATES
        assert environment["PATH"].endswith(f"{SBIN}:{environment['HOME']}/.local/bin")
        assert (environment["SHELL"], environment["HOME"]) == ("/bin/bash", str(started.home))
        assert environment["FROM_BASHRC"] == "1"
        assert not any(name.startswith(("JUPYTERHUB_", "DLSPAWNER_ENV")) for name in environment)
    assert started.ssh("id -un; pwd").stdout.splitlines() == ["alice", str(started.home)]
    assert (started.home / "runs").is_dir()
    assert int(started.ssh("grep SigIgn /proc/self/status").stdout.split()[1], 16) & 0b110 == 0
    processes = started.ssh("cat /proc/$PPID/cmdline /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout
    assert not any(secret in processes for secret in ("hub-token", "their-key"))


@needs_sshd
def test_a_key_without_a_certificate_is_refused(started: Job) -> None:
    (started.home / ".ssh").mkdir(mode=0o700)
    shutil.copy(started.files / "user.pub", started.home / ".ssh" / "authorized_keys")
    (started.files / "user-cert.pub").unlink()

    assert "Permission denied" in started.ssh("id").stderr


@needs_sshd
def test_a_certificate_for_another_job_is_refused(started: Job) -> None:
    keygen("-s", str(started.files / "user_ca"), "-I", "alice", "-n", "j-other", str(started.files / "user.pub"))

    assert "Permission denied" in started.ssh("id").stderr


@needs_sshd
def test_a_stop_is_announced_in_sessions_whose_programs_may_clean_up(
    started: Job,
) -> None:
    program = "trap 'echo cleaned > cleaned; exit 5' HUP; echo started; while :; do sleep 0.1; done"
    with subprocess.Popen(started.ssh_line(program, terminal=True), stdout=subprocess.PIPE) as session:
        assert session.stdout is not None
        assert session.stdout.readline().strip() == b"started"
        assert list(started.temporary.iterdir())
        started.process.terminate()
        said = session.stdout.read().decode()
        assert session.wait(30) == 5
    assert "This job is being stopped." in said
    assert (started.home / "cleaned").read_text() == "cleaned\n"
    assert started.process.wait(30) == 128 + signal.SIGTERM
    assert not list(started.temporary.iterdir())


@needs_sshd
def test_programs_that_ignore_hup_get_term(started: Job) -> None:
    program = "trap '' HUP; trap 'echo cleaned > cleaned; exit' TERM; echo started; while :; do sleep 0.1; done"
    with subprocess.Popen(started.ssh_line(program), stdout=subprocess.PIPE) as session:
        assert session.stdout is not None
        assert session.stdout.readline() == b"started\n"
        started.process.terminate()
        assert started.process.wait(30) == 128 + signal.SIGTERM
    assert (started.home / "cleaned").read_text() == "cleaned\n"


def unusual_port() -> int:
    """A free port that the kernel gives to nobody by itself."""
    for port in range(21500, 21599):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("all of these ports are taken")


LISTEN = "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); time.sleep(600)"


def test_a_program_on_a_port_that_is_not_the_jobs_is_named_and_ended(job: Job) -> None:
    wrong, ports = unusual_port(), f"{job.port},1023"
    python = f'{sys.executable} -c "{LISTEN}"'
    terminal, theirs = pty.openpty()
    mistaken = f"{python} {wrong} <{os.ttyname(theirs)}; status=$?"
    command = "sh", "-c", f"{python} 0 & other=$!; {mistaken}; kill $other && exit $status"
    env = {"DLSPAWNER_PORTS": ports, "DLSPAWNER_ENFORCE_PORTS": "0"}
    log = job.home.parent / "log"
    with log.open("wb") as file:
        started = subprocess.Popen(job.command(*command, **env), stderr=file, start_new_session=True)
    try:
        assert started.wait(60) == 128 + signal.SIGTERM, log.read_text()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        os.close(theirs)
    said = rf"python\S* \(process \d+\) listens on port {wrong} of the node, .* Its ports are {ports} .* ended in 0 s\."
    assert len(re.findall(said, log.read_text())) == 1
    assert log.read_text().count("listens on port") == 1, (
        "sshd's port is the job's, and what the kernel chose is no mistake"
    )
    assert re.search(said, os.read(terminal, 4096).decode())
    os.close(terminal)


def test_public_keys_in_the_home_directory_are_reported(job: Job) -> None:
    ssh = job.home / ".ssh"
    ssh.mkdir()
    (ssh / "id_ed25519.pub").write_text("ssh-ed25519 AAAA alice@laptop\n")
    (ssh / "id_ed25519").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    (ssh / "authorized_keys").write_text("# mine\nssh-rsa BBBB work\n")
    heard: list[tuple[str, str, object]] = []

    class Manager(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            heard.append((self.path, self.headers["Authorization"], json.loads(body)))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Manager) as server:
        answer = Thread(target=server.handle_request)
        answer.start()
        env = {
            "HOME": str(job.home),
            "DLSPAWNER_MANAGER_URL": f"http://127.0.0.1:{server.server_port}/services/jobs",
            "JUPYTERHUB_API_TOKEN": "hub-token",
            "http_proxy": "http://127.0.0.1:9",
        }
        subprocess.run([sys.executable, str(job.files / "report_ssh_keys.py")], env=env, check=True, timeout=60)
        answer.join(60)

    keys = [
        {"key": "ssh-ed25519 AAAA alice@laptop", "source": "~/.ssh/id_ed25519.pub"},
        {"key": "ssh-rsa BBBB work", "source": "~/.ssh/authorized_keys"},
    ]
    assert heard == [("/services/jobs/api/key-suggestions", "token hub-token", {"keys": keys})]


def run(job: Job, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(job.command(*command, **env), capture_output=True, text=True, timeout=60, check=False)


def test_the_command_runs_with_its_arguments_and_exit_status(job: Job) -> None:
    (job.files / "sshd_config").unlink()
    done = run(job, "sh", "-c", 'echo "$0" "$1"; exit 5', "with spaces", "and 'quotes'")

    assert (done.stdout, done.returncode) == ("with spaces and 'quotes'\n", 5)


def test_an_object_store_is_no_directory(job: Job) -> None:
    (job.files / "sshd_config").unlink()
    done = run(job, "sh", "-c", "! rmdir s3:/bucket/runs s3:/bucket s3:", DLSPAWNER_LOG_DIR="s3://bucket/runs")

    assert done.returncode == 0


def test_where_pip_puts_packages_is_there_before_a_kernel_starts(job: Job, tmp_path: Path) -> None:
    (job.files / "sshd_config").unlink()
    server = tmp_path / "jupyter"
    server.write_text("#!/bin/sh\nuntil [ -d ~/.local/lib/python*/site-packages ]; do sleep 0.1; done\n")
    server.chmod(0o755)

    assert run(job, str(server), DLSPAWNER_PYTHON=sys.prefix).returncode == 0


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT], ids=lambda sent: sent.name)
def test_signals_reach_the_command(sent: signal.Signals, job: Job) -> None:
    """In a PID namespace, where process 1 gets only signals that it has a handler for; the command has none."""
    (job.files / "sshd_config").unlink()
    says = job.files / "says"
    says.write_text("started\n")
    inner = job.command("tail", "-f", str(says))
    # INT is ignored where the tests run in the background of a script.
    inside = ["env", "--default-signal=INT", "unshare", "-Urp", "--fork", "--kill-child", *inner]
    with subprocess.Popen(inside, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        os.kill(process_one(process), sent)
        assert process.wait(60) == 128 + sent


def test_interrupts_are_not_ignored(job: Job) -> None:
    """POSIX shells start background processes with INT and QUIT ignored."""
    (job.files / "sshd_config").unlink()
    done = run(job, "grep", "SigIgn", "/proc/self/status")

    assert int(done.stdout.split()[1], 16) & 0b110 == 0


def test_an_image_without_sshd_runs_the_command(job: Job, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "env", "tr", "mkdir", "awk", "mktemp", "cat", "find", "date", "sleep", "true"):
        found = shutil.which(name)
        assert found is not None
        (tools / name).symlink_to(found)
    # The script looks for sshd in its usual places whatever PATH says.
    script = (job.files / "start").read_text().replace(":/usr/sbin:/usr/local/sbin:/sbin", "")
    (job.files / "start").write_text(script)
    done = run(job, "sh", "-c", "sleep 0.3; echo done", PATH=str(tools))

    assert done.stdout == "done\n"
    assert "sshd was not found in this image: the job runs without SSH" in done.stderr


def test_a_job_that_ends_before_sshd_runs_has_its_own_last_words(job: Job, tmp_path: Path) -> None:
    slow = tmp_path / "bin" / "tr"  # with which the script looks for sshd
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 30\n")
    slow.chmod(0o755)
    inner = job.command(
        "sh", "-c", "sleep 0.5; echo last words >&2; exit 3", PATH=f"{slow.parent}:{os.environ['PATH']}"
    )
    alone = ["unshare", "-Urmp", "--mount-proc", "--fork", "--kill-child"]
    done = subprocess.run([*alone, *inner], capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stderr) == (3, "last words\n")


def test_a_missing_program_is_named(job: Job) -> None:
    (job.files / "sshd_config").unlink()
    done = run(job, "jupyterhub-singleuser", PATH="/usr/bin:/bin")

    assert done.returncode == 127
    assert done.stderr == (
        "dlspawner: this image has no jupyterhub-singleuser. "
        "A notebook needs JupyterLab and JupyterHub in it: pip install jupyterlab jupyterhub\n"
    )


@pytest.fixture
def pair(job: Job, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts containers of one pod: they share a directory, and are process 1 each."""
    (job.files / "sshd_config").unlink()
    alive = tmp_path / "alive"
    alive.mkdir()
    running = []

    def start(*command: str) -> subprocess.Popen[str]:
        inner = job.command(*command, DLSPAWNER_ALIVE=str(alive))
        inside = ["unshare", "-Urp", "--fork", "--kill-child", *inner]
        process = subprocess.Popen(inside, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def process_one(process: subprocess.Popen[str]) -> int:
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])


def test_a_login_proxy_that_starts_after_the_end_of_main_ends_at_once(
    pair: Callable[..., subprocess.Popen[str]],
) -> None:
    assert pair("--main", "true").wait(60) == 0
    assert pair("--login-proxy", "sleep", "600").wait(60) == 0


def test_the_login_proxy_waits_for_main_and_ends_when_it_is_killed(pair: Callable[..., subprocess.Popen[str]]) -> None:
    proxy = pair("--login-proxy", "sh", "-c", "echo started; exec sleep 600")
    assert first_line(proxy) == "started\n"
    main = pair("--main", "sh", "-c", "echo started; exec sleep 600")
    assert first_line(main) == "started\n"
    assert proxy.poll() is None
    os.kill(process_one(main), signal.SIGKILL)
    assert proxy.wait(60) == 0
    assert "main has ended" in proxy.communicate()[1]


def test_the_command_of_main_does_not_inherit_the_lock(pair: Callable[..., subprocess.Popen[str]]) -> None:
    main = pair("--main", "sh", "-c", "[ -e /proc/self/fd/9 ] && echo inherited || echo closed")
    assert first_line(main) == "closed\n"
