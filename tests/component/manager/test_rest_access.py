"""Statuses of every address of the Manager for every kind of user: an address without a row fails.

Answers of REST are as openapi.json describes them.

What is asked about is there: jobs of alice's, a notice, a request for an approval, a key and one that was found.
alice owns what is asked about; vera administers her team, lars another one, bob is in that. ``job`` is the token inside
one of alice's jobs, ``gateway`` the gateway's, stolen; ``small`` is a token of hers for this service alone, ``reader``
one that may read her servers and not act on them; ``narrow`` is an administrator's token for this service alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import requests

from tests.component.manager import described, rest
from tests.component.manager.addresses import PREFIX, addresses
from tests.component.manager.rest import RestHub
from tests.component.manager.test_ssh_keys_page import Forms, make_key

WHO = ("anonymous", "bob", "lars", "job", "gateway", "small", "reader", "vera", "admin", "alice", "narrow")
STRANGERS = ("anonymous", "bob", "lars", "small", "narrow")
SERVER, WAITS, ASKS, DENIED = "alices-own-server", "alices-waiting-server", "alices-request", "alices-denied-server"
CALLBACK = "oauth_callback"  # for who comes from the Hub's login
SERVICE = "access:services!service=jobs"


@dataclass
class Targets:
    """What is alice's: jobs by how they stand, and tokens of everybody."""

    hub: RestHub
    tokens: dict[str, str | None]
    runs: str
    old: str  # has ended, and its server has had another job since
    waits: str
    notice: str  # says that something was denied: it has no button
    asks: int = 0  # how often something was asked for

    def request(self) -> dict[str, Any]:
        """A request that waits for an approval; a new one when the last was decided."""
        found = self.hub.items("alice", "approvals?state=waiting")
        if not found:
            self.asks += 1
            self.hub.waits("alice", 4, f"{ASKS}-{self.asks}", "pending-approval")
            found = self.hub.items("alice", "approvals?state=waiting")
        return found[0]

    def key(self) -> str:
        """A key of alice's; another one when the last was removed."""
        found = self.hub.ask("alice", "GET", "keys").json()["keys"]
        found = found or self.hub.ask("alice", "POST", "keys", {"key": make_key()}).json()["keys"]
        return str(found[0]["id"])

    def suggestion(self) -> str:
        """A key that was found in alice's home; found anew when the last was imported."""
        found = {"keys": [{"key": make_key("home"), "source": "id.pub"}]}
        assert self.hub.ask("alice", "PUT", "key-suggestions", found).status_code == 204
        headers = {"Authorization": f"token {self.tokens['alice']}"}
        page = requests.get(f"{self.hub.manager_url()}{PREFIX}keys", headers=headers, timeout=60).text
        return next(action.split("/")[-2] for action, _ in Forms(page).found if action.endswith("/import"))

    def path(self, address: str) -> str:
        method, _, path = address.partition(" ")
        changes = method != "GET" and path.startswith("api/")
        job = self.old if changes and not path.endswith("keep-alive") else self.runs
        if path.endswith(("{id}/approve", "{id}/deny")):
            job = self.request()["job"]
        server = WAITS if "wait/" in path or path.endswith("pending-job") else SERVER
        places = {
            "id": job,
            "notice": self.request()["id"] if path.startswith("approvals/") else self.notice,
            "number": self.suggestion() if "suggestions" in path else self.key() if "{number}" in path else "",
            "user": "alice",
            "server": server,
            "file": "js/darkmode.js",
            "node": "none",
        }
        return path.format(**places)


