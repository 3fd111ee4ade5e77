"""`make run CLUSTER=kubernetes`: the product on the cluster of $KUBECONFIG, as the demo overlay has it, until Ctrl-C.

Run by `python -m tests.kubernetes --keep with`, which stops the cluster afterwards and keeps its state.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.kubernetes.instance import ENVIRONMENT, PROJECT

OVERLAY = PROJECT / "hub_config" / "kubernetes" / "overlays" / "demo"
NAMESPACE = "dlspawner"
PATIENCE = "300s"


def kubectl(*arguments: str) -> str:
    done = subprocess.run([os.environ["DLSPAWNER_KUBECTL"], *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def read(*arguments: str) -> Any:
    return json.loads(kubectl("get", *arguments, "--output", "json"))


def deploy() -> None:
    """Apply the manifests, and wait for everything in them."""
    print("Deploying the product, and waiting until it answers …", flush=True)
    kubectl("apply", "--kustomize", str(OVERLAY))
    for kind in ("statefulset", "deployment"):
        for item in read(kind, "--namespace", NAMESPACE)["items"]:
            name = f"{kind}/{item['metadata']['name']}"
            kubectl("rollout", "status", name, "--namespace", NAMESPACE, f"--timeout={PATIENCE}")


def banner() -> str:
    secret = read("secret", "login", "--namespace", NAMESPACE)["data"]
    password, admin = (base64.b64decode(secret[key]).decode() for key in ("password", "admin-password"))
    node = read("nodes")["items"][0]["status"]["addresses"][0]["address"]
    state = Path(os.environ[ENVIRONMENT])
    return f"""
  dlspawner runs on a Kubernetes of this machine.

    Web pages   http://{node}:30080
    Login       alice (or any name you like), password {password}
    SSH         ssh -p 30022 alice+train@{node}
                once alice has started a server named "train"; the password is a token from
                http://{node}:30080/hub/token, or add your public key first:
                http://{node}:30080/services/jobs/keys
    kubectl     export KUBECONFIG={os.environ["KUBECONFIG"]}
    Admin       admin, password {admin}
    Files       {state} (logs of Kubernetes in {state / "run" / "log"})

  Only this machine reaches it; nothing enforces its network policies.
  Ctrl-C stops everything; jobs, keys and files are kept for the next start.
"""


def main() -> None:
    deploy()
    print(banner(), flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: sys.exit(0))
    main()
