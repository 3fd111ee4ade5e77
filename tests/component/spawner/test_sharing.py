"""Preemptible jobs, priorities and requeue: on the form, on the pod, and in the question to the Manager."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dlspawner.core import naming
from dlspawner.core.config import PriorityClasses, SchedulingConfig, Team, TeamQuota, TeamsConfig
from dlspawner.core.launch.options import BUILT_IN, quota_hint
from dlspawner.spawner import forms, manager_link
from dlspawner.spawner.kube.errors import StartRefused
from tests.component.spawner.test_pod import launched
from tests.harness.spawner_builders import CLUSTER, NOTEBOOK, SETTINGS, VISION, make_spawner
from tests.unit.core.factories import A100, V100, team

CLASSES = replace(CLUSTER, scheduling=SchedulingConfig(classes=PriorityClasses("kept", "lent")))
TEMPLATE = replace(
    NOTEBOOK, options=(*NOTEBOOK.options, *(BUILT_IN[name] for name in ("preemptible", "requeue", "priority")))
)
SHARED = replace(SETTINGS, templates=(TEMPLATE,), cluster=CLASSES)


async def test_a_preemptible_job_is_found_by_its_label(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pod = await launched(make_spawner(monkeypatch, settings=SHARED), tmp_path, gpus=1, preemptible=True)
    assert pod["metadata"]["labels"]["preemption"] == "allow"


@pytest.mark.parametrize(("preemptible", "name"), [(True, "lent"), (False, "kept")])
async def test_pods_have_the_class_of_their_kind(
    preemptible: bool, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pod = await launched(make_spawner(monkeypatch, settings=SHARED), tmp_path, gpus=1, preemptible=preemptible)
    assert pod["spec"]["priorityClassName"] == name


async def test_without_classes_in_the_cluster_file_pods_have_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pod = await launched(make_spawner(monkeypatch), tmp_path, gpus=1)
    assert "priorityClassName" not in pod["spec"]


async def test_the_class_that_kubespawner_was_given_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spawner = make_spawner(monkeypatch, settings=SHARED, config={"priority_class_name": "theirs"})
    pod = await launched(spawner, tmp_path, gpus=1)
    assert pod["spec"]["priorityClassName"] == "theirs"


async def test_the_manager_is_told_what_was_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spawner = make_spawner(monkeypatch, settings=SHARED)
    pod = await launched(spawner, tmp_path, gpus=1, preemptible=True, requeue=True, priority="prod")
    job = naming.read_job(pod["metadata"])
    assert job is not None
    asked = manager_link.admission_request(pod, job, "theirs", 3)
    assert (asked["preemptible"], asked["requeue"], asked["priority"]) == (True, True, "prod")
    assert asked["namespace"] == "theirs"


@pytest.mark.parametrize("label", [{"preemption": "allow"}, {"preemption": None}])
async def test_a_hook_cannot_change_what_is_charged(
    label: dict[str, str | None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spawner = make_spawner(monkeypatch, settings=SHARED)
    pod = await launched(spawner, tmp_path, gpus=1, preemptible=label["preemption"] is None)
    job = naming.read_job(pod["metadata"])
    assert job is not None
    labels = {**pod["metadata"]["labels"], **label}
    pod["metadata"]["labels"] = {key: value for key, value in labels.items() if value is not None}
    with pytest.raises(StartRefused, match="labels were changed by a hook"):
        manager_link.admission_request(pod, job, "jobs", 3)


def preferred(*nodes: str) -> list[dict[str, Any]]:
    terms = ({"key": "metadata.name", "operator": "In", "values": [node]} for node in nodes)
    return [{"weight": 100, "preference": {"matchFields": [term]}} for term in terms]


PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
REQUIRED = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": []}]}}
QUIET = {"weight": 9, "preference": {"matchExpressions": [{"key": "quiet", "operator": "Exists"}]}}
POD_AFFINITY = {"podAffinity": {PREFERRED: [{"weight": 5}]}}
AFFINITIES: dict[str, tuple[dict[str, Any], str | None, dict[str, Any]]] = {
    "a pod without affinity": ({}, "gpu-1", {"affinity": {"nodeAffinity": {PREFERRED: preferred("gpu-1")}}}),
    "one whose affinity is null": (
        {"affinity": None},
        "gpu-1",
        {"affinity": {"nodeAffinity": {PREFERRED: preferred("gpu-1")}}},
    ),
    "what administrators prefer stays, and is the first": (
        {"affinity": {"nodeAffinity": {PREFERRED: [QUIET]}}},
        "gpu-1",
        {"affinity": {"nodeAffinity": {PREFERRED: [QUIET, *preferred("gpu-1")]}}},
    ),
    "what is required stays, of nodes and of pods": (
        {"affinity": {"nodeAffinity": REQUIRED, **POD_AFFINITY}},
        "gpu-1",
        {"affinity": {"nodeAffinity": {**REQUIRED, PREFERRED: preferred("gpu-1")}, **POD_AFFINITY}},
    ),
    "a Manager that names no node changes nothing": ({"affinity": None}, None, {"affinity": None}),
}


@pytest.mark.parametrize(("given", "node", "made"), AFFINITIES.values(), ids=AFFINITIES.keys())
def test_a_pod_prefers_the_node_that_it_was_admitted_for(
    given: dict[str, Any], node: str | None, made: dict[str, Any]
) -> None:
    def pod(more: dict[str, Any]) -> dict[str, Any]:
        return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}], "nodeSelector": {"a": "b"}, **more}}

    manifest = pod(copy.deepcopy(given))
    assert manager_link.with_preferred_node(manifest, node) == pod(made)
    assert manifest == pod(given), "what was given stays as it is"


def test_the_form_asks_and_says_what_it_means() -> None:
    (panel,) = forms.panels(SHARED, (VISION,), "ipython", {})
    fields: dict[str, Any] = {field.name: field for field in panel.fields}
    assert (fields["preemptible"].control, fields["requeue"].control, fields["priority"].control) == (
        "checkbox",
        "checkbox",
        "select",
    )
    assert "idle GPUs of anybody" in fields["preemptible"].help
    assert [choice.value for choice in fields["priority"].choices] == ["", "prod", "test"]


@pytest.mark.parametrize("given", [None, "", "prod", "test"])
def test_a_form_that_is_shown_again_keeps_the_priority_and_the_choice_of_none(given: str | None) -> None:
    """After a refusal the browser's form holds "" where nothing was chosen."""
    (panel,) = forms.panels(SHARED, (VISION,), "ipython", {"priority": given})
    field = next(field for field in panel.fields if field.name == "priority")
    assert (field.value, [choice.value for choice in field.choices]) == (given or "", ["", "prod", "test"])


