"""Settings: the shipped files are valid, and each problem of other files has file, line and path."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from dlspawner import settings
from dlspawner.core.config import (
    CpuJobs,
    CpuMemory,
    ExtendedResource,
    HostPorts,
    MailSecurity,
    MailServer,
    Notifications,
    PriorityClasses,
    PriorityLevel,
    SchedulingConfig,
    SpecialPermission,
    Team,
    TeamQuota,
)
from dlspawner.core.launch import options, rendering
from dlspawner.core.resources import ResourceRequest, request_of
from dlspawner.core.template import (
    ActivitySource,
    EndpointProtocol,
    EndpointService,
    JobPorts,
    OptionKind,
    PodFailurePolicy,
    PodRole,
    TeamDataAccess,
)
from dlspawner.core.units import GPU
from dlspawner.errors import InvalidConfiguration
from dlspawner.settings import template_file

ROOT = Path(__file__).parents[2]
SHIPPED = (ROOT / "templates/jobs", ROOT / "hub_config/cluster.yaml", ROOT / "hub_config/teams.yaml")

CLUSTER = """\
gpu_types:
  a100:
    resource: nvidia.com/gpu
    cpu_per_gpu: 4
    memory_per_gpu: 16Gi
"""
TEAMS = """\
teams:
  vision:
    quota: {a100: 8}
"""
FILE = re.compile(r"[a-z/]+\.yaml:")
JOB = """\
title: Job
command: [run]
"""


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


class Files:
    """Three valid files that a test changes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "jobs").mkdir()
        self.write(job=JOB, cluster=CLUSTER, teams=TEAMS)

    def write(self, *, job: str | None = None, cluster: str | None = None, teams: str | None = None) -> None:
        for name, text in (("jobs/job.yaml", job), ("cluster.yaml", cluster), ("teams.yaml", teams)):
            if text is not None:
                (self.root / name).write_text(text, encoding="utf-8")

    def load(self, start_timeout: float | None = None) -> settings.Settings:
        found = self.root / "jobs", self.root / "cluster.yaml", self.root / "teams.yaml"
        return settings.load(*found, start_timeout=start_timeout)

    def problems(self, start_timeout: float | None = None) -> list[str]:
        try:
            self.load(start_timeout)
        except InvalidConfiguration as invalid:
            return [str(problem).replace(f"{self.root}/", "") for problem in invalid.problems]
        return []


# What is appended to the template, the cluster or the teams file, and how the one problem begins after file and line
# of the appended text; a problem in another line has these as well.
WRONG_JOBS = {
    "a key that does not exist": ("optoins: {}", "optoins: there is no such key (did you mean options?)"),
    "a key twice": (
        "pod:\n  securityContext:\n    fsGroup: 1\n    fsGroup: 2",
        "jobs/job.yaml:6: pod.securityContext.fsGroup: this key is already in line 5.",
    ),
    "no YAML": ("pod: [", "jobs/job.yaml:4: .: this is not YAML: "),
    "a tag": ("pod: !!python/object:os.system {}", "pod: the tag !!python/object:os.system is not read"),
    "a placeholder that means nothing": (
        "annotations: {a: '${gpuz}'}",
        "annotations.a: there is no value for the placeholder ${gpuz} (did you mean gpus?).",
    ),
    "a placeholder that is none": ("annotations: {a: '${A-b}'}", "annotations.a: ${A-b} is no placeholder: write"),
    "a placeholder in a key": ("pod: {nodeSelector: {'${user}': x}}", "pod.nodeSelector: a key must not have"),
    "a network that people choose": (
        "annotations: {k8s.v1.cni.cncf.io/networks: '${team}'}",
        "annotations.k8s.v1.cni.cncf.io/networks: the networks of a pod are written out, without placeholders.",
    ),
    "a placeholder in a label": ("labels: {a: '${user}'}", "labels.a: a label has no placeholders"),
    "a home made of a choice": ("home: /home/${team}", "home: there is no value for the placeholder ${team}"),
    "a home that is relative": ("home: home", "home: must be an absolute path"),
    "one of the product's labels": ("labels: {dlspawner.dev/user: bob}", "labels.dlspawner.dev/user: "),
    "the label by which victims are found": ("labels: {preemption: allow}", "labels.preemption: "),
    "an option without a type": ("options: {x: {}}", "options.x.type: is missing."),
    "an option of an unknown type": (
        "options: {x: {type: int}}",
        "options.x.type: must be one of integer, number, boolean, string, choice, quantity, path,",
    ),
    "an option that is a fact": ("options: {user: {type: string}}", "options.user: “user” already means"),
    "a built-in option of another type": (
        "options: {gpus: {type: string}}",
        "options.gpus.type: “gpus” is always of type integer",
    ),
    "a default out of range": (
        "options: {x: {type: integer, max: 3, default: 4}}",
        "options.x: the default is not allowed: X must be at most 3; you asked for 4.",
    ),
    "a choice that nobody could choose": (
        "options: {x: {type: path, choices: [~/runs, $HOME/runs]}}",
        "options.x: the choice “$HOME/runs” is not allowed: X must be a path such as",
    ),
    "a minimum above the maximum": ("options: {x: {type: integer, min: 3, max: 2}}", "options.x: min is"),
    "a pattern that is none": ("options: {x: {type: string, pattern: '['}}", "options.x.pattern: is not"),
    "a GPU type that the cluster lacks": (
        "options: {gpu_type: {choices: [h100]}}",
        "options.gpu_type: there is no GPU type “h100” (did you mean a100?). There are: a100.",
    ),
    "HTTP that anybody could reach": (
        "endpoints: [{name: web, port: 8080, protocol: http, expose: nodeport}]",
        "endpoints[0]: http by NodePort would let people in without login",
    ),
    "two endpoints on one port": (
        "endpoints: [{name: a, port: 8080, protocol: tcp}, {name: b, port: 8080, protocol: tcp}]",
        "endpoints[1]: there are two endpoints on port 8080.",
    ),
    "the Hub's own port": (
        "endpoints: [{name: a, port: 8888, protocol: tcp}]",
        "endpoints[0]: port 8888 is where the job answers the Hub.",
    ),
    "no time to stop": ("grace_period_seconds: 0", "grace_period_seconds: must be between 1 and 3600"),
    "a start that is neither yes nor no": ("start_on_connect: sometimes", "start_on_connect: must be true or false"),
    "two roles of one name": (
        "endpoints: [{name: ssh, port: 2222, protocol: ssh}]\npods: [{role: worker}, {role: worker, count: 3}]",
        "jobs/job.yaml:4: pods[1]: there are two roles “worker”.",
    ),
    "a role that could be one of another's pods": (
        "endpoints: [{name: ssh, port: 2222, protocol: ssh}]\npods: [{role: worker-0}, {role: worker}]",
        "jobs/job.yaml:4: pods[0].role: “worker-0” must be small letters, digits and dashes",
    ),
    "several pods without ssh": (
        "pods: [{role: chief}, {role: worker}]",
        "pods: a job of several pods needs an ssh endpoint",
    ),
    "a number of pods that is no option": (
        'endpoints: [{name: ssh, port: 2222, protocol: ssh}]\npods: [{role: chief}, {role: worker, count: "${user}"}]',
        "jobs/job.yaml:4: pods[1]: its count must be a number of pods or an option of type integer",
    ),
    "a least number of pods for a job that starts with all of them": (
        "endpoints: [{name: ssh, port: 2222, protocol: ssh}]\npods: [{role: chief}, {role: worker, count: 3, min: 1}]",
        "jobs/job.yaml:4: pods: start: incremental and the min of a role need each other.",
    ),
    "a team that does not exist": ("who: [visoin]", "who[0]: there is no team “visoin” (did you mean vision?)"),
    "a word that PodSpec lacks": (
        "pod: {tolerationz: []}",
        "pod.tolerationz: there is no such key (did you mean tolerations?).",
    ),
    "a container without a name": ("pod: {containers: [{image: x}]}", "pod.containers[0]: a container needs"),
    "a container twice": (
        "pod: {containers: [{name: a}, {name: a}]}",
        "pod.containers[1]: there is already a container “a” in line 3.",
    ),
    "GPUs made visible by hand": (
        "pod: {containers: [{name: notebook, env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]}]}",
        "pod.containers[0].env[0]: NVIDIA_VISIBLE_DEVICES is set last",
    ),
    "a number in a command": (
        "pod: {containers: [{name: notebook, args: [sleep, 5]}]}",
        "pod.containers[0].args[1]: must be text; write it in quotes.",
    ),
    "an own image that is missing": (
        "pod: {containers: [{name: main, command: [x]}]}",
        "pod.containers[0]: the container main needs an image",
    ),
    "a special permission of the pod": (
        "pod: {volumes: [{name: v, hostPath: {path: /}}]}",
        "pod: volume v (hostPath) needs the special permission host_paths: name it",
    ),
    "a uid that somebody chooses": (
        "pod: {containers: [{name: notebook, securityContext: {runAsUser: '${cpu}'}}]}",
        "pod.containers[0].securityContext.runAsUser: runAsUser must be written out",
    ),
    "a text for a mapping": ("pod: {securityContext: none}", "pod: is no PodSpec: "),
    "a group that somebody chooses": (
        "pod: {securityContext: {supplementalGroups: [5, '${cpu}']}}",
        "pod.securityContext.supplementalGroups: supplementalGroups must be written out",
    ),
    "whether images choose groups, by choice": (
        "pod: {securityContext: {supplementalGroupsPolicy: '${cpu}'}}",
        "pod.securityContext.supplementalGroupsPolicy: supplementalGroupsPolicy must be written out",
    ),
    "a volume that should be a claim": (
        "pod: {volumes: [{name: v, nfs: {server: filer, path: /home}}]}",
        "pod.volumes[0]: nfs is no volume that a job may have; make it a PersistentVolumeClaim",
    ),
    "a special permission that is off": (
        "special_permissions: [privileged]",
        "special_permissions[0]: privileged is not switched on",
    ),
    "an alias of itself": ("pod: &a\n  overhead: *a", "jobs/job.yaml:"),
}

