"""The decisions of the node that need no process: tables."""

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from dlspawner.devcluster.node import Backoff, env, status
from dlspawner.devcluster.node.machine import devices, quantities
from dlspawner.devcluster.node.machine.addresses import Block
from dlspawner.devcluster.node.machine.provision import is_ours
from dlspawner.devcluster.node.status import Run

NOW = "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("policy", "code", "again"),
    [("Always", 0, True), ("OnFailure", 1, True), ("OnFailure", 0, False), ("Never", 1, False)],
)
def test_restart_follows_from_policy_and_exit_code(policy: str, code: int, again: bool) -> None:
    assert status.restarts_again(policy, code) is again


def test_backoff_doubles_up_to_its_limit() -> None:
    assert list(islice(Backoff(first=1.0, most=4.0).delays(), 5)) == [0.0, 1.0, 2.0, 4.0, 4.0]


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)", "1"),
        ("$(MISSING)", "$(MISSING)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(A", "$(A"),
    ],
)
def test_expansion_follows_the_kubelet(text: str, expanded: str) -> None:
    assert env.expand(text, {"A": "1", "B": "2"}) == expanded


@pytest.mark.parametrize(
    ("quantity", "divisor", "value"),
    [("1500m", "1", "2"), ("1500m", "1m", "1500"), ("1Gi", "1Mi", "1024"), ("1e3", "1", "1000"), ("0.5", "0", "1")],
)
def test_resources_are_given_in_whole_divisors(quantity: str, divisor: str, value: str) -> None:
    assert quantities.in_units(quantity, divisor) == value


def _run(state: str, code: int = 0, **fields: Any) -> Run:
    states = {
        "waiting": status.waiting("ContainerCreating"),
        "running": {"running": {"startedAt": NOW}},
        "ended": status.terminated(code, started=NOW, finished=NOW),
    }
    return Run(
        "main", "x", states[state], id="" if state == "waiting" else "node://1", final=state == "ended", **fields
    )


@pytest.mark.parametrize(
    ("init", "main", "phase"),
    [
        ([], [_run("running"), _run("ended", 1)], "Running"),
        ([], [_run("ended"), _run("ended", 2)], "Failed"),
    ],
)
def test_phase_follows_from_the_containers(init: list[Run], main: list[Run], phase: str) -> None:
    assert status.phase({"initContainers": []}, init, main) == phase


def test_transition_times_move_only_when_a_condition_changes() -> None:
    first = status.conditions({}, [], [_run("running", ready=True)], [], "t1")
    same = status.conditions({}, [], [_run("running", ready=True)], first, "t2")
    assert {c["lastTransitionTime"] for c in same} == {"t1"}
    changed = status.conditions({}, [], [_run("running", ready=False)], same, "t3")
    assert {c["type"] for c in changed if c["lastTransitionTime"] == "t3"} == {"Ready", "ContainersReady"}


def test_foreign_conditions_are_kept() -> None:
    foreign = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": "t0"}
    assert foreign in status.conditions({}, [], [_run("running")], [foreign], "t1")


def test_container_that_ran_when_the_node_died_counts_as_restarted() -> None:
    before = {"containerStatuses": [_run("running", restarts=2, ready=True).status()]}
    run = status.previous(before, "main", "x", NOW)
    assert (run.restarts, run.last_state["terminated"]["exitCode"]) == (3, 137)
    once = status.previous(before, "main", "x", NOW, policy="Never")
    assert (once.restarts, once.exit_code, once.final) == (2, 137, True)
    waits = status.previous({}, "main", "x", NOW)
    assert status.phase({"initContainers": []}, [once], [waits]) == "Failed", "nor an init container"


def test_devices_are_never_given_twice_and_survive_a_checkpoint() -> None:
    inventory = {"nvidia.com/gpu": devices.inventory("n", "nvidia.com/gpu", 3)}
    holdings = devices.Holdings(inventory)
    first = holdings.assign("a", "main", {"nvidia.com/gpu": 2})
    with pytest.raises(devices.NotEnough):
        holdings.assign("b", "main", {"nvidia.com/gpu": 2})
    again = devices.Holdings(inventory)
    devices.restore(devices.checkpoint({"n": holdings}), {"n": again})
    assert again.assign("a", "main", {"nvidia.com/gpu": 2}) == first
    (third,) = again.assign("b", "main", {"nvidia.com/gpu": 1})
    assert third not in first
    again.release("a")
    assert set(again.assign("c", "main", {"nvidia.com/gpu": 2})) == set(first)


def test_two_clusters_never_share_an_address(tmp_path: Path) -> None:
    one, two = Block.acquire(tmp_path / "one"), Block.acquire(tmp_path / "two")
    assert one.node(0) != two.node(0)
    address = one.take("uid")
    assert one.take("uid") == address != one.take("other")
    assert one.take("third", wanted=address) not in {address, two.take("uid")}
    one.release()
    again = Block.acquire(tmp_path / "one")
    assert again.take("uid", wanted=address) == address
    again.release()
    two.release()


@pytest.mark.parametrize(
    ("spec", "ours"),
    [
        ({}, True),
        ({"storageClassName": "nfs"}, False),
        ({"storageClassName": ""}, False),
        ({"volumeName": "mine"}, False),
        ({"selector": {"matchLabels": {"a": "b"}}}, False),
    ],
)
def test_claims_of_other_provisioners_are_left_alone(spec: dict[str, Any], ours: bool) -> None:
    assert is_ours({"metadata": {"name": "c"}, "spec": spec}) is ours
