"""The Hub's client: scopes, requests, and faults of the Hub."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web

from dlspawner.clients.hub import (
    HubClient,
    HubFailed,
    HubIdentity,
    HubRejected,
    HubUnavailable,
    IdentityKind,
    has_scope,
    may_access_server,
    may_start_server,
    own_server,
    read_identity,
    read_user,
)
from tests.harness.http_servers import answering, never
from tests.harness.ports import free_port

ACCESS = {
    "everything": ({"access:servers"}, True),
    "all of the user's": ({"access:servers!user=alice"}, True),
    "this one": ({"access:servers!server=alice/train"}, True),
    "one of many scopes": ({"self", "read:users", "access:servers!server=alice/train"}, True),
    "nothing": (set(), False),
    "a longer name": ({"access:servers!user=alice2"}, False),
    "another server": ({"access:servers!server=alice/train2"}, False),
    "the default server": ({"access:servers!server=alice/"}, False),
    "the same server of another user": ({"access:servers!server=bob/train"}, False),
    "another right to the same server": ({"servers!server=alice/train", "read:servers"}, False),
    "a scope of like name": ({"access:servers2", "access:services"}, False),
    "a group cannot be checked here": ({"access:servers!group=students"}, False),
    "an unexpanded filter": ({"access:servers!user"}, False),
}


@pytest.mark.parametrize(("scopes", "may"), ACCESS.values(), ids=ACCESS.keys())
def test_access_to_alices_server_train(scopes: set[str], may: bool) -> None:
    assert may_access_server(HubIdentity("anyone", IdentityKind.USER, frozenset(scopes)), "alice", "train") is may


@pytest.mark.parametrize(
    ("scope", "may"),
    [
        ("servers!user=alice", True),
        ("start:servers!server=alice/train", True),
        ("access:servers", False),
        ("start:servers!server=alice/eval", False),
        ("stop:servers", False),
    ],
)
def test_start_of_alices_server_train(scope: str, may: bool) -> None:
    assert may_start_server(HubIdentity("anyone", IdentityKind.USER, frozenset({scope})), "alice", "train") is may


@pytest.mark.parametrize("server", ["", "a/b", "x!user=bob"])
def test_a_scope_for_a_server_is_for_that_server_only(server: str) -> None:
    scopes = [f"access:servers!server=alice/{server}"]
    assert has_scope(scopes, "access:servers", user="alice", server=server)
    assert not has_scope(scopes, "access:servers", user="alice", server=server + "x")
    assert not has_scope(scopes, "access:servers", user="alice")


OWN = {
    "a server's token": ("alice", {"users:activity!user=alice", "access:servers!server=alice/train"}, "train"),
    "the default server's token": ("alice", {"access:servers!server=alice/"}, ""),
    "a person's token": ("alice", {"access:servers!user=alice"}, None),
    "a person's token, with a server shared by bob": (
        "alice",
        {"access:servers!user=alice", "access:servers!server=bob/train"},
        None,
    ),
    "a person's token, with a share of their own": (
        "alice",
        {"access:servers!user=alice", "access:servers!server=alice/train"},
        None,
    ),
    "an administrator's token": ("alice", {"access:servers", "access:servers!server=alice/train"}, None),
    "a token for a service": ("alice", {"access:services!service=jobs"}, None),
    "a token for bob's server": ("alice", {"access:servers!server=bob/train"}, None),
}


@pytest.mark.parametrize(("name", "scopes", "server"), OWN.values(), ids=OWN.keys())
def test_whether_a_token_is_a_servers_own(name: str, scopes: set[str], server: str | None) -> None:
    assert own_server(HubIdentity(name, IdentityKind.USER, frozenset(scopes))) == server


def test_stored_options_of_both_versions_read_the_same() -> None:
    nested = {"name": "alice", "servers": {"": {"name": "", "user_options": {"user_options": {"gpus": 2}}}}}
    flat = {"name": "alice", "servers": {"": {"name": "", "user_options": {"gpus": 2}}}}
    assert read_user(nested) == read_user(flat)


def test_a_user_without_servers_differs_from_an_answer_without_servers() -> None:
    assert read_user({"name": "alice", "servers": {}}).servers == {}
    with pytest.raises(HubUnavailable, match="scope read:servers"):
        read_user({"name": "alice"})


@pytest.mark.parametrize("model", [None, [], {"name": 5, "scopes": []}, {"name": "a", "scopes": [1]}])
def test_an_invalid_identity_is_an_unavailable_hub(model: Any) -> None:
    with pytest.raises(HubUnavailable):
        read_identity(model)


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FakeHub:
    """Gives the `answers` in their order, the last one again and again, and records the requests."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any] | Answer] = []
        self.asked: list[tuple[str, str, str, Any]] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        self.asked.append((request.method, request.raw_path, request.headers["Authorization"], body))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            return await answer(request)
        return (
            web.json_response(answer[1], status=answer[0]) if answer[1] is not None else web.Response(status=answer[0])
        )


