"""The table: configurations that administrators of KubeSpawner have, each with where it shows.

The keys of ``shows`` are paths into what was recorded: ``pod`` and ``sent-…`` are manifests that were sent, the others
manifests that the spawner would send; the values are those that are there with this configuration, and not without it.
"""

from __future__ import annotations

from typing import Any

from tests.component.spawner.superset.cluster import WHEN
from tests.component.spawner.superset.recording import Row


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
]
PROFILED = {"profile_list": PROFILES}

SIDECAR = {"name": "sidecar", "image": "busybox", "command": ["sh", "-c", "echo {username} {{kept}}"], "ports": []}
TERM = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}
NEAR = {"labelSelector": {"matchLabels": {"app": "cache"}}, "topologyKey": "kubernetes.io/hostname"}
TOLERATION = {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}
GROUPS = {
    "10-staff": {"groups": ["staff"], "spawner_override": {"mem_limit": "5G", "environment": {"STAFF": "yes"}}},
    "20-gpu": {"groups": ["gpu"], "spawner_override": {"extra_resource_limits": {"nvidia.com/gpu": "1"}}},
}
POD_NAME = "pod metadata name"
MAIN = "pod spec containers 0"
LIMITS, REQUESTS = f"{MAIN} resources limits", f"{MAIN} resources requests"
AFFINITY = "pod spec affinity"

NODES = f"{AFFINITY} nodeAffinity"
KEY_OF = {"valueFrom": {"secretKeyRef": {"name": "keys-{username}", "key": "k"}}}

CONTAINER = {
    "command, directories, pages and addresses": Row(
        {
            f"{MAIN} args": ["start.sh", "jupyterhub-singleuser", "--debug", "--collaborative"],
            f"{MAIN} workingDir": "/srv/alice",
            "env JUPYTERHUB_ROOT_DIR": "/data/alice",
            "env JUPYTERHUB_SERVICE_URL": "http://$(POD_IP):8888/user/alice/",
            "env JUPYTERHUB_API_URL": "http://hub.example.org/hub/api",
        },
        {
            "cmd": ["start.sh", "jupyterhub-singleuser"],
            "working_dir": "/srv/{username}",
            "notebook_dir": "/data/{username}",
            "ip": "$(POD_IP)",
        },
        {
            "args": ["--debug", "--collaborative"],
            "debug": True,
            "hub_connect_url": "http://hub.example.org",
        },
    ),
    "another port": Row({f"{MAIN} ports 0 containerPort": 9999}, {"port": 9999}),
    "environment": Row(
        {
            "env HOME_OF": "alice at gpu: alice--gpu",
            "env KEY": {"valueFrom": {"secretKeyRef": {"name": "keys-alice", "key": "k"}}},
            "env B": "$(A)/b",
        },
        {
            "environment": {
                "HOME_OF": "{username} at {servername}: {user_server}",
                "KEY": KEY_OF,
                **{"Z": "$(B)/z", "B": "$(A)/b", "A": "/a"},  # is ordered
            }
        },
        server="gpu",
    ),
}

POD = {
    "scheduling": Row(
        {
            "pod spec nodeSelector": {"disk": "ssd"},
            "pod spec tolerations": [TOLERATION],
            f"{NODES} preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 9, "preference": TERM}],
        },
        {
            "node_selector": {"disk": "ssd"},
            "tolerations": [TOLERATION],
            "node_affinity_preferred": [{"weight": 9, "preference": TERM}],
            "pod_affinity_preferred": [{"weight": 5, "podAffinityTerm": NEAR}],
        },
    ),
    "the cluster's scheduler": Row({"pod spec schedulerName": None}, {"scheduler_name": None, "events_enabled": False}),
    "containers and extra configuration": Row(
        {
            "pod spec containers 1 command 2": "echo alice {kept}",
            "pod spec terminationGracePeriodSeconds": 45,
        },
        {
            "extra_containers": [SIDECAR],
            "extra_container_config": {"stdin": True},
            "extra_pod_config": {"enable_service_links": False, "terminationGracePeriodSeconds": 45},
        },
    ),
    "labels and annotations": Row(
        {
            "pod metadata labels team": "of-alice",
            "pod metadata annotations note": "alice",
            "pod metadata labels app": "our-hub",
            "pod metadata labels component": "notebooks",
        },
        {
            "extra_labels": {"team": "of-{username}"},
            "extra_annotations": {"note": "{unescaped_username}"},
            "common_labels": {"app": "our-hub"},
            "component_label": "notebooks",
        },
    ),
}

