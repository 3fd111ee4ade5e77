"""What hostile people, pages and jobs try."""

from __future__ import annotations

import json
import secrets
import shlex
from collections.abc import Mapping
from typing import Any

import pytest

from dlspawner.spawner.kube.pods import variable
from tests.e2e.people import Person, Stack, wait_for

# What a job runs to find values in every file that it can read and that has changed since they were made, and in the
# command lines and environments of all processes that it sees. It gets them backwards, so that what tells it of them is
# none of its finds, and puts one of them itself into a place of each kind, to find at least those.
SEARCH = """
import glob, json, os, subprocess, sys
wanted = {value[::-1].encode(): name for name, value in json.loads(sys.argv[1]).items()}
planted = {name.removeprefix("planted in "): value for value, name in wanted.items() if name.startswith("planted in ")}
with open(os.path.expanduser("~/planted"), "wb") as file:
    file.write(planted["a file"])
waits = ["python3", "-c", "import sys; sys.stdin.read()", planted["a command line"]]
environment = {**os.environb, b"PLANTED": planted["an environment"]}
process = subprocess.Popen(waits, stdin=subprocess.PIPE, env=environment)
nowhere = ["(", "-path", "/proc", "-o", "-path", "/sys", "-o", "-path", sys.argv[3], ")", "-prune", "-o"]
files = ["-type", "f", "-newerct", "@" + sys.argv[2], "-readable", "-print0"]
listed = subprocess.run(["find", "/", *nowhere, *files], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
processes = glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline")
found, read, most = set(), 0, max(map(len, wanted))
for path in processes + [os.fsdecode(name) for name in listed.stdout.split(b"\\0") if name]:
    try:
        with open(path, "rb") as file:
            end = b""
            while part := file.read(1 << 20):
                found |= {(name, path) for value, name in wanted.items() if value in end + part}
                end = part[-most:]
            read += 1
    except OSError:
        pass
process.communicate()
print(json.dumps({"read": read, "found": sorted(found)}), flush=True)
"""


def searching(values: Mapping[str, str], stack: Stack) -> str:
    """The shell's command for it."""
    backwards = json.dumps({name: value[::-1] for name, value in values.items()})
    command = ["python3", "-c", SEARCH, backwards, str(int(stack.secrets_since)), stack.said_to_people]
    return f"{shlex.join(command)}; sleep 600"


PLANTED = {f"planted in {place}" for place in ("a file", "an environment", "a command line")}


def pod_of(stack: Stack, server: str) -> dict[str, Any]:
    """The only pod of a server of this name."""
    listed = json.loads(stack.kubectl("get", "pods", "-l", f"dlspawner.dev/server={server}", "-o", "json"))
    return dict(listed["items"][0])


@pytest.mark.parametrize("prefix", ["", "opt-"])
def test_a_link_cannot_start_a_job(stack: Stack, alice: Person, prefix: str) -> None:
    query = {f"{prefix}template": "custom", f"{prefix}command": "touch ~/ran", f"{prefix}gpus": "0"}
    answer = alice.http.get(f"{stack.url}/hub/spawn/alice/lured", params=query, timeout=30)
    assert "A link cannot start a job" in answer.text
    assert 'name="template"' in answer.text, "the form is shown"
    assert not alice.server("lured").get("pending")
    assert not alice.ready("lured")


def test_a_form_without_the_hubs_token_starts_nothing(stack: Stack, alice: Person) -> None:
    answer = alice.http.post(f"{stack.url}/hub/spawn/alice/lured", data={"template": "ssh"}, timeout=30)
    assert answer.status_code == 403
    assert not alice.ready("lured")


@pytest.mark.slow
def test_no_file_or_process_that_a_job_can_read_holds_a_secret(stack: Stack, alice: Person) -> None:
    diary, planted = secrets.token_hex(16), {name: secrets.token_hex(16) for name in PLANTED}
    victim = stack.person("vera")
    of_all = {"template": "custom", "image": stack.image, "gpus": 0}
    victim.launch("mine", command=f"echo {diary} >~/diary; sleep 600", **of_all)
    values = {**stack.secret_values, "vera's token": victim.token, "vera's diary": diary, **planted}
    token = variable(pod_of(stack, "mine"), "JUPYTERHUB_API_TOKEN")
    assert token
    values["the token of vera's job"] = token
    alice.launch("spy", command=searching(values, stack), **of_all)
    name = pod_of(stack, "spy")["metadata"]["name"]
    log = wait_for(lambda: "found" in (said := stack.kubectl("logs", name, "-c", "main")) and said, "it searched", 300)
    searched = json.loads(log.splitlines()[-1])
    for person, server in ((victim, "mine"), (alice, "spy")):
        person.stop(server)

    finds = {what: place for what, place in searched["found"] if what in PLANTED}
    assert set(finds) == PLANTED, "it can find what is there"
    assert finds["planted in an environment"].endswith("/environ")
    assert finds["planted in a command line"].endswith("/cmdline")
    assert searched["read"] > len(PLANTED)
    assert [(what, place) for what, place in searched["found"] if what not in PLANTED] == []
