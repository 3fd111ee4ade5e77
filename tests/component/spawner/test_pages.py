"""The form and the home page: their content, and that no text becomes markup."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlspawner import settings
from dlspawner.core import naming
from dlspawner.core.config import Team, TeamsConfig
from dlspawner.core.template import Option, OptionKind
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
    assert field("gpu_type").cards[0] == ("A100 80 GB", "a100", ("Up to 8, with 4 CPUs and 16 GiB each",))
    assert "or 8 GiB without GPUs" in field("memory").help
    shipped = settings.load(TEMPLATES / "jobs", TEMPLATES.parent / "hub_config" / "cluster.yaml")
    for name, most in (("ipython", "Up to 8, with"), ("distributed", "Up to 16 in all pods, with")):
        shown = next(one for one in forms.panels(shipped, (Team("default"),), name, {}) if one.name == name)
        assert most in next(one.cards[0][2][0] for one in shown.fields if one.name == "gpu_type")


def test_the_form_says_what_is_free_now() -> None:
    shown = forms.panels(SETTINGS, (VISION,), "ipython", {}, {"a100": (3, 2)})
    cards = next(one.cards for one in shown[0].fields if one.name == "gpu_type")
    assert cards[0][2][0] == "3 free now, at most 2 on one node"
    first = replace(SETTINGS.cluster.gpu_types[0], share=Fraction(1, 7))
    cluster = replace(SETTINGS.cluster, gpu_types=(first, *SETTINGS.cluster.gpu_types[1:]))
    shown = forms.panels(replace(SETTINGS, cluster=cluster), (VISION,), "ipython", {}, {"a100": (0.994, 0.426)})
    cards = next(one.cards for one in shown[0].fields if one.name == "gpu_type")
    assert cards[0][2][0] == "7 parts free now, at most 3 parts on one node"


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


def test_an_image_option_of_the_template_s_own_may_stay_empty() -> None:
    base = replace(BATCH, options=(Option("base", OptionKind.IMAGE, "Base"),))
    (panel,) = forms.panels(replace(SETTINGS, templates=(base,)), (VISION,), base.name, {})
    assert [one.required for one in panel.fields] == [False]


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
    form = pages.form(default_server)

    assert "<strong>train</strong>" in form
    assert 'value="&#34;&gt;&lt;script&gt;"' in form


def test_the_form_links_to_the_free_gpus_of_the_manager(spawner: Any) -> None:
    link = 'href="/services/jobs/cluster"'
    assert link in pages.form(spawner)
    assert "Notebook &lt;b&gt;" in pages.form(spawner)
    spawner.manager_url = ""
    assert link not in pages.form(spawner)


HALF = "\ud800"  # half a surrogate pair: valid in JSON, not in UTF-8


@pytest.mark.parametrize(
    "stored",
    [
        *(None, "x", {"template": "gone"}, {"template": ["x"], "gpus": {"a": 1}}, {"template": HALF, HALF: HALF}),
        {"template": "ipython", "log_dir": HALF, "gpu_type": [HALF]},
    ],
)
def test_the_form_is_shown_whatever_is_stored(stored: object, spawner: Any) -> None:
    spawner.orm_spawner.user_options = stored

    assert 'value="ipython"' in pages.form(spawner).encode().decode()


def notes_of(spawner: Any, **servers: Any) -> list[pages.ServerNote]:
    """The notes about these servers: name=running server or state."""
    spawner.user.orm_user = SimpleNamespace(
        orm_spawners={
            name: SimpleNamespace(state=live if isinstance(live, dict) else {}) for name, live in servers.items()
        }
    )
    spawner.user.spawners |= {name: live for name, live in servers.items() if isinstance(live, SimpleNamespace)}
    return pages.server_notes(spawner)


def alive(pod: Any = None) -> Any:
    job = naming.PodIdentity("j-aaaaaaaaaaaa", "alice", "", "vision", "ssh", 2, "k", "alice")
    return SimpleNamespace(active=True, ready=True, job=lambda: job, pod=lambda: pod)


def test_without_a_manager_the_list_of_servers_has_commands_and_reasons(spawner: Any) -> None:
    silent = json.loads((Path(__file__).parent / "kubernetes_objects" / "node-silent.json").read_text())["pod"]

    notes = notes_of(
        spawner, old={pages.STATE_ENDED: "It used more memory."}, fresh={}, train=alive(), lost=alive(silent)
    )

    assert [(one.title, one.sentence, one.ssh_command) for one in notes[:2]] == [
        ("old", "It used more memory.", None),
        ("train", "", "ssh -p 2200 alice+train@gate.example.org"),
    ]
    assert "node-1 does not answer" in notes[2].sentence


def test_the_navigation_is_shown_while_the_files_cannot_be_read() -> None:
    class Broken(pages.PageProperties):
        user = SimpleNamespace(name="ann")

        @property
        def settings(self) -> Any:
            raise StartRefused("Its files have mistakes.", reason="configuration")

    assert Broken().is_team_admin is False
