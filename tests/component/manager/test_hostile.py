"""Hostile names and texts on every page and in every REST answer; the addresses are those of the application."""

from __future__ import annotations

import asyncio
import html
import itertools
import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from html.parser import HTMLParser
from typing import NamedTuple

import aiohttp
import pytest
import requests
import yarl
from jupyterhub.services.auth import HubOAuthenticated

from dlspawner.core.job import JobState
from dlspawner.core.text import escape_hidden
from dlspawner.manager.db.store import DatabaseUnavailable
from dlspawner.manager.http.portal import approvals
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.records import JobRecord, StopReason
from dlspawner.manager.state.job_store import Transaction
from tests.component.manager.addresses import PREFIX, Address, addresses
from tests.component.manager.manager_harness import wants
from tests.component.manager.noticing import job_of
from tests.component.manager.portals import TEAMS, Portal, proxied
from tests.component.manager.test_ssh_keys_page import Browser, make_key

PAGES = [
    one
    for one in addresses()
    if one.method == "GET"
    and not one.path.startswith(("api/", "static/"))
    and one.path not in {"health", "ready", "oauth_callback"}
]
API = [
    one
    for one in addresses()
    if one.method == "GET"
    and one.path.startswith("api/")
    and one.path not in {"api/events", "api/notices"}  # they wait
]
NOTHING_RUNS = "default-src 'none'; frame-ancestors 'none'"
# What moves a terminal's cursor, turns a line around, has no width.
HIDES = "\x1b[2J\x1b]0;t\x07\x9b1m\u202e\u2066\u200b\ufeff"
# Closes what surrounds it, as text, attribute and script.
HOSTILE = f"=x'\"></script></title></textarea><script>alert(1)</script><img src=x onerror=alert(2)>{{{{7*7}}}}{HIDES}"
# In a file it may have no end; halves of letters and NUL are mistakes there.
TITLE = json.dumps(f"{HOSTILE}{'y' * 65536}")


@pytest.fixture
def teams_yaml() -> str:
    return TEAMS.replace("title: Everybody", f"title: {TITLE}")


def path(address: Address, job: str, user: str, server: str = "train") -> str:
    return address.path.format(id=job, notice="f" * 16, number="1", user=user, server=server, node="gpu-1")


class Response(NamedTuple):
    address: str
    status: int
    headers: Mapping[str, str]
    text: str


