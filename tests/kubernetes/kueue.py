"""Kueue beside a control plane: its own manifests, its own roles, and its program as a process of this machine.

Webhooks and the visibility API are reached at 127.0.0.1. Kueue's certificate rotator accepts a certificate that it did
not make if the CA is called and encoded as its own would be. The visibility API has the port 8082, whatever is
configured (0.15), and reads a service account's files at their fixed place: a mount namespace of its own holds them.
So one runs on a machine at a time, and a second one waits.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from tests.e2e.people import answers, wait_for
from tests.harness.ports import free_port
from tests.kubernetes import build, certificates
from tests.kubernetes.cluster import quiet
from tests.kubernetes.instance import cache
from tests.kubernetes.manifests import as_list
from tests.kubernetes.planes import ControlPlane

VERSION = "v0.15.0"
MODULE = build.Module(
    "kueue",
    f"Kueue {VERSION}",
    ("sigs.k8s.io/kueue/cmd/kueue",),
    "-X sigs.k8s.io/kueue/pkg/visibility.certDir=visibility",
)
NAMESPACE = "kueue-system"
_VISIBILITY_PORT = 8082
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
# Kueue finds its service account's files at their place, and nothing else of this machine changes.
_WITH_ACCOUNT = f'mount -t tmpfs tmpfs /run && mkdir -p {_ACCOUNT} && cp "$1"/* {_ACCOUNT}/ && shift && exec "$@"'
_NO_FINALIZERS = '{"metadata": {"finalizers": null}}'
_SERVICE = f"kueue-webhook-service.{NAMESPACE}.svc"


@dataclass
class Kueue:
    """One that may be killed and started again; `CPU` and memory count as any resource does."""

    plane: ControlPlane
    state: Path
    webhook_port: int = field(default_factory=free_port)
    health_port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def install(self) -> None:
        """Definitions, roles, webhooks and the visibility API."""
        certificates_of(self.state / "certs")
        source = build.source(MODULE, "sigs.k8s.io/kueue", quiet)
        rendered = build.run([self._kubectl, "kustomize", source / "config" / "default"])
        made = [self._local(one) for one in yaml.load_all(rendered, Loader=yaml.CSafeLoader) if one]
        made = sorted((one for one in made if one), key=lambda one: one["kind"] != "Namespace")
        secret = {file.name: file.read_text() for file in (self.state / "certs").iterdir()}
        metadata = {"name": "kueue-webhook-server-cert", "namespace": NAMESPACE}
        made.append({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": secret})
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", given=as_list(made))
        self.kubectl("wait", "--for=condition=Established", "crd/workloads.kueue.x-k8s.io", "--timeout=30s")

    def start(self) -> None:
        """Runs until `stop`; returns when webhooks and visibility API answer."""
        instance, account = self.plane.instance, self.state / "account"
        account.mkdir(exist_ok=True)
        (account / "token").write_text(
            self.kubectl("-n", NAMESPACE, "create", "token", "kueue-controller-manager").strip()
        )
        (account / "namespace").write_text(NAMESPACE)
        shutil.copy(instance.certificate("ca"), account / "ca.crt")
        (self.state / "config.yaml").write_text(yaml.safe_dump(self._configuration()))
        isolated = ["unshare", "-m" if os.geteuid() == 0 else "-rm", "--propagation", "private"]
        program = build.built(MODULE, quiet) / "kueue"
        command = [*isolated, "sh", "-c", _WITH_ACCOUNT, "-", account, program]
        command += [f"--config={self.state / 'config.yaml'}"]
        env = os.environ | {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(instance.api_port)}
        with (self.state / "kueue.log").open("ab") as log:
            self.process = subprocess.Popen(list(map(str, command)), cwd=self.state, env=env, stdout=log, stderr=log)
        health = f"http://127.0.0.1:{self.health_port}/readyz"

        def ready() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, (self.state / "kueue.log").read_text()[-2000:]
            return answers(health)

        wait_for(ready, "Kueue is ready", 60)
        self.kubectl(
            "wait", "--for=condition=Available", "apiservice/v1beta2.visibility.kueue.x-k8s.io", "--timeout=60s"
        )

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(30)
            self.process = None

    def uninstall(self) -> None:
        """As its documentation says: what is its own while it still lets objects go, then the controllers."""
        self._delete_definitions("--timeout=60s")
        self.stop()

    def uninstall_controllers_first(self) -> None:
        """Its objects are never let go then, until `take_finalizers_off`."""
        self.stop()
        self._delete_definitions("--wait=false")

    def take_finalizers_off(self) -> None:
        """By the version in which they are kept: without the controllers no other one can be read."""
        for kind in ("clusterqueues", "resourceflavors"):
            for name in self.kubectl("get", f"{kind}.v1beta1.kueue.x-k8s.io", "-o", "name").split():
                self.kubectl("patch", name.replace(".", ".v1beta1.", 1), "--type=merge", "-p", _NO_FINALIZERS)

    def _delete_definitions(self, *how: str) -> None:
        for kind in ("apiservices", "crds", "mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
            made = [one for one in self.kubectl("get", kind, "-o", "name").split() if "kueue" in one]
            self.kubectl("delete", *how, *made)

    def kubectl(self, *arguments: str, given: str | None = None) -> str:
        return build.run([self._kubectl, f"--kubeconfig={self.plane.kubeconfig}", *arguments], given=given)

    @property
    def _kubectl(self) -> Path:
        return build.binaries(quiet).path("kubectl")

    def _configuration(self) -> dict[str, Any]:
        return {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": NAMESPACE,
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self.health_port}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": "127.0.0.1", "port": self.webhook_port, "certDir": str(self.state / "certs")},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {
                "enable": True,
                "webhookServiceName": "kueue-webhook-service",
                "webhookSecretName": "kueue-webhook-server-cert",
            },
            "clientConnection": {"qps": 200, "burst": 400},
            "integrations": {"frameworks": ["batch/job", "pod"]},
        }

    def _local(self, one: dict[str, Any]) -> dict[str, Any] | None:
        """An object of Kueue's manifests, for a process outside the cluster; ``None`` for what only pods need."""
        kind, name = one["kind"], one["metadata"]["name"]
        if kind.endswith("WebhookConfiguration"):
            for hook in one["webhooks"]:
                self._reach(hook["clientConfig"])
        elif kind == "CustomResourceDefinition":
            if one["spec"].get("conversion", {}).get("strategy") == "Webhook":
                self._reach(one["spec"]["conversion"]["webhook"]["clientConfig"])
        elif kind == "Service":
            if "visibility" not in name:
                return None
            ports = [{"port": _VISIBILITY_PORT}]
            one["spec"] = {"type": "ExternalName", "externalName": "localhost", "ports": ports}
        elif kind == "APIService":
            one["spec"]["service"]["port"] = _VISIBILITY_PORT
        elif kind in {"Deployment", "Secret", "ConfigMap"}:
            return None
        return one

    def _reach(self, config: dict[str, Any]) -> None:
        config["url"] = f"https://127.0.0.1:{self.webhook_port}{config.pop('service')['path']}"
        config["caBundle"] = base64.b64encode((self.state / "certs" / "ca.crt").read_bytes()).decode()


