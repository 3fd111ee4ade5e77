"""Preemptible jobs, priorities and requeue: on the form, on the pod, and in the admission request."""

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


@pytest.mark.parametrize(
    ("config", "preemptible", "name"),
    [({}, True, "lent"), ({}, False, "kept"), ({"priority_class_name": "theirs"}, True, "theirs")],
    ids=["preemptible", "guaranteed", "KubeSpawner's class wins"],
)
async def test_label_and_priority_class_of_a_pod(
    config: dict[str, str], preemptible: bool, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spawner = make_spawner(monkeypatch, settings=SHARED, config=config)
    pod = await launched(spawner, tmp_path, gpus=1, preemptible=preemptible)
    assert pod["spec"]["priorityClassName"] == name
    assert pod["metadata"]["labels"].get("preemption") == ("allow" if preemptible else None)


async def test_without_classes_in_the_cluster_file_pods_have_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pod = await launched(make_spawner(monkeypatch), tmp_path, gpus=1)
    assert "priorityClassName" not in pod["spec"]


async def test_the_admission_request_has_the_choices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spawner = make_spawner(monkeypatch, settings=SHARED)
    pod = await launched(spawner, tmp_path, gpus=1, preemptible=True, requeue=True, priority="prod")
    job = naming.read_job(pod["metadata"])
    assert job is not None
    request = manager_link.admission_request(pod, job, "theirs", 3)
    assert (request["preemptible"], request["requeue"], request["priority"]) == (True, True, "prod")
    assert request["namespace"] == "theirs"


@pytest.mark.parametrize("label", [{"preemption": "allow"}, {"preemption": None}])
async def test_a_hook_cannot_change_the_label_that_is_charged(
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


PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
REQUIRED = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": []}]}}
QUIET = {"weight": 9, "preference": {"matchExpressions": [{"key": "quiet", "operator": "Exists"}]}}
GPU_1 = {
    "weight": 100,
    "preference": {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-1"]}]},
}
POD_AFFINITY = {"podAffinity": {PREFERRED: [{"weight": 5}]}}


@pytest.mark.parametrize(
    ("before", "node", "after"),
    [
        pytest.param(None, "gpu-1", {"nodeAffinity": {PREFERRED: [GPU_1]}}, id="no affinity"),
        pytest.param(
            {"nodeAffinity": {**REQUIRED, PREFERRED: [QUIET]}, **POD_AFFINITY},
            "gpu-1",
            {"nodeAffinity": {**REQUIRED, PREFERRED: [QUIET, GPU_1]}, **POD_AFFINITY},
            id="the configured affinity stays and comes first",
        ),
        pytest.param(None, None, None, id="the Manager names no node"),
    ],
)
def test_a_pod_prefers_the_node_that_it_was_admitted_for(
    before: dict[str, Any] | None, node: str | None, after: dict[str, Any] | None
) -> None:
    def pod(affinity: dict[str, Any] | None) -> dict[str, Any]:
        return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}], "affinity": affinity}}

    manifest = pod(copy.deepcopy(before))
    assert manager_link.on_nodes(manifest, (node,)) == pod(after)
    assert manifest == pod(before), "the argument is not changed"


def test_the_form_has_controls_with_help() -> None:
    (panel,) = forms.panels(SHARED, (VISION,), "ipython", {})
    fields: dict[str, Any] = {field.name: field for field in panel.fields}
    assert (fields["preemptible"].control, fields["requeue"].control, fields["priority"].control) == (
        "checkbox",
        "checkbox",
        "select",
    )
    assert "idle GPUs outside your quota" in fields["preemptible"].help


@pytest.mark.parametrize(
    ("default", "given", "shown", "choices"),
    [
        (None, "", "", ["", "prod", "test"]),
        (None, "prod", "prod", ["", "prod", "test"]),
        ("test", "", "test", ["prod", "test"]),
    ],
    ids=["nothing is chosen", "the choice is kept", "a default removes the empty choice"],
)
def test_a_form_that_is_shown_again(default: str | None, given: str, shown: str, choices: list[str]) -> None:
    options = tuple(replace(one, default=default) if one.name == "priority" else one for one in TEMPLATE.options)
    settings = replace(SHARED, templates=(replace(TEMPLATE, options=options),))
    (panel,) = forms.panels(settings, (VISION,), "ipython", {"priority": given})
    field = next(field for field in panel.fields if field.name == "priority")
    assert (field.value, [choice.value for choice in field.choices]) == (shown, choices)


ALLOWANCES: dict[str, tuple[Team, bool, str]] = {
    "a quota and a limit": (
        team("v", {"a100": 4, "v100": 2}, borrow_limit=8, soft=4, hard=8),
        True,
        "Team v: 4 a100, 2 v100; up to 8 idle ones for preemptible jobs; at most 4 GPUs for one person without an "
        "approval, and 8 with one.",
    ),
    "nothing can be approved": (team("v", 4, soft=4, hard=4), False, "Team v: 4 a100; at most 4 GPUs for one person."),
    "no quota and no limit": (
        team("v", {}, hard=1),
        True,
        "Team v: no GPUs of its own; idle ones of others for preemptible jobs; at most 1 GPU for one person.",
    ),
    "nothing to borrow": (team("v", 4, borrow_limit=0), True, "Team v: 4 a100; none for preemptible jobs."),
}


@pytest.mark.parametrize("name", ALLOWANCES)
def test_the_quota_of_a_team_in_words(name: str) -> None:
    one, preemptible, expected = ALLOWANCES[name]
    assert quota_hint(one, (A100, V100), quotas=True, preemptible=preemptible) == expected


def test_without_quotas_only_limits_are_named() -> None:
    assert quota_hint(team("v", {}, hard=4), (A100,), quotas=False, preemptible=True) == (
        "Team v: at most 4 GPUs for one person."
    )
    assert quota_hint(team("v", {}), (A100,), quotas=False, preemptible=True) == ""


@pytest.mark.parametrize("counts", [True, False])
def test_the_form_shows_the_quota_if_jobs_are_counted(counts: bool) -> None:
    vision = replace(VISION, quota=(TeamQuota("a100", 2),))
    settings = replace(SHARED, teams=TeamsConfig((vision,)))
    (panel,) = forms.panels(settings, (vision,), "ipython", {}, {} if counts else None)
    field = next(field for field in panel.fields if field.name == "gpus")
    assert ("2 a100;" in field.help) is counts


def test_a_team_with_one_priority_has_no_control() -> None:
    (panel,) = forms.panels(SHARED, (replace(VISION, priorities=("test",)),), "ipython", {})
    assert "priority" not in [field.name for field in panel.fields]
