"""Failures provoked on a real cluster: the sentence that the user reads, and what is left.

All starts that fail are made at once, and so are all jobs that end, because most of their time is spent waiting for
Kubernetes. tests/component/spawner/test_failures.py proves the sentences of hub_config/FAILURES.md on recorded objects;
here is one case of each way in which a sentence reaches the user.
"""

from __future__ import annotations

import contextlib
import html
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from tests.contract.client import RESTRICTED, RESTRICTED_CONTAINER, Client
from tests.e2e.people import wait_for
from tests.harness.spawner_hub import Person
from tests.kubernetes import counted
from tests.kubernetes.conftest import Image, Kubectl
from tests.kubernetes.failing import Outcome, reason, running_hub, start, wait_until_gone

pytestmark = pytest.mark.kubernetes

START_SECONDS = 45
RUN = secrets.token_hex(3)
GPU = f"failures-{RUN}.example.com/gpu"  # a resource of its own, two on one node


def spec(**fields: Any) -> dict[str, Any]:
    return {"spec": fields}


def notebook(**fields: Any) -> dict[str, Any]:
    return spec(containers=[{"name": "notebook", **fields}])


def asks(**amounts: str) -> dict[str, Any]:
    return {"resources": {"requests": amounts, "limits": amounts}}


def volume(**source: Any) -> dict[str, Any]:
    mount = {"name": "extra", "mountPath": "/extra"}
    return spec(volumes=[{"name": "extra", **source}], containers=[{"name": "notebook", "volumeMounts": [mount]}])


@dataclass(frozen=True)
class Case:
    """A start that fails: its pod's patch, and what the person reads."""

    words: str
    patch: dict[str, Any]
    waits: bool = False  # shown while it waits, and the reason in the end
    template: str = "job"


CASES = {
    "no-registry": Case("its registry does not answer", notebook(image="localhost:1/x:1"), waits=True),
    "no-program": Case("The image has no program no-such-program", notebook(command=["no-such-program"])),
    "crash": Case(
        "failed with exit code 3 (“No such dataset.”)",
        notebook(command=["/bin/sh", "-c", "echo No such dataset. >&2; exit 3"]),
    ),
    "no-secret": Case("needs the Secret absent", volume(secret={"secretName": "absent"})),
    "unbound": Case(
        "there is no StorageClass absent", volume(persistentVolumeClaim={"claimName": "unbound"}), waits=True
    ),
    "no-gpus": Case(
        "enough GPUs even when it is idle",
        notebook(**asks(cpu="10m", memory="64Mi", **{GPU: "3"})),
        waits=True,
    ),
    "quota": Case("GPUs (9 asked for, ", notebook(**asks(cpu="10m", memory="64Mi", **{GPU: "9"}))),
    "security": Case("security level “restricted” forbids", spec(hostNetwork=True)),
    "no-nodeport": Case("no NodePort left", {}, template="shell"),
}


@pytest.fixture(scope="module")
def namespace(kubernetes: Client) -> Iterator[str]:
    """The jobs' namespace, with quota and claims that nothing but the failures notices."""
    with kubernetes.namespace("failures", RESTRICTED) as name:
        core = f"/api/v1/namespaces/{name}"
        hard = {f"requests.{GPU}": "7", "services.nodeports": "0"}
        kubernetes.create(f"{core}/resourcequotas", {"metadata": {"name": "jobs"}, "spec": {"hard": hard}})
        claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        kubernetes.create(
            f"{core}/persistentvolumeclaims",
            {"metadata": {"name": "unbound"}, "spec": {**claim, "storageClassName": "absent"}},
        )
        kubernetes.until(f"{core}/resourcequotas/jobs", lambda quota: quota.get("status", {}).get("used"))
        yield name


@pytest.fixture(scope="module")
def alice(
    namespace: str, image: Image, kubernetes: Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Person]:
    """Of a Hub whose cluster has two of our GPUs, on one node."""
    state, at = tmp_path_factory.mktemp("hub"), kubernetes.kubeconfig
    with (
        counted.gpus(kubernetes, GPU, 2),
        running_hub(state, namespace, image("job"), at, gpu=GPU, seconds=START_SECONDS) as hub,
    ):
        yield Person(hub, "alice")


