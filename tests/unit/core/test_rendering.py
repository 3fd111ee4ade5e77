"""Rendering: what a job's pod looks like, and what can not be launched."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from dlspawner.core.config import TeamMount
from dlspawner.core.launch.options import BUILT_IN, InvalidOptions
from dlspawner.core.launch.rendering import (
    RenderContext,
    home_directory,
    log_dir,
    placeholder_names,
    render,
)
from dlspawner.core.template import Endpoint, EndpointProtocol, Mounts, Option, OptionKind, TeamDataAccess, Template
from tests.unit.core.builders import FACTS, NOTEBOOK, chosen

CUSTOM = replace(
    NOTEBOOK,
    name="custom",
    title="Custom",
    command=(),
    options=(*NOTEBOOK.options, BUILT_IN["image"], Option("program", OptionKind.STRING, "Program", default="sleep 1")),
    pod={"restartPolicy": "Never", "containers": [{"name": "main", "command": ["/bin/sh", "-c", "${program}"]}]},
)


def rendered(template: Template = NOTEBOOK, facts: RenderContext = FACTS, **given: Any) -> dict[str, Any]:
    made = render(template, chosen(template, **given), facts)
    assert not isinstance(made, InvalidOptions), made
    return made.fragment


def container(fragment: dict[str, Any], name: str = "notebook") -> dict[str, Any]:
    return next(one for one in fragment["spec"]["containers"] if one["name"] == name)


def environment(fragment: dict[str, Any], name: str = "notebook") -> dict[str, Any]:
    return {one["name"]: one.get("value") for one in container(fragment, name)["env"]}


def mounts(fragment: dict[str, Any], name: str = "notebook") -> dict[str, Any]:
    return {one["mountPath"]: one for one in container(fragment, name)["volumeMounts"]}


def test_gpus_bring_their_resource_place_and_share() -> None:
    limits = container(rendered(gpus=1, gpu_type="mi300"))["resources"]["limits"]
    assert limits == {"cpu": "8", "memory": "32Gi", "amd.com/gpu": "1"}
    spec = rendered(gpus=2)["spec"]
    assert spec["containers"][0]["resources"] == {
        "limits": {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "2"},
        "requests": {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "2"},
    }
    assert spec["nodeSelector"] == {"nvidia.com/gpu.product": "A100"}
    assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]


def test_the_work_container_knows_its_amounts_and_has_as_much_shared_memory_as_memory() -> None:
    fragment = rendered(cpu="500m", memory="1.5Gi")
    told = {name: value for name, value in environment(fragment).items() if name.startswith(("MEM_", "CPU_"))}
    memory = str(3 * 2**29)
    assert told == {"MEM_LIMIT": memory, "MEM_GUARANTEE": memory, "CPU_LIMIT": "0.5", "CPU_GUARANTEE": "0.5"}
    assert mounts(fragment)["/dev/shm"]["name"] == "shared-memory"
    assert {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1536Mi"}} in fragment["spec"][
        "volumes"
    ]


def test_a_templates_own_amounts_and_shared_memory_count() -> None:
    own = {
        "name": "notebook",
        "resources": {"limits": {"memory": "1Gi"}},
        "env": [{"name": "CPU_LIMIT", "value": "mine"}],
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    volumes = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}]
    fragment = rendered(replace(NOTEBOOK, pod={"containers": [own], "volumes": volumes}))
    assert environment(fragment)["MEM_LIMIT"] == str(2**30)
    assert environment(fragment)["CPU_LIMIT"] == "mine"
    assert [one["name"] for one in fragment["spec"]["volumes"] if "Memory" in str(one)] == ["shm"]


def test_without_gpus_nothing_of_a_gpu_is_asked_for() -> None:
    spec = rendered(gpus=0)["spec"]
    assert set(spec["containers"][0]["resources"]["limits"]) == {"cpu", "memory"}
    assert "nodeSelector" not in spec
    assert "tolerations" not in spec


def test_a_container_with_an_ssh_endpoint_begins_with_start() -> None:
    notebook = container(rendered())
    assert notebook["command"] == ["/bin/sh", "/etc/dlspawner/start"]
    assert notebook["args"] == ["jupyterhub-singleuser"]
    assert notebook["ports"] == [{"name": "ssh", "containerPort": 2222}]


def test_without_an_ssh_endpoint_the_images_own_entry_point_stays() -> None:
    notebook = container(rendered(replace(NOTEBOOK, endpoints=())))
    assert "command" not in notebook
    assert notebook["args"] == ["jupyterhub-singleuser"]


def test_a_template_without_a_command_shows_the_page_behind_the_login() -> None:
    args = container(rendered(replace(NOTEBOOK, command=())))["args"]
    assert args == ["python3", "-I", "-c", "import sys", "--activity-interval=0"]


def test_storage_is_mounted_where_it_belongs() -> None:
    seen = mounts(rendered())
    assert seen["/home/alice"] == {"name": "home", "mountPath": "/home/alice"}
    assert environment(rendered())["DLSPAWNER_JOB_DIR"] == "/home/alice/jobs/j-abcdefghij23"
    assert seen["/data/vision"] == {"name": "team-vision-data", "mountPath": "/data/vision"}
    volumes = {one["name"]: one for one in rendered()["spec"]["volumes"]}
    assert volumes["home"]["persistentVolumeClaim"] == {"claimName": "claim-alice"}
    assert volumes["team-vision-data"]["persistentVolumeClaim"] == {"claimName": "vision-data"}
    assert {"name": "home", "emptyDir": {}} in rendered(facts=replace(FACTS, home_claim=None))["spec"]["volumes"]
    facts = replace(FACTS, team_mounts=(TeamMount("data", "/data/a"), TeamMount("data", "/data/b")))
    assert [one["name"] for one in rendered(facts=facts)["spec"]["volumes"]].count("team-data") == 1


@pytest.mark.parametrize(
    ("asked", "granted_read_only", "read_only"),
    [
        (TeamDataAccess.READ_WRITE, False, None),
        (TeamDataAccess.READ_WRITE, True, True),
        (TeamDataAccess.READ_ONLY, False, True),
    ],
    ids=["both allow writing", "the team does not", "the template does not"],
)
def test_team_data_is_written_only_if_team_and_template_allow_it(
    asked: TeamDataAccess, granted_read_only: bool, read_only: bool | None
) -> None:
    template = replace(NOTEBOOK, mounts=Mounts(team_data=asked))
    facts = replace(FACTS, team_mounts=(TeamMount("vision-data", "/data/vision", granted_read_only),))
    assert mounts(rendered(template, facts))["/data/vision"].get("readOnly") is read_only


def test_a_job_without_storage_mounts_none() -> None:
    bare = replace(NOTEBOOK, options=(), mounts=Mounts(TeamDataAccess.NONE, TeamDataAccess.NONE))
    assert "DLSPAWNER_JOB_DIR" not in environment(rendered(bare))
    assert set(mounts(rendered(bare))) == {"/dev/shm", "/etc/dlspawner", "/etc/passwd"}


def test_the_files_of_the_job_are_a_secret_and_some_have_a_second_place() -> None:
    fragment = rendered()
    secret = next(one["secret"] for one in fragment["spec"]["volumes"] if one["name"] == "job-files")
    assert secret["secretName"] == "jupyter-alice--train-ssh"
    assert secret["defaultMode"] == 0o400
    assert {"key": "index.html", "path": "page/index.html"} in secret["items"]
    assert mounts(fragment)["/etc/passwd"]["subPath"] == "passwd"
    assert "/etc/group" not in mounts(fragment)
    bare = rendered(facts=replace(FACTS, files_secret=None, files=()))
    assert "/etc/dlspawner" not in mounts(bare)
    assert "job-files" not in [one["name"] for one in bare["spec"]["volumes"]]


def test_environment_has_user_and_directories() -> None:
    seen = environment(rendered())
    assert seen["HOME"] == seen["JUPYTERHUB_ROOT_DIR"] == "/home/alice"
    assert seen["USER"] == seen["LOGNAME"] == "alice"
    assert seen["DLSPAWNER_LOG_DIR"] == "/home/alice/runs"
    assert container(rendered())["env"][0]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}


def test_an_own_image_runs_in_main_and_the_login_proxy_sees_nothing_of_it() -> None:
    fragment = rendered(CUSTOM, image="debian:12", gpus=1, program="make $(nproc)")
    main, proxy = container(fragment, "main"), container(fragment)
    assert main["image"] == "debian:12"
    assert main["command"] == ["/bin/sh", "/etc/dlspawner/start", "--main"]
    assert main["args"] == ["/bin/sh", "-c", "make $$(nproc)"]
    assert main["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert proxy["args"][:4] == ["python3", "-I", "-c", "import sys"]
    assert proxy["command"] == ["/bin/sh", "/etc/dlspawner/start", "--login-proxy"]
    assert "resources" not in proxy
    assert "/home/alice" not in mounts(fragment)
    assert fragment["spec"]["restartPolicy"] == "Never"
    assert mounts(fragment, "main")["/run/dlspawner"] == {"name": "dlspawner-alive", "mountPath": "/run/dlspawner"}
    assert mounts(fragment)["/run/dlspawner"]["readOnly"], "by which the login proxy sees main end"
    assert {"name": "dlspawner-alive", "emptyDir": {}} in fragment["spec"]["volumes"]


def test_an_own_image_gets_an_sshd_from_the_image_ssh() -> None:
    fragment = rendered(CUSTOM, replace(FACTS, ssh_image="dlspawner/ssh:1"), image="scratch:1")
    (bringing,) = fragment["spec"]["initContainers"]
    assert (bringing["name"], bringing["image"]) == ("dlspawner-ssh", "dlspawner/ssh:1")
    assert bringing["volumeMounts"] == [{"name": "dlspawner-ssh", "mountPath": "/copy"}]
    assert container(fragment, "main")["command"] == ["/dl/bin/busybox", "sh", "/etc/dlspawner/start", "--main"]
    assert mounts(fragment, "main")["/dl"] == {"name": "dlspawner-ssh", "mountPath": "/dl", "readOnly": True}
    assert "/dl" not in mounts(fragment)
    assert {"name": "dlspawner-ssh", "emptyDir": {}} in fragment["spec"]["volumes"]
    own = rendered(facts=replace(FACTS, ssh_image="dlspawner/ssh:1"))["spec"]
    assert "initContainers" not in own
    assert "dlspawner-ssh" not in [one["name"] for one in own["volumes"]]


def test_the_login_proxy_leads_to_the_port_that_was_chosen() -> None:
    template = replace(CUSTOM, options=(*CUSTOM.options, BUILT_IN["http_port"]))
    assert container(rendered(template, image="debian:12", http_port=8000))["args"][-1] == "--server-port=8000"
    assert container(rendered(template, image="debian:12"))["args"][-1] == "--activity-interval=0"


def test_a_hole_without_a_value_is_a_sentence() -> None:
    assert render(CUSTOM, chosen(CUSTOM), FACTS) == InvalidOptions(("“Custom” needs “Image”, which is empty.",))
    wanting = replace(NOTEBOOK, annotations=(("a", "${note}"),))
    assert render(wanting, chosen(wanting), FACTS) == InvalidOptions(("“Notebook” needs “Note”, which is empty.",))
    wanting = replace(NOTEBOOK, annotations=(("a", "${ssh_host}"),))
    assert render(wanting, chosen(wanting), FACTS) == InvalidOptions(
        ("“Notebook” needs a value for “ssh_host”, which is empty.",)
    )


def test_the_templates_own_pod_wins() -> None:
    patient = rendered(replace(NOTEBOOK, grace_period=timedelta(seconds=90)))["spec"]
    assert patient["terminationGracePeriodSeconds"] == 90
    pod = {"nodeSelector": {"zone": "a"}, "containers": [{"name": "notebook", "workingDir": "/w", "env": []}]}
    spec = rendered(replace(NOTEBOOK, pod=pod), gpus=1)["spec"]
    assert spec["nodeSelector"] == {"nvidia.com/gpu.product": "A100", "zone": "a"}
    assert spec["containers"][0]["workingDir"] == "/w"


def test_facts_and_choices_fill_holes() -> None:
    says = (
        "${user} ${server} ${unix_name} ${job} ${pod_name} ${team} ${gpus} ${gpu_type} ${cpu} ${memory} ${home} ${size}"
    )
    fragment = rendered(replace(NOTEBOOK, annotations=(("says", says),)), gpus=1)
    assert fragment["metadata"]["annotations"]["says"] == (
        "alice train alice j-abcdefghij23 jupyter-alice--train default 1 a100 4 16Gi /home/alice s"
    )


def test_every_hole_with_a_meaning_is_filled_when_it_has_a_value() -> None:
    facts = replace(FACTS, default_image="image", ssh_host="host", ssh_port=22)
    given = {"gpus": 1, "note": "n", "code": "abc", "rate": 1}
    for name in sorted(placeholder_names(NOTEBOOK)):
        template = replace(NOTEBOOK, annotations=(("a", f"${{{name}}}"),))
        assert rendered(template, facts, **given)["metadata"]["annotations"]["a"] != ""


def test_home_may_be_anywhere() -> None:
    elsewhere = replace(NOTEBOOK, home="/users/${unix_name}", notebook_dir="${home}/work")
    fragment = rendered(elsewhere)
    assert home_directory(elsewhere, FACTS) == "/users/alice"
    assert environment(fragment)["JUPYTERHUB_ROOT_DIR"] == "/users/alice/work"
    assert environment(fragment)["DLSPAWNER_LOG_DIR"] == "/users/alice/runs"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("runs", "/home/alice/runs"),
        ("~/runs/", "/home/alice/runs"),
        ("~", "/home/alice"),
        ("~//etc", "/home/alice/etc"),
        ("s3://bucket/runs", "s3://bucket/runs"),
        ("/data/vision/runs", "/data/vision/runs"),
        ("/job/runs", "/home/alice/jobs/j-abcdefghij23/runs"),
        ("/job", "/home/alice/jobs/j-abcdefghij23"),
        ("/jobs/x", "/jobs/x"),
        (".", "/home/alice"),
    ],
)
def test_another_job_finds_the_log_directory(given: str, expected: str) -> None:
    assert log_dir(chosen(log_dir=given), FACTS, "/home/alice") == expected


def test_a_job_without_a_log_directory_has_none() -> None:
    silent = replace(NOTEBOOK, options=())
    assert log_dir(chosen(silent), FACTS, "/home/alice") is None
    assert "DLSPAWNER_LOG_DIR" not in environment(rendered(silent))


def test_other_endpoints_are_ports_of_the_container_that_works() -> None:
    template = replace(CUSTOM, endpoints=(*CUSTOM.endpoints, Endpoint("metrics", 9090, EndpointProtocol.HTTP)))
    ports = container(rendered(template, image="debian:12"), "main")["ports"]
    assert {"name": "metrics", "containerPort": 9090} in ports
