"""A template with an sshd that only other pods reach: the gateway inside the cluster goes to the Service's own
address.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.deployed import Deployed, kubectl
from tests.e2e.people import Person, Stack, wait_for
from tests.e2e.stack import ROOT

pytestmark = pytest.mark.kubernetes

SPACE = "--namespace=dlspawner"
NODEPORT, CLUSTER = "protocol: ssh, expose: nodeport", "protocol: ssh, expose: cluster"


@pytest.fixture
def inside(stack: Stack, alice: Person) -> Iterator[str]:
    """An administrator adds a template beside the shipped ones."""
    assert isinstance(stack, Deployed)
    shipped = (ROOT / "templates/jobs/ssh.yaml").read_text()
    assert NODEPORT in shipped
    set_template("inside.yaml", shipped.replace(NODEPORT, CLUSTER))
    try:
        yield "inside"
        alice.stop("within")
    finally:
        set_template("inside.yaml", None)


def set_template(file: str, text: str | None) -> None:
    """Of the running product; a kubelet brings a ConfigMap to a pod at once that changes itself."""
    volumes = json.loads(kubectl(SPACE, "get", "deployment/hub", "-o", "json"))["spec"]["template"]["spec"]["volumes"]
    (name,) = [
        named for one in volumes if (named := one.get("configMap", {}).get("name", "")).startswith("job-templates")
    ]
    kubectl(SPACE, "patch", f"configmap/{name}", "--type=merge", "-p", json.dumps({"data": {file: text}}))
    touch = f"tests.dlspawner.dev/touched={secrets.token_hex(4)}"
    kubectl(SPACE, "annotate", "pods", "-l", "app.kubernetes.io/name in (hub, manager)", "--overwrite", touch)


def test_a_job_that_only_the_cluster_reaches_is_entered_at_its_services_address(
    alice: Person, inside: str, tmp_path: Path
) -> None:
    client = alice.ssh(tmp_path)
    answer = wait_for(
        lambda: (asked := alice.start("within", template=inside)).status_code in {201, 202} and asked,
        "the template is known",
        120,
    )
    assert answer
    wait_for(lambda: alice.ready("within"), "it runs", 180)
    labels = "dlspawner.dev/user=alice,dlspawner.dev/server=within"
    (service,) = json.loads(alice.stack.kubectl("get", "services", "-l", labels, "-o", "json"))["items"]
    assert service["spec"]["type"] == "ClusterIP"
    assert all("nodePort" not in port for port in service["spec"]["ports"])

    job = service["metadata"]["labels"]["dlspawner.dev/job"]

    done = client.run("within", "basename $DLSPAWNER_JOB_DIR; exit 7")

    assert (done.returncode, done.stdout.strip()) == (7, job), done.stderr

    def opened() -> list[str]:
        log = kubectl(SPACE, "logs", "-l", "app.kubernetes.io/name=gateway", "--tail=-1")
        return [line for line in log.splitlines() if "event=open" in line and f"job={job}" in line]

    (entered,) = wait_for(opened, "a container's log is written a moment later")
    address = f"{service['spec']['clusterIP']}:{service['spec']['ports'][0]['port']}"
    assert f"pod={address}" in entered, entered
