"""A minute without Kubernetes and Prometheus, and one without the Hub and the database: one story, and nothing is lost.

Two people's jobs hold all GPUs, two others wait. One of the jobs would be stopped within such a minute, because nobody
uses it, if it were known that nobody does. Somebody has the page of their place in the queue open the whole time.

The Hub alone, away for longer than a turn lasts, is a story of its own.

All of it is the real thing, a Prometheus and a PostgreSQL among it; only what runs in the pods is small.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
from playwright.sync_api import Page, expect

from tests.component.manager import crowds, databases, metrics, test_faults_hub, test_idle_hub
from tests.component.manager.quota import GPUS, QuotaHub, Sampler, running
from tests.component.manager.test_faults_hub import FaultyHub, end, faulty, plain
from tests.component.manager.test_idle_story import StoryHub
from tests.component.manager.test_queue_hub import ask, browser, enter
from tests.e2e.people import wait_for
from tests.harness.faulty_hub import SENTENCE
from tests.harness.spawner_hub import ROOT, Person, new_name

__all__ = ["browser"]
pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.real]

MINUTE = 60.0
SHORT = ("--Manager.lease_seconds=3", "--Manager.reservation_seconds=8")
EVENTS = "SELECT reason FROM job_events WHERE job = '{}' ORDER BY id"
USED = GPUS - 1  # by the job that is never stopped for being unused


@dataclass
class MinuteHub(FaultyHub, StoryHub):
    """One that bad days come to, with a Prometheus and templates with windows of a minute."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinuteHub]:
    if not databases.INSTALLED:
        pytest.skip("PostgreSQL 15 is not installed here")
    made = MinuteHub(
        tmp_path_factory.mktemp("minute"),
        proxy_pages=ROOT / "templates" / "proxy",
        idle="metrics_age_seconds: 30, dry_run: false",
        extra=test_faults_hub.MORE + test_idle_hub.EXTRA,
    )
    url = f"http://127.0.0.1:{made.metrics_port}"
    idle = ("--Manager.cull_every=1", f"--GpuMetrics.prometheus_url={url}")
    made.settings = (*test_faults_hub.SETTINGS, *idle)
    with faulty(made) as started:
        assert started.api("POST", "/users/admin", {"admin": True}).status_code in {201, 409}
        yield made


@dataclass
class Cast:
    """Who is there, and what they read of themselves before anything happens."""

    hub: MinuteHub
    holder: Person
    unused: Person
    first: Person
    second: Person

    def places(self) -> list[Any]:
        """What programs are told of those that wait, or the sentence that they are to ask later."""
        return [place(ask(one, "GET")) for one in (self.first, self.second)]

    def pods(self) -> str:
        """Which pods there are, and how often their programs were started."""
        wanted = "{range .items[*]}{.metadata.uid}{.status.containerStatuses[*].restartCount};{end}"
        return self.hub.kubectl("get", "pods", "-o", f"jsonpath={wanted}")


def place(answer: requests.Response) -> Any:
    told = answer.json()
    return [told[key] for key in ("job", "position", "why")] if answer.ok else (answer.status_code, told["detail"])


def cast_of(hub: MinuteHub, browser: Page) -> Cast:
    holder, unused, first, second = (Person(hub, new_name(name)) for name in ("holder", "unused", "first", "second"))
    holder.launch("", template="tiny", gpus=USED)
    enter(browser, hub, second.name)
    unused.launch("", template="short", gpus=GPUS - USED)
    for number, (who, gpus) in enumerate([(first, 1), (second, USED)], 1):
        who.start("", template="tiny", gpus=gpus)
        found = wait_for(lambda who=who: (answer := ask(who, "GET")).ok and answer.json(), "it waits", 60)
        assert found["position"] == number
    return Cast(hub, holder, unused, first, second)


def keep(cast: Cast) -> None:
    """However long all of it took so far: the job that nobody uses is not stopped before the use of its GPU is old."""
    hub, name = cast.hub, cast.unused.name
    kept = hub.manager(hub.token(name), "POST", f"jobs/{hub.judged(name)['job']}/keep-alive")
    assert kept.status_code == 200, kept.text


def for_a_minute(look: Callable[[], None]) -> None:
    """Look again and again until the minute is over."""
    over = time.monotonic() + MINUTE
    while time.monotonic() < over:
        look()
        time.sleep(1)


def test_a_minute_without_any_part_stops_nothing_and_who_waits_keeps_the_place(hub: MinuteHub, browser: Page) -> None:
    with contextlib.ExitStack() as prometheus:
        prometheus.enter_context(hub.metered())
        cast = cast_of(hub, browser)
        wait_for(lambda: hub.judged(cast.unused.name).get("gpus"), "the use of its GPU is known", 60)
        browser.goto(f"{hub.url}/services/jobs/wait/{cast.second.name}/")
        expect(browser.locator("#place")).to_have_text("2")
        with Sampler(hub) as sampler:
            keep(cast)
            prometheus.close()
            without_kubernetes(cast)
            expect(browser.locator("#place")).to_have_text("2")
            cast.unused.stop("")
            prometheus.enter_context(metrics.prometheus(hub.state / "prometheus", hub.exporters(), hub.metrics_port))
            wait_for(lambda: f"{cast.first.name}/" in hub.ready(), "the first has started by itself", 90)
            expect(browser.locator("#place")).to_have_text("1")
            without_hub_and_database(cast, browser)
            wait_for(lambda: hub.report().get("gpus_unknown", "?") is None, "the use of GPUs is known again", 60)
            cast.holder.stop("")
            wait_for(lambda: f"{cast.second.name}/" in hub.ready(), "the second has started by itself", 90)
        assert sampler.most == GPUS
    wait_for(
        lambda: hub.jobs() == dict.fromkeys((cast.first.name, cast.second.name), "running"), "nothing else is left"
    )
    browser.wait_for_url(f"**/user/{cast.second.name}/**")
    for name in ("hub", "manager"):
        assert "Traceback" not in (hub.state / f"{name}.log").read_text()


