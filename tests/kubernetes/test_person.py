"""The person in real containers: one owner for all their files, no access for others, and pods that *restricted*
accepts.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dlspawner.core import naming
from dlspawner.core.launch import pod_status
from dlspawner.core.launch.pod import merge_pod
from dlspawner.core.launch.pod_status import Terminated
from tests.contract.client import Client
from tests.kubernetes.conftest import IMAGE_PREFIX, IMAGE_TAG, Image, Kubectl, made_node
from tests.kubernetes.jobs import SHARED, JobBuilder, shipped

pytestmark = pytest.mark.kubernetes

ALICE, BOB, CAROL = 21_001, 21_002, 21_003


@pytest.fixture
def builder(  # noqa: PLR0917 - fixtures
    kubernetes: Client,
    kubectl: Kubectl,
    jobs_namespace: str,
    image: Image,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> JobBuilder:
    return JobBuilder(kubernetes, kubectl, jobs_namespace, image("job"), tmp_path, monkeypatch)


@pytest.fixture
def team_data(kubernetes: Client, kubectl: Kubectl, jobs_namespace: str) -> Iterator[None]:
    """The claim of the team vision, of a kind of volume that no fsGroup changes, as an administrator prepares it."""
    path = f"/var/tmp/{jobs_namespace}"
    spec = {"accessModes": ["ReadWriteMany"], "storageClassName": jobs_namespace}
    claim = {**spec, "resources": {"requests": {"storage": "1Gi"}}}
    claims = f"/api/v1/namespaces/{jobs_namespace}/persistentvolumeclaims"
    hosted = {**spec, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
    with kubernetes.namespace("person") as name, volume(kubernetes, jobs_namespace, SHARED.claim, **hosted):
        kubernetes.create(claims, {"metadata": {"name": SHARED.claim}, "spec": claim})
        administer(kubectl, name, path, "chgrp 5001 /data && chmod 2770 /data")
        yield
        kubectl("-n", jobs_namespace, "delete", "pods", "--all", "--now")
        administer(kubectl, name, path, "rm -rf /data/*")


@contextlib.contextmanager
def volume(kubernetes: Client, namespace: str, claim: str, **spec: Any) -> Iterator[str]:
    """A volume for one claim, as an administrator makes it by hand."""
    name, volumes = f"person-{secrets.token_hex(4)}", "/api/v1/persistentvolumes"
    spec |= {"claimRef": {"namespace": namespace, "name": claim}, "capacity": {"storage": "1Gi"}}
    kubernetes.create(volumes, {"metadata": {"name": name}, "spec": spec})
    yield name
    kubernetes.request("DELETE", f"{volumes}/{name}")


def administer(kubectl: Kubectl, namespace: str, path: str, script: str) -> None:
    """Run a script as root on a directory of the node, in a namespace that allows it."""
    name, image_name = f"admin-{secrets.token_hex(3)}", f"{IMAGE_PREFIX}/job:{IMAGE_TAG}"
    container = {
        "name": "admin",
        "image": image_name,
        "command": ["sh", "-c", script],
        "securityContext": {"runAsUser": 0},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    volume = {"name": "data", "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
    spec = {"restartPolicy": "Never", "containers": [container], "volumes": [volume]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    kubectl("-n", namespace, "apply", "-f", "-", input=json.dumps(pod))
    kubectl("-n", namespace, "wait", "--for=jsonpath={.status.phase}=Succeeded", f"pod/{name}", "--timeout=110s")


CHOICES: dict[str, dict[str, object]] = {"custom": {"image": "debian:12", "command": "sleep 60"}}


@pytest.mark.parametrize("template", [one.name for one in shipped().templates])
async def test_every_shipped_template_is_accepted(template: str, builder: JobBuilder) -> None:
    job = await builder.render("alice", ALICE, template, **CHOICES.get(template, {}))
    answer = builder.kubernetes.request("POST", job.path.rpartition("/")[0], job.pod, query={"dryRun": "All"})

    assert answer.code == 201, answer.raw.decode()
    assert "warning" not in answer.headers


async def test_files_of_notebook_ssh_sftp_and_of_every_job_have_one_owner(builder: JobBuilder, tmp_path: Path) -> None:
    first = await builder.job("carol", CAROL, "ipython")
    second = await builder.job("carol", CAROL, "ssh")
    (tmp_path / "local").write_text("x")

    first.run("touch ~/by-notebook $DLSPAWNER_JOB_DIR/in-job-directory")
    second.run("touch ~/by-another-job $DLSPAWNER_JOB_DIR/in-job-directory")
    first.ssh("touch ~/by-ssh; mkdir ~/.ssh; chmod 700 ~/.ssh")
    second.sftp(f"put {tmp_path / 'local'} by-sftp\n")
    owners = second.run("stat -c '%u:%g %a %n' ~/by-* ~/jobs/*/* ~/.ssh").splitlines()

    assert {line.split()[0] for line in owners} == {f"{CAROL}:{CAROL}"}
    assert [line.rpartition("/")[2] for line in owners] == [
        *("by-another-job", "by-notebook", "by-sftp", "by-ssh"),
        *("in-job-directory", "in-job-directory", ".ssh"),
    ]
    assert {line.split()[1] for line in owners} == {"644", "2700"}  # setgid comes with a volume's fsGroup


async def test_the_person_has_a_name_a_home_and_groups(builder: JobBuilder) -> None:
    job = await builder.job("Ann Lee", CAROL)
    name = naming.unix_name("Ann Lee")

    assert job.run("id -un; id -gn; pwd; echo $HOME; awk -F: -v u=$(id -u) '$3 == u {print $6, $7}' /etc/passwd") == (
        f"{name}\n{name}\n/home/{name}\n/home/{name}\n/home/{name} /etc/dlspawner/shell"
    )
    commit = "git -c user.email=a@b.c commit --quiet --allow-empty -m x && git log --format=%an"
    assert job.run(f"cd ~; git init -q repo; cd repo; {commit}") == name
    assert "ssh: connect to host" in job.run("ssh -T -o ConnectTimeout=1 127.0.0.1 -p 1 2>&1 || true")


@pytest.mark.usefixtures("team_data")
async def test_ssh_and_notebook_are_the_same_person(builder: JobBuilder) -> None:
    job = await builder.job("alice", ALICE, "ipython")

    assert job.run("id") == job.ssh("id")
    assert job.run("id") == f"uid={ALICE}(alice) gid={ALICE}(alice) groups={ALICE}(alice),5001(vision)"
    assert job.ssh("cd; pwd; umask") == "/home/alice\n0022"


@pytest.mark.usefixtures("team_data")
async def test_private_files_on_a_shared_volume_are_unreadable_for_others(builder: JobBuilder) -> None:
    alice, bob = await builder.job("alice", ALICE), await builder.job("bob", BOB)
    alice.run("cd /data/vision && mkdir -m 700 private && echo secret > private/f && echo hello > public")

    assert bob.run("cat /data/vision/public") == "hello"
    assert bob.run("cat /data/vision/private/f 2>&1 || id -u").splitlines() == [
        "cat: /data/vision/private/f: Permission denied",
        str(BOB),
    ]
    assert (
        bob.run("stat -c %u:%g:%a /data/vision/private /data/vision/public") == f"{ALICE}:5001:2700\n{ALICE}:5001:644"
    )


async def test_a_home_of_uid_1000_is_handed_over_by_the_guides_job(builder: JobBuilder, image: Image) -> None:
    """What Kubernetes leaves to do, and MIGRATION.md's way."""
    guide = (Path(__file__).parents[2] / "hub_config" / "MIGRATION.md").read_text()
    (block,) = re.findall(r"```yaml\n(# chown\.yaml.*?)```", guide, re.S)
    (manifest,) = yaml.safe_load_all(block)
    manifest["metadata"]["namespace"] = builder.namespace
    pod = manifest["spec"]["template"]["spec"]
    (container,), (home,) = pod["containers"], pod["volumes"]
    container["image"], container["command"][-2] = image("job"), f"{CAROL}:{CAROL}"
    home["persistentVolumeClaim"]["claimName"] = "home-carol"

    (await builder.job("carol", 1000)).run("umask 077; echo kept >~/note")
    builder.kubectl("-n", builder.namespace, "delete", "pods", "--all")
    job = await builder.job("carol", CAROL)
    assert "Operation not permitted" in job.run("chmod 600 ~/note 2>&1 || true")
    assert job.run("stat -c %u:%g:%a ~/note") == f"1000:{CAROL}:660"
    builder.kubectl("-n", builder.namespace, "delete", "pods", "--all")
    level = ("label", "namespace", builder.namespace, "--overwrite")
    builder.kubectl(*level, "pod-security.kubernetes.io/enforce=baseline")
    builder.kubectl("apply", "-f", "-", input=json.dumps(manifest))
    done = ("wait", "--for=condition=Complete", "job/chown-alice", "--timeout=110s")
    builder.kubectl("-n", builder.namespace, *done)
    builder.kubectl(*level, "pod-security.kubernetes.io/enforce=restricted")
    again = await builder.job("carol", CAROL)
    assert again.run("chmod 600 ~/note; cat ~/note; stat -c %u:%g:%a ~/note") == f"kept\n{CAROL}:{CAROL}:600"


