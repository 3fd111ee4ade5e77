"""Set-up, and many copies at once, through the whole product; against the job's sshd directly and `-J`.

All three end at the same sshd behind the same NodePort; the direct ways log in with a certificate that we sign here
with the gateway's own CA, which only the owner of its state directory can do. What the relay itself is worth is
measured without the product (`gateway`).
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.bench.figures import Figure, ratio
from tests.bench.gateway import CIPHERS, in_turn, rates
from tests.bench.ssh_ways import Way
from tests.e2e.people import Ssh
from tests.e2e.stack import Launched

ROUNDS = 5
AT_ONCE, MIB = 12, 64


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
    cipher = ("-c", CIPHERS[0])
    options = (*cipher, "-F", "none", "-i", str(client.key), "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no")
    options += ("-o", f"UserKnownHostsFile={client.folder}/bench_hosts", "-o", "LogLevel=ERROR")
    through_hop = f"ProxyCommand=ssh {' '.join(options)} -W %h:%p -p 2222 {hop.login}@{hop.pod_ip}"
    destination = ("-p", str(target.node_port), f"{target.login}@{target.node}")
    return (
        Way("gateway", ("ssh", *cipher, "-F", str(client.config), f"{client.login(server)}@gateway")),
        Way("direct", ("ssh", *options, *destination)),
        Way("OpenSSH -J", ("ssh", *options, "-o", through_hop, *destination)),
    )


def measure(stack: Launched, folder: Path) -> list[Figure]:
    """Interleaved rounds on the three ways."""
    person = stack.person("ssh-bench")
    for server in ("bulk", "jump"):
        person.launch(server, template="ssh")
    three = ways(stack, person.ssh(folder / "client"), "bulk", "jump")
    for way in three:
        way.setup()
    through, direct, jumped = zip(*([way.setup() for way in three] for _ in range(ROUNDS)), strict=True)
    many = together(three)
    for server in ("bulk", "jump"):
        person.stop(server)
    person.close()
    title = "SSH connection set-up, whole product"
    return [
        Figure(f"{title}, gateway", median(through), "s"),
        ratio(title, list(through), list(direct), "direct sshd", 1.15),
        ratio(title, list(through), list(jumped), "OpenSSH -J"),
        *many,
    ]


def together(three: tuple[Way, Way, Way]) -> list[Figure]:
    """Many copies at once, each a connection of its own."""
    figures: list[Figure] = []
    for direction, copy in (("up", Way.up), ("down", Way.down)):
        three[0].setup(2)
        seconds = in_turn(three, ROUNDS, lambda way, copy=copy: copy(way, MIB, AT_ONCE))
        figures += rates(f"SSH {direction}, {AT_ONCE} at once", MIB * AT_ONCE, seconds)
    return figures
