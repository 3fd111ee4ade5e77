"""Random requests by users of all kinds to every address of the Manager.

No answer is a 5xx, and those of REST are as openapi.json describes them. Answers to other users hold nothing of the
victim (name, jobs, servers, keys) unless the request held the same word, and no other user changes the victim's jobs.
Afterwards the database is intact, and this Manager and its successor decide as before. The requests are the same in
every run; a failure prints its seed. DLSPAWNER_FUZZ is the number of requests, DLSPAWNER_FUZZ_SEED makes others.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import threading
import zlib
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from http.cookiejar import DefaultCookiePolicy
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import requests
from hypothesis import HealthCheck, Phase, given, note, seed, settings
from hypothesis import strategies as st

from dlspawner.clients.kubernetes import PODS
from dlspawner.core.link import derive_hub_token
from dlspawner.manager.model.notice import NoticeKind
from dlspawner.manager.state.notify import post
from tests.component.manager import described
from tests.component.manager.addresses import PREFIX, Address, addresses
from tests.component.manager.manager_harness import NAMESPACE, Leader, wants
from tests.component.manager.noticing import harnesses, serving
from tests.component.manager.portals import Portal, equip
from tests.component.manager.real_hub import RealHub
from tests.component.manager.test_ssh_keys_page import make_key

pytestmark = pytest.mark.slow

REQUESTS = int(os.environ.get("DLSPAWNER_FUZZ", "10000"))
SEED = int(os.environ.get("DLSPAWNER_FUZZ_SEED", "0"))
ALL = [one for one in addresses() if one.path != "oauth_callback"]
# Without a Prometheus, and before the Hub has told how the jobs of a test are used.
UNAVAILABLE = {"GET api/jobs/{id}/usage": {501}, "POST api/jobs/{id}/keep-alive": {503}}
VICTIM, SERVER, LAPTOP = "victoria-the-victim", "victorias-own-server", "victorias-own-laptop"
STRANGERS = ("anonymous", "bob", "lars", "other", "small")
SENDERS = (*STRANGERS, "victim", "admin", "gateway", "hub", "job")

# Requests

NASTY = st.sampled_from(
    [
        *("", "\0", "\ud800", "\u202e", "..", "../../etc/passwd", "%00", "%2e%2e", "' OR 1=1 --", "</script><script>"),
        *("nan", "-1", "0", "99999999999999999999", "true", "null", "{{7*7}}", "a" * 5000, "é" * 300, "☃", "\r\nX: y"),
    ]
)
TEXT = NASTY | st.text(max_size=20)
SCALAR = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
VALUE = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=6
)
# Fields and parameters with values that are often valid, so that requests pass the first check.
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    **{name: st.sampled_from([VICTIM, "bob", "nobody"]) | VALUE for name in ("user", "by")},
    **{name: st.sampled_from(["", "train"]) | VALUE for name in ("server", "name", "pod", "container", "namespace")},
    **{name: st.sampled_from(["default", "language"]) | VALUE for name in ("team", "group")},
    **{name: st.sampled_from(["tiny", "gpu", "low"]) | VALUE for name in ("template", "gpu_type", "priority")},
    **{name: st.integers(-1, 10**9) | VALUE for name in ("gpus", "limit", "tail", "run", "step", "version", "port")},
    **{name: st.integers(-1, 2**70) | VALUE for name in ("request_milliseconds", "seconds", "first_uid", "last_uid")},
    **{name: st.booleans() | VALUE for name in ("preemptible", "requeue", "previous", "busy", "start_on_connect")},
    **{name: st.sampled_from(["live", "ended", "queued", "user", "team"]) | VALUE for name in ("state", "kind")},
    **{
        name: st.sampled_from(["2031-12-24T18:00:00Z", "9999-12-31T23:59:59-12:00"]) | VALUE
        for name in ("since", "until")
    },
    **{name: st.lists(VALUE, max_size=3) | VALUE for name in ("pods", "keys", "sessions", "cursor")},
    **{name: st.dictionaries(TEXT, VALUE, max_size=3) | VALUE for name in ("options", "spec")},
    **dict.fromkeys(("key", "source", "reason", "search", "gateway", "job"), TEXT | VALUE),
}
NAMES = st.sampled_from(sorted(FIELDS))
OBJECT = st.lists(NAMES, max_size=8, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: FIELDS[name] for name in names})
)
SUBMIT = st.fixed_dictionaries({"server": st.sampled_from(["s1", "s2"]), "options": st.just({"template": "tiny"})})
KEY = st.fixed_dictionaries({"key": st.sampled_from([make_key("one"), make_key("two")]), "name": TEXT})
BODY = st.one_of(
    st.one_of(SUBMIT, KEY, OBJECT, VALUE).map(lambda content: json.dumps(content).encode()),
    st.dictionaries(NAMES, TEXT, min_size=1, max_size=4).map(
        lambda content: urlencode(content, errors="surrogatepass").encode()
    ),
    st.binary(min_size=1, max_size=200),
    st.sampled_from([b"[" * 10000, b'{"a":' * 5000, b"1e999999", b'{"server": "\\ud800"}']),
)
HEADERS = st.fixed_dictionaries(
    {"Content-Type": st.sampled_from(["application/json"] * 3 + ["application/x-www-form-urlencoded", "text/plain"])},
    optional={
        "Accept": st.sampled_from(["text/html", "text/csv", "nonsense"]),
        "Cookie": st.sampled_from(["_xsrf=x", "service-jobs=x; _xsrf=2|a|b|c"]),
        "Last-Event-ID": st.sampled_from(["0", "' OR 1=1 --", "a" * 500, "%00"]),
    },
)
PLACES = st.fixed_dictionaries(
    {
        "id": st.sampled_from([0, 1, 2]) | st.from_regex(r"\Aj-[a-z2-7]{12}\Z"),  # the number of a job of `Existing`
        "notice": st.just("") | st.from_regex(r"\A[0-9a-f]{16}\Z"),
        "number": st.integers(0, 999_999_999).map(str),
        "user": st.sampled_from([VICTIM, "bob"]) | TEXT,
        "server": st.sampled_from([SERVER, "", "train"]) | TEXT,
        "node": st.sampled_from(["n1", "node-1"]) | TEXT,
        "file": st.sampled_from(["favicon.ico", "css/style.min.css"]) | TEXT,
    }
)


@dataclass(frozen=True)
class Request:
    sender: str
    places: dict[str, Any]
    query: dict[str, str]
    body: bytes
    headers: dict[str, str]

    def path(self, address: Address, existing: Existing) -> str:
        places = dict(self.places)
        if isinstance(places["id"], int):  # the Hub is trusted: it could make a job of the victim another user's
            places["id"] = existing.jobs[places["id"]] if self.sender != "hub" else f"j-{'a' * 12}"
        places["notice"] = places["notice"] or existing.notice
        quoted = {name: quote(text, safe="", errors="surrogatepass") for name, text in places.items()}
        return f"{address.path.format(**quoted)}?{urlencode(self.query, errors='surrogatepass')}"


def requests_to(address: Address) -> st.SearchStrategy[Request]:
    return st.builds(
        Request,
        sender=st.sampled_from(SENDERS),
        places=PLACES,
        query=st.dictionaries(NAMES | TEXT, TEXT, max_size=3),
        body=BODY if address.method in {"POST", "PUT"} else st.just(b""),
        headers=HEADERS,
    )


# The Manager


@dataclass
class Target:
    """A Manager in a thread of its own."""

    portal: Portal
    loop: asyncio.AbstractEventLoop
    tokens: dict[str, str | None]
    queued: str  # a job of the victim
    session: requests.Session = field(default_factory=requests.Session)

    def __post_init__(self) -> None:
        self.session.trust_env = False
        self.session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))

    def do(self, what: Coroutine[Any, Any, Any]) -> Any:
        """In the Manager's thread."""
        return asyncio.run_coroutine_threadsafe(what, self.loop).result(120)

    def send(self, request: Request, method: str, url: str) -> requests.Response:
        headers, token = dict(request.headers), self.tokens[request.sender]
        if token is not None:
            headers["Authorization"] = f"token {token}"
        answer = self.session.request(
            method, url, data=request.body or None, headers=headers, timeout=60, allow_redirects=False, stream=True
        )
        if answer.headers.get("Content-Type") == "text/event-stream":  # without an end
            answer.close()
            answer._content = b""
        _ = answer.content
        return answer


