"""Connection set-up and bulk copy through the gateway, against the job's sshd directly and through OpenSSH's `-J`.

All three end at the same sshd behind the same NodePort; the direct ways log in with a certificate that we sign here
with the gateway's own CA, which only the owner of its state directory can do.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.bench.figures import Figure, ratio
from tests.e2e.stack import Ssh, Stack, free_port, wait_for

ROUNDS = 5
SETUPS = 6
MIB = 256


@dataclass(frozen=True)
class Way:
    """One way to the job: the ssh command up to the destination's end."""

    name: str
    command: tuple[str, ...]

    def setup(self) -> float:
        """Seconds for `ssh … true`, the median of a few."""
        return median(self._timed(["true"]) for _ in range(SETUPS))

    def up(self) -> float:
        return self._timed(["cat >/dev/null"], feed=MIB)

    def down(self) -> float:
        return self._timed([f"head -c {MIB << 20} /dev/zero"])

    def _timed(self, command: list[str], feed: int = 0) -> float:
        source = ["head", "-c", str(feed << 20), "/dev/zero"]
        with subprocess.Popen(source, stdout=subprocess.PIPE) as zeros:
            started = time.perf_counter()
            done = subprocess.run(
                [*self.command, *command],
                stdin=zeros.stdout,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                check=False,
            )
            seconds = time.perf_counter() - started
        assert done.returncode == 0, done.stderr.decode()
        return seconds


@contextlib.contextmanager
def jump_host(folder: Path, client: Ssh) -> Iterator[int]:
    """An OpenSSH sshd that accepts the client's key and forwards, as a bastion host does."""
    folder.mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "host")], check=True)
    (folder / "authorized_keys").write_text(client.public_key + "\n")
    port = free_port()
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nPidFile none\nUsePAM no\nStrictModes no\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nPermitRootLogin yes\nMaxStartups 100\n"
    )
    sshd = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin") or "sshd"
    process = subprocess.Popen([sshd, "-D", "-f", str(folder / "sshd_config")])
    try:
        knock = ["ssh-keyscan", "-p", str(port), "127.0.0.1"]
        wait_for(lambda: subprocess.run(knock, capture_output=True, check=False).stdout, "the jump host answers")
        yield port
    finally:
        process.terminate()
        process.wait(10)


def ways(stack: Stack, client: Ssh, server: str, jump_port: int) -> tuple[Way, Way, Way]:
    """Through the gateway, direct, and through OpenSSH's -J."""
    pod = json.loads(stack.kubectl("get", "pods", "-l", f"dlspawner.dev/server={server}", "-o", "json"))["items"][0]
    job, name = pod["metadata"]["labels"]["dlspawner.dev/job"], pod["metadata"]["name"]
    service = json.loads(stack.kubectl("get", "service", f"{name}-ssh", "-o", "json"))
    host, port = pod["status"]["hostIP"], service["spec"]["ports"][0]["nodePort"]
    login = pod["metadata"]["annotations"]["dlspawner.dev/ssh-login"]
    ca = stack.state / "gateway" / "user_ca"
    subprocess.run(
        ["ssh-keygen", "-q", "-s", str(ca), "-I", "bench", "-n", job, f"{client.key}.pub"],
        check=True,
        capture_output=True,
    )
    options = ("-F", "none", "-i", str(client.key), "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no")
    options += ("-o", f"UserKnownHostsFile={client.folder}/bench_hosts", "-o", "LogLevel=ERROR")
    hop = f"ssh {' '.join(options)} -W %h:%p -p {jump_port} {getpass.getuser()}@127.0.0.1"
    through = Way("gateway", ("ssh", "-F", str(client.config), f"{client.login(server)}@gateway"))
    direct = Way("direct", ("ssh", *options, "-p", str(port), f"{login}@{host}"))
    jumped = Way("OpenSSH -J", ("ssh", *options, "-o", f"ProxyCommand={hop}", "-p", str(port), f"{login}@{host}"))
    return through, direct, jumped


def measure(stack: Stack, folder: Path) -> list[Figure]:
    """Interleaved rounds of set-up, upload and download on the three ways."""
    person = stack.person("ssh-bench")
    person.launch("bulk", template="ssh")
    client = person.ssh(folder / "client")
    with jump_host(folder / "jump", client) as port:
        three = ways(stack, client, "bulk", port)
        for way in three:
            way.setup()
        figures = []
        for title, unit_of, ask in QUESTIONS:
            rounds = [[ask(way) for way in three] for _ in range(ROUNDS)]
            figures += report(title, unit_of, [list(column) for column in zip(*rounds, strict=True)])
    person.stop("bulk")
    person.close()
    return figures


QUESTIONS: tuple[tuple[str, str, Callable[[Way], float]], ...] = (
    ("SSH connection set-up", "s", Way.setup),
    (f"SSH upload of {MIB} MiB", "MiB/s", Way.up),
    (f"SSH download of {MIB} MiB", "MiB/s", Way.down),
)


def report(title: str, unit: str, seconds: list[list[float]]) -> list[Figure]:
    """Set-up as seconds and ratios of seconds; copies as throughput and ratios of throughput."""
    through, direct, jumped = seconds
    if unit == "s":
        return [
            Figure(f"{title}, gateway", median(through), unit),
            ratio(title, through, direct, "direct sshd"),
            ratio(title, through, jumped, "OpenSSH -J"),
        ]
    against = ((direct, "direct sshd"), (jumped, "OpenSSH -J"))
    rates = [
        Figure(title, median(b / a for a, b in zip(through, peer, strict=True)), "ratio", "higher", None, name)
        for peer, name in against
    ]
    return [Figure(f"{title}, gateway", MIB / median(through), unit, "higher"), *rates]
