"""The processes of the product, their environment, and their readiness checks.

They are wired exactly as on Kubernetes: through `hub_config/jupyterhub_config.py`, URLs, tokens and a kubeconfig.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import aiohttp

from dlspawner.clients import kubernetes
from dlspawner.local.state import CannotRun, Options, Ports, Secrets, write_private
from dlspawner.local.supervisor import Child

NAMESPACE, SPECIAL_NAMESPACE = "jobs", "jobs-special"
OUR_NODES = "node.kubernetes.io/instance-type=devcluster"  # the label of simulated nodes
GPU_METRICS_PORT = 9400
Question = Callable[[], Awaitable[bool]]


def find_proxy() -> str:
    """Returns the path of the proxy's program: installed beside this environment by `make`, or anywhere on the PATH.

    Raises CannotRun if it is missing, or what the embedded cluster needs.
    """
    if find_spec("wsproto") is None:
        raise CannotRun("The embedded cluster and what jobs run are missing: pip install 'dlspawner[jobs]'")
    beside = Path(sys.prefix) / "node_modules" / ".bin" / "configurable-http-proxy"
    found = str(beside) if beside.exists() else shutil.which("configurable-http-proxy")
    if found is None:
        raise CannotRun(
            f"configurable-http-proxy is missing: npm install --prefix {sys.prefix} configurable-http-proxy"
        )
    return found


def find_prometheus() -> str | None:
    """Returns the path of this machine's Prometheus; without one the use of the simulated GPUs is unknown."""
    beside = Path(sys.prefix) / "debian" / "usr" / "bin" / "prometheus"
    return str(beside) if beside.exists() else shutil.which("prometheus")


def prometheus(options: Options, ports: Ports, program: str) -> Child:
    """Returns the Prometheus process; it reads the nodes from a file that `point_at_nodes` writes."""
    folder = options.state / "prometheus"
    folder.mkdir(exist_ok=True)
    found = "{job_name: gpus, file_sd_configs: [{files: [nodes.json]}]}"
    (folder / "prometheus.yml").write_text(
        f"global: {{scrape_interval: 15s}}\nscrape_configs: [{found}]\n", encoding="utf-8"
    )
    command = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--storage.tsdb.retention.time=1d",
        f"--web.listen-address=127.0.0.1:{ports.prometheus}",
        "--log.level=warn",
    ]
    return Child("prometheus", command, http_ok(ports.prometheus, "/-/ready"), {"PATH": os.environ.get("PATH", "")})


async def point_at_nodes(options: Options) -> None:
    """Writes the addresses of the nodes' GPU metrics for Prometheus."""
    async with await kubernetes.KubernetesClient.connect(options.cluster_config) as client:
        nodes = await client.list(kubernetes.NODES, labels=OUR_NODES)
    addresses = [
        entry["address"]
        for node in nodes
        for entry in node.get("status", {}).get("addresses", ())
        if entry["type"] == "InternalIP"
    ]
    targets = [{"targets": [f"{address}:{GPU_METRICS_PORT}" for address in addresses]}]
    write_private(options.state / "prometheus" / "nodes.json", json.dumps(targets))


def environment(options: Options, ports: Ports, keys: Secrets) -> dict[str, str]:
    """Returns the variables that hub_config/jupyterhub_config.py and the services read."""
    state = options.state
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin",
        "KUBECONFIG": str(options.cluster_config),
        "CONFIGPROXY_AUTH_TOKEN": keys.proxy_token,
        "DLSPAWNER_STATE": str(state),
        "DLSPAWNER_CONFIG_DIR": str(options.config),
        "DLSPAWNER_TEMPLATES": str(options.templates),
        "DLSPAWNER_NAMESPACE": NAMESPACE,
        "DLSPAWNER_SPECIAL_NAMESPACE": SPECIAL_NAMESPACE,
        "DLSPAWNER_BIND_URL": f"http://127.0.0.1:{options.port}",
        "DLSPAWNER_HUB_URL": f"http://127.0.0.1:{ports.hub}",
        "DLSPAWNER_HUB_DB_URL": f"sqlite:///{state / 'hub.sqlite'}",
        "DLSPAWNER_PROXY_API_URL": f"http://127.0.0.1:{ports.proxy_api}",
        "DLSPAWNER_MANAGER_URL": f"http://127.0.0.1:{ports.manager}",
        "DLSPAWNER_MANAGER_TOKEN": keys.manager_token,
        "DLSPAWNER_GATEWAY_TOKEN": keys.gateway_token,
        "DLSPAWNER_LAUNCHER_TOKEN": keys.launcher_token,
        "DLSPAWNER_SSH_HOST": "127.0.0.1",
        "DLSPAWNER_SSH_PORT": str(options.ssh_port),
        "DLSPAWNER_SSH_CA": str(state / "gateway" / "user_ca.pub"),
        "DLSPAWNER_PASSWORD": keys.password,
        "DLSPAWNER_ADMIN_PASSWORD": keys.admin_password,
    }


def answers(port: int, request: bytes = b"", expect: bytes = b"") -> Question:
    """Returns a readiness check: the port answers `request` with bytes that contain `expect`."""

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


def http_ok(port: int, path: str) -> Question:
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
    return answers(port, request, b" 200 ")


def both(first: Question, second: Question) -> Question:
    """Returns a readiness check that makes the second check only after the first succeeds."""

    async def ask() -> bool:
        return await first() and await second()

    return ask


