"""Requests that nobody would mean: three of four hold anything, and the fourth nearly what its address takes.

A request of the second kind comes from somebody who may ask that, about what is there, and its body has the right
fields: so it gets to where something is done, with the nasty values in it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from hypothesis import strategies as st

from tests.component.manager.addresses import Address
from tests.component.manager.manager_harness import wants
from tests.component.manager.test_page import make_key

VICTIM, SERVER, LAPTOP = "victoria-the-victim", "victorias-own-server", "victorias-own-laptop"
NEIGHBOUR, NEIGHBOURS = "bob", "bobs-server"  # whose job runs as long as the test does
STRANGERS = ("anonymous", "bob", "lars", "other", "small")
WHO = (*STRANGERS, "victim", "admin", "gateway", "hub", "job")
HERS, HIS = (0, 1), 2  # the places of jobs' ids among those of the target
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
    st.dictionaries(st.sampled_from(sorted(KNOWN)), TEXT, min_size=1, max_size=4).map(
        lambda content: urlencode(content, errors="surrogatepass").encode()
    ),
    st.binary(min_size=1, max_size=200),
    st.sampled_from([b"[" * 10000, b'{"a":' * 5000, b"1e999999", b'{"server": "\\ud800"}']),
)
KIND = st.sampled_from(["application/json"] * 3 + ["application/x-www-form-urlencoded", "multipart/form-data", ""])
QUERY = st.dictionaries(st.sampled_from(sorted(KNOWN)) | TEXT, TEXT, max_size=3)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "Accept": st.sampled_from(["text/html", "text/csv", "*/*", "nonsense"]),
        "Cookie": st.sampled_from(["_xsrf=x", "service-jobs=x; _xsrf=2|a|b|c", "jupyterhub-session-id=x"]),
        "X-XSRFToken": st.just("x"),
        "Range": st.just("bytes=0-1"),
        "Last-Event-ID": st.sampled_from(["0", "-1", "' OR 1=1 --", "a" * 500, "%00"]),
    },
)
PLACES = {
    "id": st.sampled_from(HERS) | st.from_regex(r"\Aj-[a-z2-7]{12}\Z"),
    "notice": st.from_regex(r"\A[0-9a-f]{16}\Z"),
    "number": st.integers(0, 999_999_999).map(str),
    "user": st.sampled_from([VICTIM, "bob"]) | TEXT,
    "server": st.sampled_from([SERVER, "", "train"]) | TEXT,
    "file": st.sampled_from(["favicon.ico", "css/style.min.css"]) | TEXT,
}


KEYS = st.sampled_from([make_key(f"key-{number}") for number in range(5)])
CLEAN = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), max_size=20)
UIDS = {"first_uid": st.integers(10_000, 20_000), "last_uid": st.integers(30_000, 2**31 - 1)}
PAIRS = st.lists(st.tuples(CLEAN, CLEAN), max_size=3)


def asks(**more: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(more)


# What these addresses take. Of others that take a body, it does not matter what it holds.
FITS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "POST keys": asks(key=KEYS, name=CLEAN),
    "POST api/keys": asks(key=KEYS, name=CLEAN),
    "POST start": asks(server=st.just(NEIGHBOURS) | CLEAN),
    "PUT api/key-suggestions": asks(keys=st.lists(asks(key=KEYS | CLEAN, source=CLEAN), max_size=3)),
    "PUT api/internal/users/{user}/account": asks(**UIDS),
    "PUT api/internal/users/{user}/starting": asks(server=CLEAN, **UIDS),
    "POST api/internal/users/{user}/interrupted": asks(server=CLEAN, job=CLEAN),
    "POST api/internal/jobs/{id}/released": asks(user=CLEAN, passes=st.booleans(), why=CLEAN),
    "PUT api/internal/jobs/{id}/admission": asks(
        **dict.fromkeys(("server", "team", "template", "priority"), CLEAN),
        user=st.just(NEIGHBOUR),
        **dict.fromkeys(("preemptible", "requeue"), st.booleans()),
        request_milliseconds=st.integers(0, 2**60),
        namespace=st.just("jobs"),
        pods=st.just([wants().pods[0]]),
    ),
    "PUT api/kernels": asks(busy=st.booleans(), seconds=st.none() | st.floats(0, 1e9)),
    "PUT api/ssh-sessions": asks(gateway=CLEAN, sessions=st.just([])),
    "POST api/ssh-access": asks(keys=PAIRS),
    "PUT api/ssh-settings": asks(start_on_connect=st.booleans()),
    "POST api/jobs": asks(server=st.sampled_from(["s1", "s2"]), options=st.just({"template": "tiny"})),
}
# Who may: the first of these beginnings decides, and else a person.
MAY = (
    *((f"{method} api/internal/", "hub") for method in ("GET", "POST", "PUT")),
    *(("GET api/users/{user}/keys", "gateway"), ("POST api/users/{user}/keys", "gateway")),
    *(("PUT api/kernels", "job"), ("PUT api/ssh-sessions", "gateway")),
    *(("POST api/ssh-access", "gateway"), ("GET api/ssh-starts", "gateway"), ("POST api/ssh-starts", "gateway")),
    *(("GET api/idle", "admin"), ("GET api/metrics", "admin"), ("GET all", "admin")),
)


@dataclass(frozen=True)
class Made:
    """A request that was thought up."""

    who: str
    places: dict[str, Any]
    query: dict[str, str]
    body: bytes
    kind: str
    headers: dict[str, str]

    def path(self, address: Address, ids: Sequence[str], notice: str) -> str:
        """Where it goes; ``ids`` and ``notice`` are of what is there."""
        places = dict(self.places)
        if isinstance(places["id"], int):  # the Hub is believed: it would make one of hers another's
            places["id"] = ids[places["id"]] if self.who != "hub" else f"j-{'a' * 12}"
        places["notice"] = places["notice"] or notice
        quoted = {name: quote(text, safe="", errors="surrogatepass") for name, text in places.items()}
        query = urlencode(self.query, errors="surrogatepass")
        return f"{address.path.format(**quoted)}?{query}"


# What is in the places of a request that is nearly right.
_THERE = st.fixed_dictionaries(
    {
        "id": st.just(HIS),
        "notice": st.just(""),
        "number": st.integers(1, 8).map(str),
        "user": st.just(NEIGHBOUR),
        "server": st.just(NEIGHBOURS),
        "file": st.just("favicon.ico"),
    }
)


def requests_to(address: Address, *, body: bool) -> st.SearchStrategy[Made]:
    """Any, and nearly right ones."""
    some, fit = (BODY, _fit(address)) if body else (st.just(b""), st.just(b""))
    anything = st.builds(
        Made,
        who=st.sampled_from(WHO),
        places=st.fixed_dictionaries(PLACES),
        query=QUERY,
        body=some,
        kind=KIND,
        headers=HEADERS,
    )
    form = not address.path.startswith("api/")
    right = st.builds(
        Made,
        who=st.just(next((who for start, who in MAY if str(address).startswith(start)), NEIGHBOUR)),
        places=_THERE,
        query=st.just({}),
        body=fit,
        kind=st.just("application/x-www-form-urlencoded" if form else "application/json"),
        headers=st.just({}),
    )
    return st.sampled_from((anything, anything, anything, right)).flatmap(lambda kind: kind)


def _fit(address: Address) -> st.SearchStrategy[bytes]:
    content = FITS.get(str(address), asks(reason=CLEAN))
    if address.path.startswith("api/"):
        return content.map(lambda given: json.dumps(given).encode())
    return content.map(lambda given: urlencode(given, errors="surrogatepass").encode())
