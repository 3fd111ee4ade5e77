"""The whole product on one machine: `make run`, `dlspawner run`, and what the end-to-end tests start.

It starts the embedded cluster, the proxy, the Manager, the Hub and the gateway, each a process of its own with a log
in the state directory, keeps them running, and stops them in reverse order. Everything that must survive lives in the
state directory: the cluster's objects and volumes, the Hub's and the Manager's databases, keys, passwords, and the
ports that running jobs remember. One launcher at a time holds it, by a lock that the kernel releases however the
launcher dies.

The processes are wired exactly as on Kubernetes: through `hub_config/jupyterhub_config.py`, URLs, tokens and a
kubeconfig.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import os
import random
import secrets
import shutil
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dlspawner import cluster, settings
from dlspawner.errors import InvalidConfiguration
from dlspawner.supervisor import Child, ChildFailed, Supervisor, stop_signals

ROOT = Path(__file__).resolve().parent.parent
NAMESPACE = "jobs"


class CannotRun(Exception):
    """Why the product cannot start here, in a sentence that says what to change."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the person chose on the command line."""

    state: Path
    port: int
    ssh_port: int
    config: Path
    templates: Path


@dataclass(frozen=True, slots=True)
class Ports:
    """Loopback ports between our own processes. `hub` is remembered by the pods of running jobs and never changes."""

    hub: int
    proxy_api: int
    manager: int
    api: int


@dataclass(frozen=True, slots=True)
class Secrets:
    """Made at the first start, readable by their owner only."""

    password: str
    admin_password: str
    manager_token: str
    gateway_token: str
    proxy_token: str


def parse(arguments: list[str] | None = None) -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="dlspawner run", description="Run the whole product on this machine.")
    parser.add_argument("--state", type=Path, default=ROOT / "var", help="directory for everything that must survive")
    parser.add_argument("--port", type=int, default=8000, help="port of the Hub's web pages (make run PORT=…)")
    parser.add_argument("--ssh-port", type=int, default=2222, help="port of the SSH gateway (make run SSH_PORT=…)")
    parser.add_argument(
        "--config", type=Path, default=ROOT / "hub_config", help="directory with the Hub's configuration"
    )
    parser.add_argument("--templates", type=Path, default=ROOT / "templates", help="directory with jobs/ and hub/")
    given = parser.parse_args(arguments)
    return Options(given.state.resolve(), given.port, given.ssh_port, given.config.resolve(), given.templates.resolve())


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def check_ports(options: Options) -> None:
    """Raise CannotRun when a port that people use is taken."""
    for port, flag, variable in (
        (options.port, "--port", "PORT"),
        (options.ssh_port, "--ssh-port", "SSH_PORT"),
    ):
        if not is_free(port):
            raise CannotRun(
                f"Port {port} is taken by another program. Choose another one with {flag}, "
                f"for instance: make run {variable}={port + 10}"
            )


def keep_ports(path: Path) -> Ports:
    """The ports of the last start; those that nothing remembers are chosen anew when they are taken."""
    kept: dict[str, int] = json.loads(path.read_text()) if path.exists() else {}
    if "hub" in kept and not is_free(kept["hub"]):
        raise CannotRun(
            f"Port {kept['hub']}, at which the running jobs expect the Hub, is taken by another program. "
            f"Stop that program, or delete {path} and start the jobs anew."
        )
    chosen: dict[str, int] = {}
    for name in Ports.__dataclass_fields__:
        port = kept.get(name, 0)
        while not port or not is_free(port) or port in chosen.values():
            port = random.randrange(20000, 30000)  # noqa: S311 - below the ephemeral and NodePort ranges, not a secret
        chosen[name] = port
    write_private(path, json.dumps(chosen))
    return Ports(**chosen)


def keep_secrets(path: Path) -> Secrets:
    if not path.exists():
        made = {name: secrets.token_urlsafe(24) for name in Secrets.__dataclass_fields__}
        made["password"] = secrets.token_urlsafe(9)
        made["admin_password"] = secrets.token_urlsafe(24)
        write_private(path, json.dumps(made, indent=1))
    return Secrets(**json.loads(path.read_text()))


def write_private(path: Path, text: str) -> None:
    """Replace a file in one step; nobody else can read it at any moment."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    new.replace(path)


def lock(state: Path) -> int:
    """Hold the state directory for this process; the returned descriptor is the lock, and there is no lock file."""
    descriptor = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CannotRun(f"Another launcher already runs with {state}. Stop it, or choose another --state.") from None
    return descriptor


def find_proxy() -> str:
    """The proxy's program: installed beside this environment by `make`, or anywhere on the PATH."""
    beside = Path(sys.prefix) / "node_modules" / ".bin" / "configurable-http-proxy"
    found = str(beside) if beside.exists() else shutil.which("configurable-http-proxy")
    if found is None:
        raise CannotRun("configurable-http-proxy is missing: npm install --global configurable-http-proxy")
    return found


