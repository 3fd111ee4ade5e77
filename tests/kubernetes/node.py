"""The node: containerd, the kubelet and kube-proxy in network and mount namespaces of their own. Needs root.

kubelet, containerd and CNI write to fixed places (/var/lib/cni, /var/lib/kubelet/device-plugins, /var/log/containers,
/run/xtables.lock), so the node has its own /run and an overlay on /var; / is shared inside it, as the kubelet wants it.
A process that sleeps (the *holder*) keeps both namespaces: with the last process of the node they are gone, and with
them every mount, rule, route and the link. This machine keeps nothing of it.

cgroups of version 1 are what this is tested with; version 2 follows the kernel's documentation and is untested.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.contract.client import Client
from tests.kubernetes.build import Binaries, run
from tests.kubernetes.instance import GPU_LABELS, GPUS, CannotRun, Instance, in_url
from tests.kubernetes.packages import Programs
from tests.kubernetes.processes import Started, Starter
from tests.kubernetes.record import CGROUPS, Record, cgroup_folders, start_time, stop_process, write_setting

PAUSE = "localhost/pause:1"

PATIENCE = 60.0
KUBELET_STARTS = 10
# The kubelet sets these for the whole machine.
SETTINGS = (
    *("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"),
    *("kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"),
)
_HOLD = """
set -e
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/netns /run/containerd
mount -t overlay overlay -o lowerdir=/var,upperdir="$1/up",workdir="$1/work" /var
mount --make-rshared /
echo 1 >/proc/sys/net/ipv4/ip_forward
[ ! -e /proc/sys/net/ipv6/conf/all/forwarding ] || echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
echo ready
exec sleep infinity >/dev/null
"""


@dataclass(frozen=True, slots=True)
class Node:
    """The node of one instance; also for tests that stop it and start it again."""

    instance: Instance
    binaries: Binaries
    programs: Programs
    record: Record

    @property
    def starter(self) -> Starter:
        """Pids are all that must be counted to find a process again; pods have cgroups in every hierarchy."""
        folders = cgroup_folders(self.instance.name)
        counting = next((folder for folder in folders if folder.parent.name == "pids"), folders[0])
        return Starter(self.instance, self.record, counting / "programs")

    @property
    def socket(self) -> Path:
        return self.instance.run / "containerd.sock"

    def prepare(self) -> None:
        """cgroups, kernel settings to put back, namespaces and the link to them."""
        self.record.add("cgroup", name=self.instance.name)
        make_cgroups(self.instance.name)
        for setting in SETTINGS:
            path = Path("/proc/sys") / setting
            if path.exists():
                self.record.add("setting", path=str(path), value=path.read_text())
        var = self.instance.run / "var"
        for name in ("up", "work"):
            (var / name).mkdir(parents=True, exist_ok=True)
        unshare = ["unshare", "--mount", "--net", "--propagation", "private", "sh", "-c", _HOLD, "sh", var]
        holder, process = self.starter.start("holder", unshare, stdout=subprocess.PIPE)
        assert process.stdout
        with process.stdout as pipe:
            if pipe.readline() != b"ready\n":
                raise CannotRun(f"The node's namespaces cannot be made: {holder.log.read_text().strip()}")
        self._connect(holder.pid)

    def _connect(self, holder: int) -> None:
        at = self.instance
        self.record.add("link", name=at.link)
        unique = " nodad" if at.ipv6 else ""  # an address is used at once, not after a search for others that have it
        for command in (
            f"link add {at.link} type veth peer name eth0 netns {holder}",
            f"address add {at.host_ip}/{at.prefix} dev {at.link}{unique}",
            f"link set {at.link} up",
        ):
            run(["ip", *command.split()])
        for command in (
            *("link set lo up", f"address add {at.node_ip}/{at.prefix} dev eth0{unique}", "link set eth0 up"),
            *(f"route add default via {at.host_ip}", "route add unreachable 169.254.0.0/16"),
        ):
            run(["nsenter", "--target", str(holder), "--net", "ip", *command.split()])
        for network in (at.pod_cidr, at.service_cidr):
            run(["ip", "route", "add", network, "via", at.node_ip])

    def _running(self, name: str) -> list[dict[str, Any]]:
        """The processes of a program of the node."""
        entries = (one for one in self.record.entries() if one["kind"] == "process" and one["name"] == name)
        return [one for one in entries if start_time(one["pid"]) == one["start"]]

    def _inside(self, *command: str | Path) -> list[str | Path]:
        if not (holder := self._running("holder")):
            raise CannotRun(f"The node of {self.instance.name} does not run.")
        return ["nsenter", "--target", str(holder[0]["pid"]), "--mount", "--net", *command]

    def _start(self, name: str, *command: str | Path) -> Started:
        return self.starter.start(name, self._inside(*command), env=self.programs.environment())[0]

    def ctr_command(self, *arguments: str | Path) -> list[str | Path]:
        """containerd's own client, where Kubernetes' images are."""
        client = [self.programs.path("ctr"), "--address", self.socket, "--namespace", "k8s.io"]
        return self._inside(*client, *arguments)

    def ctr(self, *arguments: str | Path) -> str:
        return run(self.ctr_command(*arguments), env=self.programs.environment())

    def start_runtime(self) -> None:
        """containerd."""
        self._configure_network()
        config = self.instance.run / "containerd.toml"
        config.write_text(containerd_config(self.instance, self.programs, self.socket))
        containerd = self._start("containerd", self.programs.path("containerd"), "--config", config)
        containerd.until(self._runtime_answers, PATIENCE)

    def _runtime_answers(self) -> bool:
        try:
            self.ctr("version")
        except CannotRun:
            return False
        return True

    def _configure_network(self) -> None:
        """Pods are on one bridge; routes lead to them from this machine, and none leads out of it."""
        addresses = {"type": "host-local", "dataDir": str(self.instance.run / "addresses")}
        ranges = {"ranges": [[{"subnet": self.instance.pod_cidr}]], "routes": [{"dst": self.instance.anywhere}]}
        bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "hairpinMode": True}
        ports = {"type": "portmap", "capabilities": {"portMappings": True}}
        folder = self.instance.run / "cni"
        folder.mkdir(parents=True, exist_ok=True)
        network = {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge | {"ipam": addresses | ranges}, ports]}
        (folder / "10-pods.conflist").write_text(json.dumps(network))

    def start_kubelet(self, **other: object) -> None:
        """The kubelet, with `other` settings, and kube-proxy, and the GPUs that this machine does not have."""
        at = self.instance
        (at.run / "resolv.conf").touch()  # pods know the cluster's names and nothing else
        kubelet, proxy = at.run / "kubelet.yaml", at.run / "kube-proxy.yaml"
        kubelet.write_text(yaml.safe_dump(kubelet_config(at, self.socket) | other))
        labels = ",".join(f"{key}={value}" for key, value in GPU_LABELS.items())
        # before the API server stops, which otherwise waits for the pods' connections
        self.record.add("pods", name=f"{at.name}/kubepods")
        command = [
            *(self.binaries.path("kubelet"), f"--config={kubelet}", f"--node-labels={labels}", "--v=1"),
            *(f"--kubeconfig={at.kubeconfig('kubelet')}", f"--root-dir={at.run / 'kubelet'}"),
            *(f"--hostname-override={at.node_name}", f"--node-ip={at.node_ip}"),
        ]
        if not self._running("kube-proxy"):  # it ends when its file is written once more
            proxy.write_text(yaml.safe_dump(proxy_config(at)))
            self._start("kube-proxy", self.binaries.path("kube-proxy"), f"--config={proxy}")
        client = Client(at.kubeconfig())
        path = f"/api/v1/nodes/{at.node_name}"
        self._until_ready(command, lambda: _ready(client, path))
        amounts = {"nvidia.com/gpu": str(GPUS)}
        status = {"status": {"capacity": amounts, "allocatable": amounts}}
        for entry in self.record.entries():
            if entry["kind"] == "setting":  # the kubelet sets them when it starts, and they are not ours
                write_setting(entry["path"], entry["value"])
        client.patched(f"{path}/status", status, kind="merge")

    def _until_ready(self, command: Sequence[str | Path], ready: Callable[[], bool]) -> None:
        """A kubelet ends where containerd answers and its CRI does not yet: it is started again, as services are."""
        for attempt in range(KUBELET_STARTS):
            started = self._start("kubelet", *command)
            try:
                started.until(ready, PATIENCE, "the node is not Ready")
            except CannotRun:
                if started.alive() or attempt == KUBELET_STARTS - 1:
                    raise
            else:
                return

    def kill(self, *names: str) -> None:
        """Kill programs of the node as a crash would; pods go on."""
        for name in names:
            for entry in self._running(name):
                stop_process(entry["pid"], entry["start"], name, at_once=True)


def _ready(client: Client, path: str) -> bool:
    answer = client.request("GET", path)
    conditions = answer.json.get("status", {}).get("conditions", []) if answer.code == 200 else []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def make_cgroups(name: str) -> None:
    """The kubelet wants its root to exist in every hierarchy; programs get a cgroup beside the pods'."""
    for folder in cgroup_folders(name):
        if folder.parent == CGROUPS:  # version 2: controllers are handed down, and only leaves hold processes
            controllers = " ".join(f"+{each}" for each in (CGROUPS / "cgroup.controllers").read_text().split())
            (CGROUPS / "cgroup.subtree_control").write_text(controllers)
            folder.mkdir(exist_ok=True)
            (folder / "cgroup.subtree_control").write_text(controllers)
        folder.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if folder.parent.name == "cpuset":
                (folder / setting).write_text((folder.parent / setting).read_text())
        (folder / "programs").mkdir(exist_ok=True)


