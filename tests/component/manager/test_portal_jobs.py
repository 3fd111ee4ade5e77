"""The portal's first page and its buttons, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from dlspawner.clients.hub import HubRejected, HubUnavailable
from dlspawner.clients.kubernetes import EVENTS
from dlspawner.core.endpoints import read_target
from dlspawner.core.job import JobState
from dlspawner.core.template import Endpoint, EndpointProtocol
from dlspawner.manager.admission.service import AdmissionRequest
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.state import lifecycle
from dlspawner.manager.state.job_store import Transaction
from tests.component.manager.manager_harness import NAMESPACE, ask, until, wants
from tests.component.manager.portals import Portal, portals
from tests.component.manager.world import World

BACK_OFF = "Its image cannot be fetched now; the node tries again."
HOSTILE = '"><script>alert(1)</script>'


@pytest.fixture
async def portal(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Portal]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "cluster" / "kubeconfig"))
    async with portals(world, tmp_path) as made:
        yield made


async def test_who_has_no_jobs_is_told_so_and_sees_the_quota(portal: Portal) -> None:
    page = await portal.read("alice")
    assert page.status == 200
    assert "You have no job now" in page.text
    assert "Everybody, GPU 0 of 8 GPUs used, 8 free" in page.text
    assert "Language" not in page.text


async def test_a_job_that_runs_is_shown_with_its_buttons(portal: Portal) -> None:
    await portal.runs(wants("alice", gpus=2, server="train"))
    page = await portal.read("alice")
    assert "train running started just now Open Keep alive" not in page.text  # nothing stops it: no window
    assert "train running started just now Open Stop" in page.text
    assert "Tiny, 2 GPUs of type gpu, team Everybody" in page.text
    assert "2 of 8 GPUs used, 6 free" in page.text


async def test_a_job_that_waits_says_why_and_leads_to_its_place(portal: Portal) -> None:
    await portal.runs(wants("bob", gpus=8))
    await portal.waits(wants("alice", server="train"))
    page = await portal.read("alice")
    assert "train waiting asked for just now See its place Cancel" in page.text
    assert "Number 1 in the queue. Team Everybody uses 8 of its 8 GPUs of type gpu; this job needs 1." in page.text
    assert 'href="/services/jobs/wait/alice/train"' in page.body


@pytest.mark.parametrize(
    ("code", "reason", "sentence"),
    [
        pytest.param(0, "Completed", "Its program has ended.", id="well"),
        pytest.param(3, "Error", "Its program has failed: exit code 3.", id="badly"),
        pytest.param(139, "Error", "Its program has failed: signal 11.", id="by a signal"),
        pytest.param(137, "OOMKilled", "Its program has failed: it used more memory than it had.", id="too large"),
    ],
)
async def test_a_job_that_has_ended_says_how_and_leads_to_what_it_printed(
    portal: Portal, code: int, reason: str, sentence: str
) -> None:
    question = await portal.runs(wants("alice", server="train"))
    await portal.office.finish("jupyter-alice--train", code, reason)
    await until(lambda: has_ended(portal, question), "it has ended")
    portal.hub.over.add(("alice", "train"))
    page = await portal.read("alice")
    assert sentence in page.text
    assert f'href="/services/jobs/jobs/{question.job}"' in page.body
    assert f'href="/services/jobs/jobs/{question.job}/log"' in page.body
    assert sentence in (await portal.read("alice", f"jobs/{question.job}")).text


async def test_a_job_that_starts_says_what_it_waits_for(portal: Portal) -> None:
    question, name = wants("alice", server="train"), "jupyter-alice--train"
    assert (await ask(portal.served.acting, question)).decision == "admit"
    portal.knows("alice", "train")
    portal.hub.pending.add(("alice", "train"))

    async def starts(user: str, server: str) -> None:
        """It is not ready meanwhile."""

    portal.hub.starts = starts
    page, detail = f"jobs/{question.job}", f"api/jobs/{question.job}"
    # Its page lists all that has happened below: the sentence stands beside its state.
    told = {"": "{}", page: '<span class="name">{}</span>', "api/jobs": '"{}"', detail: '"{}"'}
    pages = [("alice", path) for path in told] + [("vera", path) for path in told if path]

    async def everybody_reads(sentence: str) -> bool:
        return all([told[path].format(sentence) in (await portal.read(user, path)).body for user, path in pages])

    assert await everybody_reads("It is being started.")
    pod = await portal.office.make_pod(question, name=name)
    await happens(portal, pod, "Pulling", 'Pulling image "registry.example/lab"')
    await until(lambda: everybody_reads("Its image is being fetched."), "the event is told")
    for path, words in told.items():  # who may not read the log
        if path:
            assert words.format("It is being started.") in (await portal.read("root-admin", path)).body, path
    await happens(portal, pod, "BackOff", 'Back-off pulling image "registry.example/lab"')
    await until(lambda: everybody_reads(BACK_OFF), "the next one is")
    ledger = portal.served.acting.ledger
    assert await ledger.latest_pod_events(["j-222222222222", question.job]) == {question.job: BACK_OFF}

    def waits_again(turn: Transaction) -> None:
        record = turn.record(question.job)
        assert record is not None
        lifecycle.requeue(turn, record, EventReason.START_TIMEOUT)

    await portal.served.book.transact(waits_again)
    assert await ledger.latest_pod_events([question.job]) == {}, "of an earlier start"


async def happens(portal: Portal, pod: dict[str, Any], reason: str, message: str) -> None:
    """Kubernetes tells this of a pod."""
    about = {key: pod["metadata"][key] for key in ("name", "namespace", "uid")}
    event = {
        **{"apiVersion": "v1", "kind": "Event", "type": "Normal", "reason": reason, "message": message},
        "metadata": {"name": f"{pod['metadata']['name']}.{reason.lower()}", "namespace": NAMESPACE},
        **{"involvedObject": {"kind": "Pod", **about}, "lastTimestamp": datetime.now(UTC).isoformat()},
    }
    await portal.office.cluster.create(EVENTS, event, NAMESPACE)


async def test_nobody_sees_jobs_of_others_here(portal: Portal) -> None:
    await portal.runs(wants("alice", server="secret-project"))
    for user in ("bob", "vera", "root-admin"):
        assert "secret-project" not in (await portal.read(user)).body


async def _with_ssh(portal: Portal) -> str:
    """What alice reads of a job that offers SSH."""
    object.__setattr__(portal.served.manager, "ssh_target", read_target("gate:2222"))
    question = wants("alice", server="train")
    annotations = {"dlspawner.dev/user": "alice", "dlspawner.dev/server": "train", "dlspawner.dev/team": "default"}
    await portal.runs(question, annotations={**annotations, "dlspawner.dev/ssh-host-key": "ssh-ed25519 x"})
    return (await portal.read("alice")).text


async def test_ssh_is_a_command_to_copy(portal: Portal) -> None:
    text = await _with_ssh(portal)
    assert "ssh -p 2222 alice+train@gate" in text


async def has_ended(portal: Portal, question: AdmissionRequest) -> bool:
    kept = await portal.served.acting.ledger.job_history(question.job)
    return kept is not None and kept.state is JobState.ENDED


def offer_tensorboards(portal: Portal) -> None:
    acting = portal.served.acting
    tensorboard = replace(acting.settings.templates[0], name="tensorboard")
    acting.settings = replace(acting.settings, templates=(*acting.settings.templates, tensorboard))


def offer_ports(portal: Portal) -> None:
    """The template offers SSH and a page."""
    acting = portal.served.acting
    endpoints = (Endpoint("ssh", 2222, EndpointProtocol.SSH), Endpoint("board", 6006, EndpointProtocol.HTTP))
    tiny, *others = acting.settings.templates
    acting.settings = replace(acting.settings, templates=(replace(tiny, endpoints=endpoints), *others))


async def test_the_page_of_a_job_has_the_ways_into_it_that_the_list_has(portal: Portal) -> None:
    object.__setattr__(portal.served.manager, "ssh_target", read_target("gate:2222"))
    offer_tensorboards(portal)
    question = wants("alice", server="train")
    annotations = {"dlspawner.dev/user": "alice", "dlspawner.dev/server": "train", "dlspawner.dev/team": "default"}
    told = {"dlspawner.dev/ssh-host-key": "ssh-ed25519 x", "dlspawner.dev/log-dir": "logs"}
    await portal.runs(question, annotations={**annotations, **told})
    page = await portal.read("alice", f"jobs/{question.job}")
    listed = await portal.read("alice")
    for way in (
        *('aria-label="Open: train"', 'action="/services/jobs/tensorboard"'),
        *('data-copy="ssh -p 2222 alice+train@gate"', 'href="vscode://vscode-remote/ssh-remote+train.dl'),
    ):
        assert way in listed.body, way
        assert way in page.body, way
    assert 'data-copy="' not in (await portal.read("vera", f"jobs/{question.job}")).body, (
        "who sees it, and may not enter it"
    )


@pytest.mark.parametrize("has_ssh", [True, False], ids=["with SSH", "without"])
async def test_the_other_ports_of_a_job_are_told_with_the_way_to_them(portal: Portal, has_ssh: bool) -> None:
    object.__setattr__(portal.served.manager, "ssh_target", read_target("gate:2222"))
    offer_ports(portal)
    question = wants("alice", server="train")
    annotations = {"dlspawner.dev/user": "alice", "dlspawner.dev/server": "train", "dlspawner.dev/team": "default"}
    key = {"dlspawner.dev/ssh-host-key": "ssh-ed25519 x"} if has_ssh else {}
    await portal.runs(question, annotations={**annotations, **key})
    command = "ssh -p 2222 -L 6006:localhost:6006 alice+train@gate"
    here = f"board, http: at http://localhost:6006/ on your machine, while this runs there {command} Copy"
    for path in ("", f"jobs/{question.job}"):
        page = await portal.read("alice", path)
        text = page.text.replace(" ,", ",")
        copies = f'data-copy="{command}"' in page.body
        elsewhere = "board, http: port 6006, for other pods of the cluster" in text
        assert (copies, here in text, elsewhere) == (has_ssh, has_ssh, not has_ssh), path
    assert "6006" not in (await portal.read("vera", f"jobs/{question.job}")).text


async def test_while_the_hub_is_away_jobs_are_shown_and_the_page_says_so(portal: Portal) -> None:
    await portal.runs(wants("alice", server="train"))
    portal.hub.servers = None
    page = await portal.read("alice")
    assert page.status == 200
    assert "The Hub does not answer at the moment" in page.text
    assert "train running" in page.text


async def test_a_manager_that_does_not_act_says_so_and_looks_again(portal: Portal) -> None:
    portal.served.acting.admission = None
    page = await portal.read("alice")
    assert page.status == 503
    assert "does not decide now" in page.body


async def test_stop_asks_the_hub_and_the_page_says_it(portal: Portal) -> None:
    question = await portal.runs(wants("alice", server="train"))
    answer = await portal.read("alice", f"jobs/{question.job}/stop", "POST")
    assert (answer.status, answer.location) == (303, f"/services/jobs/?stopped={question.job}")
    assert set(portal.hub.stopped) == {("alice", "train")}
    assert "train is being stopped. Its files are kept." in (await portal.read("alice", answer.location[15:])).text
    vera = await portal.read("vera", f"?stopped={question.job}")
    assert "train of alice is being stopped. Its files are kept." in vera.text


async def test_a_link_cannot_say_that_something_was_stopped_that_was_not(portal: Portal) -> None:
    runs = await portal.runs(wants("alice", server="train"))
    for stopped in (runs.job, "j-222222222222", "<b>what+you+will", "stopping"):
        page = await portal.read("alice", f"?stopped={stopped}&said=stopping")
        assert (page.status, "alert-success" in page.body) == (200, False), stopped
    await portal.read("alice", f"jobs/{runs.job}/stop", "POST")
    assert "alert-success" not in (await portal.read("bob", f"?stopped={runs.job}")).body


@pytest.mark.parametrize(
    ("server", "leads"),
    [
        pytest.param("train", "/hub/spawn/alice/train", id="a name"),
        pytest.param(" Train", "/hub/spawn/alice/train", id="a name as somebody types it"),
        pytest.param("", "/hub/spawn/alice", id="no name"),
        pytest.param("-train", "", id="no name that may be"),
        pytest.param("../bob/train", "", id="a way to somebody else"),
        pytest.param("x" * 31, "", id="too long"),
    ],
)
async def test_a_name_leads_to_the_hubs_form_or_back_with_a_sentence(portal: Portal, server: str, leads: str) -> None:
    answer = await portal.read("alice", f"new?server={quote(server)}")
    assert (answer.status, answer.location) == ((302, leads) if leads else (422, ""))
    assert ("at most 30 small letters" in answer.text) is (not leads)


LATER = "2040-01-01T00:00:00Z"  # the program ends after its pod was asked to


async def test_a_job_that_its_owner_has_stopped_has_not_just_ended(portal: Portal) -> None:
    said = "Its owner has stopped this job. The files are kept."
    question = await portal.runs(wants("alice", server="train"))
    await portal.read("alice", f"jobs/{question.job}/stop", "POST")
    assert said in (await portal.read("alice")).text
    pod = (await portal.office.pods())["jupyter-alice--train"]
    await portal.office.delete(pod)
    await portal.office.finish("jupyter-alice--train", 0, "Completed", LATER)
    await portal.office.delete(pod, grace=0)
    await until(lambda: has_ended(portal, question), "it has ended")
    portal.hub.over.add(("alice", "train"))
    assert said in (await portal.read("alice")).text
    page = await portal.read("vera", f"jobs/{question.job}")
    assert said in page.text
    assert "Its program has ended" not in page.text


async def test_a_job_that_somebody_has_stopped_elsewhere_was_stopped(portal: Portal) -> None:
    question = await portal.runs(wants("alice", server="train"))
    await portal.office.delete((await portal.office.pods())["jupyter-alice--train"])
    await portal.office.finish("jupyter-alice--train", 0, "Completed", LATER)
    await until(lambda: has_ended(portal, question), "it has ended")
    page = await portal.read("alice", f"jobs/{question.job}")
    assert "It was stopped." in page.text
    assert "Its program has ended" not in page.text


@pytest.mark.parametrize("problem", [HubUnavailable("away"), HubRejected(500, "no")], ids=["away", "refused"])
async def test_a_stop_that_the_hub_does_not_carry_out_is_decided_all_the_same(
    portal: Portal, problem: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(user: str, server: str = "") -> bool:
        raise problem

    monkeypatch.setattr(portal.hub, "stop_server", fails)
    question = await portal.runs(wants("alice", server="train"))
    answer = await portal.read("alice", f"jobs/{question.job}/stop", "POST")
    assert (answer.status, answer.location) == (303, f"/services/jobs/?stopped={question.job}")
    assert portal.served.book.records[question.job].job.state is JobState.STOPPING


async def test_a_job_that_waits_is_cancelled(portal: Portal) -> None:
    await portal.runs(wants("bob", gpus=8))
    question = await portal.waits(wants("alice", server="train"))
    portal.knows("alice", "train")
    answer = await portal.read("alice", f"jobs/{question.job}/stop", "POST")
    assert answer.status == 303
    assert question.job not in portal.served.book.records
    assert "train has ended. Its files are kept." in (await portal.read("alice", answer.location[15:])).text


async def test_a_team_admin_stops_a_job_and_its_owner_reads_who_did(portal: Portal) -> None:
    question = await portal.runs(wants("alice", server="train"))
    assert (await portal.read("vera", f"jobs/{question.job}/stop", "POST")).status == 303
    record = portal.served.book.records[question.job]
    assert record.job.state is JobState.STOPPING
    assert "vera has stopped this job. Your files are kept." in (await portal.read("alice")).text
    await until(lambda: portal.hub.stopped, "the Hub is asked")


@pytest.mark.parametrize("button", ["stop", "keep"])
@pytest.mark.parametrize("user", ["bob", "lars", ""])
async def test_others_cannot_touch_a_job_or_tell_that_it_is_there(portal: Portal, user: str, button: str) -> None:
    question = await portal.runs(wants("alice", server="train"))
    answer = await portal.read(user, f"jobs/{question.job}/{button}", "POST")
    missing = await portal.read(user, f"jobs/j-{'a' * 12}/{button}", "POST")
    assert (answer.status, answer.text) == (missing.status, missing.text)
    assert answer.status == (404 if user else 403)
    assert portal.hub.stopped == []
    assert portal.served.book.records[question.job].job.state is JobState.RUNNING


async def test_a_token_that_may_only_read_stops_nothing(portal: Portal, world: World) -> None:
    question = await portal.runs(wants("alice", server="train"))
    token = world.token("alice", ("read:servers!user=alice", "access:services!service=jobs"))
    assert (await portal.read("", f"jobs/{question.job}/stop", "POST", token=token)).status == 403
    assert portal.hub.stopped == []


async def test_keep_alive_is_the_owners_and_says_what_it_brought(portal: Portal) -> None:
    question = await portal.runs(wants("alice", server="train"))
    culler = portal.served.acting.culler
    assert culler is not None
    await culler.evaluate_all()
    kept = await portal.read("alice", f"jobs/{question.job}/keep", "POST")
    assert (kept.status, "Nothing stops this job for being unused now." in kept.text) == (200, True)
    assert (await portal.read("vera", f"jobs/{question.job}/keep", "POST")).status == 403


async def test_start_again_goes_where_the_start_is_told_of(portal: Portal) -> None:
    portal.knows("alice", "train")
    answer = await portal.read("alice", "start", "POST", {"server": "train"})
    assert (answer.status, answer.location) == (303, "/hub/spawn-pending/alice/train")
    assert portal.hub.started == [("alice", "train")]


async def test_a_start_that_has_to_wait_goes_to_its_place(portal: Portal) -> None:
    await portal.runs(wants("bob", gpus=8))
    portal.knows("alice", "train")

    async def starts(user: str, server: str) -> None:
        await ask(portal.served.acting, wants(user, server=server))
        raise HubRejected(429, "It is number 1 in the queue.")

    portal.hub.starts = starts
    answer = await portal.read("alice", "start", "POST", {"server": "train"})
    assert (answer.status, answer.location) == (303, "/services/jobs/wait/alice/train")


async def ended(portal: Portal, gpus: int) -> AdmissionRequest:
    """A job of alice's server train that was cancelled, whose options the Hub has kept."""
    question = await portal.waits(wants("alice", gpus=gpus, server="train"))
    portal.knows("alice", "train")
    portal.hub.kept["alice", "train"] = {"template": "tiny", "gpus": gpus}
    portal.hub.over.add(("alice", "train"))
    assert (await portal.read("alice", f"jobs/{question.job}/stop", "POST")).status == 303
    return question