async def make_target(portal: Portal) -> Target:
    """The victim has a key, a running and a queued job; bob has a running job, whose token is used."""
    real_hub = portal.real_hub
    await portal.runs(wants(VICTIM, 6, server=SERVER))
    queued = await portal.waits(wants(VICTIM, 4, server=f"{SERVER}-queued"))
    await portal.runs(wants("bob", 0, server="bobs-server"))
    people = {"bob": "bob", "lars": "lars", "victim": VICTIM, "admin": "root-admin"}
    tokens = {
        **{sender: await asyncio.to_thread(real_hub.token, name) for sender, name in people.items()},
        **{"anonymous": None, "hub": derive_hub_token(real_hub.tokens["manager"])},
        **{"gateway": real_hub.tokens["gateway"], "other": real_hub.tokens["other"]},
        "small": await asyncio.to_thread(real_hub.token, "bob", ("access:services!service=jobs",)),
        "job": await asyncio.to_thread(real_hub.server_token, "bob", "bobs-server"),
    }
    target = Target(portal, asyncio.get_running_loop(), tokens, queued.job)
    headers = {"Authorization": f"token {tokens['victim']}"}
    url, body = f"{portal.served.url}/api/keys", {"key": make_key(LAPTOP)}
    added = await asyncio.to_thread(requests.post, url, headers=headers, json=body, timeout=30)
    assert added.status_code == 201, added.text
    return target


