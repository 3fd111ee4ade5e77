"""The form and the home page: what they offer, what comes back, and that nobody's text becomes markup."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlspawner.core import naming
from dlspawner.core.config import Team, TeamsConfig
from dlspawner.spawner import StartRefused, forms, pages
from tests.harness.spawner_builders import BATCH, NOTEBOOK, SETTINGS, VISION, make_spawner

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


def test_the_form_says_what_the_check_allows() -> None:
    assert (field("gpus").minimum, field("gpus").maximum) == (0, 8)
    assert "A100 80 GB: up to 8, with 4 CPUs and 16Gi each." in field("gpu_type").help
    assert "or 8Gi without GPUs" in field("memory").help


def test_there_is_no_question_with_one_answer() -> None:
    shown = forms.panels(replace(SETTINGS, templates=(NOTEBOOK,)), (VISION,), "ipython", {})

    assert "team" not in [one.name for one in shown[0].fields]


@pytest.mark.parametrize(("last", "first"), [("language", "language"), ("gone", "vision"), (None, "vision")])
def test_the_form_of_a_new_server_proposes_the_team_that_paid_last(
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
    assert "Whose quota the job is charged to." in page


def test_controls_fit_their_options() -> None:
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


def test_a_submitted_form_becomes_plain_options_without_defaults(spawner: Any) -> None:
    given = pages.read_form(spawner, {"template": ["ipython"], "ipython--gpus": ["2"], "ipython--cpu": [""]})

    assert given == {"template": "ipython", "gpus": 2}


def test_a_refused_form_comes_back_with_its_values(spawner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StartRefused):
        spawner.options_from_form({"template": ["custom"], "custom--image": ['"><script>'], "custom--command": ["id"]})
    default_server = make_spawner(monkeypatch)
    default_server.templates_dir = str(TEMPLATES)
    form = default_server.options_form(default_server)

    assert "<strong>train</strong>" in form
    assert 'value="&#34;&gt;&lt;script&gt;"' in form
    assert "<script>\n" in form.replace('"><script>', "")  # ours, not theirs


def test_the_form_leads_to_what_is_free_where_a_manager_knows(spawner: Any) -> None:
    link = 'href="/services/jobs/cluster"'
    assert link in spawner.options_form(spawner)
    spawner.manager_url = ""
    assert link not in spawner.options_form(spawner)


def test_yaml_texts_are_texts(spawner: Any) -> None:
    assert "Notebook &lt;b&gt;" in spawner.options_form(spawner)


HALF = "\ud800"  # of a character: JSON can have it, a page cannot


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
    (view,) = world(spawner, train=(stored, None))
    assert repr(view).encode()


@pytest.mark.parametrize(
    ("user", "server", "command"),
    [
        ("alice", "", "ssh -p 2200 alice@gate.example.org"),
        ("alice", "train", "ssh -p 2200 alice+train@gate.example.org"),
        ("a+b", "", "ssh -p 2200 a+b+@gate.example.org"),
        ("al ice", "x", "ssh -p 2200 'al ice+x@gate.example.org'"),
    ],
)
def test_the_ssh_command_can_be_typed(user: str, server: str, command: str, spawner: Any) -> None:
    spawner.user.name = user

    assert pages.ssh_command(spawner, server) == command


def test_the_usual_port_is_not_typed(spawner: Any) -> None:
    spawner.ssh_address = "gate.example.org"

    assert pages.ssh_command(spawner, "") == "ssh alice@gate.example.org"


def test_the_page_in_a_job_shows_the_command(spawner: Any) -> None:
    job = naming.PodIdentity(
        "j-aaaaaaaaaaaa", "alice", "train", "vision", "ssh", 0, ssh_host_key="k", ssh_login="alice"
    )

    assert "ssh -p 2200 alice+train@gate.example.org" in pages.job_page(spawner, job)


def world(spawner: Any, **servers: Any) -> list[pages.JobView]:
    """The home page of a person with these servers: options, and what runs."""
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


def alive(
    template: str, log_dir: str | None = None, *, ready: bool = True, pending: str | None = None, pod: Any = None
) -> Any:
    job = naming.PodIdentity("j-aaaaaaaaaaaa", "alice", "", "vision", template, 2, "k", "alice", log_dir)
    return SimpleNamespace(active=True, ready=ready, pending=pending, job=lambda: job, pod=lambda: pod)


def test_a_job_whose_node_does_not_answer_says_so(spawner: Any) -> None:
    silent = json.loads((Path(__file__).parent / "kubernetes_objects" / "node-silent.json").read_text())["pod"]
    [view] = world(spawner, train=({"template": "ssh"}, alive("ssh", pod=silent)))

    assert view.state == "running"
    assert "node-1 does not answer" in (view.reason or "")


def test_running_jobs_come_first_with_their_ways_in(spawner: Any) -> None:
    views = world(
        spawner,
        old=({"template": "ipython"}, {}),
        train=({"template": "ipython"}, alive("ipython", "/home/alice/logs")),
    )

    assert [(view.server, view.state) for view in views] == [("train", "running"), ("old", "stopped")]
    assert views[0].ssh_command == "ssh -p 2200 alice+train@gate.example.org"
    assert views[0].summary == "Notebook <b>, 2 GPUs, team Vision"
    assert views[1].again == pages.StartForm("/hub/spawn/alice/old", (("template", "ipython"),))


def test_a_running_job_says_on_which_gpus_and_whether_it_is_preemptible(spawner: Any) -> None:
    live = alive("ipython")
    job = replace(live.job(), preemptible=True)
    live.job = lambda: job
    [view] = world(spawner, train=({"template": "ipython", "gpu_type": "a100"}, live))

    assert view.summary == "Notebook <b>, 2 GPUs of type a100, preemptible, team Vision"


def test_a_job_with_logs_launches_or_opens_its_tensorboard(spawner: Any) -> None:
    [train] = world(spawner, train=({}, alive("ipython", "/home/alice/logs")))
    assert train.tensorboard is not None
    assert train.tensorboard.url is None
    assert train.tensorboard.start == pages.StartForm(
        "/hub/spawn/alice/train-tb", (("template", "tensorboard"), ("log_dir", "/home/alice/logs"))
    )

    servers = {
        "train": ({}, alive("ipython", "/home/alice/logs")),
        "train-tb": ({}, alive("tensorboard", "/home/alice/logs")),
    }
    views = {view.server: view for view in world(spawner, **servers)}
    assert views["train"].tensorboard is not None
    assert views["train"].tensorboard.url == "/user/alice/train-tb/"
    assert views["train-tb"].tensorboard is None

    servers["train-tb"] = ({}, alive("tensorboard", "/home/alice/logs", ready=False, pending="spawn"))
    starting = next(view for view in world(spawner, **servers) if view.server == "train")
    assert starting.tensorboard is not None
    assert starting.tensorboard.url == "/hub/spawn-pending/alice/train-tb"


def test_a_stopped_job_keeps_its_tensorboard_and_its_reason(spawner: Any) -> None:
    [old] = world(spawner, old=({"template": "ipython"}, {pages.STATE_ENDED: "It used more memory."}))

    assert old.reason == "It used more memory."
    assert old.log_dir == "/home/alice/logs"
    assert old.tensorboard is not None


def test_while_nobody_knows_what_waits_nothing_is_called_stopped_and_what_runs_comes_first(spawner: Any) -> None:
    world(spawner, old=({"template": "ipython"}, {}), train=({"template": "ipython"}, alive("ipython")))

    views = pages.job_views(spawner, None)

    assert [(view.server, view.state) for view in views] == [("train", "running"), ("old", "not running")]


def test_the_default_server_is_shown_once_it_was_used(spawner: Any) -> None:
    assert world(spawner, _=(None, {})) == []
    assert [view.title for view in world(spawner, _=({"template": "ipython"}, {}))] == ["default server"]


def test_a_server_of_which_only_the_form_was_looked_at_was_never_started(spawner: Any) -> None:
    [view] = world(spawner, train=(None, {}))

    assert (view.state, view.reason) == ("stopped", "It was never started.")
    assert (view.log_dir, view.tensorboard, view.again) == (None, None, None)
