"""Requests about a pod: creation, retries, refusals, and pods of earlier jobs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import ClientConnectionError, ClientConnectorError
from aiohttp.client_reqrep import ConnectionKey
from kubernetes_asyncio.client import ApiClient

from dlspawner.core import naming
from dlspawner.core.launch import pod as launch_pod
from dlspawner.core.launch.pod_status import PodDict
from dlspawner.core.naming import PodIdentity
from dlspawner.spawner.kube.errors import StartRefused
from dlspawner.spawner.kube.pod_store import PodWatch
from dlspawner.spawner.kube.pods import STILL_ENDING, STILL_THERE, STILL_THERE_WITH_HOME, PodRequests
from dlspawner.spawner.kube.requests import ApiError, GaveUp
from tests.harness.spawner_builders import Answered

KEY = "jobs/jupyter-alice"
REFUSING = ConnectionKey("10.0.0.1", 443, True, True, None, None, None)
PATIENCE = 30.0
LONG_NAME = "interactive-jobs-of-all-the-teams"


def job(letter: str) -> PodIdentity:
    return PodIdentity("j-" + letter * 12, "alice", "", "vision", "ssh", 0)


def manifest(of: PodIdentity, uid: str | None = None) -> dict[str, Any]:
    metadata = {
        "name": "jupyter-alice",
        "namespace": "jobs",
        "labels": naming.job_labels(of),
        "annotations": naming.job_annotations(of),
        **({"uid": uid} if uid else {}),
    }
    environment = [{"name": "JUPYTERHUB_API_TOKEN", "value": "hub-token"}]
    containers = [{"name": "notebook", "env": environment}]
    return {"metadata": metadata, "spec": {"containers": containers, "terminationGracePeriodSeconds": 7}}


def own(letter: str) -> Callable[[PodDict], bool]:
    """The pod of this job."""
    return lambda pod: (found := naming.read_job(pod["metadata"])) is not None and found.id == job(letter).id


class Api:
    """An API server with one pod, and the watch of it; creations get the ``answers`` first."""

    def __init__(self, watch: PodWatch, *answers: BaseException | Answered | str) -> None:
        self.api_client = ApiClient.__new__(ApiClient)
        self.watch, self.answers = watch, list(answers)
        self.pod: dict[str, Any] | None = None
        self.deleted: list[tuple[str, int]] = []

    def show(self, pod: dict[str, Any] | None) -> None:
        self.pod = pod
        self.watch.resources = {KEY: pod} if pod else {}

    async def create_namespaced_pod(self, _namespace: str, body: dict[str, Any], **_: bool) -> Answered:
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, Answered):
            return answer
        if self.pod is not None:
            return Answered({"message": "already exists"}, 409)
        self.show({**body, "metadata": {**body["metadata"], "uid": "new"}})
        if answer == "late":
            await asyncio.Event().wait()
        return Answered(self.pod, 201)

    async def read_namespaced_pod(self, _name: str, _namespace: str, **_: bool) -> Answered:
        return Answered(self.pod) if self.pod is not None else Answered({}, 404)

    async def delete_namespaced_pod(
        self, _name: str, _namespace: str, body: dict[str, Any], grace_period_seconds: int, **_: bool
    ) -> Answered:
        self.deleted.append((body["preconditions"]["uid"], grace_period_seconds))
        asyncio.get_running_loop().call_soon(self.show, None)
        return Answered({})


def pods(api: Api, all_seconds: float = 30) -> PodRequests:
    return PodRequests(api, "jobs", "jupyter-alice", api.watch, logging.getLogger("pods"), 0.05, all_seconds, 5)


async def test_a_pod_whose_answer_was_lost_is_adopted(watch: PodWatch) -> None:
    api = Api(watch, "late")
    created = await pods(api).create(manifest(job("a")), own("a"))

    assert created["metadata"]["uid"] == "new"
    assert api.deleted == []


async def test_the_pod_of_an_earlier_job_is_deleted_with_its_own_grace(watch: PodWatch) -> None:
    api = Api(watch)
    api.show(manifest(job("b"), "old"))
    created = await pods(api).create(manifest(job("a")), own("a"))

    assert api.deleted == [("old", 7)]
    assert created["metadata"]["uid"] == "new"


async def test_an_earlier_pod_that_is_ending_is_only_waited_for(watch: PodWatch) -> None:
    api = Api(watch)
    ending = manifest(job("b"), "old")
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    api.show(ending)
    asyncio.get_running_loop().call_soon(api.show, None)
    await pods(api).create(manifest(job("a")), own("a"))

    assert api.deleted == []


@pytest.mark.parametrize(
    ("modes", "shown", "sentence"),
    [
        pytest.param(["ReadWriteOnce"], True, STILL_THERE_WITH_HOME, id="home of one node"),
        pytest.param(["ReadWriteMany"], True, STILL_THERE, id="home of all nodes"),
        pytest.param(["ReadWriteMany"], False, STILL_THERE, id="that the watch does not show"),
    ],
)
async def test_an_earlier_pod_on_a_silent_node_is_a_refusal_with_advice(
    modes: list[str], shown: bool, sentence: str, watch: PodWatch
) -> None:
    api = Api(watch)
    lost = manifest(job("b"), "old")
    lost["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    lost["status"] = {"phase": "Unknown"}
    home = {"name": "home", "persistentVolumeClaim": {"claimName": "home-alice"}}
    lost["spec"]["volumes"] = [home]
    api.show(launch_pod.with_home_affinity(lost, "home-alice", modes))
    if not shown:
        watch.resources = {}
    with pytest.raises(StartRefused) as refused:
        await asyncio.wait_for(starting(api, PATIENCE).create(manifest(job("a")), own("a")), PATIENCE)

    assert refused.value.sentences == (sentence,)


class Stays(Api):
    """Its pod does not end."""

    async def delete_namespaced_pod(self, *_: Any, body: dict[str, Any], **__: Any) -> Answered:
        self.deleted.append((body["preconditions"]["uid"], 0))
        return Answered({})


def starting(api: Api, seconds: float) -> PodRequests:
    """Requests of a start with so many seconds left."""
    return replace(pods(api), until=asyncio.get_running_loop().time() + seconds)


@pytest.mark.parametrize("label", ["", "of another spawner"], ids=["as the watch sees it", "that the watch never sees"])
async def test_an_earlier_pod_that_does_not_end_is_a_refusal_in_time(label: str, watch: PodWatch) -> None:
    api, earlier = Stays(watch), manifest(job("b"), "old")
    if label:
        watch.labels = {"component": label}
        api.pod = earlier
    else:
        api.show(earlier)
    with pytest.raises(StartRefused) as refused:
        await asyncio.wait_for(starting(api, 0.3).create(manifest(job("a")), own("a")), PATIENCE)

    assert (refused.value.message, refused.value.status_code) == (STILL_ENDING, 409)
    assert isinstance(refused.value, GaveUp), "a job that had waited waits on"
    assert {uid for uid, _ in api.deleted} == {"old"}


@pytest.mark.parametrize("allowed", [True, False], ids=["no answer", "forbidden"])
async def test_a_taken_name_whose_pod_cannot_be_read_may_be_the_starts_own(allowed: bool, watch: PodWatch) -> None:
    class Unread(Api):
        async def read_namespaced_pod(self, *_: Any, **__: Any) -> Answered:
            if not allowed:
                return refusal(403, 'pods "jupyter-alice" is forbidden: User "hub" cannot get resource "pods"')
            raise ClientConnectorError(REFUSING, ConnectionRefusedError(111, "10.0.0.1:443"))

    with pytest.raises(GaveUp if allowed else StartRefused) as refused:
        await pods(Unread(watch, "late"), 0.4).create(manifest(job("a")), own("a"))

    assert refused.value.outcome_unknown, "the Hub stops what may have come of it"


async def test_every_request_has_the_time_that_is_left_of_the_start(
    watch: PodWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter((85.0, 97.0, 101.0))
    monkeypatch.setattr("dlspawner.spawner.kube.pods._now", lambda: next(moments))
    asked = replace(pods(Api(watch), 10), until=100.0)
    left = [asked.requests.all_seconds for _ in range(3)]

    assert left == [10, 3, 0]


def refusal(status: int, message: str) -> Answered:
    return Answered({"message": message}, status, Audit_Id="secret-header")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        pytest.param(
            "exceeded quota: q, requested: x, used: x, limited: x",
            "The namespace's quota has no room for the job: ",
            id="quota without numbers",
        ),
        pytest.param(
            f'pods "x" is forbidden: no PriorityClass with name {LONG_NAME} was found',
            f"The cluster has no PriorityClass {LONG_NAME}, which this job needs: ",
            id="priority class",
        ),
        pytest.param(
            'pods "x" is forbidden: violates PodSecurity "restricted:latest": hostPath volumes (volumes '
            + ", ".join(f'"{number}-of-very-many-volumes"' for number in range(40))
            + '), runAsNonRoot != true (pod or container "notebook" must set securityContext.runAsNonRoot=true)',
            "forbids what the template asks for (hostPath volumes and runAsNonRoot != true): ",
            id="pod security",
        ),
    ],
)
async def test_a_refusal_of_kubernetes_is_a_sentence(
    message: str, words: str, watch: PodWatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(StartRefused) as refused:
        await pods(Api(watch, refusal(403, message))).create(manifest(job("a")), own("a"))

    assert words in str(refused.value)
    assert refused.value.status_code == 403
    assert refused.value.__suppress_context__
    shown = str(refused.value) + caplog.text
    assert not any(secret in shown for secret in ("hub-token", "secret-header", "10.0.0.1", "Traceback"))
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("problem", "unsure"),
    [
        (refusal(429, "too many"), False),
        (Answered(b"<html>secret-page</html>", 503), True),
        (Answered(b"<html>secret-page</html>"), True),
        (ClientConnectionError("Cannot connect to host 10.0.0.1:443"), True),
        (ClientConnectorError(REFUSING, ConnectionRefusedError(111, "10.0.0.1:443")), False),
    ],
    ids=["429", "503 of a proxy", "200 of a proxy", "broken", "connection refused"],
)
async def test_a_lasting_fault_is_a_refusal_that_tells_whether_a_pod_may_exist(
    problem: Any, unsure: bool, watch: PodWatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(GaveUp, match="try again soon") as refused:
        await pods(Api(watch, *[problem] * 100), 0.4).create(manifest(job("a")), own("a"))

    assert (refused.value.status_code, refused.value.outcome_unknown) == (429, unsure)
    shown = str(refused.value) + caplog.text
    assert not any(secret in shown for secret in ("hub-token", "secret", "10.0.0.1", "Traceback"))
    assert len(caplog.records) == 2, "the first of the tries, and the end"


@pytest.mark.parametrize(
    ("first", "unsure"),
    [
        (TimeoutError(), True),
        (refusal(504, "the request did not complete within the allotted time"), True),
        (refusal(429, "too many"), False),
    ],
    ids=["time-out", "504", "429"],
)
async def test_a_refusal_of_a_later_try_tells_whether_the_first_may_have_made_a_pod(
    first: Any, unsure: bool, watch: PodWatch
) -> None:
    full = refusal(403, 'pods "p" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1')
    with pytest.raises(StartRefused) as refused:
        await pods(Api(watch, first, full)).create(manifest(job("a")), own("a"))

    assert (type(refused.value), refused.value.outcome_unknown) == (StartRefused, unsure)


@pytest.mark.parametrize(
    "problem",
    [
        refusal(429, "too many"),
        refusal(409, 'Operation cannot be fulfilled on resourcequotas "q": the object has been modified; please apply'),
        TimeoutError(),
    ],
    ids=["429", "quota conflict", "time-out"],
)
async def test_a_passing_fault_is_retried(problem: Any, watch: PodWatch) -> None:
    api = Api(watch, problem, problem)

    assert (await pods(api).create(manifest(job("a")), own("a")))["metadata"]["uid"] == "new"


@pytest.mark.parametrize(("wanted", "pause"), [("7", 7), ("3600", 30), ("-1", 0), ("Wed, 21 Oct 2026 07:28:00 GMT", 0)])
async def test_retry_after_is_obeyed_for_half_a_minute_at_most(wanted: str, pause: float, watch: PodWatch) -> None:
    async def answers(**_: Any) -> Answered:
        return Answered({"message": "full"}, 503, Retry_After=wanted)

    with pytest.raises(ApiError) as problem:
        await pods(Api(watch)).requests.once(answers)

    assert problem.value.after == pause


async def test_a_webhook_that_is_down_is_a_refusal_at_once(watch: PodWatch) -> None:
    down = refusal(500, 'failed calling webhook "a.example": no endpoints available')
    with pytest.raises(StartRefused, match="of new jobs does not answer"):
        await pods(Api(watch, down)).create(manifest(job("a")), own("a"))


async def test_a_deletion_of_a_pod_that_is_gone_succeeds(watch: PodWatch) -> None:
    class Gone(Api):
        async def delete_namespaced_pod(self, *_: Any, **__: Any) -> Answered:
            return Answered({}, 404)

    await pods(Gone(watch)).delete(manifest(job("a"), "old"), 3)
