"""The Hub's configuration: what keeps every job from starting is named, when the Hub starts and at each start."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
from kubespawner import KubeSpawner
from traitlets.config import Config

from dlspawner.spawner import DLSpawner, configuration
from dlspawner.spawner.kube.errors import StartRefused
from tests.harness.spawner_builders import make_spawner


def found(name: str, value: object, section: str = "KubeSpawner") -> list[str]:
    return configuration.problems(configuration.of_hub(DLSpawner, Config({section: {name: value}})))


@pytest.mark.parametrize(
    ("name", "value", "where"),
    [
        ("environment", {"CONFIG": '{"json": 1}'}, "environment['CONFIG']"),
        ("environment", {"DATA": "${HOME}/data"}, "environment['DATA']"),
        ("environment", {"HALF": "{"}, "environment['HALF']"),
        ("environment", {"P": {"valueFrom": {"x": "{}"}}}, "environment['P']['valueFrom']['x']"),
        ("extra_annotations", {"team": "{usrname}"}, "extra_annotations['team']"),
        ("volumes", [{"name": "{username.x}"}], "volumes[0]['name']"),
        ("extra_pod_config", {"hostname": "{username!x}"}, "extra_pod_config['hostname']"),
        ("pod_name_template", "job-{userid[0]}", "pod_name_template"),
        ("dns_name_template", "{username}.svc", "dns_name_template"),
        ("notebook_dir", "${HOME}", "notebook_dir"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("section", ["Spawner", "KubeSpawner", "DLSpawner"])
def test_braces_that_nobody_expands_are_named(name: str, value: object, where: str, section: str) -> None:
    [problem] = found(name, value, section)
    assert where in problem
    assert "write {{ and }}" in problem
    assert "json" not in problem.replace("{{", ""), "a value may be secret"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("environment", {"A": "{username}", "B": '{{"json": 1}}', "C": lambda _: "{", "D": "$(HOME)"}),
        ("cmd", ["sh", "-c", "echo ${HOME}"]),  # nothing expands it
        ("volumes", {"home": {"name": "{pvc_name}-{safe_user_server}"}}),
        ("notebook_dir", "{base_url}{username}"),
        ("dns_name_template", "{name}.{namespace}.svc"),
    ],
)
def test_what_is_expanded_or_stays_is_no_problem(name: str, value: object) -> None:
    assert not found(name, value)


def test_values_that_are_added_to_a_default_are_checked() -> None:
    config = Config()
    config.KubeSpawner.extra_labels.update({"team": "{"})
    assert configuration.problems(configuration.of_hub(DLSpawner, config))


def test_everything_that_kubespawner_expands_is_checked() -> None:
    called = r"_expand_(?:all|env|user_properties)\(\s*(?:self\._sorted_dict_values\(\s*)?self\.(\w+)"
    expanded = set(re.findall(called, inspect.getsource(KubeSpawner)))
    assert {*expanded, "dns_name_template", "pod_connect_ip", "notebook_dir", "default_url"} == {
        *configuration.EXPANDED
    }


@pytest.mark.parametrize("name", ["environment", "pod_name_template", "dns_name_template"])
async def test_a_start_says_which_option_it_is_and_the_rest_works(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value: Any = {"CONFIG": '{"json": 1}'} if name == "environment" else "${HOME}"
    spawner = make_spawner(monkeypatch, settings=None, config={name: value})
    assert "JUPYTERHUB_API_URL" in spawner.get_env(), "pods without a server are looked after"
    with pytest.raises(StartRefused, match=rf"starts nothing .*{name}") as refused:
        await spawner.start()
    assert refused.value.status_code == 403


async def test_a_profile_with_such_a_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    override = {"display_name": "JSON", "kubespawner_override": {"environment": {"CONFIG": '{"json": 1}'}}}
    spawner = make_spawner(monkeypatch, settings=None, config={"profile_list": [override]})
    with pytest.raises(StartRefused, match=r"environment\['CONFIG'\]"):
        await spawner.load_user_options()


async def test_what_would_have_no_effect_is_refused_at_each_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentences, as the Hub's start has them: component/test_wiring."""
    spawner = make_spawner(monkeypatch, config={"profile_list": [{"display_name": "GPU"}]})
    with pytest.raises(StartRefused, match=r"templates take the place of KubeSpawner\.profile_list"):
        await spawner.start()
