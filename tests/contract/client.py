"""A Kubernetes client that adds nothing: paths, JSON and status codes, for tests that state the protocol."""

import base64
import copy
import http.client
import json
import secrets
import ssl
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

DEADLINE = 60.0
PATCH_TYPES = {
    "json": "application/json-patch+json",
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}
# What Pod Security *restricted* asks of a container, and what makes a namespace ask for it.
RESTRICTED_CONTAINER = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


@dataclass(frozen=True)
class Answer:
    code: int
    raw: bytes
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def json(self) -> Any:
        return json.loads(self.raw)


class Watcher:
    """The events of one watch, each waited for with a deadline."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response

    def next(self, *kinds: str) -> tuple[str, dict[str, Any]]:
        """The next event, of one of these types when any are named; EOFError at the end."""
        while line := self._response.readline():
            event = json.loads(line)
            if not kinds or event["type"] in kinds:
                return event["type"], event["object"]
        raise EOFError

    def rest(self) -> list[dict[str, Any]]:
        """Everything until the server ends the watch."""
        return [json.loads(line) for line in self._response]


class Client:
    """One user of one cluster, as a kubeconfig describes it."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.kubeconfig = kubeconfig
        self.server = urllib.parse.urlsplit(cluster["server"])
        self.headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
        self.context = ssl.create_default_context(cadata=_pem(cluster, "certificate-authority").decode())
        self.unarmed = ssl.create_default_context(cadata=_pem(cluster, "certificate-authority").decode())
        if "client-certificate-data" in user or "client-certificate" in user:
            with tempfile.NamedTemporaryFile() as chain:
                chain.write(_pem(user, "client-certificate") + _pem(user, "client-key"))
                chain.flush()
                self.context.load_cert_chain(chain.name)

    def stranger(self) -> "Client":
        """Returns a client that trusts the same authority and has no credentials."""
        other = copy.copy(self)
        other.headers = {}
        other.context = self.unarmed
        return other

    def connect(self) -> http.client.HTTPSConnection:
        assert self.server.hostname
        return http.client.HTTPSConnection(
            self.server.hostname, self.server.port, timeout=DEADLINE, context=self.context
        )

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        query: dict[str, Any] | None = None,
    ) -> Answer:
        connection = self.connect()
        try:
            payload = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            sent = {"Content-Type": "application/json"} if body is not None else {}
            connection.request(method, _target(path, query), payload, self.headers | sent | (headers or {}))
            response = connection.getresponse()
            return Answer(response.status, response.read(), {k.lower(): v for k, v in response.getheaders()})
        finally:
            connection.close()

    def expect(self, code: int, method: str, path: str, body: Any = None, **query: Any) -> Any:
        answer = self.request(method, path, body, query=query)
        assert answer.code == code, f"{method} {path}: {answer.code} {answer.raw.decode()}"
        return answer.json

    def get(self, path: str, **query: Any) -> Any:
        return self.expect(200, "GET", path, **query)

    def create(self, path: str, body: Any, **query: Any) -> Any:
        return self.expect(201, "POST", path, body, **query)

    def put(self, path: str, body: Any, **query: Any) -> Any:
        return self.expect(200, "PUT", path, body, **query)

    def delete(self, path: str, body: Any = None, **query: Any) -> Any:
        return self.expect(200, "DELETE", path, body, **query)

    def patch(self, path: str, body: Any, kind: str = "strategic", **query: Any) -> Answer:
        return self.request("PATCH", path, body, headers={"Content-Type": PATCH_TYPES[kind]}, query=query)

    def patched(self, path: str, body: Any, kind: str = "strategic", **query: Any) -> Any:
        answer = self.patch(path, body, kind, **query)
        assert answer.code == 200, answer.raw
        return answer.json

    @contextmanager
    def watch(self, path: str, *, accept: str = "application/json", **query: Any) -> Iterator[Watcher]:
        connection = self.connect()
        try:
            target = _target(path, {"watch": "true", **query})
            connection.request("GET", target, headers=self.headers | {"Accept": accept})
            response = connection.getresponse()
            assert response.status == 200, response.read()
            yield Watcher(response)
        finally:
            connection.close()

    def until(self, path: str, condition: Callable[[Any], bool], what: str = "the condition") -> Any:
        """Asks until an object is as wanted."""
        end = time.monotonic() + DEADLINE
        while True:
            answer = self.request("GET", path)
            if answer.code == 200 and condition(answer.json):
                return answer.json
            assert time.monotonic() < end, f"{path} never met {what}: {answer.raw.decode()}"
            time.sleep(0.02)

    @contextmanager
    def namespace(self, prefix: str, labels: dict[str, str] | None = None) -> Iterator[str]:
        """A fresh one, in which pods can be made; it goes in the end, without waiting (it takes ten seconds)."""
        name = f"{prefix}-{secrets.token_hex(4)}"
        path = f"/api/v1/namespaces/{name}"
        self.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels or {}}})
        self.until(f"{path}/serviceaccounts/default", lambda account: True)
        try:
            yield name
        finally:
            self.request("DELETE", path)

    def until_gone(self, path: str) -> None:
        end = time.monotonic() + DEADLINE
        while (answer := self.request("GET", path)).code != 404:
            assert time.monotonic() < end, f"{path} stays: {answer.raw.decode()}"
            time.sleep(0.02)


def _pem(holder: dict[str, str], name: str) -> bytes:
    if data := holder.get(f"{name}-data"):
        return base64.b64decode(data)
    return Path(holder[name]).read_bytes()


def _target(path: str, query: dict[str, Any] | None) -> str:
    return f"{path}?{urllib.parse.urlencode(query, doseq=True)}" if query else path


def pod(name: str = "p", **spec: Any) -> dict[str, Any]:
    """The smallest pod there is, with what the test cares about; it runs nowhere unless the test says where."""
    labels = spec.pop("labels", {})
    if not spec.keys() & {"nodeName", "nodeSelector"}:
        spec = {"schedulerName": "nobody"} | spec
    metadata = {"name": name, "labels": labels}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [{"name": "main", "image": "example.org/image:1"}]} | spec,
    }


def node(name: str, labels: dict[str, str], **amounts: str) -> dict[str, Any]:
    """A node without a kubelet: Ready, until Kubernetes has heard nothing of it for 40 seconds."""
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "100Gi", **amounts}
    ready = {"type": "Ready", "status": "True", "reason": "Test", "lastHeartbeatTime": None}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {},
        "status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]},
    }
