"""The form and the home page: their content, and that no text becomes markup."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlspawner import settings
from dlspawner.core import naming
from dlspawner.core.config import Team, TeamsConfig
from dlspawner.spawner import StartRefused, forms, pages
from tests.harness.spawner_builders import BATCH, SETTINGS, VISION, make_spawner

TEMPLATES = Path(__file__).resolve().parents[3] / "templates"


@pytest.fixture
def spawner(monkeypatch: pytest.MonkeyPatch) -> Any:
    config = {"ssh_address": "gate.example.org:2200", "manager_url": "http://manager/services/jobs"}
    made = make_spawner(monkeypatch, server="train", config=config)
    made.templates_dir = str(TEMPLATES)
    return made


def field(name: str, template: str = "ipython") -> forms.FormField:
    shown = forms.panels(SETTINGS, (VISION,), template, {})
    panel = next(one for one in shown if one.name == template)
    return next(one for one in panel.fields if one.name == name)


def test_the_form_shows_the_limits() -> None:
    assert (field("gpus").minimum, field("gpus").maximum) == (0, 8)
    assert "A100 80 GB: up to 8, with 4 CPUs and 16Gi each." in field("gpu_type").help
    assert "or 8Gi without GPUs" in field("memory").help
    shipped = settings.load(TEMPLATES / "jobs", TEMPLATES.parent / "hub_config" / "cluster.yaml")
    for name, most in (("ipython", "up to 8, with"), ("distributed", "up to 16 in all pods, with")):
        shown = next(one for one in forms.panels(shipped, (Team("default"),), name, {}) if one.name == name)
        assert f"A100, 80 GB: {most}" in next(one.help for one in shown.fields if one.name == "gpu_type")


def test_the_form_does_not_ask_a_user_of_one_team_for_the_team() -> None:
    assert "team" not in [one.name for one in forms.panels(SETTINGS, (VISION,), "ipython", {})[0].fields]


@pytest.mark.parametrize(("last", "first"), [("language", "language"), ("gone", "vision"), (None, "vision")])
def test_the_form_of_a_new_server_selects_the_last_team(
    monkeypatch: pytest.MonkeyPatch, last: str | None, first: str
) -> None:
    settings = replace(SETTINGS, teams=TeamsConfig((VISION, Team("language", members=("alice",)))))
    spawner = make_spawner(monkeypatch, server="new", settings=settings)
    spawner.templates_dir = str(TEMPLATES)
    day = datetime(2030, 1, 1, tzinfo=UTC)
    servers = [
        SimpleNamespace(user_options={"team": "vision"}, last_activity=day),
        SimpleNamespace(user_options={"team": last} if last else {}, last_activity=day + timedelta(days=1)),
        SimpleNamespace(user_options=None, last_activity=None),
    ]
    spawner.user.orm_user = SimpleNamespace(orm_spawners=dict(enumerate(servers)))

    page = pages.form(spawner)

    options = re.findall(r'<option value="(vision|language)"( selected)?', page)
    assert options[0][0] == first
    assert [name for name, selected in options if selected] == [first]


def test_controls_by_kind_of_option() -> None:
    controls = {name: field(name, "custom").control for name in ("image", "command", "mode", "debug")}

    assert controls == {"image": "text", "command": "textarea", "mode": "select", "debug": "checkbox"}
    assert field("mode", "custom").choices[0].value == ""
    assert field("image", "custom").required


def test_only_the_fields_of_the_chosen_template_are_read() -> None:
    submitted = {
        "template": ["custom"],
        "_xsrf": ["2|x"],
        "custom--image": ["example.org/a:1"],
        "custom--debug": ["true", "false"],
        "ipython--gpus": ["8"],
        "notes_file": [{"filename": "x", "body": b""}],
        "mode": ["fast"],
    }

    assert forms.read_form_options(submitted, BATCH) == {
        "template": "custom",
        "image": "example.org/a:1",
        "debug": "true",
        "mode": "fast",
    }


def test_a_refused_form_comes_back_with_its_values(spawner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StartRefused):
        spawner.options_from_form({"template": ["custom"], "custom--image": ['"><script>'], "custom--command": ["id"]})
    default_server = make_spawner(monkeypatch)
    default_server.templates_dir = str(TEMPLATES)
    form = default_server.options_form(default_server)

    assert "<strong>train</strong>" in form
    assert 'value="&#34;&gt;&lt;script&gt;"' in form


def test_the_form_links_to_the_free_gpus_of_the_manager(spawner: Any) -> None:
    link = 'href="/services/jobs/cluster"'
    assert link in spawner.options_form(spawner)
    assert "Notebook &lt;b&gt;" in spawner.options_form(spawner)
    spawner.manager_url = ""
    assert link not in spawner.options_form(spawner)


HALF = "\ud800"  # half a surrogate pair: valid in JSON, not in UTF-8


@pytest.mark.parametrize(
    "stored",
    [
        *(None, "x", {"template": "gone"}, {"template": ["x"], "gpus": {"a": 1}}, {"template": HALF, HALF: HALF}),
        {"template": "ipython", "log_dir": HALF, "gpu_type": [HALF]},
    ],
)
def test_the_form_and_the_home_page_are_shown_whatever_is_stored(stored: object, spawner: Any) -> None:
    spawner.orm_spawner.user_options = stored

    assert 'value="ipython"' in spawner.options_form(spawner).encode().decode()
    (view,) = views_of(spawner, train=(stored, None))
    assert repr(view).encode()


def views_of(spawner: Any, **servers: Any) -> list[pages.JobView]:
    """The home page of a user with these servers: name=(options, running server or state)."""
    orm = {}
    for name, (options, live) in servers.items():
        orm[name.removeprefix("_")] = SimpleNamespace(
            user_options=options, state=live if isinstance(live, dict) else {}
        )
        if isinstance(live, SimpleNamespace):
            spawner.user.spawners[name.removeprefix("_")] = live
    spawner.user.orm_user = SimpleNamespace(orm_spawners=orm)
    spawner.user.server_url = lambda name: f"/user/alice/{name}/"
    return pages.job_views(spawner, {})


def alive(template: str, log_dir: str | None = None, *, preemptible: bool = False, **more: Any) -> Any:
    job = naming.PodIdentity("j-aaaaaaaaaaaa", "alice", "", "vision", template, 2, "k", "alice", log_dir)
    job = replace(job, preemptible=preemptible)
    pod = more.pop("pod", None)
    return SimpleNamespace(**{"active": True, "ready": True, "pending": None, **more}, job=lambda: job, pod=lambda: pod)


def test_a_silent_node_is_shown(spawner: Any) -> None:
    silent = json.loads((Path(__file__).parent / "kubernetes_objects" / "node-silent.json").read_text())["pod"]
    [view] = views_of(spawner, train=({"template": "ssh"}, alive("ssh", pod=silent)))

    assert view.state == "running"
    assert "node-1 does not answer" in (view.reason or "")


def test_running_jobs_come_first_with_command_and_summary(spawner: Any) -> None:
    views = views_of(
        spawner,
        old=({"template": "ipython"}, {}),
        train=({"template": "ipython", "gpu_type": "a100"}, alive("ipython", "/home/alice/logs", preemptible=True)),
    )

    assert [(view.server, view.state) for view in views] == [("train", "running"), ("old", "stopped")]
    assert views[0].ssh_command == "ssh -p 2200 alice+train@gate.example.org"
    assert views[0].summary == "Notebook <b>, 2 GPUs of type a100, preemptible, team Vision"
    assert views[1].again == pages.StartForm("/hub/spawn/alice/old", (("template", "ipython"),))


def test_a_job_with_logs_starts_or_opens_its_tensorboard(spawner: Any) -> None:
    [train] = views_of(spawner, train=({}, alive("ipython", "/home/alice/logs")))
    assert train.tensorboard is not None
    assert train.tensorboard.url is None
    assert train.tensorboard.start == pages.StartForm(
        "/hub/spawn/alice/train-tb", (("template", "tensorboard"), ("log_dir", "/home/alice/logs"))
    )

    servers = {
        "train": ({}, alive("ipython", "/home/alice/logs")),
        "train-tb": ({}, alive("tensorboard", "/home/alice/logs")),
    }
    views = {view.server: view for view in views_of(spawner, **servers)}
    assert views["train"].tensorboard is not None
    assert views["train"].tensorboard.url == "/user/alice/train-tb/"
    assert views["train-tb"].tensorboard is None

    servers["train-tb"] = ({}, alive("tensorboard", "/home/alice/logs", ready=False, pending="spawn"))
    starting = next(view for view in views_of(spawner, **servers) if view.server == "train")
    assert starting.tensorboard is not None
    assert starting.tensorboard.url == "/hub/spawn-pending/alice/train-tb"


def test_a_stopped_job_keeps_its_tensorboard_and_its_reason(spawner: Any) -> None:
    [old] = views_of(spawner, old=({"template": "ipython"}, {pages.STATE_ENDED: "It used more memory."}))

    assert old.reason == "It used more memory."
    assert old.log_dir == "/home/alice/logs"
    assert old.tensorboard is not None


def test_without_an_answer_of_the_manager_jobs_are_not_called_stopped(spawner: Any) -> None:
    views_of(spawner, old=({"template": "ipython"}, {}), train=({"template": "ipython"}, alive("ipython")))

    views = pages.job_views(spawner, None)

    assert [(view.server, view.state) for view in views] == [("train", "running"), ("old", "not running")]


def test_the_default_server_is_shown_once_it_was_used(spawner: Any) -> None:
    assert views_of(spawner, _=(None, {})) == []
    assert [view.title for view in views_of(spawner, _=({"template": "ipython"}, {}))] == ["default server"]


def test_a_server_without_options_was_never_started(spawner: Any) -> None:
    [view] = views_of(spawner, train=(None, {}))

    assert (view.state, view.reason) == ("stopped", "It was never started.")
    assert (view.log_dir, view.tensorboard, view.again) == (None, None, None)