CLASSES = "scheduling: {priority_classes: {guaranteed: high, preemptible: low}}"
WRONG_CLUSTERS = {
    "a pattern of hosts that is an address": (
        "notifications: {hosts: [https://hooks.slack.com]}",
        "notifications.hosts[0]: “https://hooks.slack.com” must be a host",
    ),
    "a mail server without a sender": ("notifications: {mail: {host: mail.lan}}", "notifications.mail.sender: "),
    "uids of nobody": (
        "accounts: {first_uid: 60000, last_uid: 70000}",
        "accounts: 65534 is in this range and means nobody",
    ),
    "uids from the end to the beginning": (
        "accounts: {first_uid: 30000, last_uid: 20000}",
        "accounts: first_uid is more than last_uid.",
    ),
    "a resource that is none": (
        "  b: {resource: gpu, cpu_per_gpu: 1, memory_per_gpu: 1Gi}",
        "gpu_types.b.resource: “gpu” must be a resource such as nvidia.com/gpu.",
    ),
    "a type by nothing": ("  b: {cpu_per_gpu: 1, memory_per_gpu: 1Gi}", "gpu_types.b.resource: is missing."),
    "a part of a GPU of unknown size": (
        "  b: {sharing: alnair, gpu_cores: 25, share: 1/4, cpu_per_gpu: 1, memory_per_gpu: 1Gi}",
        "gpu_types.b: a part of a GPU by Alnair needs gpu_memory and gpu_cores.",
    ),
    "a size of a GPU that is not shared": (
        "  b: {resource: a/b, gpu_cores: 25, cpu_per_gpu: 1, memory_per_gpu: 1Gi}",
        "gpu_types.b.gpu_cores: is for types with sharing: hami or alnair.",
    ),
    "GPUs in two ways": (
        "  b: {resource: a/b, claim_template: c, gpus_per_node: 8, cpu_per_gpu: 1, memory_per_gpu: 1Gi, "
        "node_selector: {a: b}}",
        "gpu_types.b.claim_template: pods ask for a GPU in one way: by resource, claim_template or sharing.",
    ),
    "claims of GPUs of which the number is not known": (
        "  b: {claim_template: gpu, cpu_per_gpu: 1, memory_per_gpu: 1Gi}",
        "gpu_types.b.gpus_per_node: is missing.",
    ),
    "GPUs of every node": (
        "  b: {claim_template: gpu, gpus_per_node: 8, cpu_per_gpu: 1, memory_per_gpu: 1Gi}",
        "gpu_types.b.gpus_per_node: needs a node_selector",
    ),
    "two parts of a GPU where a job can have one": (
        "  b: {sharing: alnair, gpu_memory: 1Gi, gpu_cores: 25, share: 1/4, max_per_job: 2, cpu_per_gpu: 1, "
        "memory_per_gpu: 1Gi}",
        "gpu_types.b.max_per_job: a job has one part of a GPU of this kind",
    ),
    "parts of GPUs on nodes that show whole ones": (
        "  b: {sharing: kai, share: 1/4, cpu_per_gpu: 1, memory_per_gpu: 1Gi}",
        "gpu_types.b: its nodes show nvidia.com/gpu as those of a100, and a node could be of both",
    ),
    "more than a whole GPU as a share": (
        "  b: {resource: a/b, share: 3/2, cpu_per_gpu: 1, memory_per_gpu: 1Gi}",
        "gpu_types.b.share: must be between 0 and 1, not “3/2”.",
    ),
    "a share that costs nothing": (
        "  b: {resource: a/b, share: 0, cpu_per_gpu: 1, memory_per_gpu: 1Gi}",
        "gpu_types.b.share: is less than a thousandth of a GPU",
    ),
    "a name with capitals": (
        "  B: {resource: a/b, cpu_per_gpu: 1, memory_per_gpu: 1Gi}",
        "gpu_types.B: “B” must be small letters",
    ),
    "ports of the host that are none": ("host_ports: {range: 24000}", "host_ports.range: "),
    "ports of the host from the end": ("host_ports: {range: 24000-20000}", "host_ports.range: must be from 1024 on"),
    "an extended resource without a domain": (
        "extended_resources: {hca: {}}",
        "extended_resources.hca: “hca” must be a resource such as rdma/hca",
    ),
    "an extended resource that is a GPU type's": (
        "extended_resources: {nvidia.com/gpu: {}}",
        "extended_resources.nvidia.com/gpu: it is the resource of a GPU type, which counts it already.",
    ),
    "a default above the limit": ("cpu_only: {cpu: {default: 5, max: 4}}", "cpu_only.cpu: the default is"),
    "a default template that is not there": (
        "defaults: {template: jop}",
        "defaults.template: there is no template “jop” (did you mean job?).",
    ),
    "two types that one node could be": (
        "  b: {resource: nvidia.com/gpu, cpu_per_gpu: 1, memory_per_gpu: 1Gi, node_selector: {zone: x}}",
        "gpu_types.b: its nodes show nvidia.com/gpu as those of a100, and a node could be of both",
    ),
    "an unknown scheduler": ("scheduler: {name: kueu}", "scheduler.name: must be one of native, kueue"),
    "a scheduler without a name": ("scheduler: {queues: {vision: v}}", "scheduler.name: is missing."),
    "a queue of the native scheduler": (
        "scheduler: {name: native, queues: {vision: v}}",
        "scheduler.queues: the scheduler native takes its name alone, no queues.",
    ),
    "a queue of a team that is not there": (
        "scheduler: {name: kueue, queues: {visoin: v}}",
        "scheduler.queues.visoin: there is no team “visoin” (did you mean vision?).",
    ),
    "a queue of Kueue that is the default": (
        "scheduler: {name: kueue, queues: {vision: default}}",
        "scheduler.queues.vision: Kueue takes every pod beside a queue called default",
    ),
    "queues of a scheduler without any": (
        "scheduler: {name: coscheduling, queues: {vision: v}}",
        "scheduler.queues: the scheduler coscheduling takes priority_classes and scheduler_name, no queues.",
    ),
    "an engine by its name alone": ("scheduler: kueue", "scheduler: must be a mapping, such as {name: kueue}."),
    "parts of a GPU that another scheduler gives": (
        "  b: {sharing: alnair, gpu_memory: 1Gi, gpu_cores: 50, share: 1/2, scheduler_name: alnair-cost-saving, "
        "cpu_per_gpu: 1, memory_per_gpu: 1Gi}\nscheduler: {name: volcano}",
        "gpu_types.b: is given by alnair-cost-saving, and Volcano places all pods: it needs the scheduler native.",
    ),
    "HiveD's cells of a GPU type that is not there": (
        f"scheduler: {{name: hived, cell_types: {{a10: A100}}}}\n{CLASSES}",
        "scheduler.cell_types.a10: there is no GPU type “a10”",
    ),
    "HiveD with parts of GPUs": (
        "  b: {resource: a/b, share: 1/7, cpu_per_gpu: 1, memory_per_gpu: 1Gi}\n"
        f"scheduler: {{name: hived}}\n{CLASSES}",
        "gpu_types.b: HiveD gives whole GPUs by resource: no parts, no claims.",
    ),
    "HiveD without classes": (
        "scheduler: {name: hived}",
        "scheduler: HiveD takes cells back from preemptible jobs only if guaranteed ones have a higher PriorityClass",
    ),
    "a class of a priority that is not there": (
        "scheduler: {name: kueue, priority_classes: {high: h}}",
        "scheduler.priority_classes.high: there is no priority “high”.",
    ),
    "two priorities of one level": ("priorities: {prod: 7, test: 7}", "priorities.test: prod has the level 7 already."),
    "a priority with spaces": ("priorities: {very urgent: 1}", "priorities.very urgent: “very urgent” must"),
    "less notice than none": (
        "scheduling: {notice_seconds: -1}",
        "scheduling.notice_seconds: must be between 0 and",
    ),
    "one PriorityClass without the other": (
        "scheduling: {priority_classes: {guaranteed: high}}",
        "scheduling.priority_classes.preemptible: ",
    ),
}

