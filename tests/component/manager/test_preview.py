"""The result of a submission before it is made, as the form shows it while its fields are filled in."""

from __future__ import annotations

import json
import time

import pytest

from dlspawner.core.link import sign_preview
from tests.component.manager.manager_harness import wants
from tests.component.manager.noticing import Read
from tests.component.manager.portals import Portal

TEAMS = "teams:\n  default: {title: Everybody, quota: {gpu: 8}, admins: [vera], user_caps: {soft: 4, hard: 6}}\n"


@pytest.fixture
def teams_yaml() -> str:
    return TEAMS


async def preview(portal: Portal, server: str = "train", **given: object) -> Read:
    token = portal.served.manager.service.api_token
    ticket = sign_preview(token, "alice", ("default",), time.time() + 60)
    options = json.dumps({"template": "tiny", **given})
    return await portal.read("", "preview", "POST", {"ticket": ticket, "server": server, "options": options})


@pytest.mark.parametrize(
    ("token", "user", "seconds"),
    [
        pytest.param(None, "alice", -1, id="too old"),
        pytest.param("another", "alice", 60, id="of another service"),
        pytest.param(None, "vera", 60, id="changed"),
    ],
)
async def test_preview_wants_a_ticket_of_the_hub(portal: Portal, token: str | None, user: str, seconds: int) -> None:
    key = token or portal.served.manager.service.api_token
    ticket = sign_preview(key, user, ("default",), time.time() + seconds).replace("vera", "alice")
    page = await portal.read("", "preview", "POST", {"ticket": ticket, "options": "{}"})
    assert page.status == 403


@pytest.mark.parametrize(
    ("server", "given", "decision", "sentence"),
    [
        pytest.param(
            "train", {"gpus": 2}, "admit", "Starts now. 2 GPUs of type gpu, team Everybody, 0.1 CPU", id="start"
        ),
        pytest.param("train", {"gpus": 0}, "admit", "Starts now. No GPU, team Everybody, 0.1 CPU", id="no GPU"),
        pytest.param("train", {"gpus": 9}, "refuse", "GPUs must be between 0 and 8", id="an option out of range"),
        pytest.param("Train", {"gpus": 1}, "refuse", "small letters, digits and single hyphens", id="no name"),
        pytest.param("there", {"gpus": 1}, "refuse", "Stop it first, or use another server.", id="a server in use"),
    ],
)
async def test_preview_of_options(
    portal: Portal, server: str, given: dict[str, object], decision: str, sentence: str
) -> None:
    await portal.runs(wants("alice", server="there"))
    page = await preview(portal, server, **given)
    assert f'data-decision="{decision}"' in page.body
    assert sentence in page.text
    assert len(portal.served.store.records) == 1, "nothing is submitted"


@pytest.mark.parametrize(
    ("gpus", "decision"),
    [
        pytest.param(2, "wait", id="no free GPUs"),
        pytest.param(5, "approval", id="above the soft cap"),
        pytest.param(7, "refuse", id="above the hard cap"),
    ],
)
async def test_preview_has_the_sentences_of_the_submission(portal: Portal, gpus: int, decision: str) -> None:
    for holder in ("one", "two"):
        await portal.runs(wants(holder, gpus=4))
    page = await preview(portal, gpus=gpus)
    assert f'data-decision="{decision}"' in page.body
    answer = await portal.served.leader.ask(wants("alice", gpus=gpus))
    assert answer.sentences[0] in page.text
    assert ("It would be number 1 in the queue." in page.text) is (decision == "wait")
