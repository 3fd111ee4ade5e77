"""hub_config/helm/dlspawner: that Helm renders what the tested manifests say, and that the API server takes it.

What the Hub makes of the values is in tests/component/test_wiring.py.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dlspawner import settings
from tests.contract.client import Client
from tests.kubernetes import build, helm
from tests.kubernetes.cluster import quiet
from tests.kubernetes.conftest import BASE, Kubectl
from tests.kubernetes.engines import established
from tests.kubernetes.instance import HERE, CannotRun
from tests.kubernetes.manifests import JOBS, PRODUCT, Object, as_list, of_kind

pytestmark = pytest.mark.kubernetes

Found = dict[tuple[str, str, str], Object]
DNS = [
    {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    },
    {"ipBlock": {"cidr": "169.254.20.10/32"}},
]


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    made = helm.whole_chart(tmp_path)
    (made / "jobs" / "vscode.yaml").write_text("of `make vscode`, and no part of the chart")
    return made


def by_name(objects: Iterable[Object]) -> Found:
    """Objects by kind, namespace and name; what Helm leaves out is in the release's namespace."""
    cluster = {"Namespace", "PriorityClass", "ClusterRole", "ClusterRoleBinding"}
    found = {}
    for one in objects:
        namespace = "" if one["kind"] in cluster else one["metadata"].setdefault("namespace", PRODUCT)
        found[one["kind"], namespace, one["metadata"]["name"]] = one
    return found


def labels(name: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "dlspawner"}


def expected(base: Found) -> Found:
    """The tested manifests with what differs beside zero-to-jupyterhub, and why."""
    text = json.dumps(list(base.values()))
    for name in ("hub", "proxy"):  # are zero-to-jupyterhub's pods
        theirs = {"app.kubernetes.io/component": name, "app.kubernetes.io/instance": "r"}
        text = text.replace(json.dumps({"matchLabels": labels(name)}), json.dumps({"matchLabels": theirs}))
    for name, service in (("manager", "jobs"), ("gateway", "ssh-gateway")):  # tokens are in its Secret
        ours, key = {"key": "token", "name": f"{name}-token"}, f"hub.services.{service}.apiToken"
        assert json.dumps(ours) in text
        text = text.replace(json.dumps(ours), json.dumps({"key": key, "name": "hub"}))
    for ours, value in (
        ({"name": "DLSPAWNER_SSH_HOST", "value": "gateway"}, "ssh.example.org"),
        ({"name": "DLSPAWNER_PUBLIC_URL", "value": "http://proxy/"}, "https://jobs.example.org/"),
    ):
        text = text.replace(json.dumps(ours), json.dumps({**ours, "value": value}))
    found = by_name(json.loads(text))
    for kind, namespace, name in list(found):
        proxy_or_hub = name in {"proxy", "proxy-api", "hub", "proxy-pages"} and namespace != JOBS
        if proxy_or_hub or (kind, name) == ("Namespace", PRODUCT):
            del found[kind, namespace, name]
    for name in ("default-deny", "dns", "bootstrap"):  # would hold for zero-to-jupyterhub's pods as well
        del found["NetworkPolicy", PRODUCT, name]
    del found["NetworkPolicy", JOBS, "ssh-from-nodes"]  # a part of `ssh`
    dns = {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}], "to": DNS}
    for name in ("manager", "gateway"):
        found["NetworkPolicy", PRODUCT, name]["spec"]["egress"].insert(0, dns)
        pod = found["Deployment", PRODUCT, name]["spec"]["template"]["metadata"]
        pod["labels"]["hub.jupyter.org/network-access-hub"] = "true"
    env = found["Deployment", PRODUCT, "manager"]["spec"]["template"]["spec"]["containers"][0]["env"]
    public = {"name": "JUPYTERHUB_PUBLIC_URL", "value": "https://jobs.example.org/services/jobs/"}  # a value is needed
    env.insert(1 + [one["name"] for one in env].index("JUPYTERHUB_BASE_URL"), public)
    database = {"ports": [{"port": 5432, "protocol": "TCP"}]}
    found["NetworkPolicy", PRODUCT, "manager"]["spec"]["egress"].append(database)
    found["Service", PRODUCT, "gateway"]["spec"]["type"] = "LoadBalancer"
    job = found["Job", PRODUCT, "bootstrap"] = found.pop(("Job", PRODUCT, "bootstrap"))
    job["spec"]["template"]["spec"]["containers"][0]["command"].append("--only=gateway-keys")
    found["Namespace", "", JOBS]["metadata"]["annotations"] = {"helm.sh/resource-policy": "keep"}
    return found