@pytest.fixture(scope="module")
def outcomes(alice: Person) -> dict[str, Outcome]:
    """All starts that fail, at once."""

    def run(item: tuple[str, Case]) -> Outcome:
        name, case = item
        return start(alice, name, case.patch, case.template)

    with ThreadPoolExecutor(len(CASES)) as threads:
        return dict(zip(CASES, threads.map(run, CASES.items()), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_a_start_that_fails(name: str, alice: Person, outcomes: dict[str, Outcome]) -> None:
    case, outcome = CASES[name], outcomes[name]
    sentence = next((text for text in outcome.steps if case.words in text), outcome.refused)

    assert case.words in sentence, outcome
    assert not outcome.ready
    assert sentence.split(": ")[-1] in outcome.refused, outcome
    assert ("given up after" in outcome.refused) is case.waits, outcome
    assert not [
        word for word in ("rpc error", "Traceback", alice.hub.namespace, "HTTP", "://") if word in outcome.refused
    ]
    wait_until_gone(alice, name)


def test_the_field_that_pod_security_refuses_is_in_the_hubs_log(alice: Person, outcomes: dict[str, Outcome]) -> None:
    assert "hostNetwork" not in outcomes["security"].refused
    assert "hostNetwork=true" in alice.hub.log


def preemptor(priority: str) -> dict[str, Any]:
    """A pod that wants both of our GPUs and comes first."""
    container = {"name": "main", "image": "localhost/absent", **asks(cpu="10m", memory="64Mi", **{GPU: "2"})}
    container |= {"imagePullPolicy": "Never", "securityContext": {**RESTRICTED_CONTAINER, "runAsUser": 1000}}
    wanted = spec(containers=[container], priorityClassName=priority, terminationGracePeriodSeconds=0)
    return {"metadata": {"name": "preemptor"}, **wanted}


ENDINGS = {
    "exit": "failed with exit code 7 (“No such dataset.”)",
    "memory": "used more than its 128 MiB of memory",
    "disk": "wrote more to its temporary disk than it may (40Mi)",
    "evicted": "emptying the job's node",
    "preempted": "one of higher priority",
    "removed": "removed from outside the Hub",
}


@pytest.fixture(scope="module")
def endings(alice: Person, namespace: str, kubernetes: Client, kubectl: Kubectl) -> Iterator[dict[str, str]]:
    """All jobs that run and then end, at once: what the home page says of each."""
    low, high, pods = f"low-{RUN}", f"high-{RUN}", f"/api/v1/namespaces/{namespace}/pods"
    cheap = notebook(**asks(cpu="10m", memory="64Mi", **{GPU: "2"}))["spec"]
    patches = {"preempted": spec(priorityClassName=low, **cheap)}

    def provoke(name: str, pod: str) -> None:
        if name == "evicted":
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
            kubernetes.create(f"{pods}/{pod}/eviction", body)
        elif name == "preempted":
            kubernetes.create(pods, preemptor(high))
        elif name == "removed":
            kubectl("-n", namespace, "delete", "pod", pod, "--wait=false")
        else:
            wait_for(lambda: told(name, pod), f"{name} is provoked")

    def told(name: str, pod: str) -> bool:
        """Whether the program was told; the command may end with the program, or not reach it on a busy machine."""
        said = f"echo {name} > /tmp/next; mv /tmp/next /tmp/do"
        with contextlib.suppress(AssertionError):
            kubectl("-n", namespace, "exec", pod, "--", "/bin/sh", "-c", said)
            return True
        return not alice.server(f"end-{name}").get("ready")

    def over(name: str, server: str) -> bool:
        """Whether the Hub knows. A node may start a program again before its end was seen: it is told again then."""
        if not alice.server(server).get("ready"):
            return True
        pod = alice.pod_name(server)
        for one in kubernetes.get(pods, fieldSelector=f"metadata.name={pod}")["items"]:
            if name in {"exit", "memory"} and one["status"]["containerStatuses"][0]["restartCount"]:
                told(name, pod)
        return False

    def run(name: str) -> str:
        server = f"end-{name}"
        outcome = start(alice, server, patches.get(name))
        assert outcome.ready, outcome
        provoke(name, alice.pod_name(server))
        wait_for(lambda: over(name, server), f"the Hub sees the end of {name}", 90)
        return wait_for(lambda: reason(alice, server), f"the home page says why {name} ended")

    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    for name, value in ((low, 1), (high, 1000)):
        kubernetes.create(classes, {"metadata": {"name": name}, "value": value})
    try:
        with ThreadPoolExecutor(len(ENDINGS)) as threads:
            yield dict(zip(ENDINGS, threads.map(run, ENDINGS), strict=True))
    finally:
        for name in (low, high):
            kubernetes.request("DELETE", f"{classes}/{name}")


@pytest.mark.parametrize("name", ENDINGS)
def test_a_job_that_ends(name: str, alice: Person, endings: dict[str, str]) -> None:
    assert ENDINGS[name] in html.unescape(endings[name])
    wait_until_gone(alice, f"end-{name}")