POSTGRES = 1000  # the image's account postgres, which the image's /etc/group puts into ssl-cert as well


@pytest.mark.parametrize("strict", [False, True], ids=["as images say", "strict_groups"])
async def test_groups_that_only_an_image_knows(
    strict: bool, builder: JobBuilder, image: Image, nodes_know_strict_groups: bool
) -> None:
    """As storage.md says: an image adds its own, unless that is forbidden, which some nodes cannot do."""
    builder.strict_groups = strict
    choices: dict[str, object] = {"image": image("postgresql"), "command": "sleep 60"}
    job = await builder.render("carol", POSTGRES, "custom", **choices)
    if strict and not nodes_know_strict_groups:
        job.create()
        failed = builder.kubernetes.until(job.path, lambda pod: pod["status"].get("phase") == "Failed", "a refusal")
        assert pod_status.evaluate(failed) == Terminated(
            1, "The job's node cannot keep images from choosing unix groups: ask an administrator (strict_groups)."
        )
        return
    job.create()
    builder.kubernetes.until(job.path, running, "the job to run")
    groups = set(job.run("id -G").split())
    wanted = {str(POSTGRES)}

    assert groups == wanted if strict else groups > wanted


def running(pod: dict[str, Any]) -> bool:
    found = {one["name"]: one["state"] for one in pod["status"].get("containerStatuses") or ()}
    return "running" in found.get("main", {})


