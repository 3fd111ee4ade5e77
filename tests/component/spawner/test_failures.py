"""Objects of a real Kubernetes in which something went wrong, and the sentence for each: hub_config/FAILURES.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dlspawner.core import naming, text
from dlspawner.core.launch import pod as launch_pod
from dlspawner.core.launch import pod_status
from dlspawner.core.launch.pod_status import ALIVE, Terminated
from dlspawner.spawner import start_problems
from dlspawner.spawner.kube import requests as kube_requests

OBJECTS = Path(__file__).parent / "kubernetes_objects"
PAGE = Path(__file__).resolve().parents[3] / "hub_config" / "FAILURES.md"
GPUS = frozenset({"nvidia.com/gpu"})
PATIENCE = {"at once": 0.0, "15 s": 15.0, "waits": None}
# Recorded pods that are alive.
LIVING = {"node-fine", "node-silent", "stock-sidecar-crashes"}
RAW = re.compile(
    r"\d+\.\d+\.\d+\.\d+|[0-9a-f]{8}-[0-9a-f]{4}|rpc error|/var/|https?://|back-off|forbidden:|\(pod:|0/\d+ nodes"
)


def recorded(name: str) -> dict[str, Any]:
    """Adds the label of a job, which most pods were recorded without."""
    found: dict[str, Any] = json.loads((OBJECTS / f"{name}.json").read_text())
    if "pod" in found and "component" not in found["pod"]["metadata"].get("labels", {}):
        found["pod"]["metadata"].setdefault("labels", {})[naming.JOB_LABEL] = "j-abcdefghij23"
    return found


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading of the page."""
    section = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split(" | ")] for line in lines]


REFUSED, STARTING, ENDED = map(
    rows, ("The cluster refuses to make the job", "The job does not start", "The job ends by itself or is ended")
)


def problem_of(found: dict[str, Any]) -> start_problems.StartProblem | None:
    """As `StartMonitor` finds it: claims and events come first."""
    pod = start_problems.of_pod(found["pod"], GPUS)
    if "claim" in found:
        assert start_problems.waits_for_claims(pod)
        claim = found["claim"]
        return start_problems.of_claim(claim["metadata"]["name"], claim, found["claim_events"])
    scheduled = found["pod"]["spec"].get("nodeName")
    return (start_problems.of_events(found.get("events", ())) if scheduled else None) or pod


@pytest.mark.parametrize(("name", "sentence"), REFUSED, ids=[row[0] for row in REFUSED])
def test_refusal_has_its_sentence(name: str, sentence: str) -> None:
    status = recorded(f"refused-{name}")
    rejection = kube_requests.explain(status["code"], status["message"], GPUS)

    assert rejection.sentence == sentence
    assert rejection.status < 500  # the Hub does not count it as a failure of its own


@pytest.mark.parametrize(("name", "sentence", "given_up"), STARTING, ids=[row[0] for row in STARTING])
def test_start_problem_has_its_sentence(name: str, sentence: str, given_up: str) -> None:
    found = recorded(name)
    seen = problem_of(found)

    assert pod_status.evaluate(found["pod"]) == ALIVE
    assert seen is not None
    assert seen.sentence == sentence
    assert seen.tolerance == PATIENCE[given_up]


@pytest.mark.parametrize(("name", "sentence", "code"), ENDED, ids=[row[0] for row in ENDED])
def test_end_has_its_sentence(name: str, sentence: str, code: str) -> None:
    assert pod_status.evaluate(recorded(name)["pod"]) == Terminated(int(code), sentence)