WRONG_TEAMS = {
    "a gid of people's own": ("  b: {gid: 20001}", "teams.b.gid: 20001 is in the range of people's own"),
    "the gid of nobody": ("  b: {gid: 65534}", "teams.b.gid: 65534 is nobody's"),
    "one gid for two teams": (
        "  b: {gid: 5001}\n  c: {gid: 5001}",
        "teams.yaml:5: teams.c: the team b has the gid 5001 already.",
    ),
    "a GPU type that does not exist": (
        "  b: {quota: {a10: 1}}",
        "teams.b.quota.a10: there is no GPU type “a10” (did you mean a100?). There are: a100.",
    ),
    "an extended resource that the cluster does not name": (
        "  b: {quota: {rdma/hcb: 1}}",
        "teams.b.quota.rdma/hcb: there is no extended resource “rdma/hcb”. There are none.",
    ),
    "a priority that does not exist": (
        "  b: {priorities: [prd]}",
        "teams.b.priorities[0]: there is no priority “prd” (did you mean prod?). There are: prod, test.",
    ),
    "a template that does not exist": (
        "  b: {templates: [jobb]}",
        "teams.b.templates[0]: there is no template “jobb” (did you mean job?). There are: job.",
    ),
    "a mount on a system directory": (
        "  b: {mounts: [{claim: c, path: /etc/b}]}",
        "teams.b.mounts[0].path: /etc/b belongs to the job itself",
    ),
    "a mount with a way up": (
        "  b: {mounts: [{claim: c, path: /data/../etc}]}",
        "teams.b.mounts[0].path: must be an absolute path",
    ),
    "a place mounted twice": (
        "  b: {mounts: [{claim: c, path: /data/b}, {claim: d, path: /data/b}]}",
        "teams.b.mounts[1].path: /data/b is mounted twice.",
    ),
    "a soft cap above the hard one": ("  b: {user_caps: {soft: 3, hard: 2}}", "teams.b.user_caps: soft is more"),
    "a tag that its value does not fit": (
        "  b: {quota: {a100: !!bool perhaps}}",
        "teams.b.quota.a100: must be a number of GPUs, such as 4, 0.5 or 2/7, not “perhaps”.",
    ),
    "half a GPU of a type of whole ones": (
        "  b: {quota: {a100: 0.5}}",
        "teams.b.quota.a100: 0.5 is no whole number of 1 GPU.",
    ),
    "half a character": ('  b: {title: "\\ud800"}', "teams.b.title: holds a character that no text may hold"),
    "the end of a text of C": ('  "b\\0": {}', "teams: holds a character that no text may hold"),
    "a number of thousands of digits": (
        "  b: {borrow_limit: 0x" + "f" * 5000 + "}",
        "teams.b.borrow_limit: the number is too large.",
    ),
    "an admin twice": ("  b: {admins: [x, x]}", "teams.b.admins[1]: “x” is already in line 4."),
    "blocked that is no list": ("blocked: eve", "blocked: must be a list, not “eve”."),
}


