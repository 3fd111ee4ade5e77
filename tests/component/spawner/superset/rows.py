"""The table: configurations that administrators of KubeSpawner have, each with where it shows.

``shows`` is a path into what was recorded: ``pod`` and ``sent-…`` are what was sent, the other manifests what the
spawner says that it would send; ``value`` is what is there. A row whose value is there without its configuration fails.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from tests.component.spawner.superset.cluster import WHEN
from tests.component.spawner.superset.recording import OTHER, Row

# Hooks and callables, of both kinds.


def sized(_: Any, pod: Any) -> Any:
    pod.spec.priority = 7
    pod.metadata.labels["hooked"] = "yes"
    return pod


async def sized_later(_: Any, pod: Any) -> Any:
    pod.spec.containers[0].image = "example.org/hooked:1"
    return pod


async def annotated(spawner: Any, pod: Any) -> None:
    """After the pod was created: what it is given is what the watch saw."""
    spawner.pvc_name = f"seen-{pod['metadata']['name']}"


def before(spawner: Any) -> None:
    spawner.environment = {**spawner.environment, "BEFORE": spawner.user.name}


async def before_later(spawner: Any) -> None:
    spawner.node_selector = {"chosen-for": spawner.user.name}


def of_auth_state(_: Any) -> int:
    return 4321


async def of_auth_state_later(_: Any) -> int:
    return 4322


async def profiles_of(spawner: Any) -> list[dict[str, Any]]:
    return [{"display_name": f"Only {spawner.user.name}'s", "kubespawner_override": {"image": "example.org/hers:1"}}]


def more_memory(spawner: Any) -> str:
    return "3G" if spawner.user.name == "alice" else "1G"


def url_of(_: Any, pod: Any) -> str:
    return f"http://elsewhere.invalid:81/{pod['metadata']['name']}"


PROFILES = [
    {"display_name": "A small one", "slug": "a", "description": "The <b>default</b>", "default": True},
    {
        "display_name": "B & more",
        "slug": "b",
        "kubespawner_override": {"mem_limit": "8G", "environment": {"FROM": "profile"}, "extra_labels": {"of": "b"}},
        "profile_options": {
            "size": {
                "display_name": "Size",
                "choices": {
                    "small": {"display_name": "Small", "kubespawner_override": {"cpu_guarantee": 1}},
                    "big": {"display_name": "Big", "default": True, "kubespawner_override": {"cpu_guarantee": 4}},
                },
            },
            "image": {
                "display_name": "Image",
                "unlisted_choice": {
                    "enabled": True,
                    "display_name": "Image name",
                    "display_name_in_choices": "Another",
                    "validation_regex": "^example.org/.+:.+$",
                    "validation_message": "Must be ours",
                    "kubespawner_override": {"image": "{value}", "environment": {"CHOSEN": "{value}"}},
                },
                "choices": {
                    "r": {"display_name": "R", "kubespawner_override": {"image": "example.org/r:1"}},
                    "py": {"display_name": "Python", "kubespawner_override": {"image": "example.org/py:1"}},
                },
            },
        },
    },
    {"display_name": "Calculated", "slug": "c", "kubespawner_override": {"mem_guarantee": more_memory}},
    {
        "display_name": "Nothing is preselected",
        "kubespawner_override": {"node_selector": {"of": "profile"}, "delete_grace_period": 3},
    },
]
PROFILED = {"profile_list": PROFILES}

VOLUME = {"name": "data", "persistentVolumeClaim": {"claimName": "data-{username}"}}
MOUNT = {"name": "data", "mountPath": "/home/{username}", "subPath": "{servername}"}
SIDECAR = {"name": "sidecar", "image": "busybox", "command": ["sh", "-c", "echo {username} {{kept}}"], "ports": []}
TERM = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}
NEAR = {"labelSelector": {"matchLabels": {"app": "cache"}}, "topologyKey": "kubernetes.io/hostname"}
TOLERATION = {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}
HOOKS = {"preStop": {"exec": {"command": ["sh", "-c", "sync"]}}, "postStart": {"exec": {"command": ["true"]}}}
GROUPS = {
    "10-staff": {"groups": ["staff"], "spawner_override": {"mem_limit": "5G", "environment": {"STAFF": "yes"}}},
    "20-gpu": {"groups": ["gpu"], "spawner_override": {"extra_resource_limits": {"nvidia.com/gpu": "1"}}},
}
POD_NAME = "pod metadata name"
MAIN = "pod spec containers 0"
LIMITS, REQUESTS = f"{MAIN} resources limits", f"{MAIN} resources requests"
AFFINITY = "pod spec affinity"

IMAGES = {
    "the image is the configured one": Row(f"{MAIN} image", "example.org/lab:2", {"image": "example.org/lab:2"}),
    "images are pulled always": Row(f"{MAIN} imagePullPolicy", "Always", {"image_pull_policy": "Always"}),
    "pull secrets by name": Row(
        "pod spec imagePullSecrets", [{"name": "a"}, {"name": "b"}], {"image_pull_secrets": ["a", "b"]}
    ),
    "pull secrets as references": Row(
        "pod spec imagePullSecrets", [{"name": "a"}], {"image_pull_secrets": [{"name": "a"}]}
    ),
}

COMMANDS = {
    "the image's own command is kept": Row(f"{MAIN} args", None, {"cmd": None}, changes_nothing=True),
    "a command with arguments": Row(
        f"{MAIN} args",
        ["start.sh", "jupyterhub-singleuser", "--debug", "--collaborative"],
        {"cmd": ["start.sh", "jupyterhub-singleuser"]},
        {"args": ["--debug", "--collaborative"]},
    ),
    "the notebook directory": Row("env JUPYTERHUB_ROOT_DIR", "/data/alice", {"notebook_dir": "/data/{username}"}),
    "the default page": Row(
        "env JUPYTERHUB_DEFAULT_URL", "/lab/tree/alice", {}, {"default_url": "/lab/tree/{username}"}
    ),
    "the working directory": Row(f"{MAIN} workingDir", "/srv/alice", {"working_dir": "/srv/{username}"}),
    "debugging": Row("env JUPYTERHUB_DEBUG", "1", {}, {"debug": True}),
    "another port": Row(f"{MAIN} ports 0 containerPort", 9999, {"port": 9999}),
    "every interface of the pod, by name": Row(
        "env JUPYTERHUB_SERVICE_URL", "http://$(POD_IP):8888/user/alice/", {"ip": "$(POD_IP)"}
    ),
    "the Hub at another address": Row(
        "env JUPYTERHUB_API_URL", "http://hub.example.org/hub/api", {}, {"hub_connect_url": "http://hub.example.org"}
    ),
}

ENVIRONMENT = {
    "environment with templates": Row(
        "env HOME_OF", "alice at ", {"environment": {"HOME_OF": "{username} at {servername}"}}
    ),
    "environment of a named server": Row(
        "env HOME_OF", "alice--gpu", {"environment": {"HOME_OF": "{user_server}"}}, server="gpu"
    ),
    "environment from the downward API": Row(
        "env POD_IP",
        {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"environment": {"POD_IP": {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}}},
    ),
    "environment from a secret of the user": Row(
        "env KEY",
        {"valueFrom": {"secretKeyRef": {"name": "keys-alice", "key": "k"}}},
        {"environment": {"KEY": {"valueFrom": {"secretKeyRef": {"name": "keys-{username}", "key": "k"}}}}},
    ),
    "environment that refers to itself is ordered": Row(
        "env B", "$(A)/b", {"environment": {"Z": "$(B)/z", "B": "$(A)/b", "A": "/a"}}
    ),
    "environment by a function": Row(
        "env WHO", "alice", {}, {"environment": {"WHO": lambda spawner: spawner.user.name}}
    ),
    "braces are doubled": Row("env JSON", '{"a": 1}', {"environment": {"JSON": '{{"a": 1}}'}}),
    "environment of c.Spawner": Row(
        "env OF", "the parent's section", {}, {"environment": {"OF": "the parent's section"}}
    ),
}

RESOURCES = {
    "limits and guarantees": Row(
        LIMITS,
        {"cpu": 2.0, "memory": 4 * 2**30},
        {"cpu_limit": 2, "mem_limit": "4G", "cpu_guarantee": 0.5, "mem_guarantee": "512M"},
    ),
    "only guarantees": Row(REQUESTS, {"cpu": 0.25, "memory": 2**30}, {"cpu_guarantee": 0.25, "mem_guarantee": "1G"}),
    "GPUs as an extra limit": Row(f"{LIMITS} nvidia.com/gpu", "2", {"extra_resource_limits": {"nvidia.com/gpu": "2"}}),
    "extra guarantees": Row(
        f"{REQUESTS} ephemeral-storage", "1Gi", {"extra_resource_guarantees": {"ephemeral-storage": "1Gi"}}
    ),
}

SCHEDULING = {
    "node selector": Row("pod spec nodeSelector", {"disk": "ssd"}, {"node_selector": {"disk": "ssd"}}),
    "tolerations as a list": Row("pod spec tolerations", [TOLERATION], {"tolerations": [TOLERATION]}),
    "tolerations by name are sorted": Row(
        "pod spec tolerations 0 key", "one", {"tolerations": {"2": TOLERATION, "1": {**TOLERATION, "key": "one"}}}
    ),
    "another scheduler": Row("pod spec schedulerName", "packs", {"scheduler_name": "packs"}),
    "the cluster's scheduler": Row("pod spec schedulerName", None, {"scheduler_name": None, "events_enabled": False}),
    "priority class": Row(
        "pod spec priorityClassName", "system-node-critical", {"priority_class_name": "system-node-critical"}
    ),
    "node affinity, required": Row(
        f"{AFFINITY} nodeAffinity requiredDuringSchedulingIgnoredDuringExecution nodeSelectorTerms",
        [TERM],
        {"node_affinity_required": [TERM]},
    ),
    "node affinity, preferred": Row(
        f"{AFFINITY} nodeAffinity preferredDuringSchedulingIgnoredDuringExecution",
        [{"weight": 9, "preference": TERM}],
        {"node_affinity_preferred": [{"weight": 9, "preference": TERM}]},
    ),
    "pod affinity, both": Row(
        f"{AFFINITY} podAffinity requiredDuringSchedulingIgnoredDuringExecution",
        [NEAR],
        {"pod_affinity_required": [NEAR], "pod_affinity_preferred": [{"weight": 5, "podAffinityTerm": NEAR}]},
    ),
    "pod anti-affinity, both": Row(
        f"{AFFINITY} podAntiAffinity requiredDuringSchedulingIgnoredDuringExecution",
        [NEAR],
        {
            "pod_anti_affinity_required": {"a": NEAR},
            "pod_anti_affinity_preferred": [{"weight": 5, "podAffinityTerm": NEAR}],
        },
    ),
}

CONTAINERS = {
    "an extra container": Row("pod spec containers 1 command 2", "echo alice {kept}", {"extra_containers": [SIDECAR]}),
    "extra containers by name are sorted": Row(
        "pod spec containers 1 name", "first", {"extra_containers": {"2": SIDECAR, "1": {**SIDECAR, "name": "first"}}}
    ),
    "an extra container without ports": Row(
        "pod spec containers 1 image", "busybox", {"extra_containers": [{"name": "plain", "image": "busybox"}]}
    ),
    "init containers": Row(
        "pod spec initContainers 0 command",
        ["chown", "alice"],
        {"init_containers": [{"name": "own", "image": "busybox", "command": ["chown", "{username}"]}]},
    ),
    "life cycle hooks": Row(f"{MAIN} lifecycle preStop exec command", ["sh", "-c", "sync"], {"lifecycle_hooks": HOOKS}),
    "extra container configuration": Row(
        f"{MAIN} envFrom",
        [{"configMapRef": {"name": "all"}}],
        {"extra_container_config": {"envFrom": [{"configMapRef": {"name": "all"}}], "stdin": True}},
    ),
    "extra pod configuration": Row(
        "pod spec dnsConfig searches",
        ["alice.example.org"],
        {"extra_pod_config": {"dnsConfig": {"searches": ["{username}.example.org"]}, "enable_service_links": False}},
    ),
    "grace period by extra pod configuration": Row(
        "pod spec terminationGracePeriodSeconds", 45, {"extra_pod_config": {"terminationGracePeriodSeconds": 45}}
    ),
}

VOLUMES = {
    "volumes and mounts": Row(
        f"{MAIN} volumeMounts",
        [{"name": "data", "mountPath": "/home/alice", "subPath": "gpu"}],
        {"volumes": [VOLUME], "volume_mounts": [MOUNT]},
        server="gpu",
    ),
    "volumes by name are sorted": Row(
        "pod spec volumes 0 emptyDir",
        {"medium": "Memory"},
        {
            "volumes": {"b": VOLUME, "a": {"name": "shm", "emptyDir": {"medium": "Memory"}}},
            "volume_mounts": {"x": MOUNT},
        },
        server="gpu",
    ),
    "a claim is ensured": Row(
        "sent-persistentvolumeclaims spec resources requests storage",
        "5Gi",
        {"storage_pvc_ensure": True, "storage_capacity": "5Gi", "storage_access_modes": ["ReadWriteOnce"]},
    ),
    "a claim of a class, selected": Row(
        "sent-persistentvolumeclaims spec selector matchLabels",
        {"for": "alice"},
        {
            "storage_pvc_ensure": True,
            "storage_capacity": "1Gi",
            "storage_class": "fast",
            "storage_selector": {"matchLabels": {"for": "{username}"}},
            "storage_extra_labels": {"of": "{username}"},
            "storage_extra_annotations": {"note": "{userid}"},
        },
    ),
    "a claim of each server": Row(
        "sent-persistentvolumeclaims metadata name",
        "home-alice--gpu",
        {"storage_pvc_ensure": True, "storage_capacity": "1Gi", "pvc_name_template": "home-{user_server}"},
        server="gpu",
    ),
    "a claim that is there already": Row(
        "states started pvc_name",
        "claim-alice",
        {"storage_pvc_ensure": True, "storage_capacity": "1Gi"},
        claims=("claim-alice",),
    ),
    "the claim is deleted with the user": Row(
        "sent -1 1",
        "/persistentvolumeclaims/claim-alice",
        {"storage_pvc_ensure": True, "storage_capacity": "1Gi"},
        changes_nothing=True,
    ),
    "the claim outlives the user": Row(
        "sent -1 1",
        "/pods/jupyter-alice",
        {"storage_pvc_ensure": True, "storage_capacity": "1Gi", "delete_pvc": False},
    ),
    "a named server does not delete the shared claim": Row(
        "sent -1 1",
        "/pods/jupyter-alice--gpu",
        {"storage_pvc_ensure": True, "storage_capacity": "1Gi", "pvc_name_template": "claim-{username}"},
        server="gpu",
    ),
    "a named server deletes its own claim": Row(
        "sent -1 1",
        "/persistentvolumeclaims/claim-alice--gpu",
        {"storage_pvc_ensure": True, "storage_capacity": "1Gi", "pvc_name_template": "claim-{user_server}"},
        server="gpu",
    ),
}

SECURITY = {
    "user, group and file group": Row(
        f"{MAIN} securityContext runAsUser",
        1234,
        {"uid": 1234, "gid": 1235, "fs_gid": 1236, "supplemental_gids": [7, 8]},
    ),
    "a user by a function": Row(f"{MAIN} securityContext runAsUser", 4321, {"uid": of_auth_state}),
    "a user by a coroutine": Row(f"{MAIN} securityContext runAsUser", 4322, {"uid": of_auth_state_later}),
    "file group by a coroutine": Row("pod spec securityContext fsGroup", 4322, {"fs_gid": of_auth_state_later}),
    "privileged": Row(
        f"{MAIN} securityContext privileged", True, {"privileged": True, "allow_privilege_escalation": True}
    ),
    "privilege escalation is left open": Row(f"{MAIN} securityContext", None, {"allow_privilege_escalation": None}),
    "security context of the container": Row(
        f"{MAIN} securityContext capabilities",
        {"drop": ["ALL"]},
        {"container_security_context": {"capabilities": {"drop": ["ALL"]}}},
    ),
    "security context of the pod": Row(
        "pod spec securityContext runAsNonRoot", True, {"pod_security_context": {"runAsNonRoot": True}}
    ),
    "a service account": Row("pod spec serviceAccountName", "of-alice", {"service_account": "of-{username}"}),
    "a service account with its token": Row(
        "pod spec automountServiceAccountToken",
        True,
        {"service_account": "robot", "automount_service_account_token": True},
    ),
}

LABELS = {
    "labels and annotations": Row(
        "pod metadata labels team",
        "of-alice",
        {"extra_labels": {"team": "of-{username}"}, "extra_annotations": {"note": "{unescaped_username}"}},
    ),
    "common labels": Row("pod metadata labels app", "our-hub", {"common_labels": {"app": "our-hub"}}),
    "no common labels": Row("pod metadata labels app", None, {"common_labels": {}}),
    "another component": Row("pod metadata labels component", "notebooks", {"component_label": "notebooks"}),
}

SERVICES = {
    "a service of the pod": Row(
        "sent-services spec selector component",
        "singleuser-server",
        {"services_enabled": True, "extra_labels": {"a": "b"}},
    ),
    "a service of a named server": Row(
        "sent-services metadata name", "jupyter-alice--gpu", {"services_enabled": True}, server="gpu"
    ),
    "internal SSL": Row("sent-secrets data ssl.key", "a2V5ZmlsZSBvZiBhbGljZQo=", {}, internal_ssl=True),
    "internal SSL with names of our own": Row(
        "sent-secrets metadata name",
        "tls-alice",
        {"secret_name_template": "tls-{username}", "secret_mount_path": "/tls/{username}/"},
        internal_ssl=True,
    ),
    "the Hub reaches pods by another name": Row(
        "url", "http://jupyter-alice.pods.invalid:8888", {"pod_connect_ip": "jupyter-{username}.pods.invalid"}
    ),
    "the Hub reaches pods as a hook says": Row(
        "url", "http://elsewhere.invalid:81/jupyter-alice", {"get_pod_url": url_of}
    ),
    "a DNS name of our own": Row(
        "url",
        "http://jupyter-alice.row.invalid:8888",
        {"services_enabled": True, "dns_name_template": "{name}.row.invalid"},
    ),
}

HOOKED = {
    "modify_pod_hook": Row("pod metadata labels hooked", "yes", {"modify_pod_hook": sized}),
    "modify_pod_hook as a coroutine": Row(f"{MAIN} image", "example.org/hooked:1", {"modify_pod_hook": sized_later}),
    "after_pod_created_hook": Row("names pvc_name", "seen-jupyter-alice", {"after_pod_created_hook": annotated}),
    "pre_spawn_hook": Row("env BEFORE", "alice", {}, {"pre_spawn_hook": before}),
    "pre_spawn_hook as a coroutine": Row(
        "pod spec nodeSelector", {"chosen-for": "alice"}, {}, {"pre_spawn_hook": before_later}
    ),
    "all hooks together": Row(
        f"{MAIN} image",
        "example.org/hooked:1",
        {"modify_pod_hook": sized_later, "after_pod_created_hook": annotated, "services_enabled": True},
        {"pre_spawn_hook": before},
    ),
}

GROUPED = {
    "group overrides of one group": Row(
        f"{LIMITS} memory", 5 * 2**30, {}, {"group_overrides": GROUPS}, groups=("staff",)
    ),
    "group overrides of two groups": Row(
        f"{LIMITS} nvidia.com/gpu", "1", {"mem_limit": "1G"}, {"group_overrides": GROUPS}, groups=("staff", "gpu")
    ),
    "a profile wins over group overrides": Row(
        f"{LIMITS} memory",
        8 * 2**30,
        PROFILED,
        {"group_overrides": GROUPS},
        groups=("staff",),
        options={"profile": "b"},
    ),
}

CHOSEN = {
    "no profile is chosen": Row("form", "The <b>default</b>", PROFILED),
    "a profile is chosen": Row(f"{LIMITS} memory", 8 * 2**30, PROFILED, options={"profile": "b"}),
    "a profile's default choices": Row(REQUESTS, {"cpu": 4.0}, PROFILED, options={"profile": "b"}),
    "a profile's choice": Row(f"{REQUESTS} cpu", 1.0, PROFILED, options={"profile": "b", "size": "small"}),
    "a choice beside an unlisted one": Row(
        "env CHOSEN",
        "example.org/mine:3",
        PROFILED,
        options={"profile": "b", "size": "small", "image--unlisted-choice": "example.org/mine:3"},
    ),
    "a profile's environment is merged": Row(
        "env FROM", "profile", {**PROFILED, "environment": {"MINE": "1"}}, options={"profile": "b"}
    ),
    "a calculated override": Row(f"{REQUESTS} memory", 3 * 2**30, PROFILED, options={"profile": "c"}),
    "a profile without a slug": Row(
        "pod spec nodeSelector", {"of": "profile"}, PROFILED, options={"profile": "nothing-is-preselected"}
    ),
    "profiles by name are sorted": Row(
        f"{MAIN} image",
        "example.org/1:1",
        {
            "profile_list": {
                "2": {"display_name": "Two", "kubespawner_override": {"image": "example.org/2:1"}},
                "1": {"display_name": "One", "kubespawner_override": {"image": "example.org/1:1"}},
            }
        },
    ),
    "profiles by a coroutine": Row(f"{MAIN} image", "example.org/hers:1", {"profile_list": profiles_of}),
    "a profile form of our own": Row(
        "form", "<i>A small one</i>", {**PROFILED, "profile_form_template": "<i>{{ profile_list[0].display_name }}</i>"}
    ),
    "an options form of our own": Row("form", "<input name='x'>", {}, {"options_form": "<input name='x'>"}),
    "options that nobody knows": Row(POD_NAME, "jupyter-alice", options={"colour": "blue"}, changes_nothing=True),
    "user options are applied": Row(
        f"{MAIN} image",
        "example.org/asked:1",
        {},
        {"apply_user_options": {"image": "image"}},
        options={"image": "example.org/asked:1"},
    ),
}

STOPPED = {
    "a profile sets the grace period": Row(
        "sent 1 2", (("gracePeriodSeconds", "3"),), PROFILED, options={"profile": "nothing-is-preselected"}
    ),
    "the grace period": Row("sent 1 2", (("gracePeriodSeconds", "20"),), {"delete_grace_period": 20}),
    "no events": Row("events", [], {"events_enabled": False}),
    "what progress tells": Row(
        "progress 1 message", f"{WHEN}1Z [Normal] Pulling the pod", progress=True, changes_nothing=True
    ),
    "progress without events": Row("progress", [], {"events_enabled": False}, progress=True),
}

NAMED = {
    "a template of pod names": Row(POD_NAME, "nb-alice-1", {"pod_name_template": "nb-{username}-{userid}"}),
    "a template of claim names": Row("names pvc_name", "vol-alice", {"pvc_name_template": "vol-{username}"}),
    "a namespace of each user": Row(
        "sent-namespaces metadata",
        {"name": "people-dora", "labels": {"of": "dora"}, "annotations": {"who": "dora"}},
        {
            "enable_user_namespaces": True,
            "user_namespace_template": "people-{username}",
            "user_namespace_labels": {"of": "{username}"},
            "user_namespace_annotations": {"who": "{unescaped_username}"},
        },
        user="dora",
    ),
    "the usual namespace of each user": Row(
        "names namespace", "user-carol", {"enable_user_namespaces": True}, user="carol"
    ),
    "a name with a number at the start": Row(POD_NAME, "jupyter-x-1alice---", user="1alice"),
}

ODD_USERS = ("Alice", "alice+b", "alice@example.org", "älice", "日本", "a" * 70, "alice--gpu", "a_b.c", "u-1", "-x-")
ODD_SERVERS = ("", "gpu", "G.P_U", "x" * 60)
SCHEMES: dict[str, dict[str, Any]] = {
    "the safe scheme": {},
    "the old scheme": {"slug_scheme": "escape"},
    "the safe scheme in old templates": {
        "pod_name_template": "jupyter-{safe_username}--{safe_servername}",
        "pvc_name_template": "claim-{escaped_username}",
    },
}

OF_SIX = {"pod_name": "jupyter-alice-2eb", "namespace": "ROW", "dns_name": "jupyter-alice-2eb.ROW.svc.cluster.local"}
OF_SEVEN = {**OF_SIX, "kubespawner_version": "7.0.0", "pvc_name": "claim-older"}
KEPT = {"storage_pvc_ensure": True, "storage_capacity": "1Gi"}

REMEMBERED = {
    "state of kubespawner 7": Row("states loaded pvc_name", "claim-older", KEPT, state=OF_SEVEN),
    "the claim's name is not remembered": Row(
        "sent 0 1", "/persistentvolumeclaims", {**KEPT, "remember_pvc_name": False}, state=OF_SEVEN
    ),
    "state of kubespawner 6": Row("states loaded pod_name", "jupyter-alice-2eb", KEPT, state=OF_SIX),
    "state of kubespawner 6 and its claim": Row(
        "states started pvc_name", "claim-alice-2eb", KEPT, state=OF_SIX, user="alice.b", claims=("claim-alice-2eb",)
    ),
    "state of kubespawner 6, old names are not asked for": Row(
        "states started pvc_name",
        "claim-alice-b---9f5eb4f1",
        {**KEPT, "handle_legacy_names": False},
        state=OF_SIX,
        user="alice.b",
        claims=("claim-alice-2eb",),
    ),
    "both claims are there": Row(
        "states started pvc_name",
        "claim-alice-b---9f5eb4f1",
        KEPT,
        state=OF_SIX,
        user="alice.b",
        claims=("claim-alice-2eb", "claim-alice-b---9f5eb4f1"),
    ),
    "the old scheme with old state": Row(
        "states started pvc_name", "claim-alice-2eb", {**KEPT, "slug_scheme": "escape"}, state=OF_SIX, user="alice.b"
    ),
    "a state that others have added to": Row(
        "states loaded pod_name", "kept", state={"pod_name": "kept", "other": "more"}
    ),
}


def _names() -> dict[str, Row]:
    """Every odd name by every scheme."""
    rows = {}
    for (scheme, config), (number, user) in product(SCHEMES.items(), enumerate(ODD_USERS)):
        server = ODD_SERVERS[number % len(ODD_SERVERS)]
        sentence = f"{scheme}: {user[:20]!r} and {server[:20]!r}"
        rows[sentence] = Row("names pod_name", OTHER, config, user=user, server=server)
    return rows


PLAIN = Row(f"{MAIN} image", "quay.io/jupyterhub/singleuser:latest", progress=True, changes_nothing=True)


def _light(part: dict[str, Row]) -> dict[str, Row]:
    """Of the first row a whole start is recorded, of the others the manifests; slow tests record every start."""
    return {sentence: replace(row, starts=number == 0) for number, (sentence, row) in enumerate(part.items())}


NAMES = _names()
ROWS: dict[str, Row] = {"nothing is configured": PLAIN}
for part in (
    *map(_light, (IMAGES, COMMANDS, ENVIRONMENT, RESOURCES, SCHEDULING, SECURITY, LABELS, CONTAINERS, NAMES)),
    *map(_light, (GROUPED, CHOSEN)),
    *(VOLUMES, SERVICES, HOOKED, STOPPED, NAMED, REMEMBERED),
):  # fmt: skip
    assert not part.keys() & ROWS.keys()
    ROWS.update(part)
