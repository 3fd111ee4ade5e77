"""etcd, the API server, the controller manager and the scheduler. Needs no root.

The controller manager and the scheduler serve nothing (--secure-port=0): less to listen on, and what they do shows that
they are there. The front proxy's CA is there because without one they log errors.
"""

from __future__ import annotations

import contextlib

from tests.contract.client import Client
from tests.e2e.people import answers
from tests.kubernetes.build import Binaries
from tests.kubernetes.instance import Instance
from tests.kubernetes.processes import Started, Starter

ETCD_PATIENCE = 30.0
API_PATIENCE = 90.0


def start_storage(instance: Instance, binaries: Binaries, starter: Starter) -> None:
    """etcd, without fsync: what it keeps is not worth a disk's time."""
    client, peer = (f"http://127.0.0.1:{port}" for port in (instance.etcd_port, instance.etcd_peer_port))
    etcd, _ = starter.start(
        "etcd",
        [
            *(binaries.path("etcd"), "--name", instance.name, "--data-dir", instance.run / "etcd", "--unsafe-no-fsync"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"{instance.name}={peer}"),
        ],
    )
    etcd.until(lambda: answers(f"{client}/health"), ETCD_PATIENCE)


def start_api(instance: Instance, binaries: Binaries, starter: Starter) -> Started:
    """The API server, on its way; ready(instance) tells when it is there."""
    advertised = f"--advertise-address={instance.api_ip}" if instance.node else "--endpoint-reconciler-type=none"
    api, _ = starter.start(
        "kube-apiserver",
        [
            binaries.path("kube-apiserver"),
            f"--etcd-servers=http://127.0.0.1:{instance.etcd_port}",
            *(f"--bind-address={instance.api_ip}", f"--secure-port={instance.api_port}", advertised),
            *(f"--tls-cert-file={instance.certificate('apiserver')}",),
            *(f"--tls-private-key-file={instance.key('apiserver')}",),
            f"--client-ca-file={instance.certificate('ca')}",
            f"--kubelet-client-certificate={instance.certificate('apiserver-kubelet-client')}",
            f"--kubelet-client-key={instance.key('apiserver-kubelet-client')}",
            *([f"--kubelet-certificate-authority={instance.certificate('ca')}"] if instance.node else []),
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={instance.run / 'pki' / 'accounts.pub'}",
            f"--service-account-signing-key-file={instance.key('accounts')}",
            *("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged"),
            f"--requestheader-client-ca-file={instance.certificate('front-proxy-ca')}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={instance.certificate('front-proxy-client')}",
            f"--proxy-client-key-file={instance.key('front-proxy-client')}",
            # Without a node, a Service of an aggregated API is a name for this machine, not a pod's address.
            *(["--enable-aggregator-routing"] if instance.node else []),
            f"--service-cluster-ip-range={instance.service_cidr}",
        ],
    )
    return api


def start_controllers(instance: Instance, binaries: Binaries, starter: Starter) -> None:
    """The controller manager and the scheduler, once the API server answers."""
    for name, flags in {
        "kube-controller-manager": [
            "--use-service-account-credentials",
            f"--root-ca-file={instance.certificate('ca')}",
            f"--service-account-private-key-file={instance.key('accounts')}",
            f"--cluster-signing-cert-file={instance.certificate('ca')}",
            f"--cluster-signing-key-file={instance.key('ca')}",
            f"--flex-volume-plugin-dir={instance.run / 'volumeplugins'}",
        ],
        "kube-scheduler": [],
    }.items():
        kubeconfig = instance.kubeconfig(name)
        common = [
            *(f"--kubeconfig={kubeconfig}", f"--authentication-kubeconfig={kubeconfig}"),
            *(f"--authorization-kubeconfig={kubeconfig}", "--leader-elect=false", "--secure-port=0"),
        ]
        starter.start(name, [binaries.path(name), *common, *flags])


def wait_for_api(instance: Instance, api: Started) -> None:
    client = Client(instance.kubeconfig())

    def ready() -> bool:
        with contextlib.suppress(OSError):
            return client.request("GET", "/readyz").code == 200
        return False

    api.until(ready, API_PATIENCE)