KEPT = {"storage_pvc_ensure": True, "storage_capacity": "1Gi"}
VOLUMES = {
    "a claim is ensured": Row(
        {
            "sent-persistentvolumeclaims spec resources requests storage": "5Gi",
            "sent-persistentvolumeclaims spec selector matchLabels": {"for": "alice"},
        },
        {
            "storage_pvc_ensure": True,
            "storage_capacity": "5Gi",
            "storage_selector": {"matchLabels": {"for": "{username}"}},
        },
    ),
    "a claim that exists already": Row({"states started pvc_name": "claim-alice"}, KEPT, claims=("claim-alice",)),
    "the claim is deleted with the user": Row(
        {"sent -1 1": "/persistentvolumeclaims/claim-alice"}, KEPT, changes_nothing=True
    ),
    "the claim outlives the user": Row({"sent -1 1": "/pods/jupyter-alice"}, {**KEPT, "delete_pvc": False}),
    "a named server does not delete the shared claim": Row(
        {"sent -1 1": "/pods/jupyter-alice--gpu"}, {**KEPT, "pvc_name_template": "claim-{username}"}, server="gpu"
    ),
    "a named server deletes its own claim": Row(
        {
            "sent-persistentvolumeclaims metadata name": "claim-alice--gpu",
            "sent -1 1": "/persistentvolumeclaims/claim-alice--gpu",
        },
        {**KEPT, "pvc_name_template": "claim-{user_server}"},
        server="gpu",
    ),
}

SERVICES = {
    "a service of a named server": Row(
        {
            "sent-services metadata name": "jupyter-alice--gpu",
            "sent-services spec selector component": "singleuser-server",
        },
        {"services_enabled": True, "extra_labels": {"a": "b"}},
        server="gpu",
    ),
    "internal SSL": Row({"sent-secrets data ssl.key": "a2V5ZmlsZSBvZiBhbGljZQo="}, internal_ssl=True),
    "internal SSL with other names": Row(
        {"sent-secrets metadata name": "tls-alice"},
        {"secret_name_template": "tls-{username}", "secret_mount_path": "/tls/{username}/"},
        internal_ssl=True,
    ),
    "the Hub reaches pods by another name": Row(
        {"url": "http://jupyter-alice.pods.invalid:8888"}, {"pod_connect_ip": "jupyter-{username}.pods.invalid"}
    ),
    "the Hub reaches pods as a hook says": Row(
        {"url": "http://elsewhere.invalid:81/jupyter-alice"}, {"get_pod_url": url_of}
    ),
    "another DNS name": Row(
        {"url": "http://jupyter-alice.row.invalid:8888"},
        {"services_enabled": True, "dns_name_template": "{name}.row.invalid"},
    ),
}

HOOKED = {
    "hooks": Row(
        {"pod metadata labels hooked": "yes", "env BEFORE": "alice"},
        {"modify_pod_hook": sized},
        {"pre_spawn_hook": before},
    ),
    "hooks as coroutines": Row(
        {
            f"{MAIN} image": "example.org/hooked:1",
            "names pvc_name": "seen-jupyter-alice",
            "pod spec nodeSelector": {"chosen-for": "alice"},
        },
        {"modify_pod_hook": sized_later, "after_pod_created_hook": annotated, "services_enabled": True},
        {"pre_spawn_hook": before_later},
    ),
}