@pytest.mark.parametrize(("text", "problem"), WRONG_JOBS.values(), ids=WRONG_JOBS)
def test_invalid_template(files: Files, text: str, problem: str) -> None:
    files.write(job=JOB + text + "\n")
    _one_problem(files.problems(), problem, "jobs/job.yaml:3: ")


WITH_PORTS = CLUSTER + "special_permissions: [host_network]\nhost_ports: {range: 20000-24000}\n"
ON_THE_HOST = "special_permissions: [host_network]\npod: {hostNetwork: true}\n"
# The cluster, the template, and the problem.
WRONG_PORTS = {
    "without the host's network": (
        WITH_PORTS,
        "\n\nports: [{name: nccl}]",
        "ports: only a job on the host's network has ports of it: write pod: {hostNetwork: true}.",
    ),
    "that nobody assigns": (
        WITH_PORTS.replace("host_ports: {range: 20000-24000}", ""),
        f"{ON_THE_HOST}ports: [{{name: nccl}}]",
        "ports: the cluster file has no host_ports to assign from: give it a range.",
    ),
    "of the name of sshd's": (
        WITH_PORTS,
        f"{ON_THE_HOST}ports: [{{name: ssh}}]",
        "ports[0]: “ssh” is what the job's own",
    ),
    "twice": (WITH_PORTS, f"{ON_THE_HOST}ports: [{{name: a}}, {{name: a}}]", "ports[1]: there are two ports “a”."),
    "of a wrong name": (
        WITH_PORTS,
        f"{ON_THE_HOST}ports: [{{name: a-}}]",
        "ports[0].name: “a-” must be small letters,",
    ),
    "none": (
        WITH_PORTS,
        f"{ON_THE_HOST}ports: [{{name: a, count: 0}}]",
        "ports[0].count: must be between 1 and",
    ),
    "outside a command": (
        WITH_PORTS,
        f"{ON_THE_HOST}annotations: {{at: '${{port.a}}'}}\nports: [{{name: a}}]",
        "annotations.at: there is no value for the placeholder ${port.a}",
    ),
    "with an ssh endpoint of another name": (
        WITH_PORTS,
        f"{ON_THE_HOST}endpoints: [{{name: shell, port: 2222, protocol: ssh}}]",
        "endpoints: on the host's network the ssh endpoint must be named ssh.",
    ),
}


def test_template_has_no_keys_of_the_scheduler_underneath(files: Files) -> None:
    labels = "labels: {kueue.x-k8s.io/queue-name: mine, other.x-k8s.io/a: b}\n"
    files.write(job=JOB + labels)
    files.load()
    files.write(job=JOB + labels, cluster=CLUSTER + "scheduler: {name: kueue}\n")
    expected = "labels.kueue.x-k8s.io/queue-name: kueue.x-k8s.io/queue-name is a key of Kueue, which"
    _one_problem(files.problems(), expected, "jobs/job.yaml:3: ")


@pytest.mark.parametrize(("cluster", "text", "problem"), WRONG_PORTS.values(), ids=WRONG_PORTS)
def test_invalid_ports(files: Files, cluster: str, text: str, problem: str) -> None:
    files.write(job=JOB + text + "\n", cluster=cluster)
    _one_problem(files.problems(), problem, "jobs/job.yaml:5: ")


@pytest.mark.parametrize(("text", "problem"), WRONG_CLUSTERS.values(), ids=WRONG_CLUSTERS)
def test_invalid_cluster(files: Files, text: str, problem: str) -> None:
    files.write(cluster=CLUSTER + text + "\n")
    _one_problem(files.problems(), problem, "cluster.yaml:6: ")


@pytest.mark.parametrize(("text", "problem"), WRONG_TEAMS.values(), ids=WRONG_TEAMS)
def test_invalid_teams(files: Files, text: str, problem: str) -> None:
    files.write(teams=TEAMS + text + "\n")
    _one_problem(files.problems(), problem, "teams.yaml:4: ")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("teams:\n", "teams.yaml:1: teams: there is nothing below it, so no team would have a quota."),
        (1000 * "[", "teams.yaml:1: .: the file has too many lists and mappings inside each other."),
    ],
    ids=["half a file", "too deep"],
)
def test_invalid_file(files: Files, text: str, problem: str) -> None:
    files.write(teams=text)
    _one_problem(files.problems(), problem)