def is_looked_at(hub: RestHub, job: str) -> None:
    """Before its first evaluation, keep-alive is a 503."""
    path = f"jobs/{job}/keep-alive"
    rest.wait_for(lambda: hub.ask("alice", "POST", path).ok, "somebody has looked whether it is used", 120)


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Targets]:
    for hub in rest.made(tmp_path_factory.mktemp("access"), settings=("--Manager.cull_every=1",), teams=rest.CAPPED):
        old = hub.runs("alice", 1, SERVER)["id"]
        hub.ask("alice", "DELETE", f"jobs/{old}")
        hub.until("alice", "ended", SERVER)
        rest.wait_for(lambda hub=hub: f"alice/{SERVER}" not in hub.servers(), "the Hub knows")
        runs = hub.runs("alice", 4, SERVER)["id"]
        is_looked_at(hub, runs)
        waits = hub.waits("alice", 2, WAITS)
        denied = hub.waits("alice", 4, DENIED, "pending-approval")
        assert hub.ask("vera", "POST", f"jobs/{denied}/deny", {"reason": "No."}).ok
        notice = next(one for one in hub.ask("alice", "GET", "notices").json()["notices"] if one["kind"] == "denied")
        people: dict[str, str | None] = {name: hub.token(name) for name in ("alice", "bob", "lars", "vera", "admin")}
        own = ("users:activity!user=alice", f"access:servers!server=alice/{SERVER}", SERVICE)
        extra = {
            "anonymous": None,
            "job": hub.token("alice", *own),
            "gateway": "gateway-token",
            "small": hub.token("alice", SERVICE),
            "reader": hub.token("alice", SERVICE, "read:servers!user=alice"),
            "narrow": hub.token("admin", SERVICE),
        }
        yield Targets(hub, {**people, **extra}, runs, old, waits, notice["id"])
        hub.clear()


# What is sent where a request needs a body: something that changes nothing, also for those who may.
BODIES: dict[str, Any] = {
    "POST api/jobs": {"user": "alice", "server": "new", "options": {"template": "tiny", "gpus": 9}},
    "POST api/keys": {"key": "none"},
    "POST api/nodes/{node}/cordon": {"reason": "None."},
    "PUT api/key-suggestions": {"keys": []},
}


def ask(targets: Targets, who: str, address: str) -> requests.Response:
    method, _, _ = address.partition(" ")
    path = targets.path(address)
    token = targets.tokens[who]
    headers = {"Authorization": f"token {token}"} if token else {}
    body: dict[str, Any] = {}
    if method in {"POST", "PUT"}:
        body = {"json": BODIES.get(address, {})} if path.startswith("api/") else {"data": {}}
    url = f"{targets.hub.manager_url()}{PREFIX}{path}"
    with requests.request(
        method, url, headers=headers, timeout=60, allow_redirects=False, stream=True, **body
    ) as answer:
        if answer.headers.get("Content-Type") != "text/event-stream":
            _ = answer.content
        else:
            answer._content = b""  # it never ends
        kind = answer.headers.get("Content-Type", "")
        described.check(method, path, answer.status_code, kind, answer.text)
        return answer


