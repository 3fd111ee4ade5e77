"""hub_config/jupyterhub_config.py with an environment and a deployment's overrides.py."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
import yaml
from jupyterhub.spawner import Spawner
from jupyterhub.utils import fmt_ip_url
from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

from dlspawner import settings
from dlspawner.settings import reload
from tests.harness.spawner_hub import Hub, running

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    "DLSPAWNER_BIND_URL": "http://:8000/",
    "DLSPAWNER_HUB_BIND_URL": "http://:8081",
    "DLSPAWNER_HUB_URL": "http://hub.dlspawner.svc:8081",
    "DLSPAWNER_HUB_DB_URL": "postgresql+psycopg://hub:secret@postgresql/hub",
    "DLSPAWNER_PROXY_API_URL": "http://proxy-api:8001",
    "DLSPAWNER_MANAGER_URL": "http://manager.dlspawner.svc:8082",
    "DLSPAWNER_MANAGER_TOKEN": "manager's token",
    "DLSPAWNER_GATEWAY_TOKEN": "gateway's token",
    "DLSPAWNER_SSH_HOST": "ssh.example.org",
    "DLSPAWNER_SSH_PORT": "22",
    "DLSPAWNER_SSH_CA": "/etc/dlspawner/ssh/user_ca.pub",
    "DLSPAWNER_NAMESPACE": "dlspawner-jobs",
    "DLSPAWNER_TEMPLATES": str(ROOT / "templates"),
}
LOGIN = {"DLSPAWNER_PASSWORD": "a password", "DLSPAWNER_ADMIN_PASSWORD": "another password"}


@pytest.fixture
def config_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("cluster.yaml", "teams.yaml"):
        shutil.copy(ROOT / "hub_config" / name, tmp_path / name)
    monkeypatch.setenv("DLSPAWNER_CONFIG_DIR", str(tmp_path))
    for name in ("DLSPAWNER_STATE", "DLSPAWNER_LAUNCHER_TOKEN", *LOGIN):
        monkeypatch.delenv(name, raising=False)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return tmp_path


LOGIN_BY_GITHUB = 'c.JupyterHub.authenticator_class = "github"\n'


def load(overrides: str = "") -> Any:
    """The configuration, with a deployment's own file from now on."""
    if overrides:
        Path(os.environ["DLSPAWNER_CONFIG_DIR"], "overrides.py").write_text(overrides, encoding="utf-8")
    return PyFileConfigLoader("jupyterhub_config.py", str(ROOT / "hub_config")).load_config()