def test_a_default_is_no_choice_of_none() -> None:
    options = tuple(replace(one, default="test") if one.name == "priority" else one for one in TEMPLATE.options)
    (panel,) = forms.panels(
        replace(SHARED, templates=(replace(TEMPLATE, options=options),)), (VISION,), "ipython", {"priority": ""}
    )
    field = next(field for field in panel.fields if field.name == "priority")
    assert (field.value, [choice.value for choice in field.choices]) == ("test", ["prod", "test"])


ALLOWANCES: dict[str, tuple[Team, bool, str]] = {
    "a quota and a limit": (
        team("v", {"a100": 4, "v100": 2}, borrow_limit=8, soft=4, hard=8),
        True,
        "Team v: 4 A100, 2 V100; up to 8 idle ones for preemptible jobs; at most 4 GPUs for one person without an "
        "approval, and 8 with one.",
    ),
    "approvals without an end": (
        team("v", 4, soft=2),
        False,
        "Team v: 4 A100; at most 2 GPUs for one person without an approval.",
    ),
    "nothing can be approved": (team("v", 4, soft=4, hard=4), False, "Team v: 4 A100; at most 4 GPUs for one person."),
    "no preemptible jobs": (team("v", 4), False, "Team v: 4 A100."),
    "no quota and no limit": (
        team("v", {}, hard=1),
        True,
        "Team v: no GPUs of its own; idle ones of others for preemptible jobs; at most 1 GPU for one person.",
    ),
    "nothing to borrow": (team("v", 4, borrow_limit=0), True, "Team v: 4 A100; none for preemptible jobs."),
}


@pytest.mark.parametrize("name", ALLOWANCES)
def test_the_form_says_what_a_team_may_have(name: str) -> None:
    one, preemptible, expected = ALLOWANCES[name]
    assert quota_hint(one, (A100, V100), quotas=True, preemptible=preemptible) == expected


def test_without_any_quota_only_caps_are_told() -> None:
    assert quota_hint(team("v", {}, hard=4), (A100,), quotas=False, preemptible=True) == (
        "Team v: at most 4 GPUs for one person."
    )
    assert quota_hint(team("v", {}), (A100,), quotas=False, preemptible=True) == ""


@pytest.mark.parametrize("counts", [True, False])
def test_the_form_tells_it_where_somebody_counts(counts: bool) -> None:
    vision = replace(VISION, quota=(TeamQuota("a100", 2),))
    settings = replace(SHARED, teams=TeamsConfig((vision,)))
    (panel,) = forms.panels(settings, (vision,), "ipython", {}, counted=counts)
    field = next(field for field in panel.fields if field.name == "gpus")
    assert ("2 A100 80 GB;" in field.help) is counts


def test_a_team_with_one_level_is_not_asked() -> None:
    (panel,) = forms.panels(SHARED, (replace(VISION, priorities=("test",)),), "ipython", {})
    assert "priority" not in [field.name for field in panel.fields]
