"""The process as it is run: a real Hub and Manager, the embedded cluster's API, a real sshd behind a NodePort."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import aiohttp
import asyncssh
import pytest
import requests
from traitlets.config import Config

from dlspawner.clients.kubernetes import KubernetesClient
from dlspawner.known_settings import ALL, unknown
from ssh_gateway.app import Gateway, GatewayMisconfigured
from ssh_gateway.transport.keys import GatewayKeys, load_or_make
from tests.component.gateway.cluster import NAMESPACE, create_pod, create_service, job
from tests.component.gateway.peers import JOB, Client, Sshd, finish, seen, until
from tests.component.gateway.test_keys import FILES
from tests.component.manager.real_hub import RealHub
from tests.harness.ports import free_port

COMMAND = (sys.executable, "-m", "ssh_gateway")
ADDRESS = "127.77.1.1"
ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Process:
    """A gateway as a process of its own."""

    process: asyncio.subprocess.Process
    port: int

    async def said(self, what: str) -> str:
        """The rest of the next line that has this."""
        said = ""
        async with asyncio.timeout(60):
            while line := (await self.process.stderr.readline()).decode():
                said += line
                if what in line:
                    return line.partition(what)[2].strip()
        raise AssertionError(said)

    async def read(self) -> str:
        return (await self.process.stderr.read()).decode()


@contextlib.asynccontextmanager
async def started(real_hub: RealHub, kubeconfig: Path, state: Path, *settings: str) -> AsyncIterator[Process]:
    environment = {
        **os.environ,
        "JUPYTERHUB_API_TOKEN": real_hub.tokens["gateway"],
        "JUPYTERHUB_API_URL": real_hub.hub_api,
        "KUBECONFIG": str(kubeconfig),
    }
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        "--Gateway.port=0",
        f"--Gateway.state_dir={state}",
        f"--Gateway.manager_url={real_hub.manager}/services/jobs",
        f"--Gateway.namespace={NAMESPACE}",
        f"--Gateway.hub_public_url={real_hub.public}",
        "--Gateway.activity_seconds=0.2",
        *settings,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    try:
        found = Process(process, 0)
        found.port = int((await found.said("event=ready address=127.0.0.1:")).split()[0])
        yield found
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.communicate(), 20)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTERHUB", "KUBE"))}
    return subprocess.run(
        [*COMMAND, *arguments], env={**kept, **environment}, capture_output=True, text=True, timeout=30, check=False
    )


@dataclass
class Job:
    """Alice's job behind a NodePort, and the keys of a gateway that may enter it."""

    keys: GatewayKeys
    state: Path
    token: str
    sshd: Sshd


@contextlib.asynccontextmanager
async def a_job(
    real_hub: RealHub, kubeconfig: Path, folder: Path, key: asyncssh.SSHKey, server: str = "train"
) -> AsyncIterator[Job]:
    token = real_hub.token("alice")
    real_hub.server_token("alice", server)
    register(real_hub, token, key)
    keys, name = load_or_make(folder / "state"), f"alice-{server}"
    made = job("alice", server, id=JOB)
    async with await KubernetesClient.connect(kubeconfig) as cluster:
        sshd = Sshd(folder / "job", keys.user_ca, await create_service(cluster, name, made), address=ADDRESS)
        sshd.start()
        try:
            await create_pod(cluster, name, job("alice", server, id=JOB, ssh_host_key=sshd.host_key), ADDRESS)
            yield Job(keys, folder / "state", token, sshd)
        finally:
            sshd.stop()


async def test_login_by_key_and_by_token_reaches_the_job_until_the_key_is_removed(
    real_hub: RealHub, kubeconfig: Path, tmp_path: Path, alices_key: asyncssh.SSHKey
) -> None:
    async with (
        a_job(real_hub, kubeconfig, tmp_path, alices_key) as made,
        started(real_hub, kubeconfig, made.state, "--Gateway.revalidate_seconds=0.2") as gateway,
    ):
        by_key = Client(tmp_path / "key", gateway.port, alices_key, made.keys.host)
        done = await by_key.ssh("alice+train@gateway", "echo by key; exit 3")
        assert (done.text, done.status) == ("by key\n", 3), done.err
        by_token = Client(tmp_path / "token", gateway.port, None, made.keys.host)
        env, options = by_token.with_token(made.token)
        done = await by_token.ssh(*options, "alice+train@gateway", "echo by token", env=env)
        assert done.text == "by token\n", done.err
        assert "no job trian; yours: train" in (await by_key.ssh("alice+trian@gateway")).err
        jumped = await by_key.ssh("-J", "alice@gateway", "alice@train", "echo jumped")
        assert jumped.text == "jumped\n", jumped.err
        await until(lambda: activity(real_hub) is not None)
        inside = await by_key.begin("alice+train@gateway", "echo in; sleep 600")
        remove_keys(real_hub, made.token)
        assert "the key that you came in with was removed from your keys" in (await finish(inside)).err