# How cluster.yaml is wrong: of nothing that teams and the template say of it is known that it is not right.
WRONG_WHERE_OTHERS_LOOK = {
    "no YAML": "gpu_types: [",
    "an empty file": "",
    "a section under another name": CLUSTER.replace("gpu_types", "gpus"),
    "permissions that do not exist": CLUSTER + "special_permissions: [roof]",
    "a mistake elsewhere": CLUSTER + "scheduling: {notice_seconds: -1}",
}


@pytest.mark.parametrize("cluster", WRONG_WHERE_OTHERS_LOOK.values(), ids=WRONG_WHERE_OTHERS_LOOK)
def test_a_wrong_cluster_file_makes_no_problems_in_other_files(files: Files, cluster: str) -> None:
    teams = "    priorities: [urgent]\n    gid: 25000\n  b:\n    quota: {rdma/hca: 2, h100: 1}\n"
    job = "options: {gpu_type: {default: h100}}\nspecial_permissions: [host_network]\npod: {hostNetwork: true}\n"
    files.write(job=f"{JOB}{job}ports: [{{name: nccl}}]\n", cluster=cluster, teams=TEAMS + teams)
    problems = files.problems()
    assert {problem.split(":")[0] for problem in problems} == {"cluster.yaml"}
    assert problems[0].endswith(settings.UNCHECKED)


def test_problems_that_do_not_depend_on_the_cluster_file_are_reported_with_it(files: Files) -> None:
    files.write(cluster="gpu_types: [", teams=TEAMS + "  b: {quota: {a100: -1}, gid: 65534}\n")
    assert [problem.split(": ")[:2] for problem in files.problems()] == [
        ["cluster.yaml:1", "."],
        ["teams.yaml:4", "teams.b.quota.a100"],
        ["teams.yaml:4", "teams.b.gid"],
    ]


SPECIAL = """\
special_permissions: [host_paths, root]
pod: {volumes: [{name: v, hostPath: {path: '/scratch/%s'}}], securityContext: {runAsUser: 0}}
"""


def test_special_permissions_of_template_and_cluster_allow_the_pod(files: Files) -> None:
    files.write(job=JOB + SPECIAL % "${unix_name}", cluster=CLUSTER + "special_permissions: [root, host_paths]\n")
    assert files.load().templates[0].special == {SpecialPermission.ROOT, SpecialPermission.HOST_PATHS}


def test_team_data_is_mounted_into_a_special_job_only_on_request(files: Files) -> None:
    cluster = CLUSTER + "special_permissions: [root, host_paths]\n"
    found = {}
    for text in ("", "mounts: {home: none}\n", "mounts: {team_data: read-only}\n"):
        files.write(job=JOB + SPECIAL % "all" + text, cluster=cluster)
        found[text] = files.load().templates[0].mounts.team_data
    assert list(found.values()) == [TeamDataAccess.NONE, TeamDataAccess.NONE, TeamDataAccess.READ_ONLY]


@pytest.mark.parametrize("placeholder", ["${cpu}", "${server}", "${home}"])
def test_options_cannot_choose_a_path_of_the_node(files: Files, placeholder: str) -> None:
    files.write(job=JOB + SPECIAL % placeholder, cluster=CLUSTER + "special_permissions: [root, host_paths]\n")
    _one_problem(
        files.problems(), f"jobs/job.yaml:4: pod.volumes[0].hostPath.path: {placeholder} would let people choose"
    )


def test_a_permission_that_the_cluster_lacks_is_a_problem_at_its_name_and_its_use(files: Files) -> None:
    files.write(job=JOB + SPECIAL % "all", cluster=CLUSTER + "special_permissions: [root]\n")
    told = [problem.partition(": ")[0:3:2] for problem in files.problems()]
    assert [(where, what.partition(":")[0]) for where, what in told] == [
        ("jobs/job.yaml:3", "special_permissions[0]"),
        ("jobs/job.yaml:4", "pod"),
    ]


def _one_problem(problems: list[str], expected: str, place: str = "") -> None:
    assert len(problems) == 1, problems
    assert problems[0].startswith(expected if FILE.match(expected) else f"{place}{expected}")


def test_all_problems_of_all_files_are_reported_together(files: Files) -> None:
    files.write(job="titel: x\npods: none\n", cluster=CLUSTER + "a: 1\n", teams=TEAMS + "b: 1\n")
    (files.root / "jobs/other.yaml").write_text("{", encoding="utf-8")
    told = [problem.split(": ", 2)[:2] for problem in files.problems()]
    assert sorted(told) == [
        ["cluster.yaml:6", "a"],
        ["jobs/job.yaml:1", "."],
        ["jobs/job.yaml:1", "titel"],
        ["jobs/job.yaml:1", "title"],
        ["jobs/job.yaml:2", "pods"],
        ["jobs/other.yaml:1", "."],
        ["teams.yaml:4", "b"],
    ]


def test_files_that_can_not_be_read_are_problems(files: Files) -> None:
    (files.root / "cluster.yaml").unlink()
    (files.root / "teams.yaml").write_bytes(b"\xff\xfe")
    (files.root / "jobs/job.yaml").write_text("", encoding="utf-8")
    assert files.problems() == [
        "jobs/job.yaml:1: .: the file is empty.",
        "cluster.yaml:1: .: the file can not be read: No such file or directory.",
        "teams.yaml:1: .: the file is not UTF-8 text.",
    ]


def test_a_directory_without_templates_is_a_problem() -> None:
    with pytest.raises(InvalidConfiguration) as invalid:
        settings.load("/nowhere")
    assert str(invalid.value).splitlines() == [
        "1 problem in the configuration:",
        "  /nowhere:1: .: there is no template (a file NAME.yaml) in this directory.",
    ]


def test_a_template_file_with_a_name_that_no_label_can_hold(files: Files) -> None:
    (files.root / "jobs/job.yaml").rename(files.root / "jobs/My_Job.yaml")
    assert files.problems()[0].startswith("jobs/My_Job.yaml:1: .: the file's name without .yaml is the template's name")


