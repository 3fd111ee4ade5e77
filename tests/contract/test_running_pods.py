"""What a pod's status, logs and exec tell while it runs and when it ends, with each kubelet."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from http.client import HTTPResponse
from typing import Any

from tests.contract.client import RESTRICTED_CONTAINER, Client
from tests.contract.machines import IMAGE, Machine

KUBECTL = os.environ.get("DLSPAWNER_KUBECTL") or shutil.which("kubectl") or "kubectl"


def _main(found: dict[str, Any]) -> dict[str, Any]:
    return next(iter(found["status"].get("containerStatuses") or [{}]))


def _why(found: dict[str, Any]) -> str:
    """Why the container waits."""
    return str(_main(found).get("state", {}).get("waiting", {}).get("reason", ""))


def _complains(words: str, found: dict[str, Any]) -> bool:
    return _why(found).startswith("Create") and words in _main(found)["state"]["waiting"]["message"]


def _conditions(found: dict[str, Any]) -> dict[str, str]:
    return {condition["type"]: condition["status"] for condition in found["status"].get("conditions") or []}


def _ended(found: dict[str, Any]) -> bool:
    return found["status"].get("phase") in {"Succeeded", "Failed"}


def _ready(found: dict[str, Any]) -> bool:
    return _conditions(found).get("Ready") == "True"


def _output(cluster: Client, pods: str, manifest: Any) -> str:
    """The log of a pod until its good end."""
    name = manifest["metadata"]["name"]
    cluster.create(pods, manifest)
    ended = cluster.until(f"{pods}/{name}", _ended, "its end")
    text = cluster.request("GET", f"{pods}/{name}/log").raw.decode()
    assert ended["status"]["phase"] == "Succeeded", text
    return text


def _kubectl(cluster: Client, pods: str, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [KUBECTL, f"--kubeconfig={cluster.kubeconfig}", f"--namespace={pods.split('/')[-2]}", *arguments]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=60)


def test_running_pod_is_ready_and_has_an_address(cluster: Client, pods: str, machine: Machine) -> None:
    cluster.create(pods, machine.pod("exec sleep 60"))
    status = cluster.until(f"{pods}/p", _ready, "ready")["status"]
    assert set(_conditions({"status": status}).items()) >= {
        (kind, "True")
        for kind in ("PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
    }
    assert (status["phase"], status["podIPs"]) == ("Running", [{"ip": status["podIP"]}])
    assert status["hostIP"]
    main = _main({"status": status})
    assert (main["ready"], main["started"], main["restartCount"]) == (True, True, 0)
    assert main["state"]["running"]["startedAt"]
    assert "://" in main["containerID"]


def test_status_says_how_a_pod_ended(cluster: Client, pods: str, machine: Machine) -> None:
    cluster.create(pods, machine.pod("true", "good"))
    cluster.create(pods, machine.pod("echo no memory of it > /dev/termination-log; exit 3", "bad"))
    cluster.create(pods, machine.pod("exit 4", "stubborn", restartPolicy="OnFailure"))
    found = cluster.until(f"{pods}/good", _ended, "its end")
    state = _main(found)["state"]["terminated"]
    assert (found["status"]["phase"], state["exitCode"], state["reason"]) == ("Succeeded", 0, "Completed")
    ready = next(entry for entry in found["status"]["conditions"] if entry["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "PodCompleted")
    found = cluster.until(f"{pods}/bad", _ended, "its end")
    state = _main(found)["state"]["terminated"]
    assert (found["status"]["phase"], state["exitCode"], state["reason"]) == ("Failed", 3, "Error")
    assert state["message"] == "no memory of it\n"
    found = cluster.until(f"{pods}/stubborn", lambda found: _why(found) == "CrashLoopBackOff", "waiting for a new try")
    assert (_main(found)["lastState"]["terminated"]["exitCode"], found["status"]["phase"]) == (4, "Running")


def test_containers_wait_for_the_init_containers(cluster: Client, pods: str, machine: Machine) -> None:
    manifest = machine.pod("cat /shared/made", container={"volumeMounts": [{"name": "v", "mountPath": "/shared"}]})
    spec = manifest["spec"]
    script = "echo by init > /shared/made; until [ -e /shared/go ]; do sleep 0.1; done"
    spec["initContainers"] = [spec["containers"][0] | {"name": "first", "command": ["sh", "-c", script]}]
    spec["volumes"] = [{"name": "v", "emptyDir": {}}]
    cluster.create(pods, manifest)

    def initializing(found: dict[str, Any]) -> bool:
        first = next(iter(found["status"].get("initContainerStatuses") or [{}]))
        return "running" in first.get("state", {})

    found = cluster.until(f"{pods}/p", initializing, "its init container")
    assert (found["status"]["phase"], _conditions(found)["Initialized"]) == ("Pending", "False")
    assert _main(found)["state"] == {"waiting": {"reason": "PodInitializing"}}
    answer = cluster.request("GET", f"{pods}/p/log", query={"container": "main"})
    assert (answer.code, answer.json["reason"]) == (400, "BadRequest")
    assert answer.json["message"] == 'container "main" in pod "p" is waiting to start: PodInitializing'
    assert _kubectl(cluster, pods, "exec", "p", "-c", "first", "--", "touch", "/shared/go").returncode == 0
    cluster.until(f"{pods}/p", _ended, "its end")
    assert cluster.request("GET", f"{pods}/p/log").raw == b"by init\n"


def test_shared_memory_is_64_mebibytes_unless_a_volume_in_memory_has_another_size(
    cluster: Client, pods: str, machine: Machine
) -> None:
    volume = {"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "96Mi"}}
    second = {"volumeMounts": [{"name": "m", "mountPath": "/m"}]}
    script = "df -k /dev/shm /m | awk 'NR > 1 { print $2 }'; touch /m/mine && echo made"
    assert _output(cluster, pods, machine.pod(script, container=second, volumes=[volume])) == "65536\n98304\nmade\n"


def test_log_options_limit_the_log(cluster: Client, pods: str, machine: Machine) -> None:
    # Both streams are in the log; which of two lines written at once comes first is not said.
    script = "echo error >&2; sleep 1; seq 1 5; echo last"
    assert _output(cluster, pods, machine.pod(script)) == "error\n1\n2\n3\n4\n5\nlast\n"

    def log(**query: Any) -> str:
        return cluster.request("GET", f"{pods}/p/log", query=query).raw.decode()

    assert log(tailLines=2) == "5\nlast\n"
    assert log(tailLines=0) == ""
    assert log(limitBytes=3) == "err"
    assert log(sinceSeconds=3600, tailLines=1) == "last\n"
    assert log(sinceTime="2100-01-01T00:00:00Z") == ""
    stamp, _, rest = log(timestamps="true", tailLines=1).partition(" ")
    assert (stamp[:2], stamp[10], rest) == ("20", "T", "last\n")
    status = cluster.expect(400, "GET", f"{pods}/p/log", previous="true")
    assert status["message"] == 'previous terminated container "main" in pod "p" not found'


def test_log_of_the_previous_run_is_kept(cluster: Client, pods: str, machine: Machine) -> None:
    script = "if [ -e /v/second ]; then echo second; exec sleep 60; fi; touch /v/second; echo first; exit 1"
    volume = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    volumes = [{"name": "v", "emptyDir": {}}]
    cluster.create(pods, machine.pod(script, container=volume, volumes=volumes, restartPolicy="OnFailure"))
    cluster.until(f"{pods}/p", lambda found: "terminated" in _main(found).get("lastState", {}), "it has ended once")
    cluster.until(f"{pods}/p", lambda found: _main(found).get("restartCount") == 1 and _ready(found), "again")
    assert cluster.request("GET", f"{pods}/p/log", query={"previous": "true"}).raw == b"first\n"


def test_followed_log_ends_with_its_container(cluster: Client, pods: str, machine: Machine) -> None:
    cluster.create(pods, machine.pod("echo one; read -r line < /v/pipe; echo $line", **_pipe()))
    cluster.until(f"{pods}/p", _ready, "ready")
    with _followed(cluster, pods, "p") as log:
        assert log.readline() == b"one\n"
        _kubectl(cluster, pods, "exec", "p", "--", "sh", "-c", "echo two > /v/pipe")  # which may end with the container
        assert log.read() == b"two\n"


@contextmanager
def _followed(cluster: Client, pods: str, name: str) -> Iterator[HTTPResponse]:
    """The log of a pod that runs."""
    with closing(cluster.connect()) as connection:
        connection.request("GET", f"{pods}/{name}/log?follow=true", headers=cluster.headers)
        yield connection.getresponse()


def _pipe() -> dict[str, Any]:
    """A pod that waits for a line on /v/pipe."""
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    return {
        "container": mount,
        "volumes": [{"name": "v", "emptyDir": {}}],
        "initContainers": [{"name": "pipe", "command": ["mkfifo", "/v/pipe"], "image": IMAGE, **mount}],
    }


def test_exec_carries_input_output_and_exit_status(cluster: Client, pods: str, machine: Machine) -> None:
    cluster.create(pods, machine.pod("exec sleep 60", container={"env": [{"name": "COLOUR", "value": "red"}]}))
    cluster.until(f"{pods}/p", _ready, "ready")
    script = "cat; echo $COLOUR; echo wrong >&2; exit 7"
    done = _kubectl(cluster, pods, "exec", "-i", "p", "--", "sh", "-c", script, given="hello\n")
    assert (done.returncode, done.stdout) == (7, "hello\nred\n")
    assert "wrong\n" in done.stderr
    assert "no-such-program" in _kubectl(cluster, pods, "exec", "p", "--", "no-such-program").stderr
    assert "container none is not valid" in _kubectl(cluster, pods, "exec", "p", "-c", "none", "--", "true").stderr


def test_deleted_pod_gets_its_grace(cluster: Client, pods: str, machine: Machine) -> None:
    polite = machine.pod("trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done", "polite")
    polite["metadata"]["finalizers"] = ["example.org/hold"]
    cluster.create(pods, polite)
    cluster.create(pods, machine.pod("trap '' TERM; echo up; while :; do sleep 0.1; done", "deaf"))
    for name in ("polite", "deaf"):
        cluster.until(f"{pods}/{name}", _ready, "ready")
        with _followed(cluster, pods, name) as log:  # it is ready before its shell has set the trap
            assert log.readline() == b"up\n"
    asked = time.monotonic()
    cluster.delete(f"{pods}/deaf", gracePeriodSeconds=2)
    assert cluster.delete(f"{pods}/polite")["metadata"]["deletionGracePeriodSeconds"] == 5
    # The finalizer keeps the object, and with it how the pod ended.
    found = cluster.until(f"{pods}/polite", _ended, "its end")
    assert (found["status"]["phase"], _main(found)["state"]["terminated"]["exitCode"]) == ("Succeeded", 0)
    cluster.patched(f"{pods}/polite", {"metadata": {"finalizers": None}}, "merge")
    cluster.until_gone(f"{pods}/polite")
    cluster.until_gone(f"{pods}/deaf")
    assert time.monotonic() - asked >= 2


def test_pod_runs_as_its_user_and_groups(cluster: Client, pods: str, secrets_path: str, machine: Machine) -> None:
    cluster.create(secrets_path, {"metadata": {"name": "key"}, "stringData": {"key": "secret"}})
    volumes = [{"name": "key", "secret": {"secretName": "key", "defaultMode": 0o440}}, {"name": "home", "emptyDir": {}}]
    mounts = [
        {"name": "key", "mountPath": "/key", "readOnly": True},
        {"name": "home", "mountPath": "/home/person", "subPath": "person"},
    ]
    script = (
        "id -u; id -g; cat /key/key; echo; mkdir -p $HOME/a && touch $HOME/a/b && stat -c %u $HOME/a/b;"
        " test -w /key/key || echo read-only; echo $WHERE | grep -c ."
    )
    where = {"name": "WHERE", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    container = {
        "securityContext": RESTRICTED_CONTAINER,
        "volumeMounts": mounts,
        "env": [{"name": "HOME", "value": "/home/person"}, where],
    }
    identity = {"runAsUser": 20001, "runAsGroup": 20002, "fsGroup": 20003, "supplementalGroups": [20004]}
    manifest = machine.pod(script, container=container, volumes=volumes, securityContext=identity)
    assert _output(cluster, pods, manifest).split() == ["20001", "20002", "secret", "20001", "read-only", "1"]


def test_container_that_cannot_be_configured_says_why(cluster: Client, pods: str, machine: Machine) -> None:
    root = {"securityContext": {"runAsUser": 0, "runAsNonRoot": True}}
    waiting = {"env": [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "late", "key": "k"}}}]}
    cluster.create(pods, machine.pod("true", "root", container=root))
    cluster.create(pods, machine.pod("true", "early", container=waiting))
    for name, words in (("root", "container's runAsUser breaks non-root policy"), ("early", 'secret "late" not found')):
        found = cluster.until(f"{pods}/{name}", partial(_complains, words), words)  # a busy kubelet says others before
        assert _why(found) == "CreateContainerConfigError"
