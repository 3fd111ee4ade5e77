"""The further pods of a job: derived from its first pod, as it is to be made and as the cluster has it."""

from __future__ import annotations

import copy
import shlex
from dataclasses import replace
from functools import partial
from typing import Any

from dlspawner.core import naming
from dlspawner.core.launch import host_ports, pod_set
from dlspawner.core.launch.pod import disable_gpus_by_default
from dlspawner.core.launch.pod_set import PodSet, Role
from dlspawner.core.template import JobPorts, PodFailurePolicy

GPU = "nvidia.com/gpu"
CHIEF = Role("chief", 1, {"cpu": "2", "memory": "4Gi"})
WORKER = Role("worker", 2, {"cpu": "8", "memory": "32Gi", GPU: "4"}, ("python", "train.py"))
PODS = PodSet((CHIEF, WORKER), nodes=("a", "b", None))
POD: dict[str, Any] = {
    "metadata": {"name": "jupyter-ann", "labels": {"component": "singleuser-server", naming.JOB_LABEL: "j-1"}},
    "spec": {
        "containers": [
            {"name": "notebook", "args": ["proxy"], "volumeMounts": [{"name": "proxy", "mountPath": "/p"}]},
            {
                "name": "main",
                "image": "torch",
                "command": ["/bin/sh", "/etc/dlspawner/start", "--main"],
                "args": ["sleep", "1"],
                "env": [{"name": name, "value": "1"} for name in ("JUPYTERHUB_API_TOKEN", "MEM_LIMIT", "TOKENIZERS")],
                "livenessProbe": {},
                "resources": {"limits": {"cpu": "2", "ephemeral-storage": "20Gi"}},
                "volumeMounts": [{"name": "home", "mountPath": "/home/ann"}, {"name": "shm", "mountPath": "/dev/shm"}],
            },
        ],
        "volumes": [
            {"name": "home"},
            {"name": "proxy"},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "4Gi"}},
        ],
        "restartPolicy": "Always",
    },
}


def first(pods: PodSet = PODS) -> dict[str, Any]:
    return pod_set.with_preferred_node(pod_set.as_first(POD, pods, "jupyter-ann-pods", "jobs.svc.cluster.local"), "a")


def test_additions_of_an_engine_reach_each_pod_and_no_other_one() -> None:
    of_chief = {"metadata": {"labels": {"q": "a"}}, "spec": {"nodeSelector": {"n": "1"}, "tolerations": [{"key": "t"}]}}
    of_workers = {"metadata": {"labels": {"q": "b"}}, "spec": {"nodeSelector": {"zone": "z"}, "schedulerName": "s"}}
    plain = first()
    plain["spec"] |= {"nodeSelector": {"n": "1"}, "tolerations": [{"key": "own"}]}
    made = pod_set.with_additions(plain, (of_chief, of_workers, of_workers))
    assert made["metadata"]["labels"]["q"] == "a"
    assert made["spec"]["tolerations"] == [{"key": "own"}, {"key": "t"}]
    assert "schedulerName" not in made["spec"]
    seen = {**made, "spec": {**made["spec"], "tolerations": [*made["spec"]["tolerations"], {"key": "cluster's"}]}}
    for pod in pod_set.further_pods(seen):
        assert (pod["metadata"]["labels"]["q"], pod["spec"]["schedulerName"]) == ("b", "s")
        assert pod["spec"]["nodeSelector"] == {"n": "1", "zone": "z"}
        assert pod["spec"]["tolerations"] == [{"key": "own"}, {"key": "cluster's"}]
    assert pod_set.with_additions(plain, ()) is plain


