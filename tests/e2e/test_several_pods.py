"""A job of several pods: they find each other, compute together, and end together."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.people import Person, Stack, wait_for

QUOTA = 8  # of the team `default`, of the usual type of GPU

# Every pod sends its rank to the first one, which tells all of them the sum: an all-reduce with nothing but TCP.
ALL_REDUCE = """
import os, socket, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    server = socket.create_server(address, family=socket.getaddrinfo(*address)[0][0])
    others = [server.accept()[0] for _ in range(world - 1)]
    total = rank + sum(int(one.recv(9)) for one in others)
    for one in others:
        one.sendall(str(total).encode())
else:
    while True:
        try:
            one = socket.create_connection(address)
            break
        except OSError:
            time.sleep(0.1)
    one.sendall(str(rank).encode())
    total = int(one.recv(9))
print("rank", rank, "of", world, "sum", total)
"""


def test_pods_reach_each_other_compute_together_and_end_together(stack: Stack, tmp_path: Path) -> None:
    person = stack.person("olivia")
    client = person.ssh(tmp_path)
    person.launch("many", template="distributed", workers=2, gpus=0)

    hosts = client.run("many", "cut -d' ' -f1 $DLSPAWNER_HOSTFILE").stdout.split()
    assert hosts == ["chief", "worker-0", "worker-1"]
    wait_for(lambda: client.run("many", "getent hosts worker-0 worker-1").returncode == 0, "the others are there", 60)
    each = client.run("many", "for one in chief worker-0 worker-1; do ssh $one hostname; done")
    assert each.stdout.split() == hosts, each.stderr
    outside = client.run("many", "ssh -p 2222 worker-1 hostname")  # the port that the Service leads to
    assert "Permission denied" in outside.stderr, outside.stdout
    back = client.run("many", "ssh worker-0 ssh worker-1 ssh chief hostname")
    assert back.stdout.strip() == "chief", back.stderr

    assert client.run("many", "cat >~/all_reduce.py", text=ALL_REDUCE).returncode == 0
    run = "for one in worker-0 worker-1 chief; do ssh $one python3 all_reduce.py & done; wait"
    sums = client.run("many", run)
    assert sorted(sums.stdout.splitlines()) == [f"rank {rank} of 3 sum 3" for rank in range(3)], sums.stderr

    ranks = client.run("many", "mpirun --hostfile $DLSPAWNER_HOSTFILE sh -c 'echo $(hostname) $OMPI_COMM_WORLD_RANK'")
    assert sorted(ranks.stdout.splitlines()) == ["chief 0", "worker-0 1", "worker-1 2"], ranks.stderr

    (policy,) = json.loads(stack.kubectl("get", "networkpolicies", "-l", "dlspawner.dev/server=many", "-o", "json"))[
        "items"
    ]
    same = {"matchLabels": {"dlspawner.dev/job": policy["metadata"]["name"]}}
    assert policy["spec"]["podSelector"] == policy["spec"]["ingress"][0]["from"][0]["podSelector"] == same

    (job,) = [one for one in person.jobs() if one["server"] == "many"]
    page = person.get(f"/services/jobs/jobs/{job['id']}").text
    for name in ("worker-0", "worker-1"):
        assert f"jupyter-olivia--many----{name}" in page
    assert page.count(", no GPU, started") == 3

    inside = client.run("many.worker-1", "hostname; echo $DLSPAWNER_ROLE $DLSPAWNER_INDEX; env | grep -c JUPYTERHUB_")
    assert inside.stdout.split() == ["worker-1", "worker", "1", "0"], inside.stderr

    client.run("many.worker-0", "pkill -f 'tail -f /dev/null'")
    wait_for(lambda: not person.server("many"), "the job ends with its worker", 120)
    wait_for(lambda: "many" not in stack.kubectl("get", "pods", "-l", "dlspawner.dev/server=many"), "nothing is left")
    (ended,) = [job for job in person.jobs() if job["server"] == "many"]
    assert ended["why"] == "Its pod worker-0 has ended: Its server was ended by signal 15 (SIGTERM): start it again."


LIVE = "--field-selector=status.phase!=Succeeded,status.phase!=Failed"
EACH = {"template": "distributed", "workers": 3, "gpus": 1, "cpu": "250m", "memory": "512Mi"}


def test_of_two_jobs_of_four_pods_where_six_have_room_one_runs_whole_and_the_other_waits_whole(stack: Stack) -> None:
    admin, people = stack.person("admin"), [stack.person(name) for name in ("maja", "nils")]
    running = admin.manager("GET", "/jobs?state=running").json()["items"]
    free = QUOTA - sum(job["gpus"] for job in running if job["team"] == "default")
    if free > 6:
        admin.launch("rest", template="custom", image=stack.image, gpus=int(free - 6), cpu="500m", memory="1Gi")

    def pods() -> list[int]:
        """How many pods each of the two jobs has; never some of both. One that has ended holds nothing any more."""
        names = stack.kubectl("get", "pods", "-l", "dlspawner.dev/server=gang", LIVE, "-o", "name").split()
        counts = [sum(f"jupyter-{person.name}--gang" in name for name in names) for person in people]
        assert 0 in counts, counts
        return counts

    def running_whole() -> Person | None:
        return next((people[at] for at, count in enumerate(pods()) if count == 4 and people[at].ready("gang")), None)

    try:
        with ThreadPoolExecutor() as both:
            answers = list(both.map(lambda person: person.start("gang", **EACH), people))
        assert {answer.status_code for answer in answers} <= {201, 202, 429}, [answer.text for answer in answers]
        first = wait_for(running_whole, "one of them runs", 180)
        assert first is not None
        (other,) = (person for person in people if person is not first)
        jobs = other.jobs()
        waits = [(job["state"], job["position"]) for job in jobs if job["state"] != "ended"]
        assert (waits, sorted(pods())) == ([("queued", 1)], [0, 4]), jobs
        first.stop("gang")
        wait_for(lambda: running_whole() is other, "the other one has its turn", 180)
    finally:
        for person, server in ((admin, "rest"), *((person, "gang") for person in people)):
            if person.server(server):
                person.stop(server)


# Ends once the third pod has joined: until then torchrun starts it again with each that comes.
TORCH = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
print("world", dist.get_world_size(), flush=True)
while dist.get_world_size() < 3:
    time.sleep(0.1)
total = torch.tensor([dist.get_rank()])
dist.all_reduce(total)
print("rank", dist.get_rank(), "sum", int(total))
"""
# Debian's PyTorch takes its own default, 0, for nothing: a program's output goes to a file, and is shown as well.
TORCHRUN = "PYTHONUNBUFFERED=1 PET_REDIRECTS=1 PET_TEE=1 torchrun reduce.py"
# As pods of a job with `start: incremental` have them, for two to three pods.
ELASTIC = f"PET_NNODES=2:3 PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT=chief:29500 {TORCHRUN}"