def containerd_config(instance: Instance, programs: Programs, socket: Path) -> str:
    return f"""version = 2
root = "{instance.state / "containerd"}"
state = "{instance.run / "containerd"}"
oom_score = 0
disabled_plugins = [{", ".join(f'"io.containerd.snapshotter.v1.{name}"' for name in ("btrfs", "zfs", "devmapper"))}]
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{instance.run / "opt"}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  disable_hugetlb_controller = true
  tolerate_missing_hugetlb_controller = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{programs.cni}"
    conf_dir = "{instance.run / "cni"}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "{programs.path("runc")}"
      SystemdCgroup = false
"""


def kubelet_config(instance: Instance, socket: Path) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": instance.node_ip,
        "authentication": {"anonymous": {"enabled": False}, "x509": {"clientCAFile": str(instance.certificate("ca"))}},
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(instance.certificate("kubelet")),
        "tlsPrivateKeyFile": str(instance.key("kubelet")),
        "containerRuntimeEndpoint": f"unix://{socket}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{instance.name}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,  # anything lower needs CAP_SYS_RESOURCE
        "resolvConf": str(instance.run / "resolv.conf"),
        "clusterDomain": "cluster.local",
        "clusterDNS": [instance.dns_ip],
        "podLogsDir": str(instance.run / "podlogs"),
        "volumePluginDir": str(instance.run / "volumeplugins"),
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,  # nothing could be pulled again
        "imageGCLowThresholdPercent": 99,
        "nodeStatusUpdateFrequency": "2s",
    }


def proxy_config(instance: Instance) -> dict[str, object]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clientConnection": {"kubeconfig": str(instance.kubeconfig("kube-proxy"))},
        "clusterCIDR": instance.pod_cidr,
        "hostnameOverride": instance.node_name,
        "bindAddress": instance.node_ip,
        "healthzBindAddress": f"{in_url(instance.node_ip)}:10256",
        "oomScoreAdj": 0,
        # these settings are the machine's, not the node's
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "iptables": {"minSyncPeriod": "0s", "syncPeriod": "30s"},
    }
