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
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import aiohttp
import asyncssh
import pytest
import requests
from traitlets.config import Config

from dlspawner.clients.kubernetes import PODS, SERVICES, KubernetesClient
from dlspawner.core import naming
from dlspawner.known_settings import ALL
from ssh_gateway.app import Gateway, GatewayMisconfigured, check_settings
from ssh_gateway.transport.keys import GatewayKeys, load_or_make
from tests.component.gateway.cluster import NAMESPACE, create_pod, create_service, job
from tests.component.gateway.peers import JOB, Client, Sshd, finish, until
from tests.component.gateway.test_notices import seen
from tests.component.manager.world import World
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
        assert self.process.stderr is not None
        said = ""
        async with asyncio.timeout(60):
            while line := (await self.process.stderr.readline()).decode():
                said += line
                if what in line:
                    return line.partition(what)[2].strip()
        raise AssertionError(said)

    async def read(self) -> str:
        assert self.process.stderr is not None
        return (await self.process.stderr.read()).decode()


@contextlib.asynccontextmanager
async def started(world: World, kubeconfig: Path, state: Path, *settings: str) -> AsyncIterator[Process]:
    environment = {
        **os.environ,
        "JUPYTERHUB_API_TOKEN": world.tokens["gateway"],
        "JUPYTERHUB_API_URL": world.hub_api,
        "KUBECONFIG": str(kubeconfig),
    }
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        "--Gateway.port=0",
        f"--Gateway.state_dir={state}",
        f"--Gateway.manager_url={world.manager}/services/jobs",
        f"--Gateway.namespace={NAMESPACE}",
        f"--Gateway.hub_public_url={world.public}",
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
    world: World, kubeconfig: Path, folder: Path, key: asyncssh.SSHKey, server: str = "train"
) -> AsyncIterator[Job]:
    token = world.token("alice")
    world.server_token("alice", server)
    register(world, token, key)
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