def test_every_key_of_a_template_is_read(files: Files) -> None:
    files.write(
        job="""\
title: Training
description: For long runs
who: [vision]
options:
  gpus: {default: 2, max: 4}
  lr: {type: number, title: Learning rate, min: 0, max: 1, default: 0.1}
  part: {type: choice, choices: {a: First, b: Second}}
command: [run, "${lr}", "${port.nccl}"]
home: /users/${unix_name}
notebook_dir: ${home}/work
endpoints:
  - {name: ssh, port: 2222, protocol: ssh, expose: nodeport}
  - {name: metrics, port: 9090, protocol: http}
mounts: {home: read-only, team_data: none, job_directory: false}
pods: [{role: chief}, {role: worker, count: "${gpus}", gpus: 2, cpu: 4, memory: 8Gi, command: [work, "${lr}"]}]
on_pod_failure: continue
ports: [{name: nccl}, {name: master, count: 4}]
grace_period_seconds: 120
idle: {window_seconds: 600, preemptible_window_seconds: 60, lifetime_seconds: 3600, counts: [gpu], dry_run: false}
start_on_connect: true
special_permissions: [host_network]
labels: {purpose: training}
annotations: {note: "${team}", k8s.v1.cni.cncf.io/networks: fast}
pod:
  hostNetwork: true
""",
        cluster=CLUSTER + "special_permissions: [host_network]\nhost_ports: {range: 20000-24000, enforce: true}\n",
    )
    assert files.load().cluster.host_ports == HostPorts(20000, 24000, enforce=True)
    template = files.load().templates[0]
    assert (template.name, template.title, template.who) == ("job", "Training", ("vision",))
    assert [option.name for option in template.options] == ["gpus", "lr", "part"]
    assert [option.kind for option in template.options] == [OptionKind.INTEGER, OptionKind.NUMBER, OptionKind.CHOICE]
    assert template.command == ("run", "${lr}", "${port.nccl}")
    assert template.ports == (JobPorts("nccl"), JobPorts("master", 4))
    assert [(one.name, one.protocol, one.expose) for one in template.endpoints] == [
        ("ssh", EndpointProtocol.SSH, EndpointService.NODEPORT),
        ("metrics", EndpointProtocol.HTTP, EndpointService.CLUSTER),
    ]
    assert (template.mounts.home, template.mounts.team_data) == (TeamDataAccess.READ_ONLY, TeamDataAccess.NONE)
    worker = PodRole("worker", "gpus", 2, Fraction(4), Fraction(8 * 2**30), ("work", "${lr}"))
    assert template.roles == (PodRole("chief"), worker)
    assert template.on_pod_failure is PodFailurePolicy.CONTINUE
    assert template.grace_period == timedelta(minutes=2)
    assert template.idle.lifetime == timedelta(hours=1)
    assert (template.idle.dry_run, template.start_on_connect) == (False, True)
    assert template.idle.counts == (ActivitySource.GPU,)
    assert template.special == {SpecialPermission.HOST_NETWORK}
    assert template.pod == {"hostNetwork": True}
    assert dict(template.annotations) == {"note": "${team}", "k8s.v1.cni.cncf.io/networks": "fast"}


def test_least_number_of_pods_is_read(files: Files) -> None:
    ssh = "endpoints: [{name: ssh, port: 2222, protocol: ssh}]"
    pods = "pods: [{role: chief}, {role: worker, count: 8, min: 2}]"
    files.write(job=f"title: Elastic\nstart: incremental\n{ssh}\n{pods}\n")
    assert files.load().templates[0].roles == (PodRole("chief"), PodRole("worker", 8, least=2))

    host = "special_permissions: [host_network]\n"
    files.write(
        job=f"title: Elastic\nstart: incremental\n{ssh}\n{pods}\n{host}pod: {{hostNetwork: true}}\n",
        cluster=f"{CLUSTER}{host}",
    )
    with pytest.raises(InvalidConfiguration, match="a job on the host's network starts with all of its pods"):
        files.load()

    job = f"title: Elastic\nstart: incremental\n{ssh}\n{pods}\n"
    files.write(job=job, cluster=f"{CLUSTER}scheduler: {{name: kueue}}\n")
    with pytest.raises(InvalidConfiguration, match="start: Kueue places all pods of a job together"):
        files.load()


def test_every_key_of_cluster_and_teams_is_read(files: Files) -> None:
    files.write(
        cluster=CLUSTER
        + "cpu_only: {cpu: {default: 250m}, memory: {max: 4Gi}}\n"
        + "extended_resources: {rdma/hca: {title: Adapters, max_per_job: 4}, x.io/fpga: {}}\n",
        teams="""\
teams:
  vision:
    admins: [vera]
    members: [alice]
    quota: {a100: 8, rdma/hca: 6}
    borrow_limit: 2
    user_caps: {soft: 0.5, hard: 2}
    priorities: [prod, test]
    templates: [job]
    mounts: [{claim: data, path: /data/vision, read_only: true}]
    idle: {window_seconds: 600}
  "Vision Lab": {}
blocked: [eve]
""",
    )
    loaded = files.load()
    assert loaded.cluster.gpu_types[0].per_gpu == CpuMemory(4000, 16 * 1024**3)
    assert loaded.cluster.cpu_only_default == CpuMemory(250, 2 * 1024**3)
    assert loaded.cluster.cpu_only_max == CpuMemory(4000, 4 * 1024**3)
    assert loaded.cluster.extended_resources == (
        ExtendedResource("rdma/hca", "Adapters", 4),
        ExtendedResource("x.io/fpga"),
    )
    team = loaded.teams.teams[0]
    assert (team.quota, team.extended_quota, team.borrow_limit) == ((TeamQuota("a100", 8),), (("rdma/hca", 6),), 2000)
    assert (team.user_caps.soft, team.user_caps.hard) == (500, 2000)
    assert team.mounts[0].read_only
    assert team.idle.guaranteed == timedelta(minutes=10)
    assert loaded.teams.blocked == {"eve"}
    assert [one.name for one in loaded.teams.team_of("alice", ["Vision Lab"])] == ["vision", "Vision Lab"]
    assert loaded.teams.team_of("bob", []) == (Team("default"),)


