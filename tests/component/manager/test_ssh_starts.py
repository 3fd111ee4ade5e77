"""Starts by an SSH login."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from dlspawner.clients.hub import HubClient, HubRejected, HubServer, HubUnavailable
from dlspawner.clients.manager import StartStatus
from dlspawner.core.template import Template
from dlspawner.manager.http.api import ssh
from dlspawner.manager.http.api.base import page_path
from dlspawner.manager.http.api.ssh import template_to_start
from dlspawner.manager.model.event_reason import EventReason
from ssh_gateway.backends.directory import HubAndManager
from tests.component.manager.manager_harness import until, wants
from tests.component.manager.portals import Portal

ALWAYS, NEVER = (Template(name, name, start_on_connect=start) for name, start in (("files", True), ("batch", False)))
USUAL = Template("ssh", "ssh")


def server(template: str | None, name: str = "train") -> HubServer:
    options = {} if template is None else {"template": template}
    return HubServer(name, False, None, True, "", options, None)


LOGINS: dict[str, tuple[str, HubServer | None, bool, str | None]] = {
    "as the person wishes": ("train", server("ssh"), True, "ssh"),
    "against their wish": ("train", server("ssh"), False, None),
    "against the template's": ("train", server("batch"), True, None),
    "a template that always starts so": ("train", server("files"), False, "files"),
    "a template that is gone": ("train", server("gone"), True, None),
    "a server that never had a job": ("train", server(None), True, None),
    "no such server": ("train", None, True, None),
    "a server with the name of such a template": ("files", None, False, "files"),
    "one that never had a job": ("files", server(None, "files"), False, "files"),
    "one that is something else": ("files", server("ssh", "files"), False, None),
    "a template's name that does not start so": ("ssh", None, True, None),
}


@pytest.mark.parametrize(("name", "there", "prefers", "started"), LOGINS.values(), ids=LOGINS)
def test_template_of_a_login(name: str, there: HubServer | None, prefers: bool, started: str | None) -> None:
    found = template_to_start(name, there, (ALWAYS, NEVER, USUAL), prefers=prefers)
    assert (found.name if found else None) == started


@pytest.fixture
def portal(portal: Portal) -> Portal:
    """Alice's server train has stopped."""
    portal.hub.servers, portal.hub.over = {("alice", "train")}, {("alice", "train")}
    portal.hub.kept = {("alice", "train"): {"template": portal.served.leader.settings.templates[0].name}}
    return portal


async def logs_in(portal: Portal, server: str = "train") -> tuple[int, dict[str, Any]]:
    """What the gateway is told that asks for alice's server."""
    return await portal.served.ask(portal.real_hub.tokens["gateway"], f"ssh-starts/alice/{server}", "POST")


async def allow_starts(portal: Portal) -> None:
    wish = {"start_on_connect": True}
    assert await portal.ask("alice", "ssh-settings", "PUT", wish) == (200, wish)


async def test_login_starts_a_job_once_its_user_allows_it(portal: Portal) -> None:
    status, found = await logs_in(portal)
    assert (status, found["state"], portal.hub.started) == (200, "off", [])
    await allow_starts(portal)
    status, found = await logs_in(portal)
    assert (status, found["state"], portal.hub.started) == (200, "starting", [("alice", "train")])
    assert found["page"] == "/services/jobs/wait/alice/train"


async def test_simultaneous_logins_start_one_job(portal: Portal) -> None:
    await allow_starts(portal)

    async def starts(user: str, name: str) -> None:
        await portal.runs(wants(user, server=name))

    portal.hub.starts = starts
    answers = await asyncio.gather(*(logs_in(portal) for _ in range(8)))
    assert portal.hub.started == [("alice", "train")]
    assert len({(status, found["job"]) for status, found in answers}) == 1


async def test_setting_is_changed_on_the_page(portal: Portal) -> None:
    answer = await portal.read("alice", "keys/start-on-connect", "POST", {"start": "1"})
    said = answer.headers["Set-Cookie"].partition(";")[0]
    page = await portal.read("alice", answer.location.removeprefix("/services/jobs/"), cookie=said)
    assert "A login starts a job that does not run." in page.text
    assert " checked>" in page.body.replace(" />", ">")
    await portal.read("alice", "keys/start-on-connect", "POST", {})
    assert " checked>" not in (await portal.read("alice", "keys")).body.replace(" />", ">")