RWOP = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
)


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (f"0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 {RWOP}. no new claims", "one job at a time"),
        (
            "0/2 nodes are available: 2 node(s) didn't have free ports for the requested pod ports.",
            "port free that the",
        ),
        ("0/1 nodes are available: 1 node(s) did not have enough free storage.", "room for the job's new storage"),
        ("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.", "storage is not ready yet"),
        ("0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind.", "no volume for the"),
        ("0/2 nodes are available: 2 cannot allocate all claims. still not schedulable,", "devices free that the job"),
        ("0/2 nodes are unavailable: 2 Insufficient cpu.", "enough free CPUs for the job (2 nodes: 2 full)"),
        ("0/2 nodes are available: 2 node(s) lack a licence. preemption: none", "(2 nodes: 2 node(s) lack a licence)"),
        ("0/2 nodes are available: gang of 4 is short. preemption: none", "(2 nodes: 2 gang of 4 is short)"),
        ("pod group is not ready, 1 minAvailable", "no place for the job (“pod group is not ready, 1 minAvailable”)"),
    ],
)
def test_words_of_schedulers(message: str, sentence: str) -> None:
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    found = start_problems.of_pod({"metadata": {}, "status": {"conditions": [waits]}}, GPUS)
    assert found is not None
    assert sentence in found.sentence
    assert found.tolerance is None


@pytest.mark.parametrize("name", sorted(LIVING))
def test_pod_is_alive(name: str) -> None:
    assert pod_status.evaluate(recorded(name)["pod"]) == ALIVE


def test_an_eviction_that_exits_with_0_is_known_from_the_events() -> None:
    found = recorded("evicted-storage-container")
    finished = Terminated(0, "The job has finished.")

    assert pod_status.may_be_eviction(finished)
    assert "temporary disk" in (pod_status.evicted(found["events"]) or "")
    assert pod_status.evicted(recorded("crash-notebook")["events"]) is None
    assert not pod_status.may_be_eviction(Terminated(3, "Its server failed."))


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ('Container notebook exceeded its local ephemeral storage limit "1Gi". ', "than it may (1Gi)"),
        (
            "The node was low on resource: ephemeral-storage. It uses 60Mi, which exceeds its request of 0.",
            "ran out of disk space",
        ),
    ],
)
def test_an_eviction_by_a_full_node_is_not_the_job_s_limit(message: str, words: str) -> None:
    event = {"type": "Warning", "reason": "Evicted", "message": message}
    assert words in (pod_status.evicted([event]) or "")


def test_every_recorded_object_is_on_the_page() -> None:
    named = {f"refused-{row[0]}" for row in REFUSED} | {row[0] for row in (*STARTING, *ENDED)}

    assert named | LIVING == {path.stem for path in OBJECTS.glob("*.json")}


@pytest.mark.parametrize("sentence", [row[1] for row in (*REFUSED, *STARTING, *ENDED)])
def test_one_sentence_with_cause_and_step_and_nothing_raw(sentence: str) -> None:
    assert sentence.endswith(".")
    assert ": " in sentence or sentence.startswith("The job has finished")
    assert not RAW.search(sentence)


def test_a_home_directory_on_a_silent_node_rules_out_another_name() -> None:
    found = recorded("node-silent-deleted")["pod"]
    home = {"name": "home", "persistentVolumeClaim": {"claimName": "home-alice"}}
    found["spec"]["volumes"] = [home]
    one_node = pod_status.evaluate(launch_pod.with_home_affinity(found, "home-alice", ["ReadWriteOnce"]))
    any_node = pod_status.evaluate(launch_pod.with_home_affinity(found, "home-alice", ["ReadWriteMany"]))

    assert isinstance(one_node, Terminated)
    assert one_node.reason.endswith("ask an administrator to remove the node, which your home directory is on.")
    assert "another name" not in one_node.reason
    assert isinstance(any_node, Terminated)
    assert "start it under another name" in any_node.reason


def test_a_silent_node_differs_from_a_job_that_is_not_ready() -> None:
    assert pod_status.is_silent(recorded("node-silent")["pod"])
    assert pod_status.is_silent(recorded("node-silent-deleted")["pod"])
    for name in ("node-fine", "crash-notebook", "deleted", "claim-missing", "evicted-api"):
        assert not pod_status.is_silent(recorded(name)["pod"]), name


def test_the_own_secret_that_does_not_exist_yet_is_no_problem() -> None:
    events = recorded("mount-no-secret")["events"]

    assert start_problems.of_events(events) is not None
    assert start_problems.of_events(events, own={"no-such-secret"}) is None


def test_a_token_is_not_repeated() -> None:
    token = "0123456789abcdef" * 2
    said = f'admission webhook "w" denied the request: env JUPYTERHUB_API_TOKEN={token} is not allowed'

    assert token not in kube_requests.explain(403, said).sentence


