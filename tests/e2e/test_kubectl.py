"""Debian's kubectl on the embedded cluster, as an administrator uses it on a running job."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from tests.e2e.stack import KUBECTL, Launched

pytestmark = pytest.mark.launcher


@pytest.fixture(scope="module")
def pod(stack: Launched) -> Iterator[str]:
    person = stack.person("kube")
    person.launch("train", template="ssh", gpus=2)
    found = json.loads(stack.kubectl("get", "pods", "-l", "dlspawner.dev/user=kube", "-o", "json"))["items"]
    assert len(found) == 1
    yield found[0]["metadata"]["name"]
    person.stop("train")
    person.close()


def test_get_shows_the_job(stack: Launched, pod: str) -> None:
    line = next(line for line in stack.kubectl("get", "pods").splitlines() if line.startswith(pod))
    assert "Running" in line
    assert "1/1" in line


def test_describe_tells_where_it_runs_and_what_it_holds(stack: Launched, pod: str) -> None:
    text = stack.kubectl("describe", "pod", pod)
    assert "nvidia.com/gpu:  2" in text
    assert "dlspawner.dev/template=ssh" in text
    assert "Scheduled" in text


def test_exec_sees_the_gpus_that_were_given(stack: Launched, pod: str) -> None:
    given = stack.kubectl("exec", pod, "--", "printenv", "NVIDIA_VISIBLE_DEVICES").strip()
    assert len(given.split(",")) == 2
    assert given != "void"


def test_logs_are_without_what_sshd_has_to_say_of_itself(stack: Launched, pod: str) -> None:
    assert "Server listening" not in stack.kubectl("logs", pod)


def test_a_watch_sees_an_applied_pod_come_and_go(stack: Launched) -> None:
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "by-hand"},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "any", "command": ["echo", "hello from a pod"]}],
        },
    }
    watch = subprocess.Popen(
        [KUBECTL, "get", "pods", "-w", "--output-watch-events", "--field-selector=metadata.name=by-hand"],
        env=stack.kubectl_env,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        subprocess.run(
            [KUBECTL, "apply", "-f", "-"],
            env=stack.kubectl_env,
            input=json.dumps(manifest),
            text=True,
            check=True,
            capture_output=True,
        )
        assert watch.stdout is not None
        seen = ""
        while "Completed" not in seen:
            line = watch.stdout.readline()
            assert line, seen
            seen += line
        assert stack.kubectl("logs", "by-hand") == "hello from a pod\n"
        stack.kubectl("delete", "pod", "by-hand")
        while "DELETED" not in seen:
            seen += watch.stdout.readline()
    finally:
        watch.kill()
        watch.wait()
        if watch.stdout:
            watch.stdout.close()
