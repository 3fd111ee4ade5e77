"""Users with a browser session, a token and OpenSSH's programs at a running product."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

import requests

T = TypeVar("T")


def wait_for(question: Callable[[], T], what: str, seconds: float = 60) -> T:
    """The first true answer to `question`; an AssertionError naming `what` when there is none in time.

    A question that takes long is asked less often: its answer costs time.
    """
    deadline = time.monotonic() + seconds
    while True:
        asked = time.monotonic()
        if answer := question():
            return answer
        answered = time.monotonic()
        assert answered < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(min(max(0.05, answered - asked), 1))


def answers(url: str) -> bool:
    """A redirect is no answer: so the Hub meets what the proxy has no route for, a new one for up to a minute."""
    try:
        return requests.get(url, timeout=5, allow_redirects=False).status_code == requests.codes.ok
    except requests.RequestException:
        return False


def events_of(answer: requests.Response) -> Iterator[dict[str, Any]]:
    """What a stream of server-sent events tells, such as the progress of a start."""
    for line in answer.iter_lines():
        if line.startswith(b"data:"):
            yield json.loads(line.removeprefix(b"data:"))


@contextlib.contextmanager
def begun(command: Sequence[str], stdin: int = subprocess.DEVNULL, **env: str) -> Iterator[subprocess.Popen[str]]:
    """A client that is killed in the end."""
    pipes = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, text=True, env={**os.environ, **env}, **pipes)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def last_whole_line(key: str) -> str:
    """A line of a private key in PEM that nothing else has: the lines before it hold the public part too."""
    return key.strip().splitlines()[-3]


class Stack(ABC):
    """A running product, wherever it runs: where people find it, and the cluster under it."""

    url: str
    ssh_host: str
    ssh_port: int
    device_plugin: bool  # whether NVIDIA_VISIBLE_DEVICES is set for jobs with GPUs
    image: str  # what the template `custom` can run here

    @abstractmethod
    def password(self, name: str) -> str:
        """The input of this user on the login page."""

    @property
    @abstractmethod
    def secret_values(self) -> dict[str, str]:
        """The product's secrets, by name; of a private key, its last whole line."""

    @property
    def secrets_since(self) -> float:
        """No file that was changed before this time holds one of them."""
        return 0.0

    @property
    def said_to_people(self) -> str:
        """A file of the tests' own that jobs can read, and that has passwords in it."""
        return ""

    @abstractmethod
    def kubectl(self, *arguments: str) -> str:
        """Returns kubectl's output in the jobs' namespace; an AssertionError with its complaint when it fails."""

    def person(self, name: str) -> Person:
        return Person(self, name, self.password(name))


class Person:
    """A user with a browser session and a token; another test may have another user."""

    def __init__(self, stack: Stack, name: str, password: str) -> None:
        self.stack, self.name, self.password = stack, name, password
        self.http = requests.Session()
        self.get("/hub/login")
        answer = self.post("/hub/login", username=name, password=password)
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
        cookies = (cookie for cookie in self.http.cookies if cookie.name == "_xsrf" and cookie.path != "/user")
        return next(cookie.value or "" for cookie in cookies)

    def close(self) -> None:
        self.http.close()

    def get(self, path: str) -> requests.Response:
        return self.http.get(self.stack.url + path, timeout=60)

    def post(self, path: str, **fields: str) -> requests.Response:
        """A form, with the Hub's token; its answer, and not the page that this leads to."""
        data = {**fields, "_xsrf": self.xsrf}
        return self.http.post(self.stack.url + path, data=data, timeout=60, allow_redirects=False)

    def api(self, method: str, path: str, body: Any = None, token: str | None = None) -> requests.Response:
        """One request to the Hub's REST API with this person's token."""
        return requests.request(
            method,
            f"{self.stack.url}/hub/api{path}",
            headers={"Authorization": f"token {token or self.token}"},
            json=body,
            timeout=60,
        )

    def server_path(self, server: str) -> str:
        return f"/users/{self.name}/servers/{server}" if server else f"/users/{self.name}/server"

    def start(self, server: str, **options: object) -> requests.Response:
        """POST the options; the answer says 201 (ready), 202 (pending) or what was wrong."""
        return self.api("POST", self.server_path(server), {"user_options": options} if options else None)

    def launch(self, server: str, seconds: float = 180, **options: object) -> dict[str, Any]:
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

    def stop(self, server: str, seconds: float = 120) -> None:
        answer = self.api("DELETE", self.server_path(server))
        assert answer.status_code in {202, 204}, answer.text
        wait_for(lambda: not self.server(server).get("pending") and not self.ready(server), "it stopped", seconds)

    def manager(self, method: str, path: str, body: object = None) -> requests.Response:
        """One request to the Manager's REST API, which has to succeed."""
        answer = requests.request(
            method,
            f"{self.stack.url}/services/jobs/api{path}",
            headers={"Authorization": f"token {self.token}"},
            json=body,
            timeout=60,
        )
        assert answer.ok, answer.text
        return answer

    def jobs(self) -> list[dict[str, Any]]:
        """All of this person's, ended ones as well."""
        return list(self.manager("GET", f"/jobs?user={self.name}").json()["items"])

    def ssh(self, folder: Path) -> Ssh:
        """An OpenSSH client with a fresh key that is registered for this person."""
        client = Ssh(self, folder)
        self.manager("POST", "/keys", {"key": client.public_key, "name": "laptop"})
        return client


def read_until(stream: IO[str] | None, words: str) -> str:
    """Returns what a process has written up to the line with these words."""
    assert stream is not None
    text = ""
    for line in stream:
        text += line
        if words in line:
            return text
    raise AssertionError(text)


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
            f"Host gateway\n HostName {person.stack.ssh_host}\n Port {person.stack.ssh_port}\n User {person.name}\n"
        )

    @property
    def public_key(self) -> str:
        return self.key.with_suffix(".pub").read_text().strip()

    def login(self, server: str) -> str:
        return f"{self.person.name}+{server}" if server else self.person.name

    def line(self, server: str, *command: str, options: Sequence[str] = ()) -> list[str]:
        return ["ssh", "-F", str(self.config), *options, f"{self.login(server)}@gateway", *command]

    def run(
        self, server: str, *command: str, options: tuple[str, ...] = (), text: str | None = None, seconds: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """`ssh alice+server@gateway command`."""
        return subprocess.run(
            self.line(server, *command, options=options),
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
        """The value of rsync's -e."""
        return f"ssh -F {shlex.quote(str(self.config))}"