def environment(options: Options, ports: Ports, keys: Secrets) -> dict[str, str]:
    """What hub_config/jupyterhub_config.py and the services read."""
    state = options.state
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin",
        "KUBECONFIG": str(state / "cluster" / "kubeconfig"),
        "CONFIGPROXY_AUTH_TOKEN": keys.proxy_token,
        "DLSPAWNER_STATE": str(state),
        "DLSPAWNER_CONFIG_DIR": str(options.config),
        "DLSPAWNER_TEMPLATES": str(options.templates),
        "DLSPAWNER_NAMESPACE": NAMESPACE,
        "DLSPAWNER_BIND_URL": f"http://127.0.0.1:{options.port}",
        "DLSPAWNER_HUB_PORT": str(ports.hub),
        "DLSPAWNER_PROXY_API_PORT": str(ports.proxy_api),
        "DLSPAWNER_MANAGER_URL": f"http://127.0.0.1:{ports.manager}",
        "DLSPAWNER_MANAGER_TOKEN": keys.manager_token,
        "DLSPAWNER_GATEWAY_TOKEN": keys.gateway_token,
        "DLSPAWNER_SSH_HOST": "127.0.0.1",
        "DLSPAWNER_SSH_PORT": str(options.ssh_port),
        "DLSPAWNER_SSH_CA": str(state / "gateway" / "user_ca.pub"),
        "DLSPAWNER_PASSWORD": keys.password,
        "DLSPAWNER_ADMIN_PASSWORD": keys.admin_password,
    }


def answers(port: int, request: bytes = b"", expect: bytes = b"") -> Callable[[], Awaitable[bool]]:
    """A readiness question: does the port answer `request` with something that contains `expect`?"""

    async def ask() -> bool:
        try:
            async with asyncio.timeout(2):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                try:
                    writer.write(request)
                    return expect in await reader.read(4096) if expect else True
                finally:
                    writer.close()
        except OSError:  # includes the time-out: not ready yet
            return False

    return ask


def http_ok(port: int, path: str) -> Callable[[], Awaitable[bool]]:
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
    return answers(port, request, b" 200 ")


async def cluster_ready(state: Path) -> bool:
    """True when the API answers, every node is Ready and the namespace for jobs exists."""
    if not (state / "cluster" / "kubeconfig").exists():
        return False
    try:
        async with cluster.connect(state / "cluster" / "kubeconfig") as client:
            nodes = await client.list("nodes")
            await client.get("namespaces", NAMESPACE)
    except cluster.ClusterError:
        return False
    conditions = [condition for node in nodes for condition in node.get("status", {}).get("conditions", ())]
    return bool(nodes) and len(nodes) == sum(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


async def make_team_claims(state: Path, wanted: settings.Settings) -> None:
    """Team data claims are an administrator's to make; here we are the administrator."""
    async with cluster.connect(state / "cluster" / "kubeconfig") as client:
        for name in sorted({mount.claim for team in wanted.teams for mount in team.mounts}):
            claim = {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name, "namespace": NAMESPACE},
                "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "10Gi"}}},
            }
            try:
                await client.create("persistentvolumeclaims", claim, namespace=NAMESPACE)
            except cluster.Conflict:
                continue  # made at an earlier start