# For the Hub alone, by a token of its own.
OF_THE_HUB = [str(one) for one in addresses() if one.path.startswith("api/internal/")]
# Buttons: a GET of their address redirects to the page, or to the login.
BUTTONS = (
    "GET cluster/cordon",
    "GET cluster/{node}/uncordon",
    "GET cluster/policy/run",
    "GET cluster/policy/cancel",
    "GET jobs/{id}/keep",
    "GET jobs/{id}/stop",
    "GET keys/start-on-connect",
    "GET keys/suggestions/{number}/import",
    "GET keys/{number}/remove",
    "GET start",
    "GET remove",
    "GET tensorboard",
)
# Statuses, in the order of WHO; None: it would change what the other rows are about, and is another test's.
MAY: dict[str, tuple[int | None, ...]] = {
    # for programs, with a token
    "GET api/approvals": (401, 200, 200, 403, 200, 403, 200, 200, 200, 200, 403),
    "GET api/cluster": (401, 200, 200, 403, 200, 403, 200, 200, 200, 200, 403),
    "GET api/events": (401, 200, 200, 403, 200, 403, 200, 200, 200, 200, 403),
    "GET api/history/gpu-hours": (401, 200, 200, 403, 200, 403, 200, 200, 200, 200, 403),
    "GET api/history/gpu-hours.csv": (401, 200, 200, 403, 200, 403, 200, 200, 200, 200, 403),
    "GET api/idle": (401, 403, 403, 403, 403, 403, 403, 403, 200, 403, 403),
    "GET api/jobs": (401, 200, 200, 403, 200, 403, 200, 200, 200, 200, 403),
    "POST api/jobs": (401, 403, 403, 403, 403, 403, 403, 403, 422, 422, 403),
    "GET api/jobs/{id}": (401, 404, 404, 403, 200, 403, 200, 200, 200, 200, 403),
    "DELETE api/jobs/{id}": (401, 404, 404, 403, 403, 403, 403, 204, 204, 204, 403),
    "POST api/jobs/{id}/approve": (401, 404, 404, 403, 403, 403, 403, 200, 200, 403, 403),
    "POST api/jobs/{id}/cancel": (401, 404, 404, 403, 403, 403, 403, 204, 204, 204, 403),
    "POST api/jobs/{id}/deny": (401, 404, 404, 403, 403, 403, 403, 200, 200, 403, 403),
    "GET api/jobs/{id}/events": (401, 404, 404, 403, 200, 403, 200, 200, 200, 200, 403),
    "POST api/jobs/{id}/keep-alive": (401, 404, 404, 200, 404, 403, 403, 404, 404, 200, 404),
    "POST api/jobs/{id}/requeue": (401, 404, 404, 403, 403, 403, 403, 403, 409, 409, 403),
    "PUT api/kernels": (401, 403, 403, 422, 403, 403, 403, 403, 403, 403, 403),
    "PUT api/wrong-ports": (401, 403, 403, 422, 403, 403, 403, 403, 403, 403, 403),
    "PUT api/key-suggestions": (401, 204, 204, 204, 403, 204, 204, 204, 204, 204, 204),
    "GET api/keys": (401, 200, 200, 403, 403, 403, 403, 200, 200, 200, 403),
    "POST api/keys": (401, 422, 422, 403, 403, 403, 403, 422, 422, 422, 403),
    "DELETE api/keys/{number}": (401, 404, 404, 403, 403, 403, 403, 404, 404, 204, 403),
    "GET api/metrics": (401, 403, 403, 403, 403, 403, 403, 403, 200, 403, 403),
    "POST api/nodes/{node}/cordon": (401, 403, 403, 403, 403, 403, 403, 403, 404, 403, 403),
    "POST api/nodes/{node}/uncordon": (401, 403, 403, 403, 403, 403, 403, 403, 404, 403, 403),
    "GET api/notices": (401, 200, 200, 200, 200, 403, 200, 200, 200, 200, 403),
    "POST api/notices/{notice}/keep": (401, 404, 404, 404, 404, 403, 403, 404, 404, 409, 403),
    "POST api/notices/{notice}/seen": (401, 404, 404, 404, 404, 403, 403, 404, 404, 204, 403),
    "GET api/openapi.json": (200, 200, 200, 200, 200, 200, 200, 200, 200, 200, 200),
    "GET api/queue": (401, 200, 200, 403, 200, 403, 200, 200, 200, 200, 403),
    "GET api/quota": (401, 200, 200, 403, 200, 403, 200, 200, 200, 200, 403),
    "GET api/ssh-config": (401, 200, 200, 403, 403, 403, 200, 200, 200, 200, 403),
    "POST api/ssh-access": (401, 403, 403, 403, 422, 403, 403, 403, 403, 403, 403),
    "GET api/ssh-settings": (401, 200, 200, 403, 403, 403, 403, 200, 200, 200, 403),
    "PUT api/ssh-settings": (401, 422, 422, 403, 403, 403, 403, 422, 422, 422, 403),
    "GET api/ssh-starts/{user}/{server}": (401, 403, 403, 403, 200, 403, 403, 403, 403, 403, 403),
    "POST api/ssh-starts/{user}/{server}": (401, 403, 403, 403, 200, 403, 403, 403, 403, 403, 403),
    "PUT api/ssh-sessions": (401, 403, 403, 403, 422, 403, 403, 403, 403, 403, 403),
    "GET api/users/{user}/keys": (401, 403, 403, 403, 200, 403, 403, 403, 403, 403, 403),
    "POST api/users/{user}/keys/{number}/used": (401, 403, 403, 403, 204, 403, 403, 403, 403, 403, 403),
    "GET api/users/{user}/servers/{server}/pending-job": (401, 404, 404, 404, 404, 403, 200, 404, 200, 200, 403),
    "DELETE api/users/{user}/servers/{server}/pending-job": (401, 404, 404, 404, 404, 403, 403, None, None, None, 403),
    "GET api/jobs/{id}/log": (401, 404, 404, 403, 403, 403, 200, 200, 403, 200, 403),
    "GET api/jobs/{id}/logs": (401, 404, 404, 403, 403, 403, 200, 200, 403, 200, 403),
    "GET api/jobs/{id}/pod-events": (401, 404, 404, 403, 403, 403, 200, 200, 403, 200, 403),
    "GET api/jobs/{id}/usage": (401, 404, 404, 403, 501, 403, 501, 501, 501, 501, 403),  # there is no Prometheus
    "POST preview": (403, 403, 403, 403, 403, 403, 403, 403, 403, 403, 403),
    **dict.fromkeys(OF_THE_HUB, (403,) * len(WHO)),
    # pages, which lead people to the login, and their buttons
    **dict.fromkeys(BUTTONS, (302, *[303] * 10)),
    "GET ": (302, 200, 200, 403, 404, 403, 200, 200, 200, 200, 403),
    "GET all": (302, 200, 200, 403, 404, 403, 200, 200, 200, 200, 403),
    "GET approvals": (302, 200, 200, 403, 404, 403, 200, 200, 200, 200, 403),
    "GET approvals/{notice}/approve": (302, 302, 302, 302, 302, 302, 302, 302, 302, 302, 302),
    "POST approvals/{notice}/approve": (403, 404, 404, 403, 404, 403, 403, 303, 303, 403, 403),
    "GET approvals/{notice}/deny": (302, 302, 302, 302, 302, 302, 302, 302, 302, 302, 302),
    "POST approvals/{notice}/deny": (403, 404, 404, 403, 404, 403, 403, 303, 303, 403, 403),
    "GET cluster": (302, 200, 200, 403, 404, 403, 200, 200, 200, 200, 403),
    "POST cluster/cordon": (403, 422, 422, 403, 404, 403, 422, 422, 422, 422, 403),
    "POST cluster/{node}/uncordon": (403, 403, 403, 403, 404, 403, 403, 403, 404, 403, 403),
    "GET cluster/policy": (302, 403, 403, 403, 404, 403, 403, 403, 200, 403, 403),
    "POST cluster/policy/run": (403, 403, 403, 403, 404, 403, 403, 403, 303, 403, 403),
    "POST cluster/policy/cancel": (403, 403, 403, 403, 404, 403, 403, 403, 303, 403, 403),
    "GET cluster/history": (302, 200, 200, 403, 404, 403, 200, 200, 200, 200, 403),
    "GET health": (200, 200, 200, 200, 200, 200, 200, 200, 200, 200, 200),
    "GET history": (302, 200, 200, 403, 404, 403, 200, 200, 200, 200, 403),
    "GET jobs/{id}": (302, 404, 404, 403, 404, 403, 200, 200, 200, 200, 403),
    "POST jobs/{id}/keep": (403, 404, 404, 403, 404, 403, 403, 403, 403, 200, 403),
    "POST jobs/{id}/stop": (403, 404, 404, 403, 404, 403, 403, None, None, None, 403),
    "GET keys": (302, 200, 200, 403, 403, 403, 403, 200, 200, 200, 403),
    "POST keys": (403, 422, 422, 403, 403, 403, 403, 422, 422, 422, 403),
    "POST keys/start-on-connect": (403, 303, 303, 403, 403, 403, 403, 303, 303, 303, 403),
    "POST keys/suggestions/{number}/import": (403, 303, 303, 403, 403, 403, 403, 303, 303, 303, 403),
    "POST keys/{number}/remove": (403, 303, 303, 403, 403, 403, 403, 303, 303, 303, 403),
    "GET new": (302, 302, 302, 403, 404, 403, 302, 302, 302, 302, 403),
    "GET notices": (302, 200, 200, 404, 404, 403, 200, 200, 200, 200, 403),
    "GET notices/{notice}/keep": (302, 302, 302, 302, 302, 302, 302, 302, 302, 302, 302),
    "POST notices/{notice}/keep": (403, 404, 404, 404, 404, 403, 403, 404, 404, 409, 403),
    "GET notices/settings": (302, 302, 302, 302, 302, 302, 302, 302, 302, 302, 302),
    "POST notices/settings": (403, 303, 303, 404, 404, 403, 403, 303, 303, 303, 403),
    "GET oauth_callback": (403, 403, 403, 403, 403, 403, 403, 403, 403, 403, 403),
    "GET queue": (302, 200, 200, 403, 404, 403, 200, 200, 200, 200, 403),
    "GET ready": (200, 200, 200, 200, 200, 200, 200, 200, 200, 200, 200),
    "GET ssh-config": (302, 200, 200, 403, 403, 403, 200, 200, 200, 200, 403),
    "GET ssh-known-hosts": (302, 404, 404, 403, 403, 403, 404, 404, 404, 404, 403),  # nobody has told the Manager
    "POST start": (403, None, None, 403, 404, 403, 403, None, None, None, 403),
    "GET static/{file}": (200, 200, 200, 200, 200, 200, 200, 200, 200, 200, 200),
    "GET teams": (302, 404, 200, 403, 404, 403, 404, 200, 200, 404, 403),
    "POST remove": (403, None, None, 403, None, 403, None, None, None, None, 403),
    "POST tensorboard": (403, None, None, 403, 404, 403, 404, None, None, None, 403),
    "GET wait/{user}/{server}": (302, 404, 404, 404, 404, 403, 200, 404, 200, 200, 403),
    "POST wait/{user}/{server}/cancel": (403, 404, 404, 404, 404, 403, 403, None, None, None, 403),
    "POST wait/{user}/{server}/go-on": (403, 404, 404, 404, 404, 403, 403, None, None, None, 403),
    "GET jobs/{id}/usage": (302, 404, 404, 403, 404, 403, 200, 200, 200, 200, 403),
    "GET jobs/{id}/log": (302, 404, 404, 403, 404, 403, 200, 200, 403, 200, 403),
}