@contextlib.contextmanager
def running(plane: ControlPlane, state: Path) -> Iterator[Kueue]:
    """Kueue for a control plane, to be discarded after that: without Kueue its webhooks refuse every pod."""
    state.mkdir()
    with build.locked(cache() / "kueue.lock", quiet, "room for another Kueue"):
        kueue = Kueue(plane, state)
        try:
            kueue.install()
            kueue.start()
            yield kueue
        finally:
            kueue.stop()


def certificates_of(folder: Path) -> None:
    """The authority and the webhooks' certificate, as Kueue's rotator makes them; it parses keys in PKCS#1 only."""
    folder.mkdir(parents=True)
    authority, key = (rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2))
    name = x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "kueue"), x509.NameAttribute(NameOID.COMMON_NAME, "kueue-ca")]
    )
    root = _signed(name, name, authority, authority, ["kueue-ca"], ca=True)
    served = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _SERVICE)])
    own = _signed(served, name, key, authority, [_SERVICE, "localhost", "127.0.0.1"], ca=False)
    pkcs1 = (
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    for file, content in {
        "ca.crt": certificates.pem(root),
        "ca.key": authority.private_bytes(*pkcs1),
        "tls.crt": certificates.pem(own),
        "tls.key": key.private_bytes(*pkcs1),
    }.items():
        certificates.write(folder / file, content)


def _signed(  # noqa: PLR0917  (a certificate has so many parts)
    subject: x509.Name,
    issuer: x509.Name,
    key: rsa.RSAPrivateKey,
    by: rsa.RSAPrivateKey,
    served: list[str],
    ca: bool,
) -> x509.Certificate:
    builder = certificates.begun(subject, issuer, key)
    names = x509.SubjectAlternativeName([certificates.general(one) for one in served])
    builder = builder.add_extension(names, critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    return builder.sign(by, hashes.SHA256())
