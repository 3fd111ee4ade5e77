"""10,000 requests that nobody would mean, of several people, over all addresses of a Manager that acts.

No answer is a 5xx, and what strangers are answered holds nothing of victoria's: not her name, her jobs, their servers
or her keys, unless they sent the very word. Ids in addresses are those of her real jobs half of the time, and no
stranger changes anything there. Addresses that take a body get three times as many requests as the others; which they
are is the same in every run. DLSPAWNER_FUZZ is how many there are altogether.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.cookiejar import DefaultCookiePolicy
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import requests
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from dlspawner.core.link import link_token
from dlspawner.hubapi import HubRefused
from dlspawner.manager.waiting_page import page_path
from tests.edges.test_manager.addresses import Address, addresses
from tests.edges.test_manager.office import ask, wants
from tests.edges.test_manager.portals import Portal, portals
from tests.edges.test_manager.test_manager_page import make_key
from tests.edges.test_manager.world import World

pytestmark = pytest.mark.slow

REQUESTS = int(os.environ.get("DLSPAWNER_FUZZ", "10000"))
VICTIM, SERVER, LAPTOP = "victoria-the-victim", "victorias-own-server", "victorias-own-laptop"
STRANGERS = ("anonymous", "bob", "lars", "other", "small")
WHO = (*STRANGERS, "victim", "admin", "gateway", "hub")
# What this Manager has not: a Prometheus.
NOT_HERE = {"GET api/jobs/{id}/usage": {501}}
ALL = [one for one in addresses() if one.path != "oauth_callback"]
WEIGHTS = {one: 3 if one.method in {"POST", "PUT"} else 1 for one in ALL}


@dataclass
class Target:
    """A Manager in a thread of its own, and what nobody but victoria may read."""

    url: str
    tokens: dict[str, str | None]
    ids: list[str]
    session: requests.Session = field(default_factory=requests.Session)
    answers: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.session.trust_env = False
        self.session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))  # nobody is anybody of before

    @property
    def secrets(self) -> list[str]:
        return [VICTIM, SERVER, LAPTOP, *self.ids]


async def furnish(portal: Portal) -> list[str]:
    """What is victoria's: jobs that run, wait and have ended, and a key."""

    async def start(user: str, server: str) -> None:
        answer = await ask(portal.served.acting, wants(user, 1, server=server))
        if answer.decision != "admit":
            raise HubRefused(429, page_path("/services/jobs/", user, server))

    portal.hub.starts = start
    runs = await portal.runs(wants(VICTIM, 6, server=SERVER))
    waits = await portal.waits(wants(VICTIM, 4, server=f"{SERVER}-waits"))
    assert portal.served.acting.culler is not None
    await portal.served.acting.culler.look()  # so that it is known whether the job is used
    token = await asyncio.to_thread(portal.world.token, VICTIM)
    headers, key = {"Authorization": f"token {token}"}, {"key": make_key(LAPTOP)}
    added = await asyncio.to_thread(
        requests.post, f"{portal.served.url}/api/keys", headers=headers, json=key, timeout=30
    )
    assert added.status_code == 201, added.text
    return [runs.job, waits.job]