def test_work_containers_ask_for_an_engines_token_instead_of_gpus() -> None:
    workers = PodSet((replace(WORKER, name="chief", count=1), WORKER, replace(CHIEF, name="ps")))
    visible = {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": "cells"}
    amounts = {"engine/token": "1", GPU: None, "cpu": "16"}
    cells = {"container": {"resources": {"limits": amounts, "requests": amounts}, "env": [visible]}}
    plain = first(workers)
    plain["spec"]["containers"][-1]["resources"] = {"limits": WORKER.resources, "requests": WORKER.resources}
    made = pod_set.with_additions(plain, (cells, cells, cells, {}))
    hide = partial(disable_gpus_by_default, gpu_resources=[GPU])
    pods = [made, *pod_set.further_pods(made, hide)]
    assert all("container" not in pod for pod in pods)
    found = [pod["spec"]["containers"][-1] for pod in pods]
    for work in found[:3]:
        wanted = {"engine/token": "1", "cpu": "16", "memory": "32Gi"}
        assert work["resources"] == {"limits": wanted, "requests": wanted}
        assert [one for one in work["env"] if "NVIDIA" in one["name"]] == [visible]
    assert found[3]["resources"] == {"limits": CHIEF.resources, "requests": CHIEF.resources}
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in found[3]["env"]


def environment(pod: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["value"] for one in pod["spec"]["containers"][-1]["env"]}


def test_first_pod_carries_what_the_others_are_made_of() -> None:
    pod = first()
    assert pod_set.read_pod_set(pod["metadata"]) == PODS
    assert pod_set.read_pod_set(POD["metadata"]) is None
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("chief", "jupyter-ann-pods")
    assert pod["spec"]["dnsConfig"] == {"searches": ["jupyter-ann-pods.jobs.svc.cluster.local"]}
    assert environment(pod)["RANK"] == "0"
    assert list(pod_set.further_pods(POD)) == []


def test_further_pods_are_the_persons_container_with_their_roles_command_and_resources() -> None:
    pods = list(pod_set.further_pods(first()))
    assert [pod["metadata"]["name"] for pod in pods] == ["jupyter-ann----worker-0", "jupyter-ann----worker-1"]
    spec = pods[1]["spec"]
    (work,) = spec["containers"]
    assert (work["image"], work["args"]) == ("torch", ["python", "train.py"])
    assert work["command"] == ["/bin/sh", "/etc/dlspawner/start"]
    disk = {"ephemeral-storage": "20Gi"}
    assert work["resources"] == {"limits": WORKER.resources | disk, "requests": WORKER.resources}
    assert "livenessProbe" not in work
    assert [one["name"] for one in spec["volumes"]] == ["home", "shm"]
    assert spec["volumes"][1]["emptyDir"]["sizeLimit"] == "32Gi"
    assert (spec["hostname"], spec["subdomain"], spec["restartPolicy"]) == ("worker-1", "jupyter-ann-pods", "Never")
    told = environment(pods[1])
    assert {"JUPYTERHUB_API_TOKEN"}.isdisjoint(told)
    assert {name: told[name] for name in ("TOKENIZERS", "MEM_LIMIT", "RANK", "WORLD_SIZE", "MASTER_ADDR")} == {
        "TOKENIZERS": "1",
        "MEM_LIMIT": str(32 * 2**30),
        "RANK": "2",
        "WORLD_SIZE": "3",
        "MASTER_ADDR": "chief",
    }
    assert (told["PET_NPROC_PER_NODE"], told["PAI_HOST_IP_worker_1"], told["DLWS_ROLE_IDX"]) == ("4", "worker-1", "1")
    preferred = [pod["spec"]["affinity"].get("nodeAffinity") for pod in pods]
    assert "'b'" in str(preferred[0])
    assert not any(node in str(preferred[1]) for node in ("'a'", "'b'"))


def test_a_hub_that_finds_only_the_first_pod_makes_the_same_others() -> None:
    planned = first()
    live = copy.deepcopy(planned)
    live["metadata"]["uid"] = "u-1"
    live["spec"] |= {"nodeName": "a", "priority": 1000, "preemptionPolicy": "Never"}
    for before, after in zip(pod_set.further_pods(planned), pod_set.further_pods(live), strict=True):
        (owner,) = after["metadata"].pop("ownerReferences")
        assert (owner["name"], owner["uid"]) == ("jupyter-ann", "u-1")
        assert after == before


def test_the_template_says_whether_a_failed_pod_is_restarted() -> None:
    (pod, *_) = pod_set.further_pods(first(PodSet((CHIEF, WORKER), PodFailurePolicy.RESTART)))
    assert pod["spec"]["restartPolicy"] == "OnFailure"
    assert pod["metadata"]["annotations"][naming.FAILURE_ANNOTATION] == "restart"


HOST_POD = {
    **POD,
    "spec": {
        **POD["spec"],
        "hostNetwork": True,
        "containers": [
            {
                **POD["spec"]["containers"][0],
                "ports": [{"name": "notebook-port", "containerPort": 8888}],
                "env": [{"name": "JUPYTERHUB_SERVICE_URL", "value": "http://0.0.0.0:8888/user/ann/"}],
            },
            {**POD["spec"]["containers"][1], "ports": [{"name": "ssh", "containerPort": 2222}]},
        ],
    },
}
PORTS = (JobPorts("nccl"), JobPorts("master", 2))


def on_the_host(pod: dict[str, Any]) -> dict[str, tuple[tuple[str | None, int], ...]]:
    """The ports of the host by container."""
    found = {}
    for one in pod["spec"]["containers"]:
        assert all(port["containerPort"] == port["hostPort"] for port in one["ports"])
        found[one["name"]] = tuple((port.get("name"), port["hostPort"]) for port in one["ports"])
    return found


def test_a_job_on_the_host_s_network_listens_on_the_ports_that_it_got() -> None:
    pod = pod_set.with_ports(HOST_POD, PORTS, [[20000, 20001, 20002, 20003, 20004]], enforce=True)
    main = (("ssh", 20000), ("nccl", 20002), ("master", 20003), (None, 20004))
    assert on_the_host(pod) == {"notebook": (("notebook-port", 20001),), "main": main}
    notebook, work = pod["spec"]["containers"]
    assert notebook["env"][-1]["value"] == "http://0.0.0.0:20001/user/ann/"
    told = {one["name"]: one["value"] for one in work["env"]}
    assert next(iter(told)) == "DLSPAWNER_PORT_SSH", "other variables may refer to them"
    assert (told["DLSPAWNER_PORT_NCCL"], told["DLSPAWNER_PORT_MASTER"]) == ("20002", "20003")
    assert (told["DLSPAWNER_PORTS_MASTER"], told["DLSPAWNER_ENFORCE_PORTS"]) == ("20003,20004", "30")
    assert told["DLSPAWNER_PORTS"] == "20000,20001,20002,20003,20004"
    assert host_ports.ssh_port(pod, 2222) == 20000
    assert host_ports.wanted(POD, PORTS) == ()


def test_each_pod_on_the_host_s_network_has_ports_of_its_own() -> None:
    whole = pod_set.as_first(HOST_POD, PODS, "jupyter-ann-pods", "jobs.svc.cluster.local")
    numbers = [[20000, 20001, 20002, 20003, 20004], [20005, 20006, 20007, 20008], [20009, 20010, 20011, 20012]]
    pod = pod_set.with_ports(whole, PORTS, numbers, enforce=True)
    _, worker = pod_set.further_pods(pod)
    assert on_the_host(worker) == {"main": (("ssh", 20009), ("nccl", 20010), ("master", 20011), (None, 20012))}
    assert host_ports.ssh_port(worker, 2222) == 20009
    for one in (environment(pod), environment(worker)):
        assert (one["MASTER_PORT"], one["PET_MASTER_PORT"]) == ("20003", "20003"), "the first pod's"
        assert (one["PAI_PORT_LIST_worker_0_master"], one["PAI_PORT_LIST_chief_0_nccl"]) == ("20007,20008", "20002")
        assert one["DLSPAWNER_ENFORCE_PORTS"] == "30"
    assert environment(worker)["DLSPAWNER_PORT_NCCL"] == "20010"
    names = [one["name"] for one in worker["spec"]["containers"][0]["env"]]
    assert len(names) == len(set(names))


def test_pods_find_each_other_by_hostfile_and_ssh_configuration() -> None:
    files = pod_set.secret_files(PODS, ("private", "ssh-ed25519 AAA"), "ssh-ed25519 HOST", "ann", [2222, 20005, 2222])
    assert files["hostfile"].splitlines() == ["chief slots=1", "worker-0 slots=4", "worker-1 slots=4"]
    lines = list(map(shlex.split, files["job_ssh_config"].splitlines()))
    assert lines[2:4] == [["Host", "worker-0"], ["Port", "20005"]]
    assert lines[6] == ["Host", "chief", "worker-0", "worker-1"]
    assert files["job_known_hosts"] == "job ssh-ed25519 HOST\n"
