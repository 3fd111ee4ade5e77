"""The gateway's relay against the job's sshd directly and OpenSSH's `-J`: `python -m tests.bench.gateway [--quick]`.

All three ways end at the same real sshd with the same client, key exchange, cipher and MAC, which are what the gateway
agrees on with OpenSSH's own client; `-J` goes through a second real sshd.
The gateways are processes of their own (`ssh_ends`), so their processor time and memory are theirs alone. Ways are
measured in turn, ratios are medians of the ratios of each round: what is said in seconds depends on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import asyncssh

from ssh_gateway.transport.keys import load_or_make
from tests.bench.figures import ROOT, Figure, processor_seconds, publish, ratio, resident_mib
from tests.bench.ssh_ways import Way
from tests.component.gateway.peers import Client, Sshd
from tests.harness.ports import free_port

CIPHERS = ("aes128-gcm@openssh.com", "aes256-ctr", "chacha20-poly1305@openssh.com")
SAME = ("-m", "hmac-sha2-256-etm@openssh.com", "-o", "KexAlgorithms=curve25519-sha256")
PEERS = ("direct", "OpenSSH -J")
OF_DIRECT, OF_JUMP = 0.85, 1.7
WARM_UP = 20


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    rounds: int = 5
    mib: int = 256
    keys: int = 500
    at_once: int = 12
    idle: int = 1000


QUICK = Size(rounds=1, mib=4, keys=20, at_once=3, idle=20)


class Lab:
    """One job, a jump host, a pod for those who are idle, and gateways on one port, which end with its stack."""

    def __init__(self, folder: Path, ends: contextlib.ExitStack) -> None:
        self.folder, self._ends = folder, ends
        keys = load_or_make(folder / "gateway")
        own = asyncssh.generate_private_key("ssh-ed25519")
        self.port, self._idle_port = free_port(), free_port()
        self.client = Client(folder / "client", self.port, own, keys.host)
        own.write_public_key(folder / "client" / "id.pub")
        self._job = self._sshd("job", keys.user_ca, own)
        self._hop = self._sshd("hop", keys.user_ca, own)
        self.start("pod", str(self._idle_port))

    def _sshd(self, name: str, ca: asyncssh.SSHKey, key: asyncssh.SSHKey) -> Sshd:
        made = Sshd(self.folder / name, ca, free_port(), keys=(key,))
        made.start()
        self._ends.callback(made.stop)
        return made

    def start(self, role: str, *arguments: str) -> subprocess.Popen[str]:
        """Start one of `ssh_ends`; all but the crowd say when they listen."""
        process = self._ends.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "tests.bench.ssh_ends", role, str(self.folder), *arguments],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        self._ends.callback(process.kill)
        if role != "crowd":
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
        return process

    def gateway(self) -> subprocess.Popen[str]:
        """One more gateway on the port."""
        return self.start("gateway", str(self.port), str(self._job.port), str(self._idle_port))

    def tcp_relay(self) -> tuple[subprocess.Popen[str], int]:
        """The process that passes on bytes, and its port."""
        port = free_port()
        return self.start("tcp", str(port), str(self._job.port)), port

    def straight(self, name: str, port: int, cipher: str = CIPHERS[0]) -> Way:
        """To what listens at this port, without a gateway."""
        return Way(name, ("ssh", *self._options(cipher), "-p", str(port), "person@127.0.0.1"))

    def _options(self, cipher: str) -> tuple[str, ...]:
        options = ("-F", str(self.client.config), "-c", cipher, *SAME, "-o", "StrictHostKeyChecking=no")
        return (*options, "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR")

    def ways(self, cipher: str = CIPHERS[0]) -> tuple[Way, Way, Way]:
        """Through the gateway, direct, and through the jump host."""
        options, direct = self._options(cipher), self.straight("direct", self._job.port, cipher)
        hop = shlex.join(("ssh", *options, "-p", str(self._hop.port), "-W", "[%h]:%p", "person@127.0.0.1"))
        jumped = Way("OpenSSH -J", ("ssh", "-o", f"ProxyCommand={hop}", *direct.command[1:]))
        return Way("gateway", ("ssh", *options, "alice+train@gateway")), direct, jumped

    def bob(self) -> Way:
        return Way("gateway", ("ssh", "-F", str(self.client.config), "-c", CIPHERS[0], "bob+train@gateway"))


def measure(folder: Path, size: Size) -> list[Figure]:
    with contextlib.ExitStack() as ends:
        lab = Lab(folder, ends)
        one = lab.gateway()
        for way in lab.ways():
            way.setup(1)
        figures = setups(lab, size)
        for cipher in CIPHERS:
            figures += bulk(lab, size, cipher, one.pid)
        figures += plain_relay(lab, size)
        figures += echoes(lab, size)
        figures += memory(lab, size, one.pid)
        lab.gateway()
        figures += together(lab, size, one.pid)
    return figures


def setups(lab: Lab, size: Size) -> list[Figure]:
    through, direct, jumped = in_turn(lab.ways(), size.rounds, Way.setup)
    title = "SSH connection set-up"
    return [
        Figure(f"{title}, gateway", median(through), "s"),
        ratio(title, through, direct, "direct", 1.15),
        ratio(title, through, jumped, "OpenSSH -J"),
    ]


def bulk(lab: Lab, size: Size, cipher: str, pid: int) -> list[Figure]:
    """Both directions; the gateway's own processor time beside them."""
    figures: list[Figure] = []
    for direction, ways, per_gib in copies(lab.ways(cipher), size.rounds, size.mib, pid):
        title = f"SSH {direction}, {cipher.partition('@')[0]}"
        figures += rates(title, size.mib, ways)
        figures.append(Figure(f"{title}: gateway's processor time", per_gib, "s/GiB", "lower", 0.8))
    return figures