def test_the_chart_says_what_the_manifests_say(chart: Path, kubectl: Kubectl) -> None:
    base = expected(by_name(yaml.safe_load_all(kubectl("kustomize", str(BASE)))))
    theirs = {"app.kubernetes.io/name": "jupyterhub"}
    found = by_name(
        one for one in helm.rendered(chart) if not theirs.items() <= one["metadata"].get("labels", {}).items()
    )
    job = found["Job", PRODUCT, "bootstrap"] = found.pop(("Job", PRODUCT, "bootstrap-1"))
    job["metadata"]["name"] = "bootstrap"
    database = found["Deployment", PRODUCT, "manager"]["spec"]["template"]["metadata"].pop("annotations")
    assert database.keys() == {"dlspawner.dev/database"}, "another database is a restart"
    del found["ConfigMap", PRODUCT, "cluster-config"], found["Secret", PRODUCT, "manager-database"]
    assert found.keys() == base.keys()
    for name, one in found.items():
        assert one == base[name], name


def test_monitoring_is_that_of_the_manifests(chart: Path, kubectl: Kubectl, tmp_path: Path) -> None:
    grafana = tmp_path / "hub_config" / "grafana"
    shutil.copytree(BASE.parents[1] / "grafana", grafana)
    (grafana.parent / "kustomization.yaml").write_text("components: [grafana]\n")
    base = by_name(yaml.safe_load_all(kubectl("kustomize", str(grafana.parent))))
    monitoring = {"enabled": True, "labels": {"release": "p"}, "runbooks": "https://pages.example.org/"}
    found = by_name(helm.rendered(chart, {**helm.NEEDED, "monitoring": monitoring}))
    assert found.keys() >= base.keys()
    for key, one in base.items():
        if one["kind"] == "ConfigMap":
            assert found[key]["data"] == one["data"]
        else:
            assert found[key]["metadata"]["labels"] == {"release": "p"}
            assert found[key]["spec"].keys() == one["spec"].keys()
    (endpoint,) = found["PodMonitor", PRODUCT, "hub"]["spec"]["podMetricsEndpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "hub", "key": "hub.services.prometheus.apiToken"}
    rule = found["PrometheusRule", PRODUCT, "dlspawner"]["spec"]["groups"][0]["rules"][0]
    assert rule["annotations"]["runbook_url"] == "https://pages.example.org/RUNBOOK.md#dlspawnernoleader"


@pytest.fixture
def monitoring_kinds(kubernetes: Client) -> Iterator[None]:
    """The Prometheus operator's definitions, from its Go module; those that were not there go again."""
    go, source = build.find_go(quiet), "github.com/prometheus-operator/prometheus-operator"
    folder = HERE / "go" / "monitoring"
    found = json.loads(build.run([go, "mod", "download", "-json", source], folder=folder))
    path, made = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", []
    for kind in ("podmonitors", "prometheusrules"):
        file = Path(found["Dir"], "example", "prometheus-operator-crd", f"monitoring.coreos.com_{kind}.yaml")
        if kubernetes.request("POST", path, yaml.load(file.read_text(), yaml.CSafeLoader)).code == 201:
            made.append(f"{path}/{kind}.monitoring.coreos.com")
            kubernetes.until(made[-1], established, "Established")
    yield
    for one in made:
        kubernetes.delete(one)


@pytest.mark.usefixtures("monitoring_kinds")
def test_the_prometheus_operator_takes_monitors_and_alerts(chart: Path, kubectl: Kubectl) -> None:
    found = helm.rendered(chart, {**helm.NEEDED, "monitoring": {"enabled": True}})
    objects = of_kind(found, "PodMonitor", "PrometheusRule")
    assert len(objects) == 4
    for one in objects:
        one["metadata"]["namespace"] = "default"
    kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", input=as_list(objects))


def test_values_become_files_that_the_product_takes(chart: Path, tmp_path: Path) -> None:
    cluster = {**helm.NEEDED["cluster"], "special_permissions": ["root"], "scheduler": {"name": "kueue"}}
    templates = {"shell": yaml.safe_load((BASE.parents[2] / "templates" / "jobs" / "ssh.yaml").read_text())}
    cluster["defaults"] = {"template": "shell"}
    custom = {**helm.NEEDED, "cluster": cluster, "templates": templates, "nodeAddresses": ["10.1.2.3/32"]}
    found = by_name(helm.rendered(chart, custom))
    (tmp_path / "jobs").mkdir()
    for name, folder in (("cluster-config", tmp_path), ("job-templates", tmp_path / "jobs")):
        for file, text in found["ConfigMap", PRODUCT, name]["data"].items():
            (folder / file).write_text(text)
    files = tmp_path / "jobs", tmp_path / "cluster.yaml", tmp_path / "teams.yaml"
    taken = settings.load(*files, special_namespace="dlspawner-jobs-special")
    assert [one.name for one in taken.templates] == ["shell"]
    assert found["Namespace", "", "dlspawner-jobs-special"]["metadata"]["labels"]["dlspawner.dev/special-permissions"]
    ordinary, special = (
        {
            (kind, name): one.get("spec", one.get("rules"))
            for (kind, where, name), one in found.items()
            if where == there
        }
        for there in (JOBS, f"{JOBS}-special")
    )
    assert ordinary == special
    (access,) = found["NetworkPolicy", JOBS, "ssh"]["spec"]["ingress"]
    assert access["from"][-1] == {"ipBlock": {"cidr": "10.1.2.3/32"}}
    rules = found["Role", JOBS, "manager"]["rules"]
    assert any("kueue.x-k8s.io" in rule["apiGroups"] for rule in rules)


def test_manager_and_gateway_are_below_the_hub_s_base_url(chart: Path) -> None:
    custom = {**helm.NEEDED, "publicUrl": "https://jobs.example.org/lab/gpu/"}
    found = json.dumps(helm.rendered(chart, custom, hub={"baseUrl": "/lab/gpu/"}))
    for address in ("/services/jobs", "/hub/api"):
        assert found.count(f"/lab/gpu{address}") == found.count(address) > 0, address
    assert '{"name": "JUPYTERHUB_BASE_URL", "value": "/lab/gpu/"}' in found


@pytest.mark.parametrize(
    ("where", "ports"),
    [
        ("db:6432/manager", [6432]),
        ("db-1/manager", [5432]),
        ("/manager?host=one,two&port=5432,6432&target_session_attrs=read-write", [5432, 6432]),
        ("/manager?host=one,two&target_session_attrs=read-write", [5432]),
        ("/manager?host=one:6432&host=two:6433&target_session_attrs=read-write", [6432, 6433]),
        ("/manager?host=one:6432&host=two", [6432, 5432]),
        ("/manager?host=db-1", [5432]),
    ],
)
def test_the_manager_may_reach_every_server_of_the_database_url(chart: Path, where: str, ports: list[int]) -> None:
    url = f"postgresql+psycopg://manager:secret@{where}"
    found = by_name(helm.rendered(chart, {**helm.NEEDED, "databaseUrl": url}))
    egress = found["NetworkPolicy", PRODUCT, "manager"]["spec"]["egress"]
    assert [one["port"] for one in egress[-1]["ports"]] == ports


def test_product_pods_run_and_pull_as_the_values_say(chart: Path) -> None:
    only = {"nodeSelector": {"pool": "system"}, "tolerations": [{"key": "system", "operator": "Exists"}]}
    near = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}}
    custom = {**helm.NEEDED, **only, "gateway": {"affinity": near}}
    secrets = {"imagePullSecrets": ["a", {"name": "b"}], "imagePullSecret": {"create": True}}
    found = by_name(helm.rendered(chart, custom, **secrets))
    names = (("Deployment", "gateway"), ("Deployment", "manager"), ("Job", "bootstrap-1"))
    for spec in (found[kind, PRODUCT, name]["spec"]["template"]["spec"] for kind, name in names):
        assert only.items() <= spec.items()
        assert [one["name"] for one in spec["imagePullSecrets"]] == ["image-pull-secret", "a", "b"]
    assert found["Deployment", PRODUCT, "gateway"]["spec"]["template"]["spec"]["affinity"] == near