class Tags(HTMLParser):
    """Every tag of a page with its attributes, as a browser reads them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))


async def hostile(portal: Portal, person: str) -> str:
    """All names and texts of users are hostile; the id of a job."""
    name = f"{HOSTILE}/é"[:200]
    job = await portal.runs(wants(person, server="train"))
    others = [replace(job_of(f"{n}{name}", name, n), template=HOSTILE) for n in (2, 3)]
    stopped = JobRecord(replace(others[0], state=JobState.STOPPING), stop=StopReason(EventReason.IDLE, HOSTILE))
    waits = JobRecord(replace(others[1], state=JobState.QUEUED))
    mine = JobRecord(replace(job_of(person, name, 4), state=JobState.QUEUED))
    portal.knows(person, name)  # first: whose server the Hub does not know does not wait for long
    for record in (stopped, waits, mine):
        await portal.served.leader.transact(Transaction.write, record, EventReason.QUEUED, HOSTILE)
    token = await asyncio.to_thread(portal.real_hub.token, person)
    headers, key = {"Authorization": f"token {token}"}, {"key": make_key(HOSTILE)}
    async with aiohttp.ClientSession(headers=headers) as session:
        async with session.post(f"{portal.served.url}/api/keys", json=key) as answer:
            assert answer.status == 201
        found = {"keys": [{"key": make_key(HOSTILE), "source": HOSTILE}]}
        async with session.put(f"{portal.served.url}/api/key-suggestions", json=found) as answer:
            assert answer.status == 204
    return job.job


async def walk(portal: Portal, person: str, paths: list[Address], params: dict[str, str]) -> AsyncIterator[Response]:
    """All answers of these addresses to a user, a team admin and an administrator."""
    ids = [await hostile(portal, person), *(job_of(number=number).id for number in (2, 4))]
    quoted = requests.utils.quote(f"{HOSTILE}/é"[:200], safe="")
    for user in (person, "root-admin", "vera"):
        token = await asyncio.to_thread(portal.real_hub.token, user)
        async with aiohttp.ClientSession(headers={"Authorization": f"token {token}"}) as session:
            for address in paths:
                for job in ids if "{id}" in address.path else ids[:1]:
                    url = f"{portal.served.url}/{path(address, job, person, quoted)}"
                    async with session.get(url, params=params, allow_redirects=False) as answer:
                        text = await answer.text()
                        assert answer.status < 500 or answer.status == 501, (str(address), text)
                        yield Response(str(address), answer.status, answer.headers, text)


@pytest.mark.parametrize(
    "params", [{}, dict.fromkeys(("q", "search", "user", "by", "cursor"), HOSTILE)], ids=["", "query"]
)
async def test_no_page_runs_hostile_names(portal: Portal, person: str, params: dict[str, str]) -> None:
    seen = set()
    async for answer in walk(portal, person, PAGES, params):
        if not 300 <= answer.status < 400:
            check(answer.address, answer.text, answer.headers["Content-Security-Policy"])
            seen |= {answer.address} if html.escape("<script>alert(1)") in answer.text else set()
    if not params:
        assert {"GET ", "GET all", "GET teams", "GET keys", "GET queue", "GET jobs/{id}"} <= seen, "they show the names"


# Method, address, what is sent, and the answer; pages that only somebody in trouble sees.
TROUBLE: dict[str, tuple[str, str, dict[str, str], int]] = {
    "an address that is none": ("GET", f"nowhere/{HOSTILE.replace('/', '')}", {"Accept": "text/html"}, 404),
    "a method that is none": ("DELETE", "queue", {}, 405),
    "an address that is no text": ("GET", "wait/%ff/%ff", {}, 400),
    "a form without its page's value": ("POST", "keys", {}, 403),
    "a body that is none": ("POST", "keys", {"Content-Type": "multipart/form-data; boundary=x"}, 400),
    "a login that is none": ("GET", "oauth_callback?code=x&state=y", {}, 403),
    "a database that is away": ("GET", "keys", {}, 503),
    "a mistake of ours": ("GET", "approvals", {}, 500),
    "a Manager that does not act": ("GET", "queue", {}, 503),
}


def broken(*_: object) -> None:
    raise ZeroDivisionError


async def away(*_: object) -> None:
    raise DatabaseUnavailable(HOSTILE)


async def test_no_error_page_runs_anything(portal: Portal, person: str, monkeypatch: pytest.MonkeyPatch) -> None:
    token = await asyncio.to_thread(portal.real_hub.token, person)
    monkeypatch.setattr(portal.served.leader, "admission", None)
    monkeypatch.setattr(HubOAuthenticated, "get_current_user", broken)  # it would block the Manager on the Hub
    monkeypatch.setattr(approvals.ApprovalsPage, "get", broken)
    monkeypatch.setattr(portal.served.manager.database, "keys", away)
    for what, (method, address, given, status) in TROUBLE.items():
        headers = given if status == 403 else {**given, "Authorization": f"token {token}"}
        url = yarl.URL(f"{portal.served.url}/{address}", encoded="%" in address)
        async with aiohttp.ClientSession(headers=headers) as session, session.request(method, url) as answer:
            text = await answer.text()
            assert answer.status == status, (what, text)
            assert "html" in answer.headers["Content-Type"], what
            check(what, text, answer.headers["Content-Security-Policy"])


async def test_rest_answers_are_plain_ascii(portal: Portal, person: str) -> None:
    seen = set()
    async for answer in walk(portal, person, API, {}):
        assert re.sub(r"[\t\n\r -~]", "", answer.text) == "", answer.address
        assert answer.headers["Content-Security-Policy"] == NOTHING_RUNS
        if "json" in answer.headers["Content-Type"]:
            seen |= {answer.address} if "\\u202e" in json.dumps(json.loads(answer.text)) else set()
    assert {"GET api/jobs", "GET api/jobs/{id}", "GET api/jobs/{id}/events", "GET api/quota"} <= seen


def check(address: str, text: str, policy: str) -> None:
    """Only what the templates hold is markup, and nothing hides."""
    assert escape_hidden(text) == text, (address, sorted({ascii(one) for one in text if escape_hidden(one) != one}))
    assert "unsafe-inline" not in policy, address
    assert "unsafe-eval" not in policy, address
    assert "default-src 'none'" in policy, address
    assert "<script>alert" not in text, address
    assert "49" not in re.findall(r"onerror=alert\(2\)&gt;(\d+)", text), f"{address} renders what it is given"
    nonce = re.search(r"script-src 'nonce-([^']+)'", policy)
    for tag, given in Tags(text).found:
        handlers = [one for one in given if one.startswith("on")]
        assert not handlers, (address, tag, given)
        assert given.get("src") != "x", (address, tag, given)
        assert not given.get("href", "").lower().startswith("javascript:"), (address, tag, given)
        assert "style" not in given, (address, tag, given)
        if tag in {"script", "style"}:
            assert nonce is not None, (address, given)
            assert given.get("nonce") == nonce[1], (address, given)


# Requests that another site could have a browser send, with the cookies of a user who is logged in, to every address


# What browsers say of a page of another site, beside its cookies.
ELSEWHERE = (
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://["},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},  # a person's own server, at a name of its own
)
CHANGES = [one for one in addresses() if one.method in {"POST", "PUT", "DELETE"}]


async def test_nothing_is_changed_for_a_browser_without_its_pages_value(portal: Portal, person: str) -> None:
    """Every change that another site could send with a user's cookies is refused."""
    job = await portal.runs(wants(person, server="train"))
    answers: dict[str, int] = {}

    def send() -> None:
        browser = Browser(portal.real_hub, person)
        assert browser.session.get(f"{portal.real_hub.public}{PREFIX}", timeout=30).status_code == 200
        for address in CHANGES:
            url = f"{portal.real_hub.public}{PREFIX}{path(address, job.job, person)}"
            for data in ({}, {"_xsrf": "2|00000000|00000000000000000000000000000000|0"}):
                answer = browser.session.request(
                    address.method, url, data=data, headers={"Sec-Fetch-Mode": "cors"}, timeout=30
                )
                answers[str(address)] = answer.status_code
                assert answer.status_code in {401, 403}, (str(address), answer.text)
        (value,) = {one.value or "" for one in browser.session.cookies if one.name == "_xsrf" and PREFIX in one.path}
        for address, said in itertools.product(CHANGES, ELSEWHERE):
            url = f"{portal.real_hub.public}{PREFIX}{path(address, job.job, person)}"
            answer = browser.session.request(address.method, url, data={"_xsrf": value}, headers=said, timeout=30)
            assert answer.status_code in {401, 403}, (str(address), said, answer.text)
        kept = requests.post(
            f"{portal.real_hub.public}{PREFIX}jobs/{job.job}/stop",
            data={"_xsrf": value},
            headers={"Origin": portal.real_hub.public},
            cookies=browser.session.cookies,
            timeout=30,
            allow_redirects=False,
        )
        assert kept.status_code in {200, 303}, "with its value it is done"
        browser.session.close()

    async with proxied(portal):
        await asyncio.to_thread(send)
    assert len(answers) == len(CHANGES)