async def test_job_starts_again_with_its_own_options_whatever_its_server_had_since(portal: Portal) -> None:
    await portal.runs(wants("bob", gpus=8))
    older = await ended(portal, 2)
    for path in ("", f"jobs/{older.job}"):
        assert f'name="job" value="{older.job}"' in (await portal.read("alice", path)).body
    await ended(portal, 3)
    portal.hub.kept["alice", "train"] = {"template": "tiny", "gpus": 8}  # of a start that was refused
    answer = await portal.read("alice", "start", "POST", {"server": "train", "job": older.job})
    assert answer.status == 303, answer.text
    assert (portal.hub.started, portal.hub.options) == ([("alice", "train")], [{"template": "tiny", "gpus": 2}])


async def test_job_without_known_options_does_not_start_again(portal: Portal) -> None:
    await portal.runs(wants("bob", gpus=8))
    question = await portal.waits(wants("alice", server="train", options=""))
    portal.knows("alice", "train")
    assert (await portal.read("alice", f"jobs/{question.job}/stop", "POST")).status == 303
    answer = await portal.read("alice", "start", "POST", {"server": "train", "job": question.job})
    assert (answer.status, "are not known" in answer.text) == (409, True)


async def test_nobody_starts_a_job_of_somebody_else_or_of_another_server_again(portal: Portal) -> None:
    await portal.runs(wants("bob", gpus=8))
    older = await ended(portal, 2)
    for user, server in (("bob", "train"), ("alice", "other")):
        answer = await portal.read(user, "start", "POST", {"server": server, "job": older.job})
        assert (answer.status, "no such job" in answer.text) == (404, True), user
    answer = await portal.read("vera", "start", "POST", {"server": "train", "job": older.job})  # she sees that job
    assert (answer.status, "start jobs for other people" in answer.text) == (403, True)
    assert portal.hub.started == []


