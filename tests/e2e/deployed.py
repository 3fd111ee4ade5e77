"""The product as its manifests or its chart deploy it, on the cluster of $KUBECONFIG: real containers, NodePorts."""

from __future__ import annotations

import base64
import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass

from tests.e2e.people import Stack, last_whole_line
from tests.kubernetes import contour, deploy, helm
from tests.kubernetes.conftest import IMAGE_PREFIX, IMAGE_TAG
from tests.kubernetes.conftest import run_kubectl as kubectl
from tests.kubernetes.deploy import Deployment
from tests.kubernetes.manifests import JOBS, PRODUCT

# "deployed", "chart", "ingress" or "gateway-api": the end-to-end tests run against this product, not the launcher's,
# installed so.
WANTED = os.environ.get("DLSPAWNER_E2E", "")


@dataclass
class Deployed(Stack):
    """A product that runs in the cluster."""

    deployment: Deployment
    namespace: str = PRODUCT
    device_plugin = bool(os.environ.get("DLSPAWNER_E2E_DEVICE_PLUGIN"))

    def __post_init__(self) -> None:
        self.url = self.deployment.url
        self.ssh_host, self.ssh_port = self.deployment.ssh_host, self.deployment.ssh_port
        self.image = os.environ.get("DLSPAWNER_E2E_IMAGE", self.name_of("job"))

    def name_of(self, image: str) -> str:
        """One of the project's images as this cluster knows it."""
        return f"{IMAGE_PREFIX}/{image}:{IMAGE_TAG}"

    def password(self, name: str) -> str:
        return self.deployment.admin_password if name == "admin" else self.deployment.password

    @property
    def secret_values(self) -> dict[str, str]:
        listed = json.loads(kubectl("get", "secrets", f"--namespace={self.namespace}", "-o", "json"))["items"]
        texts = {
            f"{each['metadata']['name']}/{key}": base64.b64decode(value).decode()
            for each in listed
            for key, value in each["data"].items()
        }
        return {
            name: last_whole_line(text) if "PRIVATE KEY" in text else text.strip()
            for name, text in texts.items()
            if not text.startswith("ssh-")
        }

    def kubectl(self, *arguments: str, input: str | None = None) -> str:
        return kubectl(f"--namespace={JOBS}", *arguments, input=input)


@contextlib.contextmanager
def deployed() -> Iterator[Deployed]:
    """It answers; at the end everything of it is gone."""
    way = helm if WANTED == "chart" else deploy
    try:
        if WANTED in contour.SECRETS:
            yield Deployed(contour.run(kubectl, IMAGE_PREFIX, IMAGE_TAG, WANTED))
        else:
            yield Deployed(way.deploy(kubectl, IMAGE_PREFIX, IMAGE_TAG))
    finally:
        way.remove(kubectl)