def plain_relay(lab: Lab, size: Size) -> list[Figure]:
    """What a relay takes that knows nothing of SSH: the least."""
    figures: list[Figure] = []
    process, port = lab.tcp_relay()
    both = lab.ways()[1], lab.straight("TCP relay", port)
    for direction, (direct, relayed), per_gib in copies(both, size.rounds, size.mib, process.pid):
        title = f"TCP relay {direction}, {CIPHERS[0].partition('@')[0]}"
        figures.append(ratio(title, direct, relayed, "direct", better="higher"))
        figures.append(Figure(f"{title}: processor time", per_gib, "s/GiB"))
    process.kill()
    return figures


def together(lab: Lab, size: Size, pid: int) -> list[Figure]:
    """Several transfers at once, with two gateways on the port."""
    each = max(1, size.mib // 4)
    figures: list[Figure] = []
    for direction, ways, _ in copies(lab.ways(), size.rounds, each, pid, size.at_once):
        figures += rates(f"SSH {direction}, {size.at_once} at once, 2 gateways", each * size.at_once, ways)
    return figures


def echoes(lab: Lab, size: Size) -> list[Figure]:
    """From key to echo on a terminal, idle on all ways, and while another person downloads through the same gateway."""
    through, direct, jumped = lab.ways()
    idle: list[list[list[float]]] = []
    busy: list[list[float]] = []
    for _ in range(size.rounds):
        idle.append([way.echo(size.keys) for way in (through, direct, jumped)])
        with lab.bob().downloading():
            busy.append(through.echo(size.keys))
    ours, plain, hop = ([median(one) for one in column] for column in zip(*idle, strict=True))
    return [
        Figure("SSH echo p50, gateway", 1000 * median(ours), "ms"),
        ratio("SSH echo p50", ours, plain, "direct"),
        ratio("SSH echo p50", ours, hop, "OpenSSH -J", 1.0),
        Figure("SSH echo p50 while another downloads", 1000 * median(map(median, busy)), "ms", aim=1.0),
    ]


def memory(lab: Lab, size: Size, pid: int) -> list[Figure]:
    """What a gateway that is in use already has grown by, for each connection that then does nothing."""
    crowd = lab.start("crowd", str(lab.port))
    sizes = []
    for more in (WARM_UP, size.idle):
        assert crowd.stdin is not None
        assert crowd.stdout is not None
        print(more, file=crowd.stdin, flush=True)
        assert crowd.stdout.readline(), "the crowd could not log in"
        sizes.append(resident_mib(pid))
    crowd.kill()
    title = f"SSH gateway's memory for each of {size.idle:,} idle"
    return [Figure(title, 1024 * (sizes[1] - sizes[0]) / size.idle, "KiB", "lower", 64)]


def in_turn(ways: tuple[Way, ...], rounds: int, ask: Callable[[Way], float]) -> list[list[float]]:
    """One list for each way."""
    asked = [[ask(way) for way in ways] for _ in range(rounds)]
    return [list(column) for column in zip(*asked, strict=True)]


def copies(
    ways: tuple[Way, ...], rounds: int, mib: int, pid: int, at_once: int = 1
) -> Iterator[tuple[str, list[list[float]], float]]:
    """Both directions: the seconds of each way, and the processor time of one process for a GiB."""
    for direction, copy in (("up", Way.up), ("down", Way.down)):
        before = processor_seconds(pid)
        seconds = in_turn(ways, rounds, lambda way, copy=copy: copy(way, mib, at_once))
        yield direction, seconds, (processor_seconds(pid) - before) / (rounds * mib / 1024)


def rates(title: str, mib: int, seconds: list[list[float]]) -> list[Figure]:
    """Throughput of the gateway and its ratios to the others'."""
    ours = seconds[0]
    figures = [Figure(f"{title}, gateway", mib / median(ours), "MiB/s", "higher")]
    for peer, theirs, aim in zip(PEERS, seconds[1:], (OF_DIRECT, OF_JUMP), strict=True):
        figures.append(ratio(title, theirs, ours, peer, aim, better="higher"))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="whether it works, not how fast it is")
    size = QUICK if parser.parse_args().quick else Size()
    publish("bench-gateway", lambda folder: measure(folder, size))


if __name__ == "__main__":
    main()
