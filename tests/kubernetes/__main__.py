"""A real Kubernetes on this machine:  python -m tests.kubernetes build | up | down | with COMMAND …

    build           Kubernetes, etcd and the rest, and the product's images, into the user's cache
    up              start a cluster and leave it running
    down            stop it
    with COMMAND …  start a cluster, run a command on it, stop it; ends as the command ends

A command finds KUBECONFIG, DLSPAWNER_IMAGE_PREFIX, DLSPAWNER_IMAGE_TAG and DLSPAWNER_KUBECTL; with `--test-images` also
the images that tests/kubernetes/test_any_image.py starts.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tests.kubernetes import build, cluster, machine, packages, product, user_images
from tests.kubernetes.images import Image
from tests.kubernetes.instance import ENVIRONMENT, MOST, CannotRun, Instance
from tests.kubernetes.record import start_time


def say(text: str) -> None:
    print(text, flush=True)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--instance", type=int, choices=range(1, MOST + 1), metavar="NUMBER", help="default: a free one"
    )
    parser.add_argument("--state", type=Path, help="directory of the cluster's state; default: in the user's cache")
    parser.add_argument("--keep", action="store_true", help="keep the cluster's state for the next start")
    parser.add_argument("--control-plane", action="store_true", help="without a node: needs no root")
    parser.add_argument("--ipv6", action="store_true", help="pods, Services and the node have addresses of IPv6 alone")
    parser.add_argument("--test-images", action="store_true", help="also with the images that tests bring as people do")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("build", "up", "down", "guard"):
        verbs.add_parser(verb)
    verbs.add_parser("with").add_argument("command", nargs=argparse.REMAINDER)
    return parser.parse_args(arguments)


@contextmanager
def signals_stop() -> Iterator[None]:
    """The first TERM, HUP or Ctrl-C ends the run in order; more of them while it cleans up change nothing."""

    def stop(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    yield


def environment(instance: Instance) -> dict[str, str]:
    """The variables of the cluster for the suites; the last is for tests that stop its node."""
    return {
        "KUBECONFIG": str(instance.kubeconfig()),
        "DLSPAWNER_KUBECTL": str(build.binaries(say).path("kubectl")),
        "DLSPAWNER_IMAGE_PREFIX": product.PREFIX,
        "DLSPAWNER_IMAGE_TAG": product.tag(),
        ENVIRONMENT: str(instance.state),
    }


def start(instance: Instance, wanted: list[Image], *, keep: bool = False) -> None:
    cluster.start(instance, wanted, say, keep=keep)
    where = f"NodePorts at {instance.node_ip}; " if instance.node else ""
    say(f"  {where}logs in {instance.run / 'log'}")


def up(instance: Instance, wanted: list[Image]) -> int:
    """Start it, and leave it to `down`."""
    try:
        start(instance, wanted)
    except BaseException:
        cluster.stop(instance.number)
        raise
    cluster.record(instance.number).add("left")
    return 0


def with_cluster(instance: Instance, wanted: list[Image], options: argparse.Namespace, lock: int) -> int:
    """Start it, run the command on it, stop it, however the command or we are ended."""
    with cluster.guarded(instance.number, lock):
        try:
            start(instance, wanted, keep=options.keep)
            return run_command(options.command, instance)
        finally:
            say("Stopping Kubernetes …")
            cluster.stop(instance.number)


def run_command(command: list[str], instance: Instance) -> int:
    """Its exit status. A signal that ends us ends it first."""
    with subprocess.Popen(command, env=os.environ | environment(instance)) as process:
        cluster.record(instance.number).add("process", pid=process.pid, start=start_time(process.pid), name=command[0])
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.terminate()
            raise


def images(options: argparse.Namespace) -> list[Image]:
    """The node's images, made where they are missing."""
    if options.control_plane:
        return []
    return [*product.images(say), *(user_images.images(say) if options.test_images else [])]


def run(options: argparse.Namespace) -> int:
    numbers: Iterable[int] = [options.instance] if options.instance else range(1, MOST + 1)
    if options.verb == "guard":
        sys.stdin.read()
        cluster.stop(options.instance)
        return 0
    if options.verb == "down":
        cluster.sweep(numbers, say, left=True)
        return 0
    if not options.control_plane:
        machine.need_root()
    build.binaries(say)
    if not options.control_plane:
        packages.programs(say)
    wanted = images(options)  # last: they take as long, and what is missing for the others is known at once
    if options.verb == "build":
        return 0
    if options.keep and options.state and (options.state / "cluster.json").exists():
        numbers = [Instance.load(options.state).number]  # its certificates and volumes name it
    cluster.sweep(range(1, MOST + 1), say)
    if numbers == range(1, MOST + 1):
        node = not options.control_plane
        numbers = (one for one in numbers if machine.free(Instance(one, Path(), node=node, ipv6=options.ipv6)))
    with cluster.held(numbers) as (number, lock):
        state = (options.state or cluster.instances() / str(number)).absolute()
        instance = Instance(number, state, node=not options.control_plane, ipv6=options.ipv6)
        if options.verb == "up":
            return up(instance, wanted)
        return with_cluster(instance, wanted, options, lock)


def main() -> None:
    try:
        with signals_stop():
            sys.exit(run(parse(sys.argv[1:])))
    except CannotRun as problem:
        sys.exit(str(problem))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