async def probe(port: int, path: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status


async def test_first_sigterm_drains_and_the_second_one_ends_the_process(
    real_hub: RealHub, kubeconfig: Path, tmp_path: Path, alices_key: asyncssh.SSHKey
) -> None:
    port = free_port()
    settings = (f"--Gateway.health_port={port}", "--Gateway.drain_seconds=600")
    async with (
        a_job(real_hub, kubeconfig, tmp_path, alices_key, "drained") as made,
        started(real_hub, kubeconfig, made.state, *settings) as gateway,
    ):
        client = Client(tmp_path / "key", gateway.port, alices_key, made.keys.host)
        terminal = await client.start("ssh", "-tt", "alice+drained@gateway", "echo ready; read x; echo $x; read x")
        await seen(terminal, b"ready")
        assert [await probe(port, path) for path in ("/ready", "/")] == [200, 200]
        gateway.process.send_signal(signal.SIGTERM)
        await seen(terminal, b"restarting: this connection ends at ")
        assert [await probe(port, path) for path in ("/ready", "/")] == [503, 200]
        terminal.stdin.write(b"works on\n")
        await seen(terminal, b"works on\r\nworks on\r\n")
        assert (await client.ssh("alice+drained@gateway", "echo in")).status == 255
        gateway.process.send_signal(signal.SIGTERM)
        done = await finish(terminal)
        assert (done.status, "the gateway is stopping: connect again in a moment" in done.err) == (255, True)
        assert await asyncio.wait_for(gateway.process.wait(), 20) == 0
        said = await gateway.read()
        assert "event=stopped" in said
        assert "Traceback" not in said


def register(real_hub: RealHub, token: str, key: asyncssh.SSHKey) -> None:
    line = key.export_public_key().decode().strip()
    headers = {"Authorization": f"token {token}"}
    answer = requests.post(f"{real_hub.jobs}/api/keys", json={"key": line}, headers=headers, timeout=30)
    assert answer.status_code in {200, 201}, answer.text


def remove_keys(real_hub: RealHub, token: str) -> None:
    url, headers = f"{real_hub.jobs}/api/keys", {"Authorization": f"token {token}"}
    for key in requests.get(url, headers=headers, timeout=30).json()["keys"]:
        assert requests.delete(f"{url}/{key['id']}", headers=headers, timeout=30).ok


def activity(real_hub: RealHub) -> datetime | None:
    seen = real_hub.setup("GET", "/users/alice").json()["servers"]["train"]["last_activity"]
    return datetime.fromisoformat(seen) if seen else None


@pytest.mark.parametrize("setting", ["port", "health_port"])
async def test_taken_port_is_told_with_port_and_setting(setting: str, kubeconfig: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        settings = [f"--Gateway.{name}={value}" for name, value in {"port": 0, setting: port}.items()]
        done = await asyncio.to_thread(
            run, *settings, f"--Gateway.state_dir={tmp_path}",
            JUPYTERHUB_API_TOKEN="x", JUPYTERHUB_API_URL="http://127.0.0.1:9/hub/api", KUBECONFIG=str(kubeconfig),
        )  # fmt: skip
    assert done.returncode == 1
    assert f"port {port} on 127.0.0.1 cannot be used" in done.stderr
    assert f"settings Gateway.{setting} and Gateway.ip" in done.stderr
    assert "Traceback" not in done.stderr
    others = [line for line in done.stderr.splitlines() if not line.startswith("ssh-gateway: ")]
    assert all("event=" in line for line in others), done.stderr  # nothing is left open for Python to complain of


async def test_missing_environment_variable_is_told(tmp_path: Path) -> None:
    done = await asyncio.to_thread(run, f"--Gateway.state_dir={tmp_path}")
    assert (done.returncode, done.stderr) == (1, "ssh-gateway: environment variable JUPYTERHUB_API_TOKEN is not set\n")


async def test_init_makes_the_keys_and_exits(tmp_path: Path) -> None:
    done = await asyncio.to_thread(run, "--init", f"--Gateway.state_dir={tmp_path}/state")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == FILES


STRAY = "a word on the command line is no setting: "
WRONG: dict[str, tuple[list[str], str]] = {
    "a name": (
        ["--Gateway.revoked_certificate_file=revoked"],
        "there is no setting Gateway.revoked_certificate_file: did you mean Gateway.revoked_certificates_file?",
    ),
    "a section in a section": (
        ["--Gateway.Job.user_ca_file=ca"],
        "there is no setting Gateway.Job.user_ca_file: did you mean Gateway.user_ca_file?",
    ),
    "nothing like it": (["--Gateway.qqq=1"], "there is no setting Gateway.qqq: --help-all tells all that there are"),
    "no dashes": (["Gateway.port=s3cret"], "write --Gateway.port=…"),
    "behind a space": (["--Gateway.user_ca_file=", "postgresql://u:s3cret@h/x?port=1"], f"{STRAY}{ALL}"),
    **{
        setting: ([f"--Gateway.{setting}"], setting.partition("=")[0])
        for setting in ("max_attempts=0", "port=70000", "penalty_seconds=nan", "penalty_seconds=inf")
    },
    **{network: ([f"--Gateway.shared_sources={network}"], network) for network in ("10.0.0.0/33", "balancer")},
}


@pytest.mark.parametrize(("words", "said"), WRONG.values(), ids=WRONG)
def test_wrong_setting_is_refused_and_its_value_not_repeated(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        Gateway().initialize(words)
    told = capsys.readouterr().err
    assert (said in told, "s3cret" in told) == (True, False), told


def test_unknown_setting_of_a_file_is_refused() -> None:
    with pytest.raises(GatewayMisconfigured, match=r"Gateway\.user_ca_files: did you mean Gateway\.user_ca_file\?"):
        Gateway(config=Config({"Gateway": {"port": 0}})).update_config(Config({"Gateway": {"user_ca_files": "ca"}}))


@pytest.mark.parametrize("folder", ["hub_config", "dlspawner", "ssh_gateway"])
def test_settings_named_elsewhere_exist(folder: str) -> None:
    files = [path for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".yaml", ".md"}]
    found = {name for path in files for name in re.findall(r"--Gateway\.(\w+)", path.read_text("utf-8"))}
    assert found
    assert unknown(Config({"Gateway": dict.fromkeys(found, "")}), Gateway) is None