@pytest.fixture(scope="module")
def target(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder, ready, over = tmp_path_factory.mktemp("fuzz"), threading.Event(), threading.Event()
    found: list[Target] = []

    async def run() -> None:
        async with portals(world, folder) as portal:
            ids = await furnish(portal)
            people = {"bob": "bob", "lars": "lars", "victim": VICTIM, "admin": "root-admin"}
            tokens: dict[str, str | None] = {who: world.token(name) for who, name in people.items()}
            tokens |= {"anonymous": None, "hub": link_token(world.tokens["manager"])}
            tokens |= {"gateway": world.tokens["gateway"], "other": world.tokens["other"]}
            tokens |= {"small": world.token("bob", ("access:services!service=jobs",))}
            found.append(Target(portal.served.url, tokens, ids))
            ready.set()
            await asyncio.to_thread(over.wait)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(folder / "cluster" / "kubeconfig"))
        thread = threading.Thread(target=lambda: asyncio.run(run()))
        thread.start()
        assert ready.wait(60)
        yield found[0]
        print(f"\n{found[0].answers.total()} requests:", *sorted(found[0].answers.items()))
        over.set()
        thread.join(60)


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
# Fields and parameters by what they may hold, so that requests get beyond the first check.
KNOWN: dict[str, st.SearchStrategy[Any]] = {
    **{name: st.sampled_from([VICTIM, "bob", "nobody"]) | VALUE for name in ("user", "by")},
    **{name: st.sampled_from(["", "train"]) | VALUE for name in ("server", "name", "pod", "container", "namespace")},
    **{name: st.sampled_from(["default", "language"]) | VALUE for name in ("team", "group")},
    **{name: st.sampled_from(["tiny", "gpu", "low"]) | VALUE for name in ("template", "gpu_type", "priority", "image")},
    **{name: st.integers(-1, 10**9) | VALUE for name in ("gpus", "limit", "tail", "run", "step", "version", "port")},
    **{name: st.integers(-1, 2**70) | VALUE for name in ("request_milliseconds", "seconds", "gpus_milli", "number")},
    **{name: st.booleans() | VALUE for name in ("preemptible", "requeue", "kept", "started", "previous", "again")},
    **{name: st.sampled_from(["live", "ended", "queued", "user", "team"]) | VALUE for name in ("state", "by", "kind")},
    **{
        name: st.sampled_from(["2031-12-24T18:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00"])
        | VALUE
        for name in ("since", "until", "at", "last", "cursor", "last_activity", "found")
    },
    **{name: st.lists(VALUE, max_size=3) | VALUE for name in ("pods", "keys", "kernels", "sessions", "special")},
    **{name: st.dictionaries(TEXT, VALUE, max_size=3) | VALUE for name in ("options", "spec")},
    **dict.fromkeys(("key", "source", "reason", "why", "search", "next", "comment", "title", "word"), TEXT | VALUE),
}
PODS: st.SearchStrategy[Any] = st.lists(
    st.fixed_dictionaries(
        {
            "spec": st.fixed_dictionaries({"containers": st.lists(VALUE | st.just({"resources": {}}), max_size=2)})
            | VALUE
        }
    ),
    max_size=2,
)
# Bodies that are nearly right, for what has many fields.
NEARLY = [
    st.fixed_dictionaries(
        {
            "server": st.sampled_from(["", "s1", "s2"]) | TEXT,
            "options": KNOWN["options"] | st.just({"template": "tiny"}),
        },
        optional={"user": KNOWN["user"]},
    ),
    st.fixed_dictionaries(
        {
            **{name: st.just(given) | VALUE for name, given in (("user", "bob"), ("server", "h"), ("team", "default"))},
            **{"template": st.just("tiny") | VALUE, "preemptible": st.booleans(), "priority": st.just("") | TEXT},
            **{"requeue": st.booleans(), "request_milliseconds": st.just(3000) | KNOWN["seconds"]},
            **{"namespace": st.just("jobs") | TEXT, "pods": st.just([]) | PODS},
        }
    ),
    st.fixed_dictionaries({"keys": st.lists(st.fixed_dictionaries({"key": TEXT, "source": TEXT}), max_size=3)}),
    st.fixed_dictionaries({"reason": TEXT}),
    st.fixed_dictionaries({"key": TEXT, "name": TEXT}),
]
ANY = st.lists(st.sampled_from(sorted(KNOWN)), max_size=5, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: KNOWN[name] for name in names})
)
BODY = st.one_of(
    st.one_of(*NEARLY, ANY, VALUE).map(lambda content: json.dumps(content).encode()),
    st.dictionaries(st.sampled_from(sorted(KNOWN)), TEXT, max_size=4).map(
        lambda content: urlencode(content, errors="surrogatepass").encode()
    ),
    st.binary(max_size=200),
    st.sampled_from([b"", b"[" * 10000, b'{"a":' * 5000, b"1e999999", b'{"server": "\\ud800"}']),
)
KIND = st.sampled_from(["application/json"] * 3 + ["application/x-www-form-urlencoded", "multipart/form-data", ""])
QUERY = st.dictionaries(st.sampled_from(sorted(KNOWN)) | TEXT, TEXT, max_size=3)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "Idempotency-Key": st.sampled_from(["k1", "k2", "a" * 300]),
        "Accept": st.sampled_from(["text/html", "text/csv", "*/*", "nonsense"]),
        "Cookie": st.sampled_from(["_xsrf=x", "service-jobs=x; _xsrf=2|a|b|c", "jupyterhub-session-id=x"]),
        "X-XSRFToken": st.just("x"),
        "Range": st.just("bytes=0-1"),
        "Last-Event-ID": st.sampled_from(["0", "-1", "' OR 1=1 --", "a" * 500, "%00"]),
    },
)
PLACES = {
    "id": st.sampled_from([0, 1]) | st.from_regex(r"\Aj-[a-z2-7]{12}\Z"),
    "notice": st.from_regex(r"\A[0-9a-f]{16}\Z"),
    "number": st.integers(0, 999_999_999).map(str),
    "user": st.sampled_from([VICTIM, "bob"]) | TEXT,
    "server": st.sampled_from([SERVER, "", "train"]) | TEXT,
}