def test_the_log_has_only_the_beginning_of_a_webhooks_message() -> None:
    manifest = f"that is not allowed: {'x ' * 100}password: correct-horse"
    line = str(kube_requests.ApiError(403, f'admission webhook "w.example" denied the request: {manifest}'))

    assert "w.example" in line
    assert "that is not allowed" in line
    assert "correct-horse" not in line


def test_a_crashing_sidecar_hides_no_problem_of_the_server() -> None:
    sidecar = {"name": "proxy", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    server = {"name": "notebook", "image": "Not:A:Name", "state": {"waiting": {"reason": "InvalidImageName"}}}
    metadata = {"labels": {naming.JOB_LABEL: "j-abcdefghij23"}}
    alone = start_problems.of_pod({"metadata": metadata, "status": {"containerStatuses": [sidecar]}})
    beside = start_problems.of_pod({"metadata": metadata, "status": {"containerStatuses": [sidecar, server]}})

    assert alone is not None
    assert alone.sentence.startswith("The job's container proxy ends again and again")
    assert alone.tolerance is None
    assert beside is not None
    assert "not the name of an image" in beside.sentence


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.3, "1 second"),
        (59.4, "59 seconds"),
        (59.6, "1 minute"),
        (3595, "1 hour"),
        (5400, "1 hour and 30 minutes"),
    ],
)
def test_duration_in_words(seconds: float, said: str) -> None:
    assert text.duration(seconds) == said


@pytest.mark.parametrize(
    ("words", "said"), [((), ""), (("a",), "a"), (("a", "b", "a"), "a and b"), (("a", "b", "c"), "a, b and c")]
)
def test_a_list_in_words(words: tuple[str, ...], said: str) -> None:
    assert text.listed(words) == said


SERVERS = "[I 2026-01-01 12:00:00.000 ServerApp] Skipped non-installed server(s): bash-language-server, texlab"
FULL = f"""Traceback (most recent call last):
  File "/opt/jupyter/core/utils/__init__.py", line 27, in ensure_dir_exists
    os.mkdir(self, mode)
OSError: [Errno {{}}] {{}}: '/home/alice/.jupyter'
{SERVERS}
"""


@pytest.mark.parametrize(
    ("said", "words"),
    [
        pytest.param("a\x1b[31mred\x1b[0m\nend\x07\u202e!", "ared end !", id="no control characters"),
        pytest.param("epoch 1\nINFO:root:bye\n12:00 DEBUG bye", "epoch 1", id="no chatter"),
        pytest.param(f"12:00:00,1 ERROR no data\nbye\n{SERVERS}", "12:00:00,1 ERROR no data bye", id="an error"),
        pytest.param("Traceback\n  File x\nmy.Oops: 3\n", "my.Oops: 3", id="the end of a traceback"),
        pytest.param(SERVERS, " ".join(SERVERS.split()), id="nothing but chatter"),
        pytest.param("ab " * 100, f"… {'ab ' * 66}ab", id="the end of much"),
    ],
)
def test_last_words_of_a_program(said: str, words: str) -> None:
    assert text.last_words(said) == words


@pytest.mark.parametrize(
    ("number", "problem", "sentence"),
    [
        (28, "No space left on device", "Its server failed because its disk is full (“OSError: [Errno 28] No"),
        (122, "Disk quota exceeded", "/.jupyter'”): delete files by sftp or ssh (a job for SSH or files starts all"),
        (30, "Read-only file system", "its disk cannot be written to (“OSError: [Errno 30] Read-only file system: "),
        (2, "No such file", "failed with exit code 1 (“OSError: [Errno 2] No such file: '/home/alice/.jupyter'”)"),
    ],
)
def test_disk_that_takes_no_more_is_the_reason(number: int, problem: str, sentence: str) -> None:
    ended = {"terminated": {"exitCode": 1, "message": FULL.format(number, problem)}}
    pod = {"metadata": {}, "status": {"containerStatuses": [{"name": "notebook", "state": ended}]}}
    judged = pod_status.evaluate(pod)
    assert isinstance(judged, Terminated)
    assert sentence in judged.reason
