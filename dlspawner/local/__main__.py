"""The whole product on one machine: `make run`, `dlspawner local`, and the end-to-end tests.

It starts the embedded cluster (with `--kubeconfig` only its nodes, which join the given cluster), the proxy, the
Manager, the Hub and the gateway, and Prometheus if this machine has one, each as a process of its own with a log in the
state directory. It keeps them running, and stops them in reverse order. Everything that must survive is in the state
directory: the cluster's objects and volumes, the databases of the Hub and the Manager, keys, passwords, and the ports
known to running jobs.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from dlspawner import settings
from dlspawner.clients import kubernetes
from dlspawner.errors import InvalidConfiguration
from dlspawner.local.processes import NAMESPACE, SPECIAL_NAMESPACE, children, environment, point_at_nodes
from dlspawner.local.state import (
    CannotRun,
    Options,
    Secrets,
    check_ports,
    keep_kubeconfig,
    keep_ports,
    keep_secrets,
    lock,
    parse,
)
from dlspawner.local.supervisor import Child, ChildFailed, Supervisor, stop_signals

Made = tuple[kubernetes.ResourceKind, kubernetes.Object]  # an object of the cluster


def read_files(options: Options) -> tuple[settings.Settings | None, str]:
    """Returns the settings, or the mistakes in the files; these are raised if there has been no earlier start.

    The Manager and the Hub then use the last good version, which the Manager has in its database.
    """
    files = options.templates / "jobs", options.config / "cluster.yaml", options.config / "teams.yaml"
    try:
        return settings.load(*files), ""
    except InvalidConfiguration as wrong:
        if not (options.state / "manager.sqlite").exists():
            raise
        return None, f"\n  These files are not used. Their last good version is, until they are corrected:\n\n{wrong}\n"


def namespace(name: str, **labels: str) -> Made:
    """A namespace for jobs."""
    return kubernetes.NAMESPACES, {"metadata": {"name": name, "labels": labels}}


def of_files(wanted: settings.Settings) -> Iterator[Made]:
    """Objects that the files name, for an administrator to make, here the launcher: claims for team data, and the
    PriorityClasses of hub_config/kubernetes/base/priorities.yaml.
    """
    for name in sorted({mount.claim for team in wanted.teams.teams for mount in team.mounts}):
        spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "10Gi"}}}
        yield kubernetes.CLAIMS, {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}
    classes = wanted.cluster.scheduling.classes
    for class_name, value in ((classes.guaranteed, 1000), (classes.preemptible, 0)):
        if class_name is not None:
            made = {"metadata": {"name": class_name}, "value": value, "preemptionPolicy": "Never"}
            yield kubernetes.PRIORITY_CLASSES, made


async def make(kubeconfig: Path, *objects: Made) -> None:
    """Makes what an earlier start has not made; raises CannotRun if the cluster does not answer."""
    try:
        async with await kubernetes.KubernetesClient.connect(kubeconfig) as client:
            for kind, manifest in objects:
                with suppress(kubernetes.Conflict):
                    await client.create(kind, manifest)
    except kubernetes.KubernetesError as error:
        raise CannotRun(f"The cluster of {kubeconfig} cannot be used: {error}") from error


async def make_gateway_keys(options: Options) -> None:
    """Makes the gateway's keys before the Hub starts: the Hub passes the public half of the CA to jobs."""
    command = [sys.executable, "-m", "ssh_gateway", "--init", f"--Gateway.state_dir={options.state / 'gateway'}"]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, problem = await process.communicate()
    if process.returncode:
        raise CannotRun(f"The gateway's keys could not be made: {problem.decode(errors='replace').strip()}")


def banner(options: Options, keys: Secrets) -> str:
    """Returns the introduction for a new user, printed when all processes are ready."""
    ssh = f"ssh -p {options.ssh_port} alice+train@127.0.0.1"
    return f"""
  dlspawner runs on this machine.

    Web pages   http://127.0.0.1:{options.port}
    Login       alice (or any name you like), password {keys.password}
    SSH         {ssh}
                once alice has started a server named "train"; the password is a token from
                http://127.0.0.1:{options.port}/hub/token, or add your public key first:
                http://127.0.0.1:{options.port}/services/jobs/keys
    kubectl     export KUBECONFIG={options.cluster_config}
    Admin       admin, password {keys.admin_password}
    Files       {options.state} (logs in {options.state / "log"})

  It trusts everybody who can use this machine's loopback address; it is for trying out, not for serving a team.
  Ctrl-C stops everything; jobs, keys and files are kept for the next start.
"""


async def run(options: Options, say: Callable[[str], None]) -> None:
    """Runs until a signal requests the stop. Raises CannotRun or ChildFailed if a process cannot start."""
    wanted, mistakes = read_files(options)
    options.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    held = lock(options.state)
    try:
        check_ports(options)
        if options.kubeconfig:
            keep_kubeconfig(options.kubeconfig, options.cluster_config, NAMESPACE)
            await make(options.kubeconfig, namespace(NAMESPACE))
        ports = keep_ports(options.state / "ports.json")
        keys = keep_secrets(options.state / "secrets.json")
        env = environment(options, ports, keys)
        processes = children(options, ports, env)
        async with stop_signals() as stop, Supervisor(options.state / "log", say) as supervisor:
            starting = asyncio.create_task(start_all(options, processes, wanted, supervisor), name="start")
            stopping = asyncio.create_task(stop.wait(), name="stop signal")
            await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                say(banner(options, keys) + mistakes)
                await stopping
            starting.cancel()
            stopping.cancel()
            await asyncio.gather(starting, stopping, return_exceptions=True)
            say("Stopping …")
        say("Stopped.")
    finally:
        os.close(held)


async def start_all(
    options: Options,
    processes: Mapping[str, Child],
    wanted: settings.Settings | None,
    supervisor: Supervisor,
) -> None:
    """Starts the independent processes together, then the Hub, then the gateway."""
    try:
        async with asyncio.TaskGroup() as group:
            for name in ("cluster", "proxy", "manager"):
                group.create_task(supervisor.start(processes[name]), name=f"start {name}")
            group.create_task(make_gateway_keys(options), name="make the gateway's keys")
    except* (CannotRun, ChildFailed) as failures:
        raise failures.exceptions[0] from None
    if "prometheus" in processes:
        await point_at_nodes(options)
        try:
            await supervisor.start(processes["prometheus"])
        except ChildFailed as problem:  # useful, but nothing depends on it
            say(f"The use of GPUs will not be known: {problem}")
    enforces_nothing = {"pod-security.kubernetes.io/enforce": "privileged"}
    files = of_files(wanted) if wanted is not None else ()  # else an earlier start made them
    await make(options.cluster_config, namespace(SPECIAL_NAMESPACE, **enforces_nothing), *files)
    await supervisor.start(processes["hub"])
    await supervisor.start(processes["gateway"])


def say(text: str) -> None:
    print(text, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Runs the launcher; the exit status is 0 after a requested stop and 1 if a process could not start."""
    try:
        asyncio.run(run(parse(arguments), say))
    except (CannotRun, ChildFailed, InvalidConfiguration) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