async def test_a_refusal_is_said_although_something_else_waits_for_that_server(portal: Portal) -> None:
    await portal.runs(wants("bob", gpus=8))
    await portal.waits(wants("alice", server="train"))

    async def starts(user: str, server: str) -> None:
        raise HubRejected(400, "No such image.")

    portal.hub.starts = starts
    answer = await portal.read("alice", "start", "POST", {"server": "train"})
    assert (answer.status, "No such image." in answer.text) == (409, True)

    async def pending(user: str, server: str) -> None:
        raise HubRejected(400, "alice:train is pending spawn")

    portal.hub.starts = pending
    answer = await portal.read("alice", "start", "POST", {"server": "train"})
    assert (answer.status, answer.location) == (303, "/services/jobs/wait/alice/train")


@pytest.mark.parametrize(
    ("error", "status"),
    [(HubRejected(400, f"No such image {HOSTILE}"), 409), (HubUnavailable("The Hub did not answer."), 503)],
    ids=["refused", "away"],
)
async def test_what_the_hub_refuses_is_said_in_its_words(portal: Portal, error: Exception, status: int) -> None:
    async def starts(user: str, server: str) -> None:
        raise error

    portal.hub.starts = starts
    answer = await portal.read("alice", "start", "POST", {"server": "train"})
    assert answer.status == status
    assert str(error) in answer.text
    assert "<script>alert" not in answer.body


