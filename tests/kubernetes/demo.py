"""`make run CLUSTER=kubernetes`: the product on the cluster of $KUBECONFIG, as the demo overlay has it, until Ctrl-C.

Run by `python -m tests.kubernetes --keep with`, which stops the cluster afterwards and keeps its state.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.kubernetes.conftest import run_kubectl
from tests.kubernetes.deploy import Deployment, deploy
from tests.kubernetes.instance import ENVIRONMENT

PATIENCE = 300


def banner(product: Deployment, prefix: str, tag: str) -> str:
    state = Path(os.environ[ENVIRONMENT])
    return f"""
  dlspawner runs on a Kubernetes of this machine.

    Web pages   {product.url}
    Login       alice (or any name you like), password {product.password}
    SSH         ssh -p {product.ssh_port} alice+train@{product.ssh_host}
                once alice has started a server named "train"; the password is a token from
                {product.url}/hub/token, or add your public key first:
                {product.url}/services/jobs/keys
    kubectl     export KUBECONFIG={os.environ["KUBECONFIG"]}
    Admin       admin, password {product.admin_password}
    Files       {state} (logs of Kubernetes in {state / "run" / "log"})

  Only this machine reaches it, and its pods reach no registry: the template "Custom image" runs what is here, such as
  {prefix}/job:{tag}. GPUs are pretended, nothing enforces network policies.
  Ctrl-C stops everything. Files, keys and jobs come back with the next start; programs start anew, and a job of
  "Custom image" has ended.
"""


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: sys.exit(0))
    print("Deploying the product, and waiting until it answers …", flush=True)
    prefix, tag = os.environ["DLSPAWNER_IMAGE_PREFIX"], os.environ["DLSPAWNER_IMAGE_TAG"]
    try:
        product = deploy(run_kubectl, prefix, tag, seconds=PATIENCE)
    except AssertionError as problem:
        sys.exit(str(problem))
    print(banner(product, prefix, tag), flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