async def hang_up(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


@pytest.fixture
async def hub() -> AsyncIterator[tuple[FakeHub, HubClient]]:
    fake = FakeHub()

    async def at_once(seconds: float) -> None:
        pass

    async with (
        answering(fake.handle) as url,
        HubClient(f"{url}/hub/api", "own", deadline_seconds=5, sleep=at_once) as api,
    ):
        yield fake, api


async def test_whoami_sends_the_token_in_question(hub: tuple[FakeHub, HubClient]) -> None:
    fake, api = hub
    fake.answers = [(200, {"kind": "service", "name": "ssh-gateway", "scopes": ["read:users"], "admin": False})]
    identity = await api.whoami("theirs")
    assert identity == HubIdentity("ssh-gateway", IdentityKind.SERVICE, frozenset({"read:users"}))
    assert fake.asked == [("GET", "/hub/api/user", "token theirs", None)]


@pytest.mark.parametrize("token", ["", "line\nbreak", "Ümlaut", "x" * 5000])
async def test_an_invalid_token_is_not_sent(hub: tuple[FakeHub, HubClient], token: str) -> None:
    fake, api = hub
    assert await api.whoami(token) is None
    assert fake.asked == []


@pytest.mark.parametrize("name", ["", "..", "x" * 300, "\ud800"])
async def test_an_invalid_name_is_not_sent(hub: tuple[FakeHub, HubClient], name: str) -> None:
    fake, api = hub
    assert await api.user(name) is None
    with pytest.raises(HubRejected):
        await api.post_activity(name, {"": datetime.now(UTC)})
    assert fake.asked == []


async def test_names_are_escaped_in_paths(hub: tuple[FakeHub, HubClient]) -> None:
    fake, api = hub
    fake.answers = [(404, {"message": "no"})]
    assert await api.user("alice/../bob?x#y%2f") is None
    assert fake.asked[0][1] == "/hub/api/users/alice%2F..%2Fbob%3Fx%23y%252f?include_stopped_servers=1"


@pytest.mark.parametrize("fault", [(503, None), (429, {"message": "slow down"}), hang_up])
async def test_reads_are_repeated_after_a_fault(hub: tuple[FakeHub, HubClient], fault: Any) -> None:
    fake, api = hub
    fake.answers = [fault, fault, (200, {"name": "alice", "servers": {}})]
    user = await api.user("alice")
    assert user is not None
    assert user.name == "alice"
    assert len(fake.asked) == 3


@pytest.mark.parametrize(
    ("ask", "fault"),
    [
        (HubClient.start_server, (503, None)),
        (HubClient.start_server, hang_up),
        (HubClient.stop_server, (503, None)),
    ],
)
async def test_a_start_or_stop_is_not_repeated(hub: tuple[FakeHub, HubClient], ask: Any, fault: Any) -> None:
    """After a stop another job of the server may run."""
    fake, api = hub
    fake.answers = [fault]
    with pytest.raises(HubUnavailable):
        await ask(api, "alice", "train")
    assert len(fake.asked) == 1


async def test_a_stop_without_a_connection_is_not_repeated() -> None:
    async with HubClient(f"http://127.0.0.1:{free_port()}/hub/api", "own", deadline_seconds=60) as api:
        with pytest.raises(HubUnavailable):
            await asyncio.wait_for(api.stop_server("alice", "train"), 30)


async def test_a_failed_start_differs_from_an_unavailable_hub(hub: tuple[FakeHub, HubClient]) -> None:
    fake, api = hub
    fake.answers = [(500, {"message": "Unhandled error"}), (503, None)]
    with pytest.raises(HubFailed):
        await api.start_server("alice", "train")
    with pytest.raises(HubUnavailable) as away:
        await api.start_server("alice", "train")
    assert not isinstance(away.value, HubFailed)


async def test_a_refused_start_has_the_hubs_message(hub: tuple[FakeHub, HubClient]) -> None:
    fake, api = hub
    fake.answers = [(429, {"message": "Your team has no GPU left."})]
    with pytest.raises(HubRejected, match=r"Your team has no GPU left\.") as refused:
        await api.start_server("alice", "train")
    assert refused.value.status == 429


@pytest.mark.parametrize(
    ("version", "body"), [("6.1.1", {"user_options": {"gpus": 1}}), ("5.5.4", {"gpus": 1})], ids=["6.x", "5.5"]
)
async def test_options_are_sent_in_the_form_of_the_hubs_version(
    hub: tuple[FakeHub, HubClient], version: str, body: dict[str, Any]
) -> None:
    fake, api = hub
    fake.answers = [(200, {"version": version}), (202, None)]
    assert await api.start_server("alice", "", {"gpus": 1}) is False
    assert fake.asked[-1][:2] == ("POST", "/hub/api/users/alice/server")
    assert fake.asked[-1][3] == body


async def test_a_start_without_options_has_no_body(hub: tuple[FakeHub, HubClient]) -> None:
    fake, api = hub
    fake.answers = [(201, None)]
    assert await api.start_server("alice", "train") is True
    assert fake.asked == [("POST", "/hub/api/users/alice/servers/train", "token own", None)]


async def test_an_unreachable_hub_has_a_deadline() -> None:
    async with HubClient("http://127.0.0.1:9/hub/api", "own", deadline_seconds=0.2) as api:
        with pytest.raises(HubUnavailable, match=r"within 0\.2 seconds"):
            await api.user("alice")


async def test_a_slow_start_or_stop_does_not_count_as_an_unavailable_hub() -> None:
    heard: list[bool] = []

    async with answering(never) as url, HubClient(f"{url}/hub/api", "own", deadline_seconds=0.2) as api:
        api.on_answer = heard.append
        for asks in (api.start_server, api.stop_server):
            with pytest.raises(HubUnavailable):
                await asks("alice", "train")
        assert heard == []
        with pytest.raises(HubUnavailable):
            await api.user("alice")
        assert heard == [False]


async def test_an_invalid_answer_is_an_unavailable_hub(hub: tuple[FakeHub, HubClient]) -> None:
    fake, api = hub
    for answer in ((200, None), (200, []), (200, {"name": "alice", "servers": {"": None}})):
        fake.answers = [answer]
        with pytest.raises(HubUnavailable):
            await api.user("alice")


async def test_errors_do_not_contain_the_token(hub: tuple[FakeHub, HubClient]) -> None:
    fake, api = hub
    fake.answers = [hang_up]
    with pytest.raises(HubUnavailable) as error:
        await api.start_server("alice", "train", None)
    assert "own" not in f"{error.value!r} {error.value.__cause__!r}"
