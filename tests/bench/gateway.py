"""Connection set-up and bulk copy through the gateway, against the job's sshd directly and through OpenSSH's `-J`.

All three end at the same sshd behind the same NodePort; the direct ways log in with a certificate that we sign here
with the gateway's own CA, which only the owner of its state directory can do.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.bench.figures import Figure, ratio
from tests.e2e.people import Ssh
from tests.e2e.stack import Launched

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


@dataclass(frozen=True)
class Sshd:
    """A job's own sshd: where it listens, how its NodePort is reached, and as whom one logs in."""

    job: str
    login: str
    pod_ip: str
    node: str
    node_port: int


def sshd_of(stack: Launched, server: str) -> Sshd:
    pod = json.loads(stack.kubectl("get", "pods", "-l", f"dlspawner.dev/server={server}", "-o", "json"))["items"][0]
    meta, status = pod["metadata"], pod["status"]
    service = json.loads(stack.kubectl("get", "service", f"{meta['name']}-ssh", "-o", "json"))
    login = meta["annotations"]["dlspawner.dev/ssh-login"]
    port = service["spec"]["ports"][0]["nodePort"]
    return Sshd(meta["labels"]["dlspawner.dev/job"], login, status["podIP"], status["hostIP"], port)


def ways(stack: Launched, client: Ssh, server: str, jump: str) -> tuple[Way, Way, Way]:
    """Through the gateway, direct, and through another job's OpenSSH as the jump host (straight at its address)."""
    target, hop = sshd_of(stack, server), sshd_of(stack, jump)
    ca = stack.state / "gateway" / "user_ca"
    subprocess.run(
        ["ssh-keygen", "-q", "-s", str(ca), "-I", "bench", "-n", f"{target.job},{hop.job}", f"{client.key}.pub"],
        check=True,
        capture_output=True,
    )
    options = ("-F", "none", "-i", str(client.key), "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no")
    options += ("-o", f"UserKnownHostsFile={client.folder}/bench_hosts", "-o", "LogLevel=ERROR")
    through_hop = f"ProxyCommand=ssh {' '.join(options)} -W %h:%p -p 2222 {hop.login}@{hop.pod_ip}"
    destination = ("-p", str(target.node_port), f"{target.login}@{target.node}")
    return (
        Way("gateway", ("ssh", "-F", str(client.config), f"{client.login(server)}@gateway")),
        Way("direct", ("ssh", *options, *destination)),
        Way("OpenSSH -J", ("ssh", *options, "-o", through_hop, *destination)),
    )


def measure(stack: Launched, folder: Path) -> list[Figure]:
    """Interleaved rounds of set-up, upload and download on the three ways."""
    person = stack.person("ssh-bench")
    for server in ("bulk", "jump"):
        person.launch(server, template="ssh")
    client = person.ssh(folder / "client")
    three = ways(stack, client, "bulk", "jump")
    for way in three:
        way.setup()
    figures = []
    for title, unit, ask in QUESTIONS:
        rounds = [[ask(way) for way in three] for _ in range(ROUNDS)]
        figures += report(title, unit, [list(column) for column in zip(*rounds, strict=True)])
    for server in ("bulk", "jump"):
        person.stop(server)
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
        Figure(
            f"{title}: ratio to {name}",
            median(b / a for a, b in zip(through, peer, strict=True)),
            "ratio",
            "higher",
            peer=name,
        )
        for peer, name in against
    ]
    return [Figure(f"{title}, gateway", MIB / median(through), unit, "higher"), *rates]