def test_rows_are_the_addresses() -> None:
    there = {str(one) for one in addresses()}
    assert there - set(MAY) == set(), "say who may do what there"
    assert set(MAY) - there == set(), "it is not there any more"


@pytest.mark.parametrize("address", MAY)
def test_statuses(targets: Targets, address: str) -> None:
    got: dict[str, int | None] = {}
    for who, expected in zip(WHO, MAY[address], strict=True):
        answer = ask(targets, who, address) if expected is not None else None
        got[who] = answer.status_code if answer is not None else None
        if answer is not None and who in STRANGERS:
            told = f"{answer.text} {answer.headers}"
            own = [word for word in (SERVER, WAITS, DENIED, targets.runs, targets.old, targets.waits) if word in told]
            sent = targets.path(address)  # a redirect may lead back to where one came from
            assert [word for word in own if word not in sent] == [], (who, address)
    assert got == dict(zip(WHO, MAY[address], strict=True))


@pytest.mark.parametrize("button", ["keys/suggestions/{number}/import", "keys/{number}/remove"])
def test_buttons_with_one_answer_for_all_change_own_keys_only(targets: Targets, button: str) -> None:
    """Of a key of alice's that was found, or is there: the answer is the same, whether it is one's own or not."""

    def keys() -> list[Any]:
        people = ("alice", "bob", "lars", "vera", "admin")
        return [targets.hub.ask(one, "GET", "keys").json()["keys"] for one in people]

    changed = []
    for who in WHO:
        targets.key()
        before = keys()
        ask(targets, who, f"POST {button}")
        changed += [who] if keys() != before else []
    assert changed == ["alice"]
