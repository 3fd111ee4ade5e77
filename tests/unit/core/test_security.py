"""The user of containers, and the strict values of Pod Security restricted."""

from __future__ import annotations

from typing import Any

from dlspawner.core.launch import security
from dlspawner.core.launch.pod import merge_pod
from dlspawner.core.unix_account import UnixGroup, UnixIds

ALICE = UnixIds(5012, 5012, (UnixGroup("lab", 7001),))
POD: dict[str, Any] = {
    "metadata": {"name": "jupyter-alice"},
    "spec": {
        "initContainers": [{"name": "setup"}],
        "containers": [
            {"name": "notebook", "securityContext": {"runAsUser": 1000, "runAsGroup": 1000}},
            {"name": "side", "securityContext": {"runAsUser": 999}},
        ],
        "securityContext": {"fsGroup": 1000, "supplementalGroups": [3000]},
    },
}


def containers(pod: dict[str, Any]) -> dict[str, Any]:
    spec = pod["spec"]
    return {one["name"]: one["securityContext"] for kind in ("initContainers", "containers") for one in spec[kind]}


def test_the_pod_is_the_persons_and_a_container_with_a_uid_of_its_own_keeps_it() -> None:
    pod = security.restricted(security.run_as(POD, ALICE))
    assert pod["spec"]["securityContext"] == {
        "runAsUser": 5012,
        "runAsGroup": 5012,
        "fsGroup": 5012,
        "fsGroupChangePolicy": "OnRootMismatch",
        "supplementalGroups": [3000, 7001],
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert [context.get("runAsUser") for context in containers(pod).values()] == [None, None, 999]


def test_every_container_is_restricted() -> None:
    for context in containers(security.restricted(POD)).values():
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}


def test_groups_are_the_pods_alone_when_that_is_wanted() -> None:
    def policy(pod: dict[str, Any]) -> object:
        return pod["spec"]["securityContext"].get("supplementalGroupsPolicy")

    decided = merge_pod(POD, {"spec": {"securityContext": {"supplementalGroupsPolicy": "Merge"}}})

    assert policy(security.restricted(POD)) is None
    assert policy(security.restricted(POD, strict_groups=True)) == "Strict"
    assert policy(security.restricted(decided, strict_groups=True)) == "Merge"


def test_doing_it_again_changes_nothing_and_nothing_is_changed_in_place() -> None:
    before = merge_pod(POD, {})
    once = security.restricted(security.run_as(POD, ALICE))
    assert security.restricted(once) == once
    assert before == POD


def test_settings_of_a_template_are_kept() -> None:
    said = {
        "automountServiceAccountToken": True,
        "securityContext": {"seccompProfile": {"type": "Unconfined"}},
        "containers": [{"name": "notebook", "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}}],
    }
    pod = security.restricted(merge_pod(POD, {"spec": said}))
    assert pod["spec"]["automountServiceAccountToken"] is True
    assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "Unconfined"}
    assert containers(pod)["notebook"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_PTRACE"]}


def test_a_permitted_privileged_root_container_is_not_contradicted() -> None:
    said = {"containers": [{"name": "notebook", "securityContext": {"privileged": True, "runAsUser": 0}}]}
    context = containers(security.restricted(merge_pod(POD, {"spec": said})))["notebook"]
    assert context["allowPrivilegeEscalation"] is True
    assert context["runAsNonRoot"] is False
    assert "capabilities" not in context


def test_numbers_are_read_back_with_all_groups() -> None:
    pod = security.run_as(POD, ALICE)
    assert security.unix_ids(pod["spec"], pod["spec"]["containers"][0]) == UnixIds(
        5012, 5012, (UnixGroup("", 3000), UnixGroup("", 7001))
    )
    assert security.unix_ids({"securityContext": {}}, {}) is None
