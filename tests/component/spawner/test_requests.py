"""KubeSpawner's own requests with our retries: the meaning of answers is KubeSpawner's, refusals are sentences."""

from __future__ import annotations

import asyncio
import contextvars
from types import SimpleNamespace
from typing import Any

import pytest

from dlspawner.spawner.kube.errors import StartRefused
from dlspawner.spawner.start import STARTING
from tests.harness.spawner_builders import Answered, Client, make_spawner

CLAIM = SimpleNamespace(metadata=SimpleNamespace(name="claim-alice"))
FULL = Answered(
    {
        "message": "exceeded quota: q, requested: persistentvolumeclaims=1, used: persistentvolumeclaims=5, "
        "limited: persistentvolumeclaims=5"
    },
    403,
)
THERE, MISSING, TAKEN = Answered({}), Answered({"message": "not found"}, 404), Answered({"message": "exists"}, 409)
AWAY, FORBIDDEN = Answered(b"<html>", 503), Answered({"message": "no"}, 403)


class Api(Client):
    """Gives the answers for each verb in their order; the last one stays."""

    def __init__(self, **answers: list[Answered]) -> None:
        super().__init__()
        self.answers = answers

    def __getattr__(self, name: str) -> Any:
        line = self.answers[name.partition("_")[0]]

        async def answer(*_: Any, **__: Any) -> Answered:
            return line.pop(0) if len(line) > 1 else line[0]

        return answer


def spawner(monkeypatch: pytest.MonkeyPatch, **answers: list[Answered]) -> Any:
    made = make_spawner(monkeypatch, config={"k8s_api_request_retry_timeout": 10})
    made.api = Api(**answers)
    return made


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param({"create": [THERE]}, id="is made"),
        pytest.param({"create": [TAKEN]}, id="is there"),
        pytest.param({"create": [AWAY, THERE]}, id="is made in the end"),
        pytest.param({"create": [FULL], "read": [AWAY, THERE]}, id="is there, and the quota is full"),
    ],
)
async def test_claim(answers: dict[str, list[Answered]], monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {verb: list(line) for verb, line in answers.items()}

    assert await spawner(monkeypatch, **answers)._make_create_pvc_request(CLAIM, 1)


@pytest.mark.parametrize("seen", [MISSING, FORBIDDEN], ids=["there is none", "nobody may look"])
async def test_a_claim_beyond_the_quota_is_refused(seen: Answered, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StartRefused, match="quota has no room for claims"):
        await spawner(monkeypatch, create=[FULL], read=[seen])._make_create_pvc_request(CLAIM, 1)


async def test_the_check_for_a_claim_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await spawner(monkeypatch, read=[AWAY, THERE])._check_pvc_exists("claim-alice", "jobs")
    assert not await spawner(monkeypatch, read=[AWAY, MISSING])._check_pvc_exists("claim-alice", "jobs")


async def test_a_deletion_is_retried_until_the_object_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await spawner(monkeypatch, delete=[AWAY, MISSING], read=[THERE])._ensure_not_exists("secret", "x")
    assert await spawner(monkeypatch, delete=[THERE], read=[MISSING])._ensure_not_exists("secret", "x")
    assert not await spawner(monkeypatch, delete=[THERE], read=[THERE])._ensure_not_exists("secret", "x")
    assert await spawner(monkeypatch, delete=[AWAY, MISSING])._make_delete_pvc_request("claim-alice", 1)


async def test_a_taken_name_after_a_lost_answer_is_success(monkeypatch: pytest.MonkeyPatch) -> None:
    api = spawner(monkeypatch, create=[AWAY, TAKEN])
    monkeypatch.setattr(type(api), "pod", lambda _: None)

    assert await api._make_create_resource_request("secret", CLAIM)


async def test_a_namespace_is_created_or_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    await spawner(monkeypatch, create=[AWAY, TAKEN])._ensure_namespace()

    with pytest.raises(StartRefused, match="does not accept this job"):
        await spawner(monkeypatch, create=[FORBIDDEN])._ensure_namespace()


async def test_the_requests_of_a_start_end_before_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    spawner = make_spawner(monkeypatch, config={"start_timeout": 20, "k8s_api_request_retry_timeout": 30})
    assert spawner.requests.all_seconds == 30

    monkeypatch.setattr(spawner, "_began", asyncio.get_running_loop().time())
    context = contextvars.copy_context()
    context.run(STARTING.set, True)
    assert context.run(lambda: spawner.requests.all_seconds) <= 18
