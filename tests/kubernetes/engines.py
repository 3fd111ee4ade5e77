"""Real schedulers beside a real control plane: Volcano, coscheduling, and the scheduler of a later Kubernetes.

They run outside of the cluster, as its administrator. Their programs are built when a test first asks for one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.contract.client import Client
from tests.kubernetes import build, cluster, controlplane, planes
from tests.kubernetes.processes import Started, Starter
from tests.kubernetes.record import stop_process

KUBERNETES = "v1.37.2"  # that has gangs
COSCHEDULING = "coscheduling"  # the scheduler's name in pods
# A gang that was turned away is not woken by a pod that goes, only by a new one, or after this time (5 minutes).
_SCHEDULER_CONFIGURATION = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {{leaderElect: false}}
clientConnection: {{kubeconfig: "{kubeconfig}"}}
podInitialBackoffSeconds: 1
podMaxBackoffSeconds: 2
profiles:
- schedulerName: {name}
  plugins:
    multiPoint: {{enabled: [{{name: Coscheduling}}]}}
    queueSort: {{enabled: [{{name: Coscheduling}}], disabled: [{{name: "*"}}]}}
  pluginConfig:
  - name: Coscheduling
    args: {{permitWaitingTimeSeconds: 10}}
"""
_RETRY = "--pod-max-in-unschedulable-pods-duration=5s"
_VOLCANO_CONFIGURATION = """
actions: "enqueue, allocate, preempt, reclaim, backfill"
tiers:
- plugins: [{name: priority}, {name: gang, enablePreemptable: false}, {name: conformance}]
- plugins:
  - {name: drf, enablePreemptable: false}
  - {name: predicates}
  - {name: proportion}
  - {name: nodeorder}
  - {name: binpack}
"""

Commands = Mapping[str, list[str | Path]]


@dataclass
class Engine:
    """A scheduler beside one control plane; `kill` and `start` are a machine's that goes and comes back."""

    plane: planes.ControlPlane
    commands: Commands
    running: dict[str, Started] = field(default_factory=dict)

    @property
    def client(self) -> Client:
        return Client(self.plane.kubeconfig)

    def start(self) -> None:
        starter = Starter(self.plane.instance, cluster.record(self.plane.instance.number))
        for name, command in self.commands.items():
            self.running[name], _ = starter.start(name, command)

    def kill(self) -> None:
        for name, started in self.running.items():
            stop_process(started.pid, started.start, name, at_once=True)


def _coscheduling(folder: Path, plane: planes.ControlPlane) -> Commands:
    file = plane.instance.run / "coscheduling.yaml"
    file.write_text(_SCHEDULER_CONFIGURATION.format(kubeconfig=plane.kubeconfig, name=COSCHEDULING))
    return {"coscheduling": [folder / "coscheduling", f"--config={file}", "--secure-port=0", _RETRY]}


def _volcano(folder: Path, plane: planes.ControlPlane) -> Commands:
    file = plane.instance.run / "volcano.conf"
    file.write_text(_VOLCANO_CONFIGURATION)
    for namespace in ("volcano-system", "volcano-monitoring"):
        Client(plane.kubeconfig).create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    common = [f"--kubeconfig={plane.kubeconfig}", "--scheduler-name=volcano", "--leader-elect=false", "--logtostderr"]
    scheduler = [f"--scheduler-conf={file}", "--schedule-period=1s", "--cache-dumper=false", "--plugins-dir="]
    ports = ["--listen-address=127.0.0.1:0"]
    return {
        "volcano-scheduler": [folder / "scheduler", *common, *scheduler, *ports],
        "volcano-controllers": [folder / "controller-manager", *common],
    }


def _gang(folder: Path, plane: planes.ControlPlane) -> Commands:
    """The control plane goes on with a later API server, and the engine is its scheduler."""
    kept, commands = cluster.record(plane.instance.number), dict[str, list[str | Path]]()
    for entry in kept.entries():
        name = entry.get("name", "")
        if entry.pop("kind") == "process" and name in {"kube-apiserver", "kube-scheduler"}:
            flags = Path(f"/proc/{entry['pid']}/cmdline").read_text().split("\0")[1:-1]
            commands[name] = [folder / name, *flags, "--feature-gates=GenericWorkload=true"]
            stop_process(**entry)
    api = [*commands.pop("kube-apiserver"), "--runtime-config=scheduling.k8s.io/v1beta1=true"]
    started, _ = Starter(plane.instance, kept).start("kube-apiserver", api)
    controlplane.wait_for_api(plane.instance, started)
    return commands


_ENGINES: dict[str, tuple[build.Module, tuple[str, str] | None, Callable[[Path, planes.ControlPlane], Commands]]] = {
    "coscheduling": (
        build.Module("scheduler-plugins", "coscheduling", ("./coscheduling",)),
        ("sigs.k8s.io/scheduler-plugins", "config/crd/bases"),
        _coscheduling,
    ),
    "volcano": (
        build.Module(
            "volcano", "Volcano", ("volcano.sh/volcano/cmd/controller-manager", "volcano.sh/volcano/cmd/scheduler")
        ),
        ("volcano.sh/volcano", "config/crd/volcano/bases"),
        _volcano,
    ),
    "gang": (
        build.Module(
            "kubernetes-next",
            f"Kubernetes {KUBERNETES}",
            ("k8s.io/kubernetes/cmd/kube-apiserver", "k8s.io/kubernetes/cmd/kube-scheduler"),
            build.kubernetes_flags(KUBERNETES),
        ),
        None,
        _gang,
    ),
}


def install(name: str, plane: planes.ControlPlane) -> Engine:
    """The engine beside this control plane, which is to be discarded after that."""
    module, definitions, commands = _ENGINES[name]
    folder = build.built(module, cluster.quiet)
    if definitions:
        source, crds = definitions
        _define(Client(plane.kubeconfig), build.source(module, source, cluster.quiet) / crds)
    engine = Engine(plane, commands(folder, plane))
    engine.start()
    return engine


def uninstall(name: str, engine: Engine) -> None:
    """The engine's programs and definitions go, and all its objects with them; Kubernetes' own only stands idle."""
    if name == "gang":
        return
    engine.kill()
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for crd in engine.client.get(path)["items"]:
        engine.client.delete(f"{path}/{crd['metadata']['name']}")


def _define(client: Client, folder: Path) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for file in sorted(folder.glob("*.yaml")):
        for wanted in filter(None, yaml.safe_load_all(file.read_text())):
            client.create(path, wanted)
            client.until(f"{path}/{wanted['metadata']['name']}", established, "Established")


def established(crd: Mapping[str, Mapping[str, list[Mapping[str, str]]]]) -> bool:
    conditions = (crd.get("status") or {}).get("conditions") or []
    return any((one["type"], one["status"]) == ("Established", "True") for one in conditions)
