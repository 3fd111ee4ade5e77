"""The fault proxy before the embedded API server: what it promises to tests is true."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator

import pytest
import requests

from tests.component.gateway.cluster import embedded_api
from tests.e2e.people import wait_for
from tests.harness import faults
from tests.harness.faults import Answer, Dropped, Lost, Reset, Silent, Slow

MAPS = "/api/v1/namespaces/jobs/configmaps"


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[faults.Proxy]:
    folder = tmp_path_factory.mktemp("faults")
    with embedded_api(folder) as kubeconfig, faults.before(kubeconfig, folder / "proxied") as started:
        yield started


@pytest.fixture
def api(proxy: faults.Proxy) -> Iterator[faults.Proxy]:
    proxy.requests.clear()
    yield proxy
    proxy.heal()


def names(api: faults.Proxy) -> set[str]:
    return {one["metadata"]["name"] for one in requests.get(api.url + MAPS, timeout=30).json()["items"]}


def create(api: faults.Proxy, name: str, seconds: float = 30) -> requests.Response:
    return requests.post(api.url + MAPS, json={"metadata": {"name": name}}, timeout=seconds)


@contextlib.contextmanager
def watch(api: faults.Proxy) -> Iterator[requests.Response]:
    with requests.get(f"{api.url}{MAPS}?watch=true", stream=True, timeout=30) as answer:
        yield answer


def test_without_rules_everything_passes_and_is_counted(api: faults.Proxy) -> None:
    assert create(api, "passes").status_code == 201
    assert create(api, "passes").status_code == 409
    assert "passes" in names(api)

    assert api.count("create", "configmaps", status=201) == api.count("create", "configmaps", status=409) == 1
    asked, size = api.figures()["list configmaps"]
    assert asked == 1
    assert size > 100


def test_a_rule_has_its_turns(api: faults.Proxy) -> None:
    api.fail("create", "configmaps", Answer(429, retry_after=3), skip=1, times=2)

    answers = [create(api, f"turn-{number}") for number in range(4)]
    assert [answer.status_code for answer in answers] == [201, 429, 429, 201]
    assert answers[1].headers["Retry-After"] == "3"
    assert answers[1].json()["kind"] == "Status"


def test_chance_is_the_seed_s(api: faults.Proxy) -> None:
    rule = api.fail("list", "configmaps", Answer(503, html=True), times=None, probability=0.5)
    answers = {requests.get(api.url + MAPS, timeout=30).headers["Content-Type"].split(";")[0] for _ in range(30)}

    assert answers == {"text/html", "application/json"}
    assert 0 < rule.happened < 30


@pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
@pytest.mark.parametrize("kind", [Lost, Reset, Answer], ids=["lost", "reset", "answered otherwise"])
def test_what_was_carried_out_is_the_fault_s(api: faults.Proxy, kind: type, done: bool) -> None:
    name = f"{kind.__name__.lower()}-{str(done).lower()}"
    fault = Answer(504, done=done) if kind is Answer else kind(done=done)
    api.fail("create", "configmaps", fault)
    try:
        assert create(api, name, 2 if kind is Lost else 30).status_code == 504
    except requests.RequestException:
        assert kind is not Answer

    if done:
        wait_for(lambda: name in names(api), "it is carried out")
    else:
        assert name not in names(api)


def test_a_slow_answer_is_the_right_one(api: faults.Proxy) -> None:
    api.fail("list", "configmaps", Slow(0.3))
    began = time.monotonic()

    assert isinstance(names(api), set)
    assert time.monotonic() - began > 0.3


def test_an_answer_breaks_in_its_middle(api: faults.Proxy) -> None:
    api.fail("list", "configmaps", Dropped())

    with pytest.raises(requests.RequestException):
        names(api)


def test_a_watch_passes_events_as_they_happen(api: faults.Proxy) -> None:
    with watch(api) as answer:
        lines = answer.iter_lines()
        create(api, "as-it-happens")
        seen = json.loads(next(lines))
        while seen["object"]["metadata"]["name"] != "as-it-happens":
            seen = json.loads(next(lines))
    wait_for(lambda: api.watching() == 0, "the API server's watch ends with the client's")


def test_a_watch_breaks_in_the_middle_of_a_line(api: faults.Proxy) -> None:
    create(api, "one-at-least")
    api.fail("watch", "configmaps", Dropped(events=1))
    with watch(api) as answer:
        content = b""
        with contextlib.suppress(requests.RequestException):
            for chunk in answer.iter_content(None):
                content += chunk

    whole, half = content.split(b"\n")
    assert json.loads(whole)["type"] == "ADDED"
    assert half == faults.HALF_A_LINE.encode()


def test_a_watch_begins_and_says_nothing(api: faults.Proxy) -> None:
    create(api, "said-to-nobody")
    api.fail("watch", "configmaps", Silent())
    with watch(api) as answer:
        assert answer.status_code == 200
        api.heal()
        with pytest.raises(requests.RequestException):
            assert not answer.content


def test_open_watches_are_cut_with_a_last_word(api: faults.Proxy) -> None:
    with watch(api) as answer:
        wait_for(lambda: api.watching("configmaps"), "the watch is open")
        assert api.cut(faults.GONE, "configmaps") == 1
        content = b""
        with contextlib.suppress(requests.RequestException):
            for chunk in answer.iter_content(None):
                content += chunk

    assert json.loads(content.splitlines()[-1])["object"]["code"] == 410


def test_who_is_away_refuses_connections_and_comes_back_at_the_same_place(api: faults.Proxy) -> None:
    with watch(api) as answer:
        wait_for(api.watching, "the watch is open")
        api.away()
        with pytest.raises(requests.RequestException):
            names(api)
        with contextlib.suppress(requests.RequestException):
            for _ in answer.iter_content(None):
                pass
    api.back()

    assert isinstance(names(api), set)


def test_who_is_silent_takes_connections_and_says_nothing(api: faults.Proxy) -> None:
    api.silent()
    with pytest.raises(requests.Timeout):
        create(api, "silence", 2)
    api.heal()

    assert "silence" not in names(api)