@dataclass(frozen=True)
class Made:
    """A request that was thought up."""

    who: str
    places: dict[str, Any]
    query: dict[str, str]
    body: bytes
    kind: str
    headers: dict[str, str]

    def url(self, target: Target, address: Address) -> str:
        places = dict(self.places)
        if isinstance(places["id"], int):  # the Hub is believed: it would make one of hers another's
            places["id"] = target.ids[places["id"]] if self.who != "hub" else f"j-{'a' * 12}"
        quoted = {name: quote(text, safe="", errors="surrogatepass") for name, text in places.items()}
        query = urlencode(self.query, errors="surrogatepass")
        return f"{target.url}/{address.path.format(**quoted)}?{query}"


def send(target: Target, made: Made, method: str, url: str) -> requests.Response:
    headers, token = {**made.headers, "Content-Type": made.kind}, target.tokens[made.who]
    if token is not None:
        headers["Authorization"] = f"token {token}"
    answer = target.session.request(
        method, url, data=made.body or None, headers=headers, timeout=60, allow_redirects=False, stream=True
    )
    if answer.headers.get("Content-Type") == "text/event-stream":  # it never ends
        answer.close()
        answer._content = b""
    _ = answer.content
    return answer


REQUEST = st.builds(
    Made,
    who=st.sampled_from(WHO),
    places=st.fixed_dictionaries(PLACES),
    query=QUERY,
    body=BODY,
    kind=KIND,
    headers=HEADERS,
)


@pytest.mark.parametrize("address", ALL, ids=str)
def test_nothing_breaks_and_nothing_of_others_is_told(target: Target, address: Address) -> None:
    share, sent = -(-REQUESTS * WEIGHTS[address] // sum(WEIGHTS.values())), Counter[str]()

    @seed(zlib.crc32(str(address).encode()))
    @settings(
        max_examples=share,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(made=REQUEST)
    def asks(made: Made) -> None:
        url = made.url(target, address)
        answer = send(target, made, address.method, url)
        sent[made.who] += 1
        target.answers[answer.status_code] += 1
        assert answer.status_code < 500 or answer.status_code in NOT_HERE.get(str(address), ()), answer.text
        if made.who in STRANGERS:
            asked = f"{url} {made.body!r}"
            told = f"{answer.text} {answer.headers}"
            assert [word for word in target.secrets if word in told and word not in asked] == []
            hers = "{id}" in address.path and any(job in url for job in target.ids)
            assert not (hers and address.method != "GET" and answer.status_code < 400), answer.text

    asks()
    assert sent.total() >= share, "as many as were promised"