async def test_a_tensorboard_is_started_on_the_jobs_logs_and_opened_when_it_runs(portal: Portal) -> None:
    offer_tensorboards(portal)
    annotations = {"dlspawner.dev/user": "alice", "dlspawner.dev/server": "train", "dlspawner.dev/team": "default"}
    await portal.runs(wants("alice", server="train"), annotations={**annotations, "dlspawner.dev/log-dir": "/runs"})
    assert "TensorBoard" in (await portal.read("alice")).text
    answer = await portal.read("alice", "tensorboard", "POST", {"server": "train"})
    assert (answer.status, answer.location) == (303, "/hub/spawn-pending/alice/train-tb")
    assert portal.hub.options == [{"template": "tensorboard", "log_dir": "/runs", "team": "default"}]
    portal.knows("alice", "train-tb")
    assert (await portal.read("alice", "tensorboard", "POST", {"server": "train"})).status == 303
    assert portal.hub.started == [("alice", "train-tb")]
    assert (await portal.read("alice", "tensorboard", "POST", {"server": "other"})).status == 404


async def test_a_job_has_no_pages(portal: Portal, world: World) -> None:
    token = await asyncio.to_thread(world.server_token, "alice", "train")
    assert (await portal.read("", token=token)).status == 403


async def test_an_address_of_a_form_that_is_opened_leads_back(portal: Portal) -> None:
    for path in ("start", "tensorboard", f"jobs/j-{'a' * 12}/stop"):
        assert (await portal.read("alice", path)).location == "/services/jobs/"


async def test_the_way_through_the_pages_is_on_each_and_says_where_one_is(portal: Portal) -> None:
    await portal.runs(wants("bob", gpus=8))
    await portal.waits(wants("alice", server="train"))
    for path, title in (("", "My jobs"), ("keys", "SSH keys"), ("notices", None), ("wait/alice/train", None)):
        body = (await portal.read("alice", path)).body
        assert 'aria-label="Jobs"' in body
        assert (f'aria-current="page">{title}</a>' in body) == (title is not None)
