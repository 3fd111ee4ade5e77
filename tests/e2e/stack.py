"""The product as its users meet it: started by the launcher's own command, used over HTTP and SSH."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.people import Stack, last_whole_line, wait_for
from tests.harness.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
KUBECTL = os.environ.get("DLSPAWNER_KUBECTL", "kubectl")
# A cluster that is there already: the launcher adds nodes to it, one launcher at a time.
CLUSTER = os.environ.get("DLSPAWNER_E2E_KUBECONFIG", "")


def processes() -> Iterator[tuple[int, str, str]]:
    """Of all others that we may look at: number, command line, and that with the environment."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line, more = ((entry / name).read_bytes().replace(b"\0", b" ") for name in ("cmdline", "environ"))
            if int(entry.name) != os.getpid():
                yield int(entry.name), line.decode(errors="replace"), (line + more).decode(errors="replace")


@dataclass
class Launched(Stack):
    """A product that the launcher runs: its processes, addresses and secrets."""

    state: Path
    port: int = field(default_factory=free_port)
    ssh_port: int = field(default_factory=free_port)
    more: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    folder = ROOT  # where the person stands
    ssh_host = "127.0.0.1"
    device_plugin = True
    image = "debian:12"  # never pulled: a container of the embedded node sees this machine's files

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def secrets(self) -> dict[str, str]:
        return dict(json.loads((self.state / "secrets.json").read_text()))

    @property
    def secret_values(self) -> dict[str, str]:
        gateway, cluster = self.state / "gateway", self.state / "cluster"
        keys = {name: last_whole_line((gateway / name).read_text()) for name in ("user_ca", "ssh_host_ed25519_key")}
        more = {"cookie secret": (self.state / "hub_cookie_secret").read_text().strip()}
        if not CLUSTER:
            more["cluster token"] = (cluster / "token").read_text().strip()
            more["server.key"] = last_whole_line((cluster / "server.key").read_text())
        return {**self.secrets, **keys, **more}

    @property
    def secrets_since(self) -> float:
        return (self.state / "secrets.json").stat().st_mtime - 60

    @property
    def said_to_people(self) -> str:
        return str(self._output)

    @property
    def kubectl_env(self) -> dict[str, str]:
        return {**os.environ, "KUBECONFIG": str(self.state / "cluster" / "kubeconfig")}

    def command(self) -> list[str]:
        ports = [f"--port={self.port}", f"--ssh-port={self.ssh_port}"]
        cluster = [f"--kubeconfig={CLUSTER}"] if CLUSTER else []
        return [sys.executable, "-m", "dlspawner.local", f"--state={self.state}", *ports, *cluster, *self.more]

    @property
    def env(self) -> dict[str, str]:
        """The person's shell is behind a proxy, which must be asked for nothing on this machine."""
        names = () if CLUSTER else ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
        return {**os.environ, **dict.fromkeys(names, "http://127.0.0.1:9")}

    def start(self, seconds: float = 180) -> None:
        """Start and wait for the banner."""
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(self.command(), cwd=self.folder, env=self.env, stdout=output, stderr=output)
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
        return [line for _, line, seen in processes() if str(self.state) in seen or f":{hub}/hub/api" in seen]

    def process_of(self, word: str, mark: str = "") -> int:
        """The process of ours whose command line has this word; 0 when there is none."""
        mark = mark or str(self.state)
        return next((pid for pid, line, seen in processes() if word in line.split() and mark in seen), 0)

    def kill(self, word: str, mark: str = "") -> int:
        """As the kernel does it when memory is short; the launcher starts it again. Returns which it was."""
        victim = self.process_of(word, mark)
        assert victim, word  # 0 would be all of ours
        os.kill(victim, signal.SIGKILL)
        return victim

    def password(self, name: str) -> str:
        return self.secrets["admin_password" if name == "admin" else "password"]

    def kubectl(self, *arguments: str) -> str:
        """Debian's kubectl where the Makefile unpacked it, else the machine's."""
        done = subprocess.run(
            [KUBECTL, *arguments], env=self.kubectl_env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def copied_config(folder: Path) -> Path:
    """The shipped configuration of the launcher, for changes."""
    return shutil.copytree(
        ROOT / "hub_config", folder, ignore=shutil.ignore_patterns("kubernetes", "grafana", "images")
    )


@contextlib.contextmanager
def running(state: Path, *more: str, kind: type[Launched] = Launched) -> Iterator[Launched]:
    """A started stack, with more arguments for the launcher; it is stopped at the end, with nothing left behind."""
    stack = kind(state, more=more)
    stack.start()
    try:
        yield stack
    finally:
        if stack.process is not None and stack.process.poll() is None:
            stack.stop()


def failing(stack: Launched) -> str:
    """What the launcher says when it cannot start."""
    done = subprocess.run(
        stack.command(), cwd=stack.folder, env=stack.env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr
