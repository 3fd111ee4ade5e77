"""The page of one's own jobs and its buttons, over HTTP."""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest

from dlspawner.clients.hub import HubRejected, HubUnavailable
from dlspawner.clients.kubernetes import EVENTS, PODS
from dlspawner.clients.manager import ManagerClient
from dlspawner.clients.prometheus import JobMetrics
from dlspawner.core import text
from dlspawner.core.endpoints import read_target
from dlspawner.core.job import JobState
from dlspawner.core.launch import pod_status
from dlspawner.core.link import derive_hub_token
from dlspawner.core.template import Endpoint, EndpointProtocol
from dlspawner.devcluster.api.objects.patch import merge_patch
from dlspawner.manager.admission.service import AdmissionRequest
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.state import lifecycle
from dlspawner.manager.state.job_store import Transaction
from tests.component.manager.manager_harness import NAMESPACE, until, wants
from tests.component.manager.portals import Portal
from tests.component.manager.printing import until_ended
from tests.component.manager.test_pod_view import DELETED
from tests.component.manager.test_reconciler import until_observed

log = logging.getLogger(__name__)
BACK_OFF = "Its image cannot be fetched now; the node tries again."
OUT_OF_MEMORY = "The job used more than its 64 MiB of memory and was stopped: start it with more memory."
HOSTILE = '"><script>alert(1)</script>'


