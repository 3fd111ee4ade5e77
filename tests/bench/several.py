"""A job of eight pods against eight jobs of one: from the request until all pods run. `python -m tests.bench.several`.

Both have the same pods with the same sshd. The eight single jobs are asked for at once, each by somebody else.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from tests.bench.figures import Figure, publish, ratio
from tests.bench.spawn import Hub, templates, tiny
from tests.e2e.people import begun as running_command
from tests.e2e.people import wait_for
from tests.e2e.stack import KUBECTL, Launched, running

PODS, ROUNDS = 8, 5
SSH = [{"name": "ssh", "port": 2222, "protocol": "ssh", "expose": "nodeport"}]


def until_running(stack: Launched, template: str, begun: float) -> float:
    """Seconds until all pods of this template run: one process watches, for many that ask would take the machine."""
    shown = 'jsonpath={.metadata.name} {.status.phase}{"\\n"}'
    run: set[str] = set()
    watch = (
        "get",
        "pods",
        "-l",
        f"dlspawner.dev/template={template}",
        "--watch",
        "-o",
        shown,
        "--request-timeout=300s",
    )
    with running_command([KUBECTL, *watch], **stack.kubectl_env) as watching:
        assert watching.stdout is not None
        for line in watching.stdout:
            if line.rstrip().endswith(" Running"):
                run.add(line.split()[0])
            if len(run) == PODS:
                return time.perf_counter() - begun
    raise AssertionError(f"only {len(run)} of {PODS} pods run")


def start(stack: Launched, hub: Hub, template: str, users: list[str]) -> float:
    of = Hub(hub.url, hub.token, {"user_options": {"template": template, "cpu": "100m", "memory": "64Mi"}})
    for user in users:
        of.request("POST", f"/users/{user}")
    begun = time.perf_counter()
    with ThreadPoolExecutor(len(users)) as pool:
        answers = [pool.submit(of.request, "POST", f"/users/{user}/server", of.body) for user in users]
        seconds = until_running(stack, template, begun)
        assert all(answer.result().status_code in {201, 202} for answer in answers)
        wait_for(lambda: all(_is_ready(of, user) for user in users), "all are ready", 300)
        list(pool.map(of.stop, users))
    gone = ("get", "pods", "-l", f"dlspawner.dev/template={template}", "-o", "name")
    wait_for(lambda: not stack.kubectl(*gone).strip(), "all pods are gone", 300)
    return seconds


def _is_ready(hub: Hub, user: str) -> bool:
    servers = hub.request("GET", f"/users/{user}").json().get("servers") or {}
    return all(server["ready"] for server in servers.values())


def measure(folder: Path) -> list[Figure]:
    jobs = templates(folder)
    single = {**tiny("100m"), "endpoints": SSH}
    several = {**single, "pods": [{"role": "chief"}, {"role": "worker", "count": PODS - 1}]}
    (jobs / "jobs" / "single.yaml").write_text(json.dumps(single))
    (jobs / "jobs" / "several.yaml").write_text(json.dumps(several))
    with running(folder / "state", f"--templates={jobs}") as stack:
        admin = stack.person("admin")
        hub = Hub(stack.url, admin.token, {})
        pairs = []
        for number in range(ROUNDS + 1):  # the first round is to warm up
            one = start(stack, hub, "several", [f"one{number}"])
            eight = start(stack, hub, "single", [f"u{number}-{index}" for index in range(PODS)])
            pairs.append((one, eight))
    ours, peers = map(list, zip(*pairs[1:], strict=True))
    return [
        Figure("a job of 8 pods, until all run", median(ours), "s"),
        Figure("8 jobs of one pod at once", median(peers), "s"),
        ratio("a job of 8 pods", ours, peers, "8 jobs of one pod", 0.6),
    ]


if __name__ == "__main__":
    publish("bench-several", measure)