def children(options: Options, ports: Ports, env: Mapping[str, str]) -> dict[str, Child]:
    """Every process, in the order of starting."""
    state, python = options.state, sys.executable
    hub_url = f"http://127.0.0.1:{ports.hub}"
    service = {"JUPYTERHUB_API_URL": f"{hub_url}/hub/api", "JUPYTERHUB_BASE_URL": "/"}
    manager_env = {
        **service,
        "JUPYTERHUB_API_TOKEN": env["DLSPAWNER_MANAGER_TOKEN"],
        "JUPYTERHUB_SERVICE_NAME": "jobs",
        "JUPYTERHUB_SERVICE_PREFIX": "/services/jobs/",
        "JUPYTERHUB_SERVICE_URL": env["DLSPAWNER_MANAGER_URL"],
    }
    found = (
        Child(
            "cluster",
            [python, "-m", "dlspawner.devcluster", f"--state={state / 'cluster'}", f"--port={ports.api}"],
            lambda: cluster_ready(state),
            env,
        ),
        Child(
            "proxy",
            [
                find_proxy(),
                "--ip=127.0.0.1",
                f"--port={options.port}",
                "--api-ip=127.0.0.1",
                f"--api-port={ports.proxy_api}",
                f"--default-target={hub_url}",
                f"--error-target={hub_url}/hub/error",
            ],
            answers(options.port),
            env,
        ),
        Child(
            "manager",
            [python, "-m", "dlspawner.manager", f"--Manager.db_url=sqlite:///{state / 'manager.sqlite'}"],
            http_ok(ports.manager, "/services/jobs/health"),
            {**env, **manager_env},
        ),
        Child(
            "hub",
            [python, "-m", "jupyterhub", f"--config={options.config / 'jupyterhub_config.py'}"],
            http_ok(options.port, "/hub/health"),
            env,
        ),
        Child(
            "gateway",
            [
                python,
                "-m",
                "ssh_gateway",
                "--Gateway.ip=127.0.0.1",
                f"--Gateway.port={options.ssh_port}",
                f"--Gateway.state_dir={state / 'gateway'}",
                f"--Gateway.manager_url={env['DLSPAWNER_MANAGER_URL']}/services/jobs",
                f"--Gateway.namespace={NAMESPACE}",
                f"--Gateway.hub_public_url={env['DLSPAWNER_BIND_URL']}/",
            ],
            answers(options.ssh_port, expect=b"SSH-2.0-"),
            {**env, **service, "JUPYTERHUB_API_TOKEN": env["DLSPAWNER_GATEWAY_TOKEN"]},
        ),
    )
    return {child.name: child for child in found}


async def make_gateway_keys(options: Options, env: Mapping[str, str]) -> None:
    """The gateway's keys exist before the Hub starts, which tells jobs the public half of its CA."""
    command = [sys.executable, "-m", "ssh_gateway", "--init", f"--Gateway.state_dir={options.state / 'gateway'}"]
    process = await asyncio.create_subprocess_exec(*command, env={**os.environ, **env}, stderr=asyncio.subprocess.PIPE)
    _, problem = await process.communicate()
    if process.returncode:
        raise CannotRun(f"The gateway's keys could not be made: {problem.decode(errors='replace').strip()}")


def banner(options: Options, keys: Secrets) -> str:
    """What a newcomer needs to know, once everything answers."""
    ssh = f"ssh -p {options.ssh_port} alice+train@127.0.0.1"
    return f"""
  dlspawner runs on this machine.

    Web pages   http://127.0.0.1:{options.port}
    Login       alice (or any name you like), password {keys.password}
    SSH         {ssh}
                once alice has started a server named "train"; the password is a token from
                http://127.0.0.1:{options.port}/hub/token, or add your public key first:
                http://127.0.0.1:{options.port}/services/jobs/keys
    kubectl     export KUBECONFIG={options.state}/cluster/kubeconfig
    Admin       admin, password {keys.admin_password}
    Files       {options.state} (logs in {options.state / "log"})

  It trusts everybody who can use this machine's loopback address; it is for trying out, not for serving a team.
  Ctrl-C stops everything; jobs, keys and files are kept for the next start.
"""


async def run(options: Options, say: Callable[[str], None]) -> None:
    """Run until a signal asks to stop. Raises CannotRun or ChildFailed when something cannot start."""
    wanted = settings.load(options.templates / "jobs", options.config / "cluster.yaml", options.config / "teams.yaml")
    options.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    held = lock(options.state)
    try:
        check_ports(options)
        ports = keep_ports(options.state / "ports.json")
        keys = keep_secrets(options.state / "secrets.json")
        env = environment(options, ports, keys)
        processes = children(options, ports, env)
        async with stop_signals() as stop, Supervisor(options.state / "log", say) as supervisor:
            starting = asyncio.create_task(start_all(options, processes, env, wanted, supervisor), name="start")
            stopping = asyncio.create_task(stop.wait(), name="stop signal")
            await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                say(banner(options, keys))
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
    env: Mapping[str, str],
    wanted: settings.Settings,
    supervisor: Supervisor,
) -> None:
    """Start what does not depend on each other together, then the Hub, then the gateway."""
    try:
        async with asyncio.TaskGroup() as group:
            for name in ("cluster", "proxy", "manager"):
                group.create_task(supervisor.start(processes[name]), name=f"start {name}")
            group.create_task(make_gateway_keys(options, env), name="make the gateway's keys")
    except* (CannotRun, ChildFailed) as failures:
        raise failures.exceptions[0] from None
    await make_team_claims(options.state, wanted)
    await supervisor.start(processes["hub"])
    await supervisor.start(processes["gateway"])


def say(text: str) -> None:
    print(text, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Entry point; the exit status is 0 after an asked-for stop and 1 when something could not start."""
    try:
        asyncio.run(run(parse(arguments), say))
    except (CannotRun, ChildFailed, InvalidConfiguration) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