ENDED = {"exitCode": 3, "finishedAt": "2026-01-01T00:00:00Z"}
CRASHED = {"name": "notebook", "lastState": {"terminated": ENDED}, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
KILLED = {"name": "notebook", "state": {"terminated": {**ENDED, "exitCode": 137, "reason": "OOMKilled"}}}
EVICTED = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
DRAINED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
FAILED = {"name": "notebook", "state": {"terminated": {**ENDED, "message": "ValueError: secret"}}}


@pytest.mark.parametrize("first", ["Hub", "Manager"])
@pytest.mark.parametrize(
    ("status", "deleted", "reason", "sentence"),
    [
        pytest.param({}, True, "removed", "The job was removed from outside the Hub: start it again,", id="kubectl"),
        pytest.param(
            {"phase": "Failed", "containerStatuses": [FAILED]},
            False,
            "failed",
            "Its server failed with exit code 3: correct that and start the job again.",
            id="exit code 3",
        ),
        pytest.param(
            {"containerStatuses": [CRASHED]},
            False,
            "failed",
            "Its server failed with exit code 3 and",
            id="a crash loop",
        ),
        pytest.param(
            {"phase": "Failed", "containerStatuses": [KILLED]},
            False,
            "failed",
            OUT_OF_MEMORY,
            id="out of memory",
        ),
        pytest.param(EVICTED, False, "evicted", "The job's node ran out of memory and stopped the job", id="evicted"),
        pytest.param({"conditions": [DRAINED]}, True, "evicted", "is emptying the job's node: start", id="a drain"),
    ],
)
async def test_an_end_has_one_reason_on_every_page_and_for_the_hub_whichever_sees_it_first(  # noqa: PLR0917 - a table
    portal: Portal, first: str, status: dict[str, Any], deleted: bool, reason: str, sentence: str
) -> None:
    request, name = await portal.runs(wants("alice", server="train")), "jupyter-alice--train"
    hub = ManagerClient(portal.served.url, derive_hub_token(portal.real_hub.tokens["manager"]), log)
    pod = (await portal.harness.pods())[name]
    judged = pod_status.evaluate(merge_patch(pod, {"status": status, **({"metadata": DELETED} if deleted else {})}))
    assert isinstance(judged, pod_status.Terminated)
    assert sentence in text.without_last_words(judged.reason)

    async def hub_sees() -> None:
        if not deleted:
            await hub.job_ended(request.job, "alice", text.without_last_words(judged.reason))

    if first == "Hub":
        await hub_sees()
    if status:
        await portal.harness.cluster.patch(PODS, name, {"status": status}, NAMESPACE, subresource="status")
    if deleted:
        await portal.harness.delete(pod)
    await until_observed(portal.served.leader)
    if first == "Manager":
        await hub_sees()
    await portal.harness.delete(pod, grace=0)
    await until_ended(portal.served.leader, request)
    portal.hub.over.add(("alice", "train"))
    assert (await portal.served.leader.reasons(request))[-1] == reason
    assert await hub.stop_reason(request.job) == text.without_last_words(judged.reason)
    for page in ("", "all", "api/jobs", f"jobs/{request.job}", f"api/jobs/{request.job}"):
        answer = await portal.read("alice", page)
        assert sentence in answer.text + answer.body, page


async def test_reason_for_which_the_hub_gives_a_start_up_is_on_every_page(portal: Portal) -> None:
    """A pod tells nothing of an image that does not exist, or of a container that its node has started again."""
    request, why = await portal.runs(wants("alice", server="train")), "The image x does not exist: check its name."
    hub = ManagerClient(portal.served.url, derive_hub_token(portal.real_hub.tokens["manager"]), log)
    await hub.job_ended(request.job, "bob", "It is not theirs.")
    await hub.job_ended(request.job, "alice", why)
    await portal.harness.delete((await portal.harness.pods())["jupyter-alice--train"], grace=0)
    await until_ended(portal.served.leader, request)
    portal.hub.over.add(("alice", "train"))
    assert (await portal.served.leader.reasons(request))[-1] == "failed"
    for page in ("", f"jobs/{request.job}", f"api/jobs/{request.job}"):
        answer = await portal.read("alice", page)
        assert why in answer.text + answer.body, page
    home = await portal.read("alice")
    assert all(f'href="/services/jobs/jobs/{request.job}{page}"' in home.body for page in ("", "/log"))


async def test_starting_job_has_the_latest_event_of_its_pod(portal: Portal) -> None:
    request, name = wants("alice", server="train"), "jupyter-alice--train"
    assert (await portal.served.leader.ask(request)).decision == "admit"
    portal.knows("alice", "train")
    portal.hub.pending.add(("alice", "train"))

    async def starts(user: str, server: str) -> None:
        """It is not ready meanwhile."""

    portal.hub.starts = starts
    page, detail = f"jobs/{request.job}", f"api/jobs/{request.job}"
    # Its page lists all that has happened below: the sentence stands beside its state.
    told = {"": "{}", page: '<span class="name">{}</span>', "api/jobs": '"{}"', detail: '"{}"'}
    pages = [("alice", path) for path in told] + [("vera", path) for path in told if path]

    async def everybody_reads(sentence: str) -> bool:
        return all([told[path].format(sentence) in (await portal.read(user, path)).body for user, path in pages])

    assert await everybody_reads("Starting.")
    pod = await portal.harness.make_pod(request, name=name)
    await happens(portal, pod, "Pulling", 'Pulling image "registry.example/lab"')
    await until(lambda: everybody_reads("Its image is being fetched."), "the event is told")
    for path, words in told.items():  # who may not read the log
        if path:
            assert words.format("Starting.") in (await portal.read("root-admin", path)).body, path
    await happens(portal, pod, "BackOff", 'Back-off pulling image "registry.example/lab"')
    await until(lambda: everybody_reads(BACK_OFF), "the next one is")
    repository = portal.served.leader.repository
    assert await repository.latest_pod_events(["j-222222222222", request.job]) == {request.job: BACK_OFF}

    def waits_again(transaction: Transaction) -> None:
        record = transaction.record(request.job)
        assert record is not None
        lifecycle.requeue(transaction, record, EventReason.START_TIMEOUT)

    await portal.served.store.transact(waits_again)
    assert await repository.latest_pod_events([request.job]) == {}, "of an earlier start"


async def happens(portal: Portal, pod: dict[str, Any], reason: str, message: str) -> None:
    """Kubernetes tells this of a pod."""
    about = {key: pod["metadata"][key] for key in ("name", "namespace", "uid")}
    event = {
        **{"apiVersion": "v1", "kind": "Event", "type": "Normal", "reason": reason, "message": message},
        "metadata": {"name": f"{pod['metadata']['name']}.{reason.lower()}", "namespace": NAMESPACE},
        **{"involvedObject": {"kind": "Pod", **about}, "lastTimestamp": datetime.now(UTC).isoformat()},
    }
    await portal.harness.cluster.create(EVENTS, event, NAMESPACE)


SSH = Endpoint("ssh", 2222, EndpointProtocol.SSH)
SSH_AND_BOARD = (SSH, Endpoint("board", 6006, EndpointProtocol.HTTP))


async def test_link_cannot_claim_that_a_job_was_stopped(portal: Portal) -> None:
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
        pytest.param("1", "", id="a digit first, which the Hub refuses"),
        pytest.param("a--b", "", id="two hyphens, which the Hub refuses"),
    ],
)
async def test_name_of_a_new_job_leads_to_the_form_or_is_refused(portal: Portal, server: str, leads: str) -> None:
    answer = await portal.read("alice", f"new?server={quote(server)}")
    assert (answer.status, answer.location) == ((302, leads) if leads else (422, ""))
    assert ("at most 30 small letters" in answer.text) is (not leads)