def test_every_key_of_sharing_is_read(files: Files) -> None:
    files.write(
        cluster=CLUSTER
        + """\
cpu_only: {jobs_per_user: 3, jobs_per_team: 30}
priorities: {low: 1, high: 5}
scheduling: {notice_seconds: 60, min_run_seconds: 0, max_backfill_wait_seconds: 10, usage_half_life_seconds: 3600}
idle: {window_seconds: 600, lifetime_seconds: 7200, silent_ssh_seconds: 0, gpu_busy_percent: 10, dry_run: false}
notifications:
  mail: {host: mail.lan, sender: hub@lan, port: 465, security: tls, user: hub}
  mail_domains: [lan]
  hosts: ["*.office.com"]
  private_hosts: ["ntfy.lan:8080"]
""",
        teams="teams: {vision: {priorities: [low], preempt_within_team: true}}",
    )
    loaded = files.load()
    cluster, team = loaded.cluster, loaded.teams.teams[0]
    assert cluster.cpu_jobs == CpuJobs(3, 30)
    assert cluster.priorities == (PriorityLevel("high", 5), PriorityLevel("low", 1))
    seconds = [timedelta(seconds=one) for one in (60, 0, 10, 3600)]
    assert cluster.scheduling == SchedulingConfig(*seconds)
    assert cluster.culling.window == timedelta(minutes=10)
    assert (cluster.culling.gpu_busy, cluster.culling.dry_run) == (10, False)
    assert cluster.culling.metrics_age == timedelta(minutes=5)
    mail = MailServer("mail.lan", "hub@lan", 465, MailSecurity.TLS, "hub")
    assert cluster.notifications == Notifications(mail, ("lan",), ("*.office.com",), ("ntfy.lan:8080",))
    assert cluster.default_priority(team) == PriorityLevel("low", 1)
    assert team.preempt_within_team


def test_defaults_of_the_cluster_are_those_of_the_shipped_file(files: Files) -> None:
    shipped, plain = settings.load(*SHIPPED).cluster, files.load().cluster
    assert (shipped.priorities, replace(shipped.scheduling, classes=PriorityClasses())) == (
        plain.priorities,
        plain.scheduling,
    )
    assert (shipped.culling, shipped.cpu_jobs) == (plain.culling, plain.cpu_jobs)
    assert plain.culling.dry_run


def test_without_files_there_is_a_cluster_without_gpus() -> None:
    loaded = settings.load(None)
    assert loaded.templates == ()
    assert loaded.cluster.gpu_types == ()


def test_the_default_template_comes_first(files: Files) -> None:
    (files.root / "jobs/zebra.yaml").write_text(JOB, encoding="utf-8")
    files.write(cluster=CLUSTER + "defaults: {template: zebra}\n")
    assert [template.name for template in files.load().templates] == ["zebra", "job"]


def test_the_teams_know_which_templates_offer_preemptible_jobs(files: Files) -> None:
    lends = {**yaml.safe_load(JOB), "options": {"gpus": {}, "gpu_type": {}, "preemptible": {"default": False}}}
    (files.root / "jobs/lends.yaml").write_text(json.dumps(lends), encoding="utf-8")
    files.write()
    assert files.load().teams.borrowing == {"lends"}
    assert settings.load(None).teams.borrowing is None


def shipped(name: str, home_claim: str = "", **wishes: Any) -> tuple[options.SelectedOptions, dict[str, Any]]:
    """The options and the pod of a job with a shipped template."""
    loaded = settings.load(*SHIPPED)
    template = loaded.template(name)
    assert template is not None
    wishes = {"template": name, **wishes}
    choices = options.select_options(template, loaded.cluster, wishes, loaded.teams.team_of("alice", ["vision"]))
    assert isinstance(choices, options.SelectedOptions)
    context = rendering.RenderContext(
        "alice",
        "",
        "alice",
        "j-abcdefghij23",
        "jupyter-alice",
        login_proxy="…",
        ssh_image="ssh",
        home_claim=home_claim or None,
    )
    made = rendering.render(template, choices, context)
    assert isinstance(made, rendering.RenderedTemplate)
    return choices, made.fragment


@pytest.mark.parametrize("name", ["ipython", "ssh", "tensorboard", "custom"])
def test_a_shipped_template_makes_a_pod_with_the_chosen_gpus(name: str) -> None:
    choices, pod = shipped(name, "claim-alice")
    charged = request_of([pod], settings.load(*SHIPPED).cluster)
    assert isinstance(charged, ResourceRequest)
    assert charged.gpus == choices.gpus * GPU
    text = json.dumps(pod)
    assert "no-authentication" not in text
    assert "${" not in text
    assert ("--activity-interval=0" in text) == (name != "ipython")


@pytest.mark.parametrize("name", ["ipython", "ssh", "custom"])
@pytest.mark.parametrize(
    "gpus",
    [
        pytest.param({"gpus": 0}, id="without GPUs"),
        pytest.param({"gpus": 1, "gpu_type": "v100"}, id="one small GPU"),
        pytest.param({"gpus": 8, "gpu_type": "a100"}, id="a whole node"),
    ],
)
@pytest.mark.parametrize("share", ["", "most"])
def test_the_share_of_the_gpus_is_enough_for_all_containers_of_a_shipped_template(
    name: str, gpus: dict[str, Any], share: str
) -> None:
    loaded = settings.load(*SHIPPED)
    wishes = dict(gpus)
    if share:
        template = loaded.template(name)
        assert template is not None
        too_much = {"template": name, **gpus, "cpu": "9999", "memory": "9999Gi"}
        team = loaded.teams.team_of("alice", ["vision"])
        refused = options.select_options(template, loaded.cluster, too_much, team)
        assert isinstance(refused, options.InvalidOptions)
        cpu, memory = (text.split(" and ")[1].split(" for ")[0] for text in refused.sentences)
        wishes |= {"cpu": cpu, "memory": memory}
    choices, made = shipped(name, **wishes)
    charged = request_of([made], loaded.cluster)
    assert isinstance(charged, ResourceRequest), charged
    kind = choices.gpu_type
    share_of_all = kind.per_gpu.times(choices.gpus) if kind else loaded.cluster.cpu_only_max
    (pod,) = charged.pods
    assert pod.cpu_milli <= share_of_all.cpu_milli
    assert pod.memory_bytes <= share_of_all.memory_bytes


@pytest.mark.parametrize("size", [{"gpus": 1, "workers": 15}, {"gpus": 8, "workers": 1}], ids=["pods", "nodes"])
def test_the_shipped_job_of_several_pods_may_have_all_gpus_of_the_shipped_cluster(size: dict[str, int]) -> None:
    choices, _ = shipped("distributed", gpu_type="a100", **size)
    assert choices.gpu_type is not None
    assert sum(role.count * role.gpus for role in choices.roles) == choices.gpu_type.max_per_job == 16


