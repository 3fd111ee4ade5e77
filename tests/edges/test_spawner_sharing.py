"""Preemptible jobs, priorities and requeue: on the form, on the pod, and in the question to the Manager."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dlspawner.core import naming
from dlspawner.core.model import PriorityClasses, Scheduling
from dlspawner.core.options import BUILT_IN
from dlspawner.spawner import forms, quota
from dlspawner.spawner.refusal import Refused
from tests.edges.spawner_builders import CLUSTER, NOTEBOOK, SETTINGS, VISION, make_spawner
from tests.edges.test_spawner_pod import launched

CLASSES = replace(CLUSTER, scheduling=Scheduling(classes=PriorityClasses("kept", "lent")))
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
    asked = quota.question(pod, job, 3)
    assert (asked["preemptible"], asked["requeue"], asked["priority"]) == (True, True, "prod")


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
    with pytest.raises(Refused, match="labels were changed by a hook"):
        quota.question(pod, job, 3)


def test_the_form_asks_and_says_what_it_means() -> None:
    (panel,) = forms.panels((TEMPLATE,), CLASSES, (VISION,), "ipython", {})
    fields: dict[str, Any] = {field.name: field for field in panel.fields}
    assert (fields["preemptible"].control, fields["requeue"].control, fields["priority"].control) == (
        "checkbox",
        "checkbox",
        "select",
    )
    assert "idle GPUs of anybody" in fields["preemptible"].help
    assert [choice.value for choice in fields["priority"].choices] == ["", "prod", "test"]


def test_a_team_with_one_level_is_not_asked() -> None:
    (panel,) = forms.panels((TEMPLATE,), CLASSES, (replace(VISION, priorities=("test",)),), "ipython", {})
    assert "priority" not in [field.name for field in panel.fields]
