"""The login proxies of the shipped templates, as real processes beside a fake Hub that knows tokens."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest
from tensorboardX import SummaryWriter
from tornado import web, websocket
from tornado.http1connection import HTTP1Connection
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest, HTTPResponse
from tornado.httputil import url_concat

from dlspawner import settings
from dlspawner.core.launch import options, rendering
from dlspawner.spawner import owned_objects
from tests.harness.ports import free_port

ROOT = Path(__file__).parents[2]
LOGIN_PROXY = owned_objects.packaged("login_proxy.py")
PREFIX = "/user/alice/my-one/"
DEADLINE = 60
LARGE = 101 * 2**20  # more than Tornado takes into memory


class Identify(web.RequestHandler):
    """``GET /hub/api/user``: a token is the name of its owner."""

    def get(self) -> None:
        name = self.request.headers["Authorization"].split()[-1]
        self.write({"kind": "user", "name": name, "groups": [], "scopes": [f"access:servers!server={name}/one"]})


@contextmanager
def hub() -> Iterator[str]:
    server = web.Application([("/hub/api/user", Identify)]).listen(0, "127.0.0.1")
    port = next(iter(server._sockets.values())).getsockname()[1]
    yield f"http://127.0.0.1:{port}/hub/api"
    server.stop()


def make_page(directory: Path) -> None:
    (directory / "page").mkdir()
    (directory / "page" / "index.html").write_text("<p>ssh alice+one@gateway</p>", encoding="utf-8")


def command(name: str, **given: object) -> list[str]:
    loaded = settings.load(ROOT / "templates/jobs", ROOT / "hub_config/cluster.yaml", ROOT / "hub_config/teams.yaml")
    template = loaded.template(name)
    assert template is not None
    choices = options.select_options(template, loaded.cluster, given)
    assert isinstance(choices, options.SelectedOptions)
    facts = rendering.RenderContext("alice", "one", "alice", "j-abcdefghij23", "pod", login_proxy=LOGIN_PROXY)
    made = rendering.render(template, choices, facts)
    assert isinstance(made, rendering.RenderedTemplate)
    notebook = next(one for one in made.fragment["spec"]["containers"] if one["name"] == "notebook")
    return list(notebook["args"])


@asynccontextmanager
async def job(arguments: list[str], hub_api: str, **environment: str) -> AsyncIterator[tuple[str, int]]:
    """The program as it runs in a pod; yields the address of its server, once it answers, and its process id."""
    url = f"http://127.0.0.1:{free_port()}"
    # Short, because paths of sockets have at most a hundred characters.
    temporary = tempfile.TemporaryDirectory(prefix="job-")
    for name in ("random", "socket", "select", "token", "queue", "inspect", "signal", "tornado"):
        (Path(temporary.name) / f"{name}.py").write_text("raise SystemExit('a file of the person')\n")
    process = await asyncio.create_subprocess_exec(
        *arguments,
        cwd=temporary.name,
        env={
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": "/nonexistent",
            "TMPDIR": temporary.name,
            "JUPYTERHUB_API_TOKEN": "token-of-the-server",
            "JUPYTERHUB_API_URL": hub_api,
            "JUPYTERHUB_BASE_URL": "/",
            "JUPYTERHUB_CLIENT_ID": "jupyterhub-user-alice-one",
            "JUPYTERHUB_HOST": "",
            "JUPYTERHUB_OAUTH_ACCESS_SCOPES": '["access:servers!server=alice/one"]',
            "JUPYTERHUB_OAUTH_CALLBACK_URL": f"{PREFIX}oauth_callback",
            "JUPYTERHUB_SERVICE_PREFIX": PREFIX,
            "JUPYTERHUB_SERVICE_URL": url,
            "JUPYTERHUB_USER": "alice",
            **environment,
        },
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(DEADLINE):
            while not await answers(url):  # noqa: ASYNC110 - another process's port has no event to wait for
                await asyncio.sleep(0.05)
        yield url, process.pid
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        await asyncio.wait_for(process.wait(), DEADLINE)
        temporary.cleanup()


async def answers(url: str) -> bool:
    try:
        return (await get(f"{url}{PREFIX}api")).code < 500
    except OSError:
        return False


async def get(url: str, token: str | None = None) -> HTTPResponse:
    headers = {"Authorization": f"token {token}"} if token else {}
    client = AsyncHTTPClient()
    return await client.fetch(url, headers=headers, raise_error=False, follow_redirects=False, request_timeout=DEADLINE)


LATE = """
import asyncio, sys
async def serve(reader, writer):
    await reader.readuntil(b"\\r\\n\\r\\n")
    writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 4\\r\\n\\r\\nlate")
    await writer.drain()
    writer.close()
