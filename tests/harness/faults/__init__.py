"""A fault proxy in front of any Kubernetes API server; it counts the requests that pass.

It is a thread of the test's process with an event loop of its own, and speaks plain HTTP on loopback: `before` reads
the API server's kubeconfig and writes one that leads to the proxy, with a token that a test can look for in logs. A
rule matches requests (verb, resource, name, which ones of them, how probable) and has a fault for them:

    with faults.before(cluster.kubeconfig, tmp_path / "proxied") as api:
        api.fail("create", "pods", faults.Answer(503), times=2)  # later ones pass
        api.fail("*", "*", faults.Lost(done=True), times=None, probability=0.1)
        api.away()  # connections are refused until `back`

Verbs are Kubernetes' (get, list, watch, create, update, patch, delete). Open watches stay open until
`cut` ends them. Not for exec, attach and port-forward, which upgrade their connection.
"""

from tests.harness.faults.kinds import HALF_A_LINE, HEADER, Answer, Dropped, Fault, Lost, Reset
from tests.harness.faults.proxy import TOKEN, Proxy, before

__all__ = [
    "HALF_A_LINE", "HEADER", "TOKEN",
    "Answer", "Dropped", "Fault", "Lost", "Proxy", "Reset", "before",
]  # fmt: skip