CHOSEN = {
    "group overrides": Row(
        {f"{LIMITS} memory": 5 * 2**30, f"{LIMITS} nvidia.com/gpu": "1"},
        {"mem_limit": "1G"},
        {"group_overrides": GROUPS},
        groups=("staff", "gpu"),
    ),
    "no profile is chosen": Row({"form": "The <b>default</b>"}, PROFILED),
    "a profile with its default choices": Row(
        {f"{LIMITS} memory": 8 * 2**30, REQUESTS: {"cpu": 4.0}, "env FROM": "profile"},
        {**PROFILED, "environment": {"MINE": "1"}},
        options={"profile": "b"},
    ),
    "a choice beside an unlisted one": Row(
        {f"{REQUESTS} cpu": 1.0, "env CHOSEN": "example.org/mine:3"},
        PROFILED,
        options={"profile": "b", "size": "small", "image--unlisted-choice": "example.org/mine:3"},
    ),
    "another options form": Row({"form": "<input name='x'>"}, {}, {"options_form": "<input name='x'>"}),
    "unknown options": Row({POD_NAME: "jupyter-alice"}, options={"colour": "blue"}, changes_nothing=True),
    "user options are applied": Row(
        {f"{MAIN} image": "example.org/asked:1"},
        {},
        {"apply_user_options": {"image": "image"}},
        options={"image": "example.org/asked:1"},
    ),
}

EVENTS = {
    "the grace period": Row({"sent 1 2": (("gracePeriodSeconds", "20"),)}, {"delete_grace_period": 20}),
    "no events": Row({"events": [], "progress": []}, {"events_enabled": False}, progress=True),
}

NAMED = {
    "templates of names": Row(
        {POD_NAME: "nb-alice-1", "names pvc_name": "vol-alice"},
        {"pod_name_template": "nb-{username}-{userid}", "pvc_name_template": "vol-{username}"},
    ),
    "a namespace of each user": Row(
        {
            "sent-namespaces metadata": {
                "name": "people-dora",
                "labels": {"of": "dora"},
                "annotations": {"who": "dora"},
            }
        },
        {
            "enable_user_namespaces": True,
            "user_namespace_template": "people-{username}",
            "user_namespace_labels": {"of": "{username}"},
            "user_namespace_annotations": {"who": "{unescaped_username}"},
        },
        user="dora",
    ),
}

OF_SIX = {"pod_name": "jupyter-alice-2eb", "namespace": "ROW", "dns_name": "jupyter-alice-2eb.ROW.svc.cluster.local"}
OF_SEVEN = {**OF_SIX, "kubespawner_version": "7.0.0", "pvc_name": "claim-older"}
CLAIM_OF_SIX, CLAIM_OF_SEVEN = "claim-alice-2eb", "claim-alice-b---9f5eb4f1"

REMEMBERED = {
    "state of kubespawner 7": Row({"states loaded pvc_name": "claim-older"}, KEPT, state=OF_SEVEN),
    "state of kubespawner 6 and its claim": Row(
        {"states started pvc_name": CLAIM_OF_SIX}, KEPT, state=OF_SIX, user="alice.b", claims=(CLAIM_OF_SIX,)
    ),
    "both claims exist": Row(
        {"states started pvc_name": CLAIM_OF_SEVEN},
        KEPT,
        state=OF_SIX,
        user="alice.b",
        claims=(CLAIM_OF_SIX, CLAIM_OF_SEVEN),
    ),
    "a state with other entries": Row({"states loaded pod_name": "kept"}, state={"pod_name": "kept", "other": "more"}),
}

PLAIN = "nothing is configured"
ROWS: dict[str, Row] = {
    PLAIN: Row(
        {
            f"{MAIN} image": "quay.io/jupyterhub/singleuser:latest",
            "progress 1 message": f"{WHEN}1Z [Normal] Pulling the pod",
        },
        progress=True,
        changes_nothing=True,
    ),
    **CONTAINER,
    **POD,
    **VOLUMES,
    **SERVICES,
    **HOOKED,
    **CHOSEN,
    **EVENTS,
    **NAMED,
    **REMEMBERED,
}