@pytest.mark.slow
def test_torchrun_needs_no_arguments_and_lets_pods_join(stack: Stack, tmp_path: Path) -> None:
    person = stack.person("pytor")
    client = person.ssh(tmp_path)
    person.launch("torch", template="distributed", workers=2, gpus=0)
    assert client.run("torch", "cat >~/reduce.py", text=TORCH).returncode == 0

    together = client.run("torch", f"for one in worker-0 worker-1 chief; do ssh $one {TORCHRUN} & done; wait")
    ranks = [f"rank {rank} sum 3" for rank in range(3)]
    assert sorted(re.findall(r"rank \d sum \d", together.stdout)) == ranks, together.stderr

    client.run("torch", f"for one in chief worker-0; do ssh $one {ELASTIC} >~/$one.out 2>&1 </dev/null & done")
    wait_for(lambda: client.run("torch", "grep -l 'world 2' *.out").stdout.count("out") == 2, "two have begun", 120)
    joined = client.run("torch", f"ssh worker-1 {ELASTIC}", seconds=120)
    wait_for(lambda: client.run("torch", "grep -l rank *.out").stdout.count("out") == 2, "the others know", 60)
    told = joined.stdout + client.run("torch", "cat *.out").stdout
    assert sorted(re.findall(r"rank \d sum \d", told)) == ranks, joined.stderr
    person.stop("torch")