async def test_only_the_owner_keeps_a_job_alive(portal: Portal) -> None:
    request = await portal.runs(wants("alice", server="train"))
    culler = portal.served.leader.culler
    assert culler is not None
    early = await portal.read("alice", f"api/jobs/{request.job}/keep-alive", "POST")
    assert (early.status, early.headers["Retry-After"]) == (503, "5"), "before the first evaluation"
    await culler.evaluate_all()
    kept = await portal.read("alice", f"jobs/{request.job}/keep", "POST")
    assert (kept.status, "Nothing stops this job for being unused now." in kept.text) == (200, True)
    assert (await portal.read("vera", f"jobs/{request.job}/keep", "POST")).status == 403


async def ended(portal: Portal, gpus: int) -> AdmissionRequest:
    """A job of alice's server train that was cancelled, whose options the Hub has kept."""
    request = await portal.waits(wants("alice", gpus=gpus, server="train"))
    portal.knows("alice", "train")
    portal.hub.kept["alice", "train"] = {"template": "tiny", "gpus": gpus}
    portal.hub.over.add(("alice", "train"))
    assert (await portal.read("alice", f"jobs/{request.job}/stop", "POST")).status == 303
    return request


async def test_job_starts_again_with_its_own_options(portal: Portal) -> None:
    await portal.runs(wants("bob", gpus=8))
    older = await ended(portal, 2)
    for path in ("", f"jobs/{older.job}"):
        assert f'name="job" value="{older.job}"' in (await portal.read("alice", path)).body
    await ended(portal, 3)
    portal.hub.kept["alice", "train"] = {"template": "tiny", "gpus": 8}  # of a start that was refused
    answer = await portal.read("alice", "start", "POST", {"server": "train", "job": older.job})
    assert answer.status == 303, answer.text
    assert (portal.hub.started, portal.hub.options) == ([("alice", "train")], [{"template": "tiny", "gpus": 2}])


async def test_stopped_server_is_removed_from_the_list(portal: Portal) -> None:
    await portal.runs(wants("bob", gpus=8))
    await ended(portal, 2)
    assert 'action="/services/jobs/remove"' in (await portal.read("alice")).body
    assert (await portal.read("alice", "remove", "POST", {"server": "train"})).status == 303
    assert "No jobs yet." in (await portal.read("alice")).text


async def test_job_without_known_options_does_not_start_again(portal: Portal) -> None:
    await portal.runs(wants("bob", gpus=8))
    request = await portal.waits(wants("alice", server="train", options=""))
    portal.knows("alice", "train")
    assert (await portal.read("alice", f"jobs/{request.job}/stop", "POST")).status == 303
    answer = await portal.read("alice", "start", "POST", {"server": "train", "job": request.job})
    assert (answer.status, "are not known" in answer.text) == (409, True)


async def test_tensorboard_starts_once_with_the_logs_of_the_job(portal: Portal) -> None:
    portal.offers("tensorboard")
    await portal.runs(wants("alice", server="train"), log_dir="/runs")
    assert "TensorBoard" in (await portal.read("alice")).text
    answer = await portal.read("alice", "tensorboard", "POST", {"server": "train"})
    assert (answer.status, answer.location) == (303, "/hub/spawn-pending/alice/train-tb")
    assert portal.hub.options == [{"template": "tensorboard", "log_dir": "/runs", "team": "default"}]
    portal.knows("alice", "train-tb")
    assert (await portal.read("alice", "tensorboard", "POST", {"server": "train"})).status == 303
    assert portal.hub.started == [("alice", "train-tb")]
    assert (await portal.read("alice", "tensorboard", "POST", {"server": "other"})).status == 404