async def test_the_whole_way_in_by_key_and_by_token(
    world: World, kubeconfig: Path, tmp_path: Path, alices_key: asyncssh.SSHKey
) -> None:
    async with (
        a_job(world, kubeconfig, tmp_path, alices_key) as made,
        started(world, kubeconfig, made.state) as gateway,
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
        await until(lambda: activity(world) is not None)


async def test_a_job_that_moves_is_found_again_and_by_its_new_host_key_only(
    world: World, kubeconfig: Path, tmp_path: Path, alices_key: asyncssh.SSHKey
) -> None:
    async with (
        a_job(world, kubeconfig, tmp_path, alices_key, "moves") as made,
        started(world, kubeconfig, made.state) as gateway,
        await KubernetesClient.connect(kubeconfig) as cluster,
    ):
        client = Client(tmp_path / "key", gateway.port, alices_key, made.keys.host)
        assert (await client.ssh("alice+moves@gateway", "echo at first")).text == "at first\n"
        key = asyncssh.generate_private_key("ssh-ed25519")
        again = job("alice", "moves", id=JOB, ssh_host_key=key.export_public_key().decode().strip())
        port = await create_service(cluster, "alice-moves-again", again)
        assert port != made.sshd.port
        await cluster.delete(PODS, "alice-moves", NAMESPACE, grace=0)
        await cluster.delete(SERVICES, naming.ssh_object("alice-moves"), NAMESPACE)
        await create_pod(cluster, "alice-moves-again", again, "127.77.1.2")
        for folder, host in (("as before", made.sshd.host), ("moved", key)):
            sshd = Sshd(tmp_path / folder.replace(" ", "-"), made.keys.user_ca, port, address="127.77.1.2", host=host)
            sshd.start()
            try:
                done = await client.ssh("alice+moves@gateway", f"echo {folder}")
            finally:
                sshd.stop()
            if host is key:
                assert (done.status, done.text) == (0, "moved\n"), done.err
            else:
                assert (done.status, done.out) == (255, b"")
                assert "answered with a host key that is not this job's" in done.err
        made.sshd.check()  # where it was there is still somebody, whom nobody asks


@dataclass
class Way:
    """A port that leads to another one, unless it is cut: then nothing listens there, and nothing arrives."""

    there: int
    port: int = field(default_factory=free_port)
    _server: asyncio.Server | None = None
    _ends: list[asyncio.StreamWriter] = field(default_factory=list)

    def to(self, url: str) -> str:
        return url.replace(f":{self.there}", f":{self.port}")

    async def mend(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)

    async def cut(self) -> None:
        assert self._server is not None
        self._server.close()
        self._drop_all()
        await self._server.wait_closed()

    def _drop_all(self) -> None:
        for end in self._ends:
            end.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, on = await asyncio.open_connection("127.0.0.1", self.there)
        self._ends += [writer, on]
        if self._server is None or not self._server.is_serving():  # cut while this one was being connected
            self._drop_all()
        await asyncio.gather(self._copy(reader, on), self._copy(back, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()


NO_HUB = "the Hub does not answer: try again later"
NO_MANAGER = "the keys service does not answer: try again later, or use a token"
NO_CLUSTER = "the cluster does not answer: try again later"


@pytest.mark.parametrize(
    ("which", "key_told", "token_told"),
    [
        pytest.param("hub", None, NO_HUB, marks=pytest.mark.slow),  # which is asked again for ten seconds
        ("manager", NO_MANAGER, None),
        ("cluster", NO_CLUSTER, NO_CLUSTER),
    ],
    ids=["the Hub", "the Manager", "the cluster"],
)
async def test_a_part_that_is_really_away_is_told_and_ends_no_session(  # noqa: PLR0917  (fixtures)
    world: World,
    kubeconfig: Path,
    tmp_path: Path,
    alices_key: asyncssh.SSHKey,
    which: str,
    key_told: str | None,
    token_told: str | None,
) -> None:
    cluster = kubeconfig.read_text()
    urls = {"hub": world.hub_api, "manager": world.manager, "cluster": cluster}
    found = re.search(r"://127\.0\.0\.1:(\d+)", urls[which])
    assert found is not None
    way = Way(int(found[1]))
    (tmp_path / "kubeconfig").write_text(way.to(cluster))
    seen = replace(world, manager=way.to(world.manager), hub_port=way.port if which == "hub" else world.hub_port)
    await way.mend()
    async with (
        a_job(world, kubeconfig, tmp_path, alices_key, f"away-{which}") as made,
        started(seen, tmp_path / "kubeconfig", made.state, "--Gateway.recheck_seconds=2") as gateway,
    ):
        login = f"alice+away-{which}@gateway"
        key = Client(tmp_path / "key", gateway.port, alices_key, made.keys.host)
        token = Client(tmp_path / "token", gateway.port, None, made.keys.host)
        env, options = token.with_token(made.token)
        open_one = await key.start("ssh", login, "echo in; read line; echo $line")
        assert open_one.stdout is not None
        assert await asyncio.wait_for(open_one.stdout.readline(), 30) == b"in\n"
        await way.cut()
        for done, told in (
            (await key.ssh(login, "echo in"), key_told),
            (await token.ssh(*options, login, "echo in", env=env), token_told),
        ):
            assert (done.status, done.text) == ((0, "in\n") if told is None else (255, "")), done.err
            assert told is None or f"{told}\n" in done.err.replace("\r", "")
        await gateway.said("event=recheck")  # a round has asked in vain
        assert (await finish(open_one, b"works on\n")).text == "works on\n"
        await way.mend()
        assert (await key.ssh(login, "echo in")).text == "in\n"
        assert (await token.ssh(*options, login, "echo in", env=env)).text == "in\n"
        gateway.process.terminate()
        said = await gateway.read()
        assert "Traceback" not in said
        assert len(said.splitlines()) < 50, said
    await way.cut()


async def test_while_the_manager_is_away_from_the_start_a_token_of_the_hub_s_lets_nobody_in(
    world: World, kubeconfig: Path, tmp_path: Path, alices_key: asyncssh.SSHKey
) -> None:
    away = replace(world, manager=f"http://127.0.0.1:{free_port()}")
    async with (
        a_job(world, kubeconfig, tmp_path, alices_key, "guarded") as made,
        started(away, kubeconfig, made.state) as gateway,
    ):
        client = Client(tmp_path / "token", gateway.port, None, made.keys.host)
        env, options = client.with_token(made.token)
        done = await client.ssh(*options, "alice+guarded@gateway", "echo in", env=env)
        assert (done.status, done.text) == (255, "")
        assert "nobody can tell right now whether your account may use this gateway: try again later" in done.err


async def probe(port: int, path: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status


async def test_sigterm_drains_and_a_second_one_ends_it(
    world: World, kubeconfig: Path, tmp_path: Path, alices_key: asyncssh.SSHKey
) -> None:
    port = free_port()
    settings = (f"--Gateway.health_port={port}", "--Gateway.drain_seconds=600")
    async with (
        a_job(world, kubeconfig, tmp_path, alices_key, "drained") as made,
        started(world, kubeconfig, made.state, *settings) as gateway,
    ):
        client = Client(tmp_path / "key", gateway.port, alices_key, made.keys.host)
        terminal = await client.start("ssh", "-tt", "alice+drained@gateway", "echo ready; read x; echo $x; read x")
        await seen(terminal, b"ready")
        assert [await probe(port, path) for path in ("/ready", "/")] == [200, 200]
        gateway.process.send_signal(signal.SIGTERM)
        await seen(terminal, b"restarting: this connection ends at ")
        assert [await probe(port, path) for path in ("/ready", "/")] == [503, 200]
        assert terminal.stdin is not None
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


def register(world: World, token: str, key: asyncssh.SSHKey) -> None:
    line = key.export_public_key().decode().strip()
    headers = {"Authorization": f"token {token}"}
    answer = requests.post(f"{world.jobs}/api/keys", json={"key": line}, headers=headers, timeout=30)
    assert answer.status_code in {200, 201}, answer.text


def activity(world: World) -> datetime | None:
    seen = world.setup("GET", "/users/alice").json()["servers"]["train"]["last_activity"]
    return datetime.fromisoformat(seen) if seen else None


async def test_sigterm_ends_it_at_once_when_nobody_is_there(world: World, kubeconfig: Path, tmp_path: Path) -> None:
    async with started(world, kubeconfig, tmp_path / "state", "--Gateway.drain_seconds=600") as gateway:
        gateway.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(gateway.process.wait(), 60) == 0
        assert "event=stopped" in await gateway.read()


@pytest.mark.parametrize("setting", ["port", "health_port"])
async def test_a_taken_port_is_a_sentence_that_names_port_and_setting(
    setting: str, kubeconfig: Path, tmp_path: Path
) -> None:
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


async def test_what_is_missing_is_a_sentence(tmp_path: Path) -> None:
    done = await asyncio.to_thread(run, f"--Gateway.state_dir={tmp_path}")
    assert (done.returncode, done.stderr) == (
        1,
        "ssh-gateway: environment variable JUPYTERHUB_API_TOKEN is not set\n",
    )


async def test_init_makes_the_keys_and_ends(tmp_path: Path) -> None:
    done = await asyncio.to_thread(run, "--init", f"--Gateway.state_dir={tmp_path}/state")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == [
        "ssh_host_ed25519_key",
        "ssh_host_ed25519_key.pub",
        "user_ca",
        "user_ca.pub",
    ]


@pytest.mark.parametrize("setting", ["--Gateway.max_attempts=0", "--Gateway.port=70000"])
async def test_a_setting_out_of_bounds_is_refused(setting: str) -> None:
    done = await asyncio.to_thread(run, setting)
    assert done.returncode != 0
    assert setting.split("=", maxsplit=1)[0].removeprefix("--Gateway.") in done.stderr


async def test_a_misspelled_setting_is_a_sentence_with_the_right_one_and_nothing_begins(tmp_path: Path) -> None:
    """What keeps revoked certificates out would be left out otherwise."""
    settings = ("--init", f"--Gateway.state_dir={tmp_path}/state", "--Gateway.revoked_certificate_file=revoked")
    done = await asyncio.to_thread(run, *settings)
    assert (done.returncode, done.stderr) == (
        1,
        "ssh-gateway: there is no setting Gateway.revoked_certificate_file: "
        "did you mean Gateway.revoked_certificates_file?\n",
    )
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("--Gatway.port=0", "Gatway.port: did you mean Gateway.port?"),
        ("--Gateway.Job.user_ca_file=ca", "Gateway.Job.user_ca_file: did you mean Gateway.user_ca_file?"),
        ("--Gateway.qqq=1", "Gateway.qqq: --help-all tells all that there are"),
        ("--port=0", "port: did you mean Gateway.port?"),
    ],
    ids=["section", "section in a section", "nothing like it", "word"],
)
def test_what_is_no_setting_is_named(setting: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        Gateway().initialize([setting])
    assert capsys.readouterr().err.endswith(f"ssh-gateway: there is no setting {said}\n")


STRAY = "a word on the command line is no setting: "


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["Gateway.port=s3cret"], "write --Gateway.port=…"),
        (["Gateway.prot=s3cret"], f"{STRAY}did you mean --Gateway.port=…?"),
        (["--Gateway.user-ca-file=s3cret"], f"{STRAY}did you mean --Gateway.user_ca_file=…?"),
        (["--Gateway.user_ca_file=", "postgresql://u:s3cret@h/x?port=1"], f"{STRAY}{ALL}"),
        (["--s3-cret"], f"{STRAY}{ALL}"),
        (["s3cret"], f"{STRAY}{ALL}"),
    ],
    ids=["no dashes", "misspelled as well", "another dash", "behind a space", "no option", "a word"],
)
def test_a_word_that_is_no_setting_is_not_repeated(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        Gateway().initialize(words)
    assert capsys.readouterr().err == f"ssh-gateway: {said}\n"


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_what_is_no_number_switches_nothing_off(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        Gateway().initialize([f"--Gateway.penalty_seconds={number}"])
    assert "penalty_seconds" in capsys.readouterr().err


def test_settings_that_do_not_come_from_the_command_line_are_held_to_the_same_names() -> None:
    with pytest.raises(GatewayMisconfigured, match=r"Gateway\.user_ca_files: did you mean Gateway\.user_ca_file\?"):
        Gateway(config=Config({"Gateway": {"port": 0}})).update_config(Config({"Gateway": {"user_ca_files": "ca"}}))


@pytest.mark.parametrize("folder", ["hub_config", "dlspawner", "ssh_gateway"])
def test_manifests_launcher_and_pages_name_settings_that_there_are(folder: str) -> None:
    files = [path for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".yaml", ".md"}]
    found = {name for path in files for name in re.findall(r"--Gateway\.(\w+)", path.read_text("utf-8"))}
    assert found
    check_settings(Config({"Gateway": dict.fromkeys(found, "")}), Gateway)