def test_addresses_and_the_database_come_from_the_environment(
    config_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in LOGIN.items():
        monkeypatch.setenv(name, value)
    c = load()
    assert c.JupyterHub.hub_bind_url == "http://:8081"
    assert c.JupyterHub.hub_connect_url == "http://hub.dlspawner.svc:8081"
    assert c.JupyterHub.db_url == ENVIRONMENT["DLSPAWNER_HUB_DB_URL"]
    assert c.ConfigurableHTTPProxy.api_url == "http://proxy-api:8001"
    assert c.JupyterHub.authenticator_class == "shared-password"
    assert "cookie_secret_file" not in c.JupyterHub


def test_who_starts_the_proxy_anew_may_ask_for_its_routes_and_for_nothing_else(
    config_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in LOGIN.items():
        monkeypatch.setenv(name, value)
    assert "launcher" not in {one["name"] for one in load().JupyterHub.services}
    monkeypatch.setenv("DLSPAWNER_LAUNCHER_TOKEN", "launcher's token")
    hub = load().JupyterHub
    assert [one["scopes"] for one in hub.load_roles if "launcher" in one.get("services", ())] == [["proxy"]]


def test_a_deployment_s_own_file_comes_last(config_dir: Path) -> None:
    c = load(f"{LOGIN_BY_GITHUB}c.Spawner.start_timeout = 1200\n")
    assert (c.JupyterHub.authenticator_class, c.Spawner.start_timeout) == ("github", 1200)
    assert c.JupyterHub.spawner_class == "dlspawner.spawner.DLSpawner"


def test_a_grace_period_beyond_the_start_timeout_is_refused(config_dir: Path) -> None:
    with pytest.raises(SystemExit, match=r"custom\.yaml:\d+: grace_period_seconds: .* may be 50 at most"):
        load(f"{LOGIN_BY_GITHUB}c.KubeSpawner.start_timeout = 80\n")


def test_the_manager_is_below_the_hub_s_base_url(config_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(LOGIN_BY_GITHUB).DLSpawner.manager_url == "http://manager.dlspawner.svc:8082/services/jobs"
    monkeypatch.setenv("DLSPAWNER_BIND_URL", "http://:8000/lab/gpu/")
    assert load().DLSpawner.manager_url == "http://manager.dlspawner.svc:8082/lab/gpu/services/jobs"


@pytest.mark.parametrize(("services", "place"), [("10.96.0.1", "$(POD_IP)"), ("fd00:96::1", "[::]")])
def test_a_job_listens_at_an_address_of_the_family_of_the_cluster_s_services(
    config_dir: Path, monkeypatch: pytest.MonkeyPatch, services: str, place: str
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", services)
    ip = load(LOGIN_BY_GITHUB).KubeSpawner.ip
    assert fmt_ip_url(Spawner(ip=ip).ip) == place  # as the Hub makes JUPYTERHUB_SERVICE_URL


@pytest.mark.parametrize("section", ["Spawner", "KubeSpawner", "DLSpawner"])
@pytest.mark.parametrize("how", ["environment = ", "environment.update"])
def test_a_deployments_environment_is_added_and_checked(config_dir: Path, section: str, how: str) -> None:
    own = f'{LOGIN_BY_GITHUB}c.{section}.{how}({{"CONFIG": "${{HOME}}"}})\n'
    assert set(load(own.replace("${HOME}", "x")).DLSpawner.environment) == {"CONFIG", "POD_IP"}
    with pytest.raises(SystemExit, match=r"environment\['CONFIG'\] has a brace"):
        load(own)


def test_changed_files_are_checked_with_the_hubs_settings(
    config_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "LOOK_SECONDS", 0.0)
    shutil.copytree(ROOT / "templates", tmp_path / "templates")
    monkeypatch.setenv("DLSPAWNER_TEMPLATES", str(tmp_path / "templates"))
    c = load(LOGIN_BY_GITHUB).DLSpawner
    files = reload.current_config(c.templates_dir, c.cluster_file, c.teams_file)
    cluster, template = config_dir / "cluster.yaml", tmp_path / "templates" / "jobs" / "ssh.yaml"
    (config_dir / "teams.yaml").write_text("teams: [")
    before = files.now()
    assert before.teams.has_quota, "it was read when the Hub started"
    shutil.copy(ROOT / "hub_config" / "teams.yaml", config_dir / "teams.yaml")
    assert files.now() == before
    text = cluster.read_text()
    cluster.write_text(text.replace("special_permissions: []", "special_permissions: [root]"))
    assert files.now() == before
    cluster.write_text(text)
    text = template.read_text()
    template.write_text(text.replace("grace_period_seconds: 30", "grace_period_seconds: 3600"))
    assert files.now() == before
    template.write_text(text.replace("grace_period_seconds: 30", "grace_period_seconds: 40"))
    assert files.now() != before


def test_special_permissions_need_a_second_namespace(config_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(LOGIN_BY_GITHUB).DLSpawner.special_namespace == ""
    cluster = config_dir / "cluster.yaml"
    text = cluster.read_text()
    assert "special_permissions: []" in text
    cluster.write_text(text.replace("special_permissions: []", "special_permissions: [root]"))
    with pytest.raises(SystemExit, match=r"cluster\.yaml:\d+: special_permissions: there is no namespace for jobs"):
        load()
    monkeypatch.setenv("DLSPAWNER_SPECIAL_NAMESPACE", "dlspawner-jobs")
    with pytest.raises(SystemExit, match="cannot be that of ordinary jobs"):
        load()
    monkeypatch.setenv("DLSPAWNER_SPECIAL_NAMESPACE", "dlspawner-special")
    assert load().DLSpawner.special_namespace == "dlspawner-special"


APART = "c.KubeSpawner.enable_user_namespaces = True\n"
ALONE = 'c.DLSpawner.manager_url = ""\n'
PROFILES = 'c.KubeSpawner.profile_list = [{"display_name": "GPU"}]\n'


@pytest.mark.parametrize(
    ("more", "limits", "sentence"),
    [
        (APART, {"quota": {"a100": 1}}, "gives everybody a namespace, and the Manager counts jobs in one only"),
        (APART, {"user_caps": {"hard": 1}}, "gives everybody a namespace, and the Manager counts jobs in one only"),
        (ALONE, {"quota": {"a100": 1}}, "only a Manager counts what jobs hold: set DLSpawner.manager_url"),
        (ALONE, {"borrow_limit": 1}, "only a Manager counts what jobs hold: set DLSpawner.manager_url"),
        (PROFILES, {}, "templates take the place of KubeSpawner.profile_list"),
    ],
)
def test_what_would_have_no_effect_is_refused(config_dir: Path, more: str, limits: Any, sentence: str) -> None:
    (config_dir / "teams.yaml").write_text(yaml.safe_dump({"teams": {"default": limits}}))
    with pytest.raises(SystemExit, match=f"No job could be started: .*{sentence}"):
        load(LOGIN_BY_GITHUB + more)


@pytest.mark.parametrize("more", [APART, ALONE, f"{APART}c.DLSpawner.enable_user_namespaces = False\n"])
def test_without_limits_neither_a_manager_nor_one_namespace_is_needed(config_dir: Path, more: str) -> None:
    if more in {APART, ALONE}:
        (config_dir / "teams.yaml").write_text("teams: {default: {title: Everybody}}\n")
    load(LOGIN_BY_GITHUB + more)


def test_the_hub_does_not_start_without_an_authenticator(config_dir: Path) -> None:
    with pytest.raises(
        SystemExit, match=r"No login would be possible: set c\.JupyterHub\.authenticator_class in .*overrides"
    ):
        load()


def test_in_the_hub_of_zero_to_jupyterhub_the_chart_configures_the_same(
    config_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLSPAWNER_IMAGE", "dlspawner/job:0.1.0")
    monkeypatch.setenv("DLSPAWNER_SSH_IMAGE", "dlspawner/ssh:0.1.0")
    alone = load(LOGIN_BY_GITHUB)
    (config_dir / "overrides.py").unlink()
    for name in (*ENVIRONMENT, "DLSPAWNER_IMAGE", "DLSPAWNER_SSH_IMAGE"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "environ", {**os.environ, "POD_NAMESPACE": "dlspawner"})
    text = (ROOT / "hub_config" / "helm" / "dlspawner" / "values.yaml").read_text()
    text = text.replace("/srv/dlspawner", str(ROOT)).replace("/etc/dlspawner/config", str(config_dir))
    values = yaml.safe_load(text)["jupyterhub"]
    values["custom"]["ssh"]["host"] = "ssh.example.org"
    c = Config()  # what zero-to-jupyterhub's configuration has set before it runs extraConfig
    c.JupyterHub.update(authenticator_class="github", template_paths=[], allow_named_servers=True, base_url="/")
    c.KubeSpawner.update(uid=1000, fs_gid=100, mem_guarantee="1G", image="dlspawner/job:0.1.0")
    c.KubeSpawner.environment = {"EXTRA": "1"}
    z2jh = SimpleNamespace(get_name=str, get_secret_value={"hub.services.jobs.apiToken": "manager's token"}.get)
    monkeypatch.setitem(sys.modules, "z2jh", z2jh)
    exec(values["hub"]["extraConfig"]["00-dlspawner"], {"c": c, "get_config": values.get})  # noqa: S102 - as it does

    assert c.DLSpawner.pop("environment") == {"EXTRA": "1", **alone.DLSpawner.pop("environment")}
    assert c.KubeSpawner.pop("environment")
    assert (c.DLSpawner, c.Spawner, c.KubeSpawner) == (alone.DLSpawner, alone.Spawner, alone.KubeSpawner)
    theirs = {"bind_url", "hub_bind_url", "db_url", "upgrade_db", "services", "load_roles"}
    set_here = {name: value for name, value in alone.JupyterHub.items() if name not in theirs}
    assert {name: c.JupyterHub[name] for name in set_here} == set_here
    assert values["hub"]["services"].pop("prometheus") == {"display": False}, "of custom.monitoring"
    assert values["hub"]["loadRoles"].pop("prometheus")["scopes"] == ["read:metrics"]
    services = [{"name": name, **one} for name, one in values["hub"]["services"].items()]
    roles = [{"name": name, **one} for name, one in values["hub"]["loadRoles"].items()]
    for ours in alone.JupyterHub.services:
        del ours["api_token"]
    alone.JupyterHub.services[0]["url"] = "http://manager:8082"  # the proxy is in the same namespace
    assert (services, roles) == (alone.JupyterHub.services, alone.JupyterHub.load_roles)
    for name in ("concurrentSpawnLimit", "consecutiveFailureLimit"):
        assert values["hub"][name] == 0


TOKENS = """
c.JupyterHub.services[0]["api_token"] = "{0}-of-the-gateway"
c.JupyterHub.services.append({{"name": "{0}", "api_token": "{0}-of-its-own"}})
c.JupyterHub.load_roles.append({{"name": "own", "scopes": ["list:users"], "services": ["{0}"]}})
c.JupyterHub.api_tokens = {{"{0}-of-a-person": "admin"}}
"""


def test_a_token_that_is_no_longer_configured_is_revoked(tmp_path: Path) -> None:
    def ask(token: str, method: str = "GET", path: str = "users") -> requests.Response:
        headers = {"Authorization": f"token {token}"}
        return requests.request(method, f"{hub.url}/hub/api/{path}", headers=headers, timeout=30)

    def configured(word: str) -> list[int]:
        return [ask(f"{word}-of-{whose}").status_code for whose in ("the-gateway", "its-own", "a-person")]

    with running(Hub(tmp_path, extra=TOKENS.format("first")), cluster=False) as hub:
        own = ask("first-of-a-person", "POST", "users/admin/tokens").json()["token"]
        assert [*configured("first"), ask(own).status_code] == [200] * 4
        hub.extra = TOKENS.format("second")
        for _ in range(2):
            hub.stop("hub")
            hub.start_hub()
            assert configured("first") == [403] * 3
            assert [*configured("second"), ask(own).status_code] == [200] * 4


def test_templates_of_a_configmap_are_read(tmp_path: Path) -> None:
    """Kubernetes mounts its files as links into a directory that begins with two dots."""
    real = tmp_path / "..2026_11_21_05_00_00.1"
    shutil.copytree(ROOT / "templates" / "jobs", real)
    (tmp_path / "..data").symlink_to(real.name)
    for path in real.iterdir():
        (tmp_path / path.name).symlink_to(f"..data/{path.name}")
    config = ROOT / "hub_config"
    mounted = settings.load(tmp_path, config / "cluster.yaml", config / "teams.yaml")
    assert mounted == settings.load(ROOT / "templates" / "jobs", config / "cluster.yaml", config / "teams.yaml")


@pytest.mark.parametrize(
    ("file", "restarted"),
    [
        ("hub_config/kubernetes/overlays/demo/teams.yaml", set()),
        ("hub_config/kubernetes/overlays/demo/cluster.yaml", set()),
        ("hub_config/kubernetes/overlays/demo/overrides.py", {"hub"}),
        ("templates/jobs/ssh.yaml", set()),
        ("templates/proxy/error.html", set()),
    ],
)
def test_a_changed_file_restarts_only_what_reads_it_at_its_start(
    tmp_path: Path, file: str, restarted: set[str]
) -> None:
    def built() -> dict[str, Any]:
        command = ["kubectl", "kustomize", str(tmp_path / "hub_config" / "kubernetes" / "overlays" / "demo")]
        objects = yaml.safe_load_all(subprocess.run(command, capture_output=True, check=True).stdout)
        return {one["metadata"]["name"]: one["spec"] for one in objects if one["kind"] in {"Deployment", "StatefulSet"}}

    for folder in ("hub_config/kubernetes", "templates"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    before = built()
    with (tmp_path / file).open("a") as changed:
        changed.write("# a word more\n")
    assert {name for name, spec in built().items() if spec != before[name]} == restarted


def test_every_template_is_in_the_configmap() -> None:
    listed = yaml.safe_load((ROOT / "templates" / "kustomization.yaml").read_text())["configMapGenerator"][0]["files"]
    assert listed == [
        f"jobs/{path.name}" for path in sorted((ROOT / "templates" / "jobs").glob("*.yaml")) if not path.is_symlink()
    ]  # `make vscode` links one there


def test_the_files_of_the_demo_are_valid_with_every_optional_template(tmp_path: Path) -> None:
    demo = ROOT / "hub_config" / "kubernetes" / "overlays" / "demo"
    for folder in ("jobs", "optional"):
        shutil.copytree(ROOT / "templates" / folder, tmp_path, dirs_exist_ok=True)
    found = settings.load(tmp_path, demo / "cluster.yaml", demo / "teams.yaml")
    assert not [mount for team in found.teams.teams for mount in team.mounts], "no claim exists on a new cluster"