async def test_list_of_own_jobs(portal: Portal) -> None:
    page = await portal.read("alice")
    assert "No jobs yet." in page.text
    assert "Everybody, GPU 0 of 8 GPUs used, 8 free" in page.text
    assert "Language" not in page.text
    await portal.runs(wants("alice", gpus=8, server="first"))
    await portal.waits(wants("alice", server="second"))
    page = await portal.read("alice")
    assert re.search(r"first running started just now \( \d\d:\d\d UTC \) Open Log Stop", page.text), (
        "nothing stops it, so it needs no button to keep it"
    )
    assert "Tiny, 8 GPUs of type gpu, team Everybody" in page.text
    assert re.search(r"second queued submitted just now \( \d\d:\d\d UTC \) See its place Cancel", page.text)
    assert "Number 1 in the queue. Team Everybody uses 8 of its 8 GPUs of type gpu; this job needs 1." in page.text
    assert 'href="/services/jobs/wait/alice/second"' in page.body
    portal.hub.servers = None
    page = await portal.read("alice")
    assert "The Hub does not answer at the moment" in page.text
    assert "first running" in page.text
    for user in ("bob", "vera", "root-admin"):
        assert "Number 1 in the queue" not in (await portal.read(user)).text


@pytest.mark.parametrize("has_ssh", [True, False], ids=["with SSH", "without"])
async def test_list_and_page_of_a_job_have_the_same_links(portal: Portal, has_ssh: bool) -> None:
    object.__setattr__(portal.served.manager, "ssh_target", read_target("gate:2222"))
    portal.offers("tensorboard")
    portal.offers(endpoints=SSH_AND_BOARD)
    key = {"ssh_host_key": "ssh-ed25519 x"} if has_ssh else {}
    request = await portal.runs(wants("alice", server="train"), log_dir="logs", **key)
    ssh = ('data-copy="ssh -p 2222 alice+train@gate"', 'href="vscode://vscode-remote/ssh-remote+train.dl')
    command = "ssh -p 2222 -L 6006:localhost:6006 alice+train@gate"
    forward = f"board, http: at http://localhost:6006/ on your machine, while this runs there {command} Copy"
    for path in ("", f"jobs/{request.job}"):
        page = await portal.read("alice", path)
        assert 'aria-label="Open: train"' in page.body
        assert 'action="/services/jobs/tensorboard"' in page.body
        assert [link in page.body for link in (*ssh, f'data-copy="{command}"')] == [has_ssh] * 3
        text = page.text.replace(" ,", ",")
        assert (forward if has_ssh else "board, http: port 6006, for other pods of the cluster") in text
    page = await portal.read("vera", f"jobs/{request.job}")
    assert ('data-copy="' in page.body, "6006" in page.text) == (False, False), "she sees the job and may not enter it"