def test_the_shipped_tensorboard_has_no_gpus_and_cannot_write() -> None:
    template = settings.load(*SHIPPED).template("tensorboard")
    assert template is not None
    assert template.option("gpus") is None
    assert template.mounts.home is TeamDataAccess.READ_ONLY
    assert template.idle.counts == (ActivitySource.HTTP,)
    assert template.idle.lifetime is not None


def test_the_readme_explains_every_key_option_and_hole() -> None:
    readme = (ROOT / "templates/README.md").read_text(encoding="utf-8")
    names = {*template_file.KEYS, *options.BUILT_IN, *rendering.CONTEXT_PLACEHOLDERS, *rendering.CHOICE_PLACEHOLDERS}
    kinds = {
        kind.value
        for group in (OptionKind, EndpointProtocol, EndpointService, TeamDataAccess, ActivitySource, SpecialPermission)
        for kind in group
    }
    assert [name for name in sorted(names | kinds) if f"`{name}`" not in readme] == []


def test_the_examples_of_the_readme_are_valid(files: Files) -> None:
    readme = (ROOT / "templates/README.md").read_text(encoding="utf-8")
    titles = []
    for example in re.findall("^```yaml\n(title:.*?)```", readme, re.MULTILINE | re.DOTALL):
        files.write(job=example)
        assert files.problems() == []
        titles.append(files.load().templates[0].title)
    assert titles == ["Training", "Training over InfiniBand"]


def test_parts_by_hami_have_a_size_and_are_no_more_than_nodes_show(files: Files) -> None:
    kind = "cpu_per_gpu: 1, memory_per_gpu: 1Gi, sharing: hami, share: 1/20"
    files.write(cluster=f"gpu_types: {{a100: {{{kind}}}}}\n")
    assert [one.partition("a100: ")[2] for one in files.problems()] == [
        "a part of a GPU by HAMi needs gpu_memory, gpu_cores or both.",
        "nodes show 10 of each GPU, which are fewer than its parts: give replicas as HAMi has it.",
    ]


IN_DOCS = {  # where that is not one of the resource
    "t4-part": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "25"},
    "v100-part": {"alnair/vgpu-compute": "50", "alnair/vgpu-memory": "16"},
    "h100-or-a100": {"gpu-0": "h100-or-a100"},
    "a40-part": {"gpu-memory": "12288", "gpu-fraction-container-name": "notebook"},
    "a10-half": {"gpu-fraction": "0.5", "gpu-fraction-container-name": "notebook"},
}


def test_a_pod_of_each_kind_of_gpu_in_the_docs_asks_for_one_of_it(files: Files) -> None:
    text = (ROOT / "hub_config/SHARING.md").read_text(encoding="utf-8").partition("## Kinds of GPUs\n")[2]
    files.write(
        job=f"{JOB}options: {{gpus: {{default: 1}}, gpu_type: {{}}}}\n",
        cluster=text.partition("```yaml\n")[2].partition("```")[0],
        teams="teams: {}\n",
    )
    assert files.problems() == []
    loaded = files.load()
    context = rendering.RenderContext("alice", "", "alice", "j-abcdefghij23", "jupyter-alice", login_proxy="…")
    for kind in loaded.cluster.gpu_types:
        choices = options.select_options(loaded.templates[0], loaded.cluster, {"gpu_type": kind.name})
        assert isinstance(choices, options.SelectedOptions), kind.name
        made = rendering.render(loaded.templates[0], choices, context)
        assert isinstance(made, rendering.RenderedTemplate)
        pod = made.fragment
        (work,) = pod["spec"]["containers"]
        asked = {name: str(one) for name, one in work["resources"]["limits"].items() if "/" in name}
        asked |= pod["metadata"].get("annotations", {})
        claims = pod["spec"].get("resourceClaims", [])
        asked |= {one["name"]: one["resourceClaimTemplateName"] for one in claims}
        assert work["resources"].get("claims", []) == [{"name": one["name"]} for one in claims]
        assert asked == IN_DOCS.get(kind.name, {kind.resource: "1"})
        charged = request_of([pod], loaded.cluster)
        assert isinstance(charged, ResourceRequest), charged
        assert (charged.gpu_type, charged.gpus) == (kind.name, int(GPU * kind.share))


_SCALARS = st.none() | st.booleans() | st.integers(-9, 99999) | st.floats() | st.text(max_size=8) | st.just("${user}")
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "containers", "env", "default", "type", "x", "resource"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)
_JOB_KEYS = ["title", "who", "options", "command", "home", "endpoints", "mounts", "pods", "idle", "labels", "pod"]


@hypothesis_settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.dictionaries(st.sampled_from(_JOB_KEYS), _VALUES, max_size=4),
    st.dictionaries(st.sampled_from(["gpu_types", "cpu_only", "storage", "defaults", "x"]), _VALUES, max_size=3),
    st.dictionaries(st.sampled_from(["teams", "blocked", "x"]), _VALUES, max_size=3),
)
def test_no_yaml_makes_reading_crash(
    tmp_path_factory: pytest.TempPathFactory, job: Any, cluster: Any, teams: Any
) -> None:
    files = Files(tmp_path_factory.mktemp("files"))
    files.write(job=yaml.safe_dump(job), cluster=yaml.safe_dump(cluster), teams=yaml.safe_dump(teams))
    assert all(".yaml:" in problem for problem in files.problems())


@pytest.mark.parametrize(
    ("line", "start_timeout", "expected"),
    [
        pytest.param("grace_period_seconds: 570", 600, [], id="it fits"),
        pytest.param("grace_period_seconds: 571", 600, ["jobs/job.yaml:3: grace_period_seconds: "], id="too long"),
        pytest.param("description: short", 59, ["jobs/job.yaml:1: .: "], id="the default of 30 is too long"),
        pytest.param("grace_period_seconds: 3600", None, [], id="no limit"),
    ],
)
def test_a_grace_period_fits_into_the_time_of_a_stop(
    line: str, start_timeout: float | None, expected: list[str], files: Files
) -> None:
    files.write(job=f"{JOB}{line}\n")
    found = files.problems(start_timeout)
    assert len(found) == len(expected)
    assert all(problem.startswith(begins) for problem, begins in zip(found, expected, strict=True))