def test_manager_and_gateway_have_the_environment_of_the_values(chart: Path) -> None:
    of_node = {"valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}
    found = by_name(helm.rendered(chart, {**helm.NEEDED, "extraEnv": {"B": "http://b:1", "A": of_node}}))
    for name in ("manager", "gateway"):
        (container,) = found["Deployment", PRODUCT, name]["spec"]["template"]["spec"]["containers"]
        assert container["env"][-2:] == [{"name": "A", **of_node}, {"name": "B", "value": "http://b:1"}]


@pytest.mark.parametrize(
    ("custom", "jupyterhub", "path"),
    [
        ({"databaseUrl": ""}, {}, "/jupyterhub/custom/databaseUrl"),
        (
            {"publicUrl": "https://jobs.example.org/other/"},
            {"hub": {"baseUrl": "/lab/"}},
            "custom.publicUrl must end with",
        ),
        ({"namespace": "dlspawner"}, {}, "custom.namespace must be another one"),
        ({}, {"singleuser": {"profileList": [{"display_name": "Small"}]}}, "/jupyterhub/singleuser/profileList"),
        ({"publicURL": "https://jobs.example.org/"}, {}, "publicURL"),
        ({"teams": {"teams": {}}}, {}, "/jupyterhub/custom/teams/teams"),
        ({}, {"cull": {"enabled": True}}, "/jupyterhub/cull/enabled"),
        ({}, {"hub": {"consecutiveFailureLimit": 5}}, "/jupyterhub/hub/consecutiveFailureLimit"),
        ({}, {"scheduling": {"userScheduler": {"enabled": True}}}, "/jupyterhub/scheduling/userScheduler/enabled"),
    ],
)
def test_a_value_that_cannot_work_is_named(
    chart: Path, custom: dict[str, Any], jupyterhub: dict[str, Any], path: str
) -> None:
    with pytest.raises(CannotRun, match=path):
        helm.run("template", chart, {**helm.NEEDED, **custom}, **jupyterhub)


def test_helm_lints_the_chart_and_the_api_server_takes_every_object(
    chart: Path, kubectl: Kubectl, kubernetes: Client
) -> None:
    assert "0 chart(s) failed" in helm.run("lint", chart, helm.NEEDED, "--strict")
    with kubernetes.namespace("chart", {}) as product, kubernetes.namespace("chart-jobs", {}) as jobs:
        objects = copy.deepcopy(helm.rendered(chart, {**helm.NEEDED, "namespace": jobs}))
        for one in objects:
            if one["kind"] not in {"Namespace", "PriorityClass", "ClusterRole", "ClusterRoleBinding"}:
                one["metadata"].setdefault("namespace", product)
        names = [one["metadata"]["name"] for one in of_kind(objects, "Deployment")]
        assert sorted(names) == ["gateway", "hub", "manager", "proxy"]
        arguments = ("--server-side", "--force-conflicts", "--dry-run=server", "--warnings-as-errors")
        kubectl("apply", *arguments, "-f", "-", input=as_list(objects))