async def test_stop_of_running_job(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = list[tuple[str, str]]()

    async def stop_server(user: str, server: str = "") -> bool:
        stopped.append((user, server))
        return False

    monkeypatch.setattr(portal.hub, "stop_server", stop_server)
    request = await portal.runs(wants("alice", server="train"))
    answer = await portal.read("alice", f"jobs/{request.job}/stop", "POST")
    assert (answer.status, answer.location) == (303, f"/services/jobs/?stopped={request.job}")
    assert portal.served.store.records[request.job].job.state is JobState.STOPPING
    await until(lambda: set(stopped) == {("alice", "train")}, "the Hub is asked")
    page = await portal.read("alice", answer.location.removeprefix("/services/jobs/"))
    assert "train is being stopped. Its files are kept." in page.text
    assert "train of alice is being stopped." in (await portal.read("vera", f"?stopped={request.job}")).text


@pytest.mark.parametrize(
    ("user", "sentence"),
    [
        ("alice", "Its owner has stopped this job. The files are kept."),
        ("vera", "vera has stopped this job. Your files are kept."),
        ("the Hub", "This job was stopped on the Hub. The files are kept."),
        ("", "The job was removed from outside the Hub: start it again, or ask an administrator why."),
    ],
    ids=["its owner", "a team admin", "on the Hub", "kubectl"],
)
async def test_end_of_a_stopped_job_names_who_stopped_it(portal: Portal, user: str, sentence: str) -> None:
    request = await portal.runs(wants("alice", server="train"))
    if user == "the Hub":
        hub = ManagerClient(portal.served.url, derive_hub_token(portal.real_hub.tokens["manager"]), log)
        await hub.start_interrupted("alice", "train", request.job)
    elif user:
        assert (await portal.read(user, f"jobs/{request.job}/stop", "POST")).status == 303
        assert sentence in (await portal.read("alice")).text
    pod = (await portal.harness.pods())["jupyter-alice--train"]
    await portal.harness.delete(pod)
    await portal.harness.finish("jupyter-alice--train", 0, "Completed", "2040-01-01T00:00:00Z")  # after its deletion
    await portal.harness.delete(pod, grace=0)
    await until_ended(portal.served.leader, request)
    page = await portal.read("alice", f"jobs/{request.job}")
    assert sentence in page.text
    assert "The job has finished" not in page.text


async def test_stop_of_a_queued_job_cancels_it(portal: Portal) -> None:
    await portal.runs(wants("bob", gpus=8))
    request = await portal.waits(wants("alice", server="train"))
    portal.knows("alice", "train")
    answer = await portal.read("alice", f"jobs/{request.job}/stop", "POST")
    assert request.job not in portal.served.store.records
    page = await portal.read("alice", answer.location.removeprefix("/services/jobs/"))
    assert "train has ended. Its files are kept." in page.text


PENDING, PLACE = "/hub/spawn-pending/alice/train", "/services/jobs/wait/alice/train"
ANSWERS: dict[str, tuple[Exception | None, int, str]] = {
    "it starts": (None, 303, PENDING),
    "it is queued": (HubRejected(429, "Number 1 in the queue."), 303, PLACE),
    "it starts already": (HubRejected(400, "alice:train is pending spawn"), 303, PLACE),
    "a refusal while another job is queued": (HubRejected(400, f"No such image {HOSTILE}"), 409, ""),
    "the Hub is away": (HubUnavailable("The Hub did not answer."), 503, ""),
}


@pytest.mark.parametrize(("error", "status", "location"), ANSWERS.values(), ids=ANSWERS)
async def test_start_leads_to_the_job_or_a_reason(
    portal: Portal, error: Exception | None, status: int, location: str
) -> None:
    portal.knows("alice", "train")
    if error is not None:
        await portal.runs(wants("bob", gpus=8))
        await portal.waits(wants("alice", server="train"))

        async def starts(user: str, server: str) -> None:
            if isinstance(error, HubRejected) and error.status == 429:
                await portal.served.leader.ask(wants(user, server=server))
            raise error

        portal.hub.starts = starts
    answer = await portal.read("alice", "start", "POST", {"server": "train"})
    assert (answer.status, answer.location) == (status, location)
    assert portal.hub.started == [("alice", "train")]
    if not location:
        assert str(error) in answer.text
        assert "<script>alert" not in answer.body


async def test_card_of_a_notebook_has_a_terminal_and_shows_how_busy_its_gpus_are(portal: Portal) -> None:
    leader = portal.served.leader
    portal.offers(command=("jupyterhub-singleuser",), endpoints=(SSH,))
    request = await portal.runs(wants("alice", server="train"))
    page = await portal.read("alice")
    assert re.search(r'href="\S*/user/alice/train/lab\?terminal" aria-label="Terminal: train"', page.body)
    assert "GPU utilisation" not in page.body
    assert leader.culler is not None
    job, now = portal.served.store.records[request.job].job, portal.harness.clock()
    samples = tuple((now + timedelta(microseconds=at), percent) for at, percent in ((0, 0.0), (1, 80.0), (1, 80.0)))
    for _ in range(2):  # requests to Prometheus overlap
        found = {"GPU-1": JobMetrics(samples)}
        leader.culler.evidence.activities.report_gpus(job, 1, found, leader.settings.cluster.culling)
    page = await portal.read("alice")
    assert 'aria-label="GPU utilisation in the last hour: mean 40 %, last 40 %"' in page.body


async def test_earlier_starts_of_a_template_tell_how_long_one_takes(portal: Portal) -> None:
    await portal.runs(wants("alice"))
    client = ManagerClient(portal.served.url, portal.served.hubs_token, log)

    async def known() -> bool:
        """On a busy machine the client gives an answer up."""
        seconds = await client.usual_start("tiny")
        return seconds is not None and 0 <= seconds < 3600

    await until(known, "the usual time is told")
    assert await client.usual_start("unknown") is None