def routes_again(hub_url: str, token: str) -> Callable[[], Awaitable[str | None]]:
    """Returns a task for a restarted proxy, which has no routes: the Hub sends it all routes now, not at its next check
    in a minute.

    An unreachable Hub is no problem: it sends them when it starts.
    """

    async def ask() -> str | None:
        headers = {"Authorization": f"token {token}"}
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session,
                session.post(f"{hub_url}/hub/api/proxy", headers=headers) as answer,
            ):
                problem = "" if answer.ok else f"status {answer.status}"
        except (aiohttp.ClientError, TimeoutError):
            return None
        return f"The Hub did not tell the proxy its routes ({problem}); it does within a minute." if problem else None

    return ask


async def cluster_ready(kubeconfig: Path) -> bool:
    """True if the API answers, every simulated node is Ready and the namespace for jobs exists."""
    if not kubeconfig.exists():
        return False
    try:
        async with await kubernetes.KubernetesClient.connect(kubeconfig) as client:
            nodes = await client.list(kubernetes.NODES, labels=OUR_NODES)
            await client.get(kubernetes.NAMESPACES, NAMESPACE)
    except kubernetes.KubernetesError:
        return False
    conditions = [condition for node in nodes for condition in node.get("status", {}).get("conditions", ())]
    return bool(nodes) and len(nodes) == sum(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def cluster_command(options: Options, ports: Ports) -> list[str]:
    """Returns the command for the embedded cluster, or only for its nodes if there is an API server already."""
    state = options.state / "cluster"
    command = [sys.executable, "-m", "dlspawner.devcluster"]
    if options.kubeconfig:
        command += ["node", f"--kubeconfig={options.cluster_config}"]
    else:
        command.append(f"--port={ports.api}")
    command += [f"--state={state}", f"--hide={options.state}"]
    return [*command, f"--nodes={options.nodes}"] if options.nodes else command


def children(options: Options, ports: Ports, env: Mapping[str, str]) -> dict[str, Child]:
    """Returns every process, in the order of starting; each receives only the secrets that it needs."""
    state, python = options.state, sys.executable
    hub_url = env["DLSPAWNER_HUB_URL"]
    path = {"PATH": env["PATH"]}
    service = {**path, "JUPYTERHUB_API_URL": f"{hub_url}/hub/api", "JUPYTERHUB_BASE_URL": "/"}
    manager_env = {
        **service,
        "KUBECONFIG": env["KUBECONFIG"],
        "JUPYTERHUB_API_TOKEN": env["DLSPAWNER_MANAGER_TOKEN"],
        "JUPYTERHUB_SERVICE_NAME": "jobs",
        "JUPYTERHUB_SERVICE_PREFIX": "/services/jobs/",
        "JUPYTERHUB_SERVICE_URL": env["DLSPAWNER_MANAGER_URL"],
        "DLSPAWNER_MANAGER_DB_URL": f"sqlite:///{state / 'manager.sqlite'}",
        "DLSPAWNER_SSH_HOST": env["DLSPAWNER_SSH_HOST"],
        "DLSPAWNER_SSH_PORT": env["DLSPAWNER_SSH_PORT"],
    }
    meter = find_prometheus()
    if meter:
        manager_env["DLSPAWNER_PROMETHEUS_URL"] = f"http://127.0.0.1:{ports.prometheus}"
    found = (
        Child(
            "cluster",
            cluster_command(options, ports),
            lambda: cluster_ready(options.cluster_config),
            path,
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
                f"--error-path={options.templates / 'proxy'}",
            ],
            answers(options.port),
            {**path, "CONFIGPROXY_AUTH_TOKEN": env["CONFIGPROXY_AUTH_TOKEN"]},
            restarted=routes_again(hub_url, env["DLSPAWNER_LAUNCHER_TOKEN"]),
        ),
        Child(
            "manager",
            [
                python,
                "-m",
                "dlspawner.manager",
                f"--Manager.cluster_file={options.config / 'cluster.yaml'}",
                f"--Manager.teams_file={options.config / 'teams.yaml'}",
                f"--Manager.templates_dir={options.templates}",
                f"--Manager.namespace={NAMESPACE}",
                f"--Manager.special_namespace={SPECIAL_NAMESPACE}",
                f"--Manager.ssh_host_key_file={state / 'gateway' / 'ssh_host_ed25519_key.pub'}",
            ],
            http_ok(ports.manager, "/services/jobs/health"),
            manager_env,
        ),
        Child(
            "hub",
            [python, "-m", "jupyterhub", f"--config={options.config / 'jupyterhub_config.py'}"],
            both(http_ok(ports.hub, "/hub/health"), http_ok(options.port, "/hub/health")),
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
                f"--Gateway.special_namespace={SPECIAL_NAMESPACE}",
                f"--Gateway.hub_public_url={env['DLSPAWNER_BIND_URL']}/",
            ],
            answers(options.ssh_port, expect=b"SSH-2.0-"),
            {**service, "KUBECONFIG": env["KUBECONFIG"], "JUPYTERHUB_API_TOKEN": env["DLSPAWNER_GATEWAY_TOKEN"]},
        ),
    )
    metered = (prometheus(options, ports, meter),) if meter else ()
    return {child.name: child for child in (*found, *metered)}
