"""The product as its users meet it: started by the launcher's own command, used over HTTP and SSH."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import requests

from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
KUBECTL = os.environ.get("DLSPAWNER_KUBECTL", "kubectl")
T = TypeVar("T")


def wait_for(question: Callable[[], T], what: str, seconds: float = 30) -> T:
    """The first true answer to `question`; an AssertionError naming `what` when there is none in time."""
    deadline = time.monotonic() + seconds
    while not (answer := question()):
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.05)
    return answer


@dataclass
class Stack:
    """One running product: its processes, addresses and secrets."""

    state: Path
    port: int = field(default_factory=free_port)
    ssh_port: int = field(default_factory=free_port)
    more: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def secrets(self) -> dict[str, str]:
        return dict(json.loads((self.state / "secrets.json").read_text()))

    @property
    def kubectl_env(self) -> dict[str, str]:
        return {**os.environ, "KUBECONFIG": str(self.state / "cluster" / "kubeconfig")}

    def command(self) -> list[str]:
        ports = [f"--port={self.port}", f"--ssh-port={self.ssh_port}"]
        return [sys.executable, "-m", "dlspawner.local", f"--state={self.state}", *ports, *self.more]

    def start(self, seconds: float = 90) -> None:
        """Start and wait for the banner."""
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(self.command(), cwd=ROOT, stdout=output, stderr=output)
        try:
            wait_for(self._banner, "the banner", seconds)
        except BaseException:
            self.stop()
            raise

    @property
    def _output(self) -> Path:
        return self.state.with_name(f"{self.state.name}.said")

    @property
    def said(self) -> str:
        """Everything the launcher told the person since its last start."""
        return self._output.read_text()

    def _banner(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.said
        return "Ctrl-C stops everything" in self.said

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """Stop as Ctrl-C does; the launcher's exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(60)

    def processes(self) -> list[str]:
        """Command lines of every process of ours: it names our state directory, or the Hub that its job reports to."""
        hub = json.loads((self.state / "ports.json").read_text())["hub"]
        marks = (str(self.state).encode(), f":{hub}/hub/api".encode())
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    line = (entry / "cmdline").read_bytes()
                    seen = line + (entry / "environ").read_bytes()
                    if any(mark in seen for mark in marks):
                        found.append(line.replace(b"\0", b" ").decode())
        return found

    def process_of(self, module: str) -> int:
        """The process of ours that runs a Python module; 0 when there is none."""
        ours = (self.state.as_posix().encode(), f"-m\0{module}".encode())
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    line = (entry / "cmdline").read_bytes()
                    if ours[1] in line and ours[0] in line + (entry / "environ").read_bytes():
                        return int(entry.name)
        return 0

    def person(self, name: str) -> Person:
        password = self.secrets["admin_password" if name == "admin" else "password"]
        return Person(self, name, password)

    def kubectl(self, *arguments: str) -> str:
        """Debian's kubectl where the Makefile unpacked it, else the machine's."""
        done = subprocess.run(
            [KUBECTL, *arguments], env=self.kubectl_env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


class Person:
    """Somebody with a browser session and a token, who may be another one in the next test."""

    def __init__(self, stack: Stack, name: str, password: str) -> None:
        self.stack, self.name, self.password = stack, name, password
        self.http = requests.Session()
        self.http.get(f"{stack.url}/hub/login", timeout=30)
        answer = self.http.post(
            f"{stack.url}/hub/login",
            data={"username": name, "password": password, "_xsrf": self.xsrf},
            timeout=30,
        )
        assert answer.ok, answer.text
        made = self.http.post(
            f"{stack.url}/hub/api/users/{name}/tokens",
            headers={"X-XSRFToken": self.xsrf},
            json={"note": "tests"},
            timeout=30,
        )
        assert made.status_code == 201, made.text
        self.token: str = made.json()["token"]

    @property
    def xsrf(self) -> str:
        return next(cookie.value or "" for cookie in self.http.cookies if cookie.name == "_xsrf")

    def close(self) -> None:
        self.http.close()

    def api(self, method: str, path: str, body: Any = None, token: str | None = None) -> requests.Response:
        """One request to the Hub's REST API with this person's token."""
        return requests.request(
            method,
            f"{self.stack.url}/hub/api{path}",
            headers={"Authorization": f"token {token or self.token}"},
            json=body,
            timeout=60,
        )

    def start(self, server: str, **options: object) -> requests.Response:
        """POST the options; the answer says 201 (ready), 202 (pending) or what was wrong."""
        path = f"/users/{self.name}/servers/{server}" if server else f"/users/{self.name}/server"
        return self.api("POST", path, {"user_options": options} if options else None)

    def launch(self, server: str, seconds: float = 60, **options: object) -> dict[str, Any]:
        """Start a server and wait until it is ready; its model."""
        answer = self.start(server, **options)
        assert answer.status_code in {201, 202}, answer.text
        return wait_for(lambda: self.ready(server), f"{self.name}/{server} is ready", seconds)

    def server(self, server: str) -> dict[str, Any]:
        """The server's model, {} when it does not run."""
        model = self.api("GET", f"/users/{self.name}").json()
        return dict(model.get("servers", {}).get(server, {}))

    def ready(self, server: str) -> dict[str, Any]:
        model = self.server(server)
        return model if model.get("ready") else {}

    def stop(self, server: str, seconds: float = 60) -> None:
        path = f"/users/{self.name}/servers/{server}" if server else f"/users/{self.name}/server"
        answer = self.api("DELETE", path)
        assert answer.status_code in {202, 204}, answer.text
        wait_for(lambda: not self.server(server).get("pending") and not self.ready(server), "it stopped", seconds)

    def add_key(self, public_key: str, name: str = "laptop") -> requests.Response:
        return requests.post(
            f"{self.stack.url}/services/jobs/api/keys",
            headers={"Authorization": f"token {self.token}"},
            json={"key": public_key, "name": name},
            timeout=30,
        )

    def ssh(self, folder: Path) -> Ssh:
        """An OpenSSH client with a fresh key that is registered for this person."""
        client = Ssh(self, folder)
        answer = self.add_key(client.public_key)
        assert answer.status_code == 201, answer.text
        return client


class Ssh:
    """OpenSSH's own programs, isolated from the machine's ~/.ssh by a configuration file of their own."""

    def __init__(self, person: Person, folder: Path) -> None:
        self.person, self.folder = person, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.key = folder / "id_ed25519"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key)], check=True)
        self.config = folder / "config"
        self.config.write_text(
            f"Host *\n IdentityFile {self.key}\n IdentitiesOnly yes\n BatchMode yes\n ControlPath none\n"
            f" StrictHostKeyChecking accept-new\n UserKnownHostsFile {folder}/known_hosts\n LogLevel ERROR\n"
            f"Host gateway\n HostName 127.0.0.1\n Port {person.stack.ssh_port}\n User {person.name}\n"
        )

    @property
    def public_key(self) -> str:
        return self.key.with_suffix(".pub").read_text().strip()

    def login(self, server: str) -> str:
        return f"{self.person.name}+{server}" if server else self.person.name

    def run(
        self, server: str, *command: str, options: tuple[str, ...] = (), text: str | None = None, seconds: float = 30
    ) -> subprocess.CompletedProcess[str]:
        """`ssh alice+server@gateway command`."""
        return subprocess.run(
            ["ssh", "-F", str(self.config), *options, f"{self.login(server)}@gateway", *command],
            input=text,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def tool(self, *command: str, text: str | None = None, seconds: float = 60) -> subprocess.CompletedProcess[str]:
        """scp, sftp, rsync …: "-F" and the configuration are put in by the caller where the tool wants them."""
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=seconds, check=False)

    @property
    def remote_shell(self) -> str:
        """What rsync's -e wants."""
        return f"ssh -F {shlex.quote(str(self.config))}"


@contextlib.contextmanager
def running(state: Path) -> Iterator[Stack]:
    """A started stack that is stopped at the end, with nothing left behind."""
    stack = Stack(state)
    stack.start()
    try:
        yield stack
    finally:
        if stack.process is not None and stack.process.poll() is None:
            stack.stop()