async def decides(leader: Leader, user: str) -> None:
    assert (await leader.ask(wants(user, 0))).decision == "admit"
    assert (await leader.ask(wants(user, 9, server="too-large"))).decision == "refuse"


async def serve(
    folder: Path, real_hub: RealHub, ready: threading.Event, over: threading.Event, made: list[Target]
) -> None:
    """The Manager until `over` is set; then its successor, which reads all that this one wrote."""
    async with harnesses(folder, f"sqlite:///{folder / 'm.sqlite'}") as harness:
        await equip(harness)
        async with serving(harness, real_hub) as served:
            made.append(await make_target(Portal(harness, served, real_hub)))
            ready.set()
            await asyncio.to_thread(over.wait)
            await decides(served.leader, "carol")
        with closing(sqlite3.connect(folder / "m.sqlite")) as database:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        async with harness.manager() as successor:
            await decides(successor, "dave")


@pytest.fixture(scope="module")
def target(real_hub: RealHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder, ready, over = tmp_path_factory.mktemp("fuzz"), threading.Event(), threading.Event()
    made: list[Target] = []
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(lambda: asyncio.run(serve(folder, real_hub, ready, over, made)))
        running.add_done_callback(lambda _: ready.set())
        ready.wait(120)
        try:
            yield made[0]
        finally:
            over.set()
            running.result(120)


@dataclass
class Existing:
    """What requests to one address can name: other requests may have ended the jobs of other addresses."""

    jobs: list[str]  # the victim's running job and queued job, and bob's
    notice: str  # of bob's job

    def hidden_from(self, sender: str) -> list[str]:
        if sender == "victim":
            return ["bobs-server", self.jobs[2]]
        return [VICTIM, SERVER, LAPTOP, *self.jobs[:2]] if sender in STRANGERS else []


@pytest.fixture
def existing(target: Target, address: Address) -> Iterator[Existing]:
    servers = [(user, f"{name}-{ALL.index(address)}") for user, name in ((VICTIM, SERVER), ("bob", "bobs-server"))]
    yield target.do(make_existing(target, servers))
    for user, server in servers:
        target.do(target.portal.harness.cluster.delete(PODS, f"jupyter-{user}--{server}", NAMESPACE, grace=0))


async def make_existing(target: Target, servers: list[tuple[str, str]]) -> Existing:
    leader = target.portal.served.leader
    victims, bobs = [(await target.portal.runs(wants(user, 0, server=server))).job for user, server in servers]
    job = leader.service.store.records[bobs].job
    notice = await leader.transact(post, job, NoticeKind.IDLE, "Unused.", keep=True)
    return Existing([victims, target.queued, bobs], notice.id)


@pytest.mark.parametrize("address", ALL, ids=str)
def test_no_request_breaks_the_manager_or_reveals_others(target: Target, existing: Existing, address: Address) -> None:
    chosen = zlib.crc32(str(address).encode()) + SEED

    @seed(chosen)
    @settings(
        max_examples=-(-REQUESTS // len(ALL)),
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(request=requests_to(address))
    def check(request: Request) -> None:
        url = f"{target.portal.served.url}/{request.path(address, existing)}"
        answer = target.send(request, address.method, url)
        note(f"{address} with the seed {chosen}: {answer.status_code} {answer.text[:1000]}")
        assert answer.status_code < 500 or answer.status_code in UNAVAILABLE.get(str(address), ()), answer.text
        path, kind = str(answer.request.path_url).removeprefix(PREFIX), answer.headers.get("Content-Type", "")
        if not kind.startswith(("text/event-stream", "text/html")):  # no end, or no such address
            described.check(address.method, path, answer.status_code, kind, answer.text)
        sent, received = f"{url} {request.body!r}", f"{answer.text} {answer.headers}"
        assert [one for one in existing.hidden_from(request.sender) if one in received and one not in sent] == []
        if request.sender in STRANGERS and address.method != "GET" and "{id}" in address.path:
            assert not (answer.status_code < 400 and any(job in url for job in existing.jobs[:2])), answer.text

    check()
