"""DLSpawner overrides KubeSpawner's methods and leans on others, and on names that JupyterHub calls private: a new
KubeSpawner or JupyterHub is looked at before it is used."""

from __future__ import annotations

import hashlib
import inspect
from typing import Any

import jupyterhub
import pytest
from jupyterhub.app import JupyterHub
from jupyterhub.objects import Server
from jupyterhub.spawner import Spawner
from jupyterhub.user import User
from kubespawner import KubeSpawner
from kubespawner.reflector import ResourceReflector

from dlspawner.spawner import DLSpawner, people

# What was written against a method: the module of dlspawner/spawner, and the method's source in KubeSpawner 7.1.0.
WRITTEN_AGAINST: dict[tuple[type, str], dict[str, str]] = {
    (KubeSpawner, "start.py, lifecycle.py, recovery.py"): {
        "_start": "b28d3b6ef58a",
        "start": "08bb930ccb9a",
        "poll": "316fc67ab3be",
        "stop": "4530c6270adf",
        "get_state": "034d977908f9",
        "load_state": "e48f949c71c7",
        "clear_state": "15074d6f9992",
        "progress": "d0f72f8e82b7",
        "is_pod_running": "1766cb43b2ef",
        "pod_has_uid": "0f9b66cfb819",
        "_get_pod_url": "9676ae72733b",
        "_get_pod_port": "a9742ab477fc",
        "_start_reflector": "8b13886653ac",
        "_start_watching_pods": "f7dc284485d0",
        "_start_watching_events": "692371f5b409",
        "_make_create_pod_request": "945358c8d90b",
        "_get_reflector_key": "5cfd6225aca5",
        "get_service_manifest": "7de4b62e904e",
        "get_secret_manifest": "e1f29769ae9f",
    },
    (KubeSpawner, "start.py, requests of KubeSpawner"): {
        "_ensure_namespace": "51b45f67f647",
        "_make_create_pvc_request": "75ff1b6bb66c",
        "_check_pvc_exists": "cecffaa0029a",
        "_ensure_not_exists": "d81f193ff226",
        "_make_create_resource_request": "67e7f8e8d2c5",
        "_make_delete_pvc_request": "9888f0ae6d2c",
        "delete_forever": "ef0dc32f0555",
    },
    (KubeSpawner, "start.py, configuration.py"): {"_expand_user_properties": "1c779f8c342e"},
    (KubeSpawner, "spawner.py"): {
        "get_pod_manifest": "791155842256",
        "get_env": "19b7a0a11c8e",
        "load_user_options": "619a245e920d",
    },
    (ResourceReflector, "kube/reflector.py"): {
        "__init__": "fe48f9e12414",
        "_list_and_update": "15b70bf2e3cc",
        "_watch_and_update": "dbb462654866",
        "start": "d58cfd3f2aef",
        "stop": "846c26cc0565",
    },
}
METHODS = [(*of, name, known) for of, methods in WRITTEN_AGAINST.items() for name, known in methods.items()]

# recovery.py continues a start as JupyterHub would, and lifecycle.py shows an end as its pages show a failed start: by
# _spawn_pending, _spawn_future, _check_pending, _server and _waiting_for_response, and by when init_spawners asks.
SUPPORTED = ("5.5", "6.1")
WRITTEN_AGAINST_JUPYTERHUB: dict[tuple[Any, str], tuple[str, tuple[str, ...]]] = {
    (User, "spawn"): ("recovery.py, lifecycle.py", ("15325065d5eb", "890673db0a1e")),
    (User, "stop"): ("recovery.py, lifecycle.py", ("493c27f62f3c", "493c27f62f3c")),
    (User, "_wait_up"): ("recovery.py", ("788c403d83bd", "ebfdce8726c6")),
    (Spawner, "pending"): ("recovery.py, lifecycle.py", ("dfcada14b4d2", "8fdc012e1c10")),
    (Spawner, "server"): ("recovery.py", ("eb896db7e43a", "eb896db7e43a")),
    (Server, "wait_up"): ("recovery.py", ("29d601e42ad8", "96c352658e3b")),
    (people, "_delete"): ("people.py", ("4471bb7f6590", "4471bb7f6590")),  # of UserAPIHandler, as the next
    (people, "_patch"): ("people.py", ("b1e3224769b1", "38479466b485")),
    (JupyterHub, "init_spawners"): ("recovery.py, lifecycle.py", ("4b0f9f16c4f4", "4fcb1886e451")),
}


def hash_of(member: Any) -> str:
    """Of the source of a method or property."""
    source = inspect.getsource(member.fget if isinstance(member, property) else member)
    return hashlib.sha256(source.encode()).hexdigest()[:12]


@pytest.mark.parametrize(("cls", "module", "name", "known"), METHODS)
def test_the_parents_method_is_the_one_that_we_know(cls: type, module: str, name: str, known: str) -> None:
    assert hash_of(getattr(cls, name)) == known, (
        f"{cls.__name__}.{name} has changed: compare it with dlspawner/spawner/{module}, then write down its new hash"
    )


@pytest.mark.parametrize(
    "place", [pytest.param(place, id=f"{place[0].__name__}.{place[1]}") for place in WRITTEN_AGAINST_JUPYTERHUB]
)
def test_jupyterhubs_own_is_the_one_that_we_know(place: tuple[Any, str]) -> None:
    cls, name = place
    module, hashes = WRITTEN_AGAINST_JUPYTERHUB[place]
    known = dict(zip(SUPPORTED, hashes, strict=True)).get(".".join(jupyterhub.__version__.split(".")[:2]))
    assert hash_of(getattr(cls, name)) == known, (
        f"{cls.__name__}.{name} of JupyterHub {jupyterhub.__version__} is not the one that we know: compare it with "
        f"dlspawner/spawner/{module}, then write down its new hash here"
    )


def test_what_we_override_is_among_them() -> None:
    """Properties and traits are compared by the spawns; methods of the parent's own parents are JupyterHub's."""
    ours = [cls for cls in DLSpawner.__mro__ if cls.__module__.startswith("dlspawner.")]
    overridden = {
        name
        for name, value in inspect.getmembers(KubeSpawner, inspect.isfunction)
        if name in vars(KubeSpawner) and any(name in vars(cls) for cls in ours) and not name.startswith("__")
    }
    assert overridden - {name for cls, _, name, _ in METHODS if cls is KubeSpawner} == set()
    assert len(overridden) > 20


def test_every_trait_is_inherited_as_it_is() -> None:
    theirs, ours = KubeSpawner.class_traits(config=True), DLSpawner.class_traits(config=True)
    changed = {name for name, trait in theirs.items() if ours[name] is not trait}
    assert changed == set()
    assert len(theirs) > 100