async def test_job_that_has_just_ended_is_not_started_again(portal: Portal) -> None:
    await allow_starts(portal)
    request = await portal.runs(wants("alice", server="train"))
    assert (await logs_in(portal))[1]["state"] == "running"
    await portal.harness.delete({"metadata": {"name": "jupyter-alice--train"}}, grace=0)
    await until(lambda: request.job not in portal.served.store.records, "it has ended")
    await portal.served.leader.settled()
    portal.hub.over = {("alice", "train")}
    status, found = await logs_in(portal)
    assert (status, portal.hub.started) == (409, [])
    assert "train has ended a moment ago" in found["detail"]
    portal.harness.clock.moved += ssh.RESTART_AFTER
    assert (await logs_in(portal))[0] == 200
    assert portal.hub.started == [("alice", "train")]


async def test_gateway_reads_why_a_job_is_being_stopped(portal: Portal) -> None:
    job = (await portal.runs(wants("alice", server="train"))).job
    await portal.served.leader.stop(job, EventReason.IDLE, "It was idle.")
    _, found = await portal.served.ask(portal.real_hub.tokens["gateway"], f"ssh-starts/alice/train?job={job}")
    assert (found["state"], found["job"], found["sentence"]) == ("stopping", job, "It was idle.")


async def test_options_of_a_refused_request_do_not_prevent_the_start(portal: Portal) -> None:
    """The Hub keeps the options of every request, those of a refused one too."""
    portal.offers("files", start_on_connect=True)
    portal.hub.servers, portal.hub.over = {("alice", "files")}, {("alice", "files")}
    portal.hub.kept = {("alice", "files"): {"template": "nonsense"}}
    assert (await logs_in(portal, "files"))[1]["state"] == "starting"
    assert (portal.hub.started, portal.hub.options) == ([("alice", "files")], [{"template": "files"}])
    assert (await logs_in(portal, "nonsense"))[1]["state"] == "off"


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (HubRejected(403, "Team vision has used its 8 GPUs."), 403, "has used its 8 GPUs"),
        (HubRejected(400, "No such image."), 422, "No such image"),
        (HubRejected(400, "Your authentication has expired."), 403, "a fresh login"),
        (HubUnavailable("The Hub did not answer."), 503, "did not answer"),
    ],
    ids=["a quota", "a setting", "the login is too old", "the Hub is away"],
)
async def test_refusal_has_its_reason(portal: Portal, error: Exception, status: int, words: str) -> None:
    await allow_starts(portal)

    portal.hub.refuses(error)
    found = await logs_in(portal)
    assert (found[0], words in found[1]["detail"]) == (status, True), found


async def test_gateway_reads_the_answers(portal: Portal) -> None:
    await allow_starts(portal)

    async def starts(user: str, name: str) -> None:
        await portal.served.leader.ask(wants(user, server=name))
        raise HubRejected(429, f"It waits: {page_path('/services/jobs/', user, name)}")

    def people(token: str) -> HubAndManager:
        return HubAndManager(HubClient(portal.real_hub.hub_api, token), portal.served.url, token)

    await portal.runs(wants("bob", gpus=8))
    portal.hub.starts = starts
    gateway = people(portal.real_hub.tokens["gateway"])
    waits = await gateway.start("alice", "train")
    assert (waits.state, waits.page) == ("queued", "/services/jobs/wait/alice/train")
    assert waits.sentence.startswith("number 1 in the queue. ")
    assert await gateway.start_status("alice", "train", waits.job) == waits
    assert (await portal.read("alice", f"jobs/{waits.job}/stop", "POST")).status == 303
    ended = await gateway.start_status("alice", "train", waits.job)
    assert (ended.state, ended.sentence) == ("ended", "It was cancelled before it started.")
    leader = portal.served.leader
    leader.settings = replace(leader.settings, teams=replace(leader.settings.teams, blocked=frozenset({"alice"})))
    assert (await gateway.access_state(())).blocked == {"alice"}
    refused = await gateway.start("alice", "train")
    assert (refused.state, "may not start jobs" in refused.sentence) == ("refused", True)
    other = people(portal.real_hub.tokens["other"])
    assert await other.start("alice", "train") == StartStatus("off"), "a gateway without the scope starts nothing"
