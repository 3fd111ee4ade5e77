"""Templates, cluster and teams files that change while the Hub runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from dlspawner.errors import InvalidConfiguration
from dlspawner.settings import reload
from dlspawner.spawner.kube.errors import StartRefused
from tests.component.manager import quota
from tests.harness.http_servers import answering
from tests.harness.spawner_builders import make_spawner

FREE = "teams: {default: {title: Everybody}}\n"


@pytest.fixture
def teams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(reload, "LOOK_SECONDS", 0.0)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "tiny.yaml").write_text(json.dumps(quota.TEMPLATE))
    (tmp_path / "cluster.yaml").write_text(quota.CLUSTER % quota.GPU)
    (tmp_path / "teams.yaml").write_text(FREE)
    return tmp_path / "teams.yaml"


def spawner_of(monkeypatch: pytest.MonkeyPatch, teams: Path, url: str) -> Any:
    files = {"templates_dir": teams.parent, "cluster_file": teams.parent / "cluster.yaml", "teams_file": teams}
    config = {**{name: str(path) for name, path in files.items()}, "manager_url": url, "manager_token": "token"}
    return make_spawner(monkeypatch, settings=None, config=config)


async def test_the_manager_is_asked_as_soon_as_a_team_has_a_quota(
    monkeypatch: pytest.MonkeyPatch, teams: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path.rsplit("/", 1)[-1])
        return web.json_response({"account": "alice", "uid": 20_000, "gid": 20_000, "job": None})

    async def start(url: str) -> str:
        spawner = spawner_of(monkeypatch, teams, url)
        spawner.user_options = {"template": "tiny", "gpus": 1}
        await spawner.load_user_options()
        return asked[-1]

    async with answering(answer) as url:
        assert await start(url) == "account", "nothing is counted"
        teams.write_text("teams: [")
        assert await start(url) == "account", "a broken file changes nothing"
        assert "the last good version stays" in caplog.text
        teams.write_text(quota.TEAMS % 8)
        assert await start(url) == "starting", "what waits there, before a pod is asked for"
        assert "have limits now: the Manager is asked" in caplog.text
        teams.write_text(FREE)
        assert await start(url) == "starting", "that is never wrong"


def test_a_stored_version_is_used_until_the_files_are_mended(teams: Path) -> None:
    stored = {"cluster": (teams.parent / "cluster.yaml").read_text(), "teams": quota.TEAMS % 3}
    stored["jobs/tiny.yaml"] = (teams.parent / "jobs" / "tiny.yaml").read_text()
    files = reload.CurrentConfig(teams.parent / "jobs", teams.parent / "cluster.yaml", teams)
    teams.write_text("teams: [")
    with pytest.raises(InvalidConfiguration):
        files.demand(dict)
    assert files.demand(lambda: stored).teams.teams[0].entitled("gpu") == 3000
    assert files.limited()
    teams.write_text(quota.TEAMS % 5)
    assert files.now().teams.teams[0].entitled("gpu") == 5000


async def test_options_are_those_of_the_present_files(
    monkeypatch: pytest.MonkeyPatch, teams: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spawner, wish = spawner_of(monkeypatch, teams, ""), {"template": "tiny", "gpus": 1}
    assert spawner.check_options(wish).template.title == quota.TEMPLATE["title"]
    file, other = teams.parent / "jobs" / "tiny.yaml", teams.parent / "jobs" / "other.yaml"
    file.write_text(json.dumps({**quota.TEMPLATE, "title": "Another title"}))
    assert spawner.check_options(wish).template.title == "Another title"
    other.write_text(json.dumps({**quota.TEMPLATE, "title": "A second one"}))
    assert spawner.check_options({**wish, "template": "other"}).template.title == "A second one"
    other.write_text(json.dumps({**quota.TEMPLATE, "titel": "A mistake"}))
    assert spawner.check_options({**wish, "template": "other"}).template.title == "A second one"
    assert "other.yaml" in caplog.text
    said = len(caplog.records)
    assert spawner.settings.template("other")
    assert len(caplog.records) == said, "a mistake is told once"
    other.unlink()
    with pytest.raises(StartRefused, match="other"):
        spawner.check_options({**wish, "template": "other"})


async def test_files_that_were_never_valid_are_a_sentence_each_time(
    monkeypatch: pytest.MonkeyPatch, teams: Path, caplog: pytest.LogCaptureFixture
) -> None:
    teams.write_text("teams: [")
    spawner = spawner_of(monkeypatch, teams, "")
    for _ in range(2):
        with pytest.raises(StartRefused, match="Its files have mistakes"):
            spawner.check_options({})
    assert f"{teams}:1: .: this is not YAML" in caplog.text
    teams.write_text(FREE)
    assert spawner.settings.template("tiny")