@pytest.fixture
def nodes_know_strict_groups(kubernetes: Client) -> bool:
    nodes = kubernetes.get("/api/v1/nodes")["items"]
    return all((node["status"].get("features") or {}).get("supplementalGroupsPolicy") for node in nodes)


@pytest.fixture
def other_node(kubernetes: Client) -> Iterator[str]:
    """A node that is Ready in name only, empty, and tainted against other pods."""
    with made_node(kubernetes) as name:
        yield name


@pytest.fixture
def free_volume(kubernetes: Client, jobs_namespace: str) -> Iterator[str]:
    """A storage class with a volume, bound to carol's home, that names no node."""
    spec = {"accessModes": ["ReadWriteOnce", "ReadWriteMany"], "storageClassName": jobs_namespace}
    never_mounted = {"server": "203.0.113.1", "path": "/"}  # only the scheduler looks at it
    with volume(kubernetes, jobs_namespace, "home-carol", nfs=never_mounted, **spec):
        yield jobs_namespace


@pytest.mark.parametrize("modes", [("ReadWriteOnce",), ("ReadWriteMany",)], ids="".join)
async def test_a_tensorboard_goes_where_a_home_of_one_node_is(
    modes: tuple[str, ...], builder: JobBuilder, other_node: str, free_volume: str
) -> None:
    """Both pods would rather be elsewhere: the job on a real node, its TensorBoard on the empty one."""
    builder.access_modes, builder.storage_class = modes, free_volume
    job = await builder.render("carol", CAROL, "ssh")
    board = await builder.render("carol", CAROL, "tensorboard")
    places = []
    for made, operator in ((job, "NotIn"), (board, "In")):
        rather = {"key": "kubernetes.io/hostname", "operator": operator, "values": [other_node]}
        preference = [{"weight": 100, "preference": {"matchExpressions": [rather]}}]
        affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preference}}
        spec: dict[str, Any] = {"affinity": affinity, "tolerations": [{"operator": "Exists"}]}
        made.pod = merge_pod(made.pod, {"spec": spec})
        for container in made.pod["spec"]["containers"]:
            container["resources"] = {}
        made.create()
        scheduled = builder.kubernetes.until(made.path, lambda pod: bool(pod["spec"].get("nodeName")), "a node")
        places.append(scheduled["spec"]["nodeName"])
    for made in (job, board):
        builder.kubernetes.request("DELETE", made.path, {"gracePeriodSeconds": 0})

    assert places[0] != other_node
    assert places[1] == (places[0] if modes == ("ReadWriteOnce",) else other_node)