async def main():
    await asyncio.sleep(%d)
    async with await asyncio.start_unix_server(serve, sys.argv[1]):
        await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_slow_program_is_waited_for() -> None:
    """jupyter-server-proxy itself gives it five seconds."""
    program = [sys.executable, "-I", "-c", LATE % 7, "{unix_socket}"]
    line = [sys.executable, "-I", "-c", LOGIN_PROXY, "--activity-interval=0", "--unix-socket=true", "--", *program]
    with hub() as hub_api:
        async with job(line, hub_api) as (url, _):
            answer = await get(f"{url}{PREFIX}", token="alice")
    assert (answer.code, answer.body) == (200, b"late")


def tcp_listeners(session: int) -> set[str]:
    """The local addresses on which any process of a session listens, from /proc."""
    inodes = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[3]) == session:
                inodes |= {link.readlink().name for link in (stat.parent / "fd").iterdir()}
        except OSError:
            continue  # ended meanwhile
    rows = [
        line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return {row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes}


def takes_nothing(home: Path) -> Path:
    """A home directory that Jupyter has been used in, and cannot write to any more."""
    (home / ".ipython").mkdir(parents=True)
    (home / ".jupyter").symlink_to("/proc/takes/nothing")
    return home


@pytest.mark.parametrize(
    ("template", "page", "expected"),
    [
        ("ssh", "", "ssh alice+one@gateway"),
        ("custom", "", "ssh alice+one@gateway"),
        ("tensorboard", "data/runs", '["first"]'),
    ],
)
async def test_only_the_owner_has_access_and_only_with_a_login(
    template: str, page: str, expected: str, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    make_page(tmp_path)
    with SummaryWriter(str(runs / "first")) as writer:
        writer.add_scalar("loss", 0.5, 1)
    with hub() as hub_api:
        files = {
            "DLSPAWNER_FILES": str(tmp_path),
            "DLSPAWNER_LOG_DIR": str(runs),
            "HOME": str(takes_nothing(tmp_path / "home")),
        }
        async with job(command(template), hub_api, **files) as (url, session):
            nobody, owner, other = [await get(f"{url}{PREFIX}{page}", token) for token in (None, "alice", "bob")]
            async with asyncio.timeout(DEADLINE):  # TensorBoard answers before it has read its directory
                while owner.code == 200 and expected not in owner.body.decode():
                    await asyncio.sleep(0.05)
                    owner = await get(f"{url}{PREFIX}{page}", "alice")
            listening = tcp_listeners(session)
    assert (nobody.code, owner.code, other.code) == (302, 200, 403)
    assert nobody.headers["Location"].startswith("/hub/api/oauth2/authorize")
    assert expected in owner.body.decode()
    assert len(listening) == 1


@pytest.mark.slow
async def test_vscode_has_its_extensions_and_is_behind_the_login(tmp_path: Path) -> None:
    """With what `make vscode` has built. An extension that cannot be installed keeps it from nothing."""
    extension = tmp_path / "greeter.vsix"
    target = '<InstallationTarget Id="Microsoft.VisualStudio.Code"/>'
    asset = '<Asset Type="Microsoft.VisualStudio.Code.Manifest" Path="extension/package.json"/>'
    with zipfile.ZipFile(extension, "w") as archive:
        engines = {"vscode": "^1.60.0"}
        package = {"name": "greeter", "publisher": "tests", "version": "1.0.0", "engines": engines}
        archive.writestr("extension/package.json", json.dumps(package))
        archive.writestr(
            "extension.vsixmanifest",
            '<PackageManifest Version="2.0.0" xmlns="http://schemas.microsoft.com/developer/vsx-schema/2011">'
            '<Metadata><Identity Language="en-US" Id="greeter" Version="1.0.0" Publisher="tests"/></Metadata>'
            f"<Installation>{target}</Installation><Assets>{asset}</Assets></PackageManifest>",
        )
    home = tmp_path / "home"
    home.mkdir()
    extensions = {"HOME": str(home), "VSCODE_EXTENSIONS": f"/nothing/there.vsix {extension}"}
    with hub() as hub_api:
        async with job(command("vscode"), hub_api, **extensions) as (url, session):
            nobody, owner, other = [await get(f"{url}{PREFIX}?folder=/", token) for token in (None, "alice", "bob")]
            listening = tcp_listeners(session)
    assert (nobody.code, owner.code, other.code) == (302, 200, 403)
    assert "vscode-workbench-web-configuration" in owner.body.decode()
    assert len(listening) == 1
    assert list((home / ".local/share/code-server/extensions").glob("tests.greeter-*"))


@pytest.mark.parametrize("template", ["ssh", "tensorboard"])
async def test_sigterm_ends_the_program(template: str, tmp_path: Path) -> None:
    """Only the program itself gets the signal, as in a container."""
    make_page(tmp_path)
    with hub() as hub_api:
        files = {"DLSPAWNER_FILES": str(tmp_path), "DLSPAWNER_LOG_DIR": str(tmp_path)}
        async with job(command(template), hub_api, **files) as (_, process):
            os.kill(process, signal.SIGTERM)
            async with asyncio.timeout(DEADLINE):
                while Path(f"/proc/{process}").exists():  # noqa: ASYNC110 - the event loop reaps it
                    await asyncio.sleep(0.05)


@web.stream_request_body
class WebServer(web.RequestHandler):
    """A user's web server, which shows what it sees of a request."""

    received = 0

    def prepare(self) -> None:
        assert isinstance(self.request.connection, HTTP1Connection)
        self.request.connection.set_max_body_size(2 * LARGE)
        if self.get_argument("refuse", ""):
            raise web.HTTPError(413)  # and hangs up on what is still sent

    def data_received(self, chunk: bytes) -> None:
        self.received += len(chunk)

    async def get(self) -> None:
        if self.get_argument("location", ""):
            self.redirect(self.get_argument("location"), status=307)
            return
        if self.get_argument("hang-up", ""):
            self.detach().close()
            return
        for _ in range(int(self.get_argument("chunks", "0"))):
            self.write(bytes(2**20))
            await self.flush()
        seen = tuple(self.request.headers.get(name) for name in ("Authorization", "Cookie", "Referer"))
        self.write(f"theirs {self.request.uri} {seen}")

    def put(self) -> None:
        self.write(f"received {self.received}")


class Echo(websocket.WebSocketHandler):
    """Answers with the path and the message."""

    def on_message(self, message: str | bytes) -> None:
        self.write_message(f"{self.request.uri} {message!r}")


@contextmanager
def web_server() -> Iterator[int]:
    server = web.Application([("/echo", Echo), (".*", WebServer)]).listen(0, "127.0.0.1")
    yield int(next(iter(server._sockets.values())).getsockname()[1])
    server.stop()


async def test_an_own_web_server_is_behind_the_login_and_sees_no_credentials(tmp_path: Path) -> None:
    with hub() as hub_api, web_server() as port:
        arguments = command("custom", http_port=port)
        async with job(arguments, hub_api, DLSPAWNER_FILES=str(tmp_path)) as (url, _):
            nobody, other = [await get(f"{url}{PREFIX}data", token) for token in (None, "bob")]
            headers = {
                "Authorization": "token alice",
                "Cookie": "jupyterhub-user-alice-one=secret; __Host-jupyterhub-hub=x; theirs=1; _xsrf=session",
                "Referer": f"{url}{PREFIX}?token=secret",
            }
            request = HTTPRequest(f"{url}{PREFIX}data?x=1&%74oken=alice&y=a%20b", headers=headers)
            owner = await AsyncHTTPClient().fetch(request)
            # A browser's WebSocket can send no header of a page's choosing.
            address = f"{url}{PREFIX}echo?token=alice".replace("http", "ws", 1)
            browser = {"Sec-Fetch-Mode": "websocket", "Origin": url}
            echo = await websocket.websocket_connect(HTTPRequest(address, headers=browser))
            await echo.write_message("hello")
            said = await asyncio.wait_for(echo.read_message(), DEADLINE)
            echo.close()
    assert (nobody.code, other.code) == (302, 403)
    assert owner.body.decode() == f"theirs /data?x=1&y=a%20b (None, 'theirs=1', '{url}{PREFIX}')"
    assert said == "/echo 'hello'"


REDIRECTS = {
    "/data": f"{PREFIX}data",
    PREFIX.removesuffix("/"): PREFIX.removesuffix("/"),
    f"{PREFIX}data?x=/": f"{PREFIX}data?x=/",
    "/user/alice/my-one-more/": f"{PREFIX}user/alice/my-one-more/",
    "data/": "data/",
    "http://{host}/data/": f"{PREFIX}data/",
    "https://elsewhere.org/data": "https://elsewhere.org/data",
    "//elsewhere.org/data": "//elsewhere.org/data",
}


async def test_an_own_web_server_gets_what_the_browser_sends(tmp_path: Path) -> None:
    async def upload(write: Callable[[bytes], Awaitable[None]]) -> None:
        for _ in range(LARGE // 2**20):
            await write(bytes(2**20))

    received = 0

    def downloaded(chunk: bytes) -> None:
        nonlocal received
        received += len(chunk)

    login = {"Authorization": "token alice"}
    with hub() as hub_api, web_server() as port:
        async with job(command("custom", http_port=port), hub_api, DLSPAWNER_FILES=str(tmp_path)) as (url, _):
            page, client = f"{url}{PREFIX}", AsyncHTTPClient(force_instance=True, max_body_size=2 * LARGE)
            path = await get(f"{page}a%2Fb/%E4%F6//c;d/../e?x=%2F", "alice")
            headers = {**login, "Content-Length": str(LARGE)}
            up = HTTPRequest(page, "PUT", headers, body_producer=upload, request_timeout=DEADLINE)
            chunked = HTTPRequest(page, "PUT", login, body_producer=upload, request_timeout=DEADLINE)
            refused = HTTPRequest(f"{page}?refuse=1", "PUT", headers, body_producer=upload, request_timeout=DEADLINE)
            too_large = await client.fetch(refused, raise_error=False)
            uploads = [(await client.fetch(one)).body.decode() for one in (up, chunked)]
            down = f"{page}?chunks={LARGE // 2**20}"
            await client.fetch(
                HTTPRequest(down, headers=login, streaming_callback=downloaded, request_timeout=DEADLINE)
            )
            answers = [
                await get(url_concat(page, {"location": one.format(host=url[7:])}), "alice") for one in REDIRECTS
            ]
            without_slash = await get(page.removesuffix("/"), "alice")
            silent = await get(f"{page}?hang-up=1", "alice")
    assert path.body.decode().startswith("theirs /a%2Fb/%E4%F6//c;d/../e?x=%2F ")
    assert too_large.code == 413
    assert uploads == [f"received {LARGE}"] * 2
    assert received > LARGE
    assert [answer.headers["Location"] for answer in answers] == list(REDIRECTS.values())
    assert without_slash.headers["Location"] == PREFIX
    assert (silent.code, silent.body) == (502, b"The server in this job gave no answer.\n")


@pytest.mark.parametrize(
    ("token", "origin"),
    [("", None), ("bob", None), ("alice", "https://elsewhere.org"), ("alice", "null")],
)
async def test_a_websocket_needs_the_login_as_well(token: str, origin: str | None, tmp_path: Path) -> None:
    headers = ({"Authorization": f"token {token}"} if token else {}) | ({"Origin": origin} if origin else {})
    with hub() as hub_api, web_server() as port:
        async with job(command("custom", http_port=port), hub_api, DLSPAWNER_FILES=str(tmp_path)) as (url, _):
            await get(f"{url}{PREFIX}", "alice")
            request = HTTPRequest(
                f"{url}{PREFIX}echo".replace("http", "ws", 1), headers=headers, follow_redirects=False
            )
            with pytest.raises(HTTPClientError) as refused:
                await websocket.websocket_connect(request)
    assert refused.value.code in {302, 403}


async def test_the_page_says_that_the_own_web_server_does_not_run(tmp_path: Path) -> None:
    make_page(tmp_path)
    port = free_port()
    with hub() as hub_api:
        arguments = command("custom", http_port=port)
        async with job(arguments, hub_api, DLSPAWNER_FILES=str(tmp_path)) as (url, _):
            owner = await get(f"{url}{PREFIX}", "alice")
    assert f"Nothing listens on port {port} of this job yet" in owner.body.decode()
    assert "ssh alice+one@gateway" in owner.body.decode()
