"""What goes wrong on a cluster, on demand: objects, registries and rules that a test puts in a job's way."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import secrets
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.contract.client import Client
from tests.e2e.people import wait_for
from tests.kubernetes.failing import address

RUN = secrets.token_hex(3)
NAMESPACE = f"failures-{RUN}"
GPU = f"{NAMESPACE}.example.com/gpu"  # a resource of its own, two on one node


def spec(**fields: Any) -> dict[str, Any]:
    return {"spec": fields}


def notebook(**fields: Any) -> dict[str, Any]:
    return spec(containers=[{"name": "notebook", **fields}])


def asks(**amounts: str) -> dict[str, Any]:
    return {"resources": {"requests": amounts, "limits": amounts}}


def volume(**source: Any) -> dict[str, Any]:
    mount = {"name": "extra", "mountPath": "/extra"}
    return spec(volumes=[{"name": "extra", **source}], containers=[{"name": "notebook", "volumeMounts": [mount]}])


def label(value: str) -> dict[str, Any]:
    return {"metadata": {"labels": {NAMESPACE: value}}}


@contextlib.contextmanager
def created(kubernetes: Client, path: str, body: dict[str, Any]) -> Iterator[None]:
    """A cluster-wide object for as long as it is needed."""
    kubernetes.create(path, body)
    try:
        yield
    finally:
        kubernetes.request("DELETE", f"{path}/{body['metadata']['name']}")


def elsewhere() -> dict[str, Any]:
    """A volume on a node that does not exist."""
    hostname = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["no-such-node"]}
    return {
        "metadata": {"name": f"elsewhere-{RUN}"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": f"elsewhere-{RUN}",
            "claimRef": {"namespace": NAMESPACE, "name": "elsewhere"},
            "local": {"path": "/nothing"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [hostname]}]}},
        },
    }


REGISTRY = """
import http.server, sys
class Registry(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(401 if "private" in self.path else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()
    do_HEAD = do_GET
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Registry).serve_forever()
"""


@contextlib.contextmanager
def registry(kubernetes: Client, image: str) -> Iterator[int]:
    """The port of a registry on every node, that has no image and refuses all requests."""
    port, name = 20000 + secrets.randbelow(9000), f"registry-{RUN}"
    container = {
        "name": "registry",
        "image": image,
        "command": ["python3", "-c", REGISTRY, str(port)],
        "securityContext": {"runAsUser": 65534},
    }
    pod = {"hostNetwork": True, "terminationGracePeriodSeconds": 0, "containers": [container]}
    labels = {"app": name}
    body = {
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}},
    }
    with created(kubernetes, "/api/v1/namespaces", {"metadata": {"name": name}}):
        kubernetes.until(f"/api/v1/namespaces/{name}/serviceaccounts/default", lambda account: True)
        kubernetes.create(f"/apis/apps/v1/namespaces/{name}/daemonsets", body)

        def on_all_nodes(daemons: Any) -> bool:
            status = daemons["status"]
            return bool(status.get("numberReady")) and status["numberReady"] == status["desiredNumberScheduled"]

        kubernetes.until(f"/apis/apps/v1/namespaces/{name}/daemonsets/{name}", on_all_nodes)
        yield port


class Judge(http.server.BaseHTTPRequestHandler):
    """A webhook that refuses everything."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = {"code": 403, "message": "use the images of the lab"}
        answer = {"uid": asked["request"]["uid"], "allowed": False, "status": status}
        body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextlib.contextmanager
def rules(kubernetes: Client, folder: Path) -> Iterator[None]:
    """Webhooks, one of them without a server, and a policy; each for pods with its label in our namespace only."""
    host = address(kubernetes.kubeconfig)
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=webhook"
    files = ["-keyout", "key", "-out", "cert", "-addext", f"subjectAltName=IP:{host}"]
    subprocess.run([*make.split(), *files], cwd=folder, check=True, capture_output=True)
    server = http.server.ThreadingHTTPServer((host, 0), Judge)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert", folder / "key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    group = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    path = "/apis/admissionregistration.k8s.io/v1"
    ours = {"matchLabels": {"jobs": RUN}}

    def webhook(name: str, value: str, port: int) -> dict[str, Any]:
        authority = base64.b64encode((folder / "cert").read_bytes()).decode()
        return {
            "name": name,
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 3,
            "clientConfig": {"url": f"https://{host}:{port}/", "caBundle": authority},
            "rules": [group],
            "namespaceSelector": ours,
            "objectSelector": {"matchLabels": {NAMESPACE: value}},
        }

    hooks = [webhook("lab.example.com", "webhook", server.server_port), webhook("down.example.com", "down", 1)]
    policy = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [group], "objectSelector": {"matchLabels": {NAMESPACE: "policy"}}},
        "validations": [{"expression": "false", "message": "use the nodes of the lab"}],
    }
    binding = {"policyName": NAMESPACE, "validationActions": ["Deny"], "matchResources": {"namespaceSelector": ours}}
    named = {"metadata": {"name": NAMESPACE}}
    with contextlib.ExitStack() as stack:
        stack.callback(thread.join, 10)
        stack.callback(server.shutdown)
        stack.callback(server.server_close)
        for kind, body in (
            ("validatingwebhookconfigurations", {"webhooks": hooks}),
            ("validatingadmissionpolicies", {"spec": policy}),
            ("validatingadmissionpolicybindings", {"spec": binding}),
        ):
            stack.enter_context(created(kubernetes, f"{path}/{kind}", {**named, **body}))
        for value in ("webhook", "down", "policy"):
            wait_for(lambda value=value: refuses(kubernetes, value), f"the rule {value} applies", 60)
        yield


def refuses(kubernetes: Client, value: str) -> bool:
    pod = allowed_pod("x", {"name": "main", "image": "localhost/absent"})
    pod["metadata"]["labels"] = {NAMESPACE: value}
    answer = kubernetes.request("POST", f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All", pod)
    return any(words in answer.raw for words in (b"use the", b"failed calling webhook"))


def allowed_pod(name: str, container: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A pod that Pod Security *restricted* lets pass."""
    strict = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    context = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    containers = [{**container, "securityContext": strict}]
    return {"metadata": {"name": name}, **spec(securityContext=context, containers=containers, **fields)}


def preemptor(priority: str) -> dict[str, Any]:
    """A pod that wants both of our GPUs and comes first."""
    container = {"name": "main", "image": "localhost/absent", "imagePullPolicy": "Never"}
    wants = asks(cpu="10m", memory="64Mi", **{GPU: "2"})
    return allowed_pod("preemptor", {**container, **wants}, priorityClassName=priority, terminationGracePeriodSeconds=0)