def without_kubernetes(cast: Cast) -> None:
    """And without Prometheus: what was known is read, nobody is stopped by what is not known, and nothing can start."""
    hub, brief, places, pods = cast.hub, Person(cast.hub, new_name("brief")), cast.places(), cast.pods()
    api = hub.kubernetes
    assert api is not None

    def look() -> None:
        assert cast.places() == places
        assert set(hub.ready()) == {f"{one.name}/" for one in (cast.holder, cast.unused)}
        for one, job in ((cast.holder, "Tiny, 7 GPUs"), (cast.unused, "Short, 1 GPU")):
            assert f"default server running {job}" in plain(one.get("/hub/home").text)

    api.away()
    try:
        brief.start("", template="tiny", gpus=0)
        assert SENTENCE in end(brief)
        for_a_minute(look)
        judged = hub.judged(cast.unused.name)
        assert (judged["verdict"], judged["why"]) == ("keep", "unknown")
        assert "Prometheus does not answer" in hub.report()["gpus_unknown"]
        wait_for(lambda: not hub.told(cast.unused.name), "nobody reads any more that it stops", 60)
    finally:
        api.back()
    look()
    assert cast.pods() == pods


def without_hub_and_database(cast: Cast, browser: Page) -> None:
    """Who comes reads that jobs go on, programs that they are to ask again; an open page keeps what it shows."""
    hub, second, pods, known = cast.hub, cast.second, cast.pods(), place(ask(cast.second, "GET"))

    def look() -> None:
        told = place(ask(second, "GET"))
        assert told == known or (told[0] == 503 and told[1].endswith("Try again soon.")), told
        page = second.get("/hub/home")
        assert page.status_code == 503
        assert "what waits keeps its place" in plain(page.text)
        assert cast.holder.get(f"/user/{cast.holder.name}/").ok

    hub.kill("hub")
    databases.control(hub.database, "stop")
    try:
        for_a_minute(look)
        expect(browser.locator("#lost")).to_contain_text("does not answer at the moment; this page is as of")
        expect(browser.locator("#lost")).to_contain_text("Your place is kept.")
        expect(browser.locator("#place")).to_have_text("1")
    finally:
        databases.control(hub.database, "start")
        hub.start_hub()
    wait_for(lambda: place(ask(second, "GET")) == known, "the Manager acts again, and the place is as it was", 60)
    assert cast.pods() == pods
    wait_for(lambda: cast.holder.server("").get("ready"), "the Hub has looked after what ran", 60)


def test_a_turn_that_runs_out_while_the_hub_is_away_comes_again_and_costs_nobody_the_place(tmp_path: Path) -> None:
    with running(QuotaHub(tmp_path, db_url=f"sqlite:///{tmp_path / 'manager.sqlite'}", settings=SHORT)) as hub:
        holder, first, second = (Person(hub, name) for name in ("holder", "first", "second"))
        holder.launch("", gpus=GPUS)
        for number, (who, gpus) in enumerate([(first, GPUS - 1), (second, 2)], 1):
            who.start("", gpus=gpus)
            wait_for(lambda who=who: (answer := ask(who, "GET")).ok and answer.json(), "it waits", 60)
            assert ask(who, "GET").json()["position"] == number
        before = crowds.queue(hub)
        jobs = [job for _, job, _ in before]

        def comes_again() -> bool:
            states = {user: state for user, state, _ in crowds.live(hub)}
            assert states.get(first.name) in {"queued", "starting"}
            assert states.get(second.name) == "queued", "nobody has the GPUs twice"
            events = [reason for (reason,) in crowds.rows(hub, EVENTS.format(jobs[0]))]
            return "start-timeout" in events and events[-1] == "scheduled"

        with Sampler(hub) as sampler:
            hub.kill("hub")
            try:
                hub.kubectl("delete", "pod", holder.pod_name(""), "--grace-period=0", "--force")
                wait_for(lambda: first.name in starting(hub), "the turn has come", 60)
                wait_for(comes_again, "it has run out and come again", 60)
                assert not hub.held()
            finally:
                hub.start_hub()
            wait_for(lambda: f"{first.name}/" in hub.ready(), "the first has started by itself", 60)
            assert crowds.queue(hub) == before[1:], "the second still waits since then"
            assert hub.held() == GPUS - 1
            first.stop("")
            wait_for(lambda: f"{second.name}/" in hub.ready(), "the second has started by itself", 60)
        assert sampler.most == GPUS
        assert crowds.turns(hub) == jobs, "the same jobs, in their order"
        for name in ("hub", "manager"):
            assert "Traceback" not in (hub.state / f"{name}.log").read_text()


def starting(hub: QuotaHub) -> set[str]:
    return {user for user, state, _ in crowds.live(hub) if state == "starting"}
