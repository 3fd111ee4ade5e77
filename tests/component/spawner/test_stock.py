"""KubeSpawner's own requests: what their answers mean stays as it was, and nobody sees more of them than a sentence."""

from __future__ import annotations

import asyncio
import contextvars
from types import SimpleNamespace
from typing import Any

import pytest
from kubespawner import KubeSpawner

from dlspawner.spawner.kube.errors import StartRefused
from dlspawner.spawner.start import STARTING, STATE_ENDED
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
    """Answers every request for a verb with what the test has put in line for it; the last one stays."""

    def __init__(self, **answers: list[Answered]) -> None:
        super().__init__()
        self.answers = answers

    def __getattr__(self, name: str) -> Any:
        line = self.answers[name.partition("_")[0]]

        async def answer(*_: Any, **__: Any) -> Answered:
            return line.pop(0) if len(line) > 1 else line[0]

        return answer


def spawner(monkeypatch: pytest.MonkeyPatch, **answers: list[Answered]) -> Any:
    """One whose API server answers so."""
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
async def test_a_claim(answers: dict[str, list[Answered]], monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {verb: list(line) for verb, line in answers.items()}

    assert await spawner(monkeypatch, **answers)._make_create_pvc_request(CLAIM, 1)


@pytest.mark.parametrize("seen", [MISSING, FORBIDDEN], ids=["there is none", "nobody may look"])
async def test_a_claim_for_which_there_is_no_room(seen: Answered, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StartRefused, match="quota has no room for claims"):
        await spawner(monkeypatch, create=[FULL], read=[seen])._make_create_pvc_request(CLAIM, 1)


async def test_what_is_there_is_asked_for_as_often_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await spawner(monkeypatch, read=[AWAY, THERE])._check_pvc_exists("claim-alice", "jobs")
    assert not await spawner(monkeypatch, read=[AWAY, MISSING])._check_pvc_exists("claim-alice", "jobs")


async def test_what_is_to_go_is_looked_for_until_it_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await spawner(monkeypatch, delete=[AWAY, MISSING], read=[THERE])._ensure_not_exists("secret", "x")
    assert await spawner(monkeypatch, delete=[THERE], read=[MISSING])._ensure_not_exists("secret", "x")
    assert not await spawner(monkeypatch, delete=[THERE], read=[THERE])._ensure_not_exists("secret", "x")


async def test_what_is_gone_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = spawner(monkeypatch, delete=[AWAY, MISSING])

    assert await gone._make_delete_pvc_request("claim-alice", 1)


async def test_a_name_that_is_taken_is_of_a_request_whose_answer_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    api = spawner(monkeypatch, create=[AWAY, TAKEN])
    monkeypatch.setattr(type(api), "pod", lambda _: None)

    assert await api._make_create_resource_request("secret", CLAIM)


async def test_a_namespace_is_there_or_made(monkeypatch: pytest.MonkeyPatch) -> None:
    await spawner(monkeypatch, create=[AWAY, TAKEN])._ensure_namespace()

    with pytest.raises(StartRefused, match="does not accept this job"):
        await spawner(monkeypatch, create=[FORBIDDEN])._ensure_namespace()


async def test_a_start_gives_a_request_up_while_it_can_still_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    spawner = make_spawner(monkeypatch, config={"start_timeout": 20, "k8s_api_request_retry_timeout": 30})
    assert spawner.requests.all_seconds == 30

    monkeypatch.setattr(spawner, "_began", asyncio.get_running_loop().time())
    context = contextvars.copy_context()
    context.run(STARTING.set, True)
    assert context.run(lambda: spawner.requests.all_seconds) <= 18


async def test_why_a_start_was_refused_is_kept_for_who_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuses(_: object) -> str:
        raise StartRefused("The cluster has no room.", reason="test")

    spawner = make_spawner(monkeypatch)
    monkeypatch.setattr(KubeSpawner, "_start", refuses)
    with pytest.raises(StartRefused):
        await spawner._start()

    assert spawner.get_state()[STATE_ENDED] == "The cluster has no room."
