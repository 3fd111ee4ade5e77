"""`make run` from a newcomer's side: start, stop, start again, and what happens when it cannot."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dlspawner import cli
from tests.e2e.people import answers, begun, read_until, wait_for
from tests.e2e.stack import ROOT, Launched, copied_config, failing, running

pytestmark = pytest.mark.launcher


@pytest.mark.parametrize(("name", "flag"), [("port", "--port"), ("ssh_port", "--ssh-port")])
def test_a_taken_port_is_a_sentence_that_names_port_and_setting(tmp_path: Path, name: str, flag: str) -> None:
    stack = Launched(tmp_path / "state")
    with socket.create_server(("127.0.0.1", getattr(stack, name))):
        said = failing(stack)
    assert str(getattr(stack, name)) in said
    assert flag in said


def test_a_wrong_file_stops_the_start_with_all_problems(tmp_path: Path) -> None:
    config = copied_config(tmp_path / "config")
    (config / "teams.yaml").write_text("teams:\n  vision:\n    quotaa: {a100: 8}\n  nlp:\n    quota: {h900: -3}\n")
    said = failing(Launched(tmp_path / "state", more=(f"--config={config}",)))
    assert "teams.yaml:3" in said
    assert "quotaa" in said
    assert "teams.yaml:5" in said
    assert "h900" in said


@pytest.mark.slow
def test_everything_comes_back_after_ctrl_c_a_restored_backup_and_other_secrets_and_nothing_is_left_behind(
    tmp_path: Path,
) -> None:
    gateway, next_ca = tmp_path / "state" / "gateway", tmp_path / "next_ca"
    subprocess.run([sys.executable, "-m", "ssh_gateway", "--init", f"--Gateway.state_dir={gateway}"], check=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", next_ca], check=True)
    with (gateway / "user_ca.pub").open("a") as trusted:
        trusted.write(next_ca.with_suffix(".pub").read_text())
    with running(tmp_path / "state") as stack:
        carol = stack.person("carol")
        carol.launch("train", template="ssh")
        ssh = carol.ssh(tmp_path / "ssh")
        assert ssh.run("train", "echo kept >~/file; mkdir -p $DLSPAWNER_JOB_DIR/x").returncode == 0
        second = failing(Launched(stack.state))
        assert "already runs" in second
        saved, state = str(tmp_path / "saved"), f"--state={stack.state}"
        assert cli.main(["backup", saved, state]) == 0

        assert stack.stop() == 0, stack.said
        assert stack.processes() == []
        for lost in stack.state.glob("[!cl]*"):  # all but the cluster and the log
            shutil.rmtree(lost) if lost.is_dir() else lost.unlink()
        assert cli.main(["restore", saved, state]) == 0
        shutil.copy(next_ca, gateway / "user_ca")
        rotated = {name: f"another-{name}" for name in ("proxy_token", "manager_token", "gateway_token")}
        (stack.state / "secrets.json").write_text(json.dumps(stack.secrets | rotated))

        broken = copied_config(tmp_path / "config")
        (broken / "teams.yaml").write_text("teams: {vision: {quotaa: {a100: 8}}}\n")
        stack.more = (f"--config={broken}",)
        stack.start()
        assert "last good version" in stack.said
        assert "teams.yaml:1" in stack.said
        wait_for(lambda: carol.ready("train"), "the job runs again, with the token from before")
        assert [job["server"] for job in carol.jobs()] == ["train"], "its history is there"
        done = wait_for(
            lambda: (r := ssh.run("train", "cat ~/file; ls $DLSPAWNER_JOB_DIR")).returncode == 0 and r, "ssh again"
        )
        assert done.stdout.split() == ["kept", "x"]
        carol.stop("train")
        stack.stop()
        assert stack.processes() == []


@pytest.mark.slow
def test_a_killed_launcher_leaves_no_process(tmp_path: Path) -> None:
    stack = Launched(tmp_path / "state")
    stack.start()
    dave = stack.person("dave")
    dave.launch("train", template="ssh")
    stack.stop(signal.SIGKILL)
    wait_for(lambda: stack.processes() == [], f"nothing is left: {stack.processes()}", 30)


@pytest.mark.slow
def test_a_killed_process_is_started_again_and_the_job_goes_on(tmp_path: Path) -> None:
    with running(tmp_path / "state") as stack:
        erin = stack.person("erin")
        erin.launch("train", template="ssh")
        ssh = erin.ssh(tmp_path / "ssh")
        boot = ssh.run("train", "cat /proc/1/stat").stdout
        assert boot
        for module in ("jupyterhub", "dlspawner.manager", "ssh_gateway"):
            victim = stack.kill(module)
            wait_for(lambda module=module, old=victim: stack.process_of(module) not in {0, old}, f"{module} is back")
        again = wait_for(lambda: ssh.run("train", "cat /proc/1/stat").stdout, "ssh works again")  # also without the Hub
        assert again.split()[21] == boot.split()[21], "the same process, started at the same time"
        wait_for(lambda: erin.api("GET", "/user").ok and erin.ready("train"), "the Hub found the job again")


@pytest.mark.slow
def test_a_proxy_that_is_started_again_knows_its_routes_before_the_hub_s_next_check(tmp_path: Path) -> None:
    config = copied_config(tmp_path / "config")
    (config / "overrides.py").write_text("c.JupyterHub.last_activity_interval = 3600\n")  # nothing else checks them
    with running(tmp_path / "state", f"--config={config}") as stack:
        manager, of_proxy = f"{stack.url}/services/jobs/health", ("--api-ip=127.0.0.1", f"--port={stack.port}")
        assert answers(manager)
        victim = stack.kill(*of_proxy)
        wait_for(lambda: stack.process_of(*of_proxy) not in {0, victim}, "the proxy is back")
        wait_for(lambda: answers(manager), "its routes are back")


DISK = """\
title: Disk of the node
endpoints: [{name: ssh, port: 2222, protocol: ssh, expose: nodeport}]
special_permissions: [host_paths]
pod:
  volumes: [{name: disk, hostPath: {path: %s}}]
  containers: [{name: notebook, volumeMounts: [{name: disk, mountPath: /disk}]}]
"""


ON_THE_HOST = """\
title: In the network of the node
command: [jupyterhub-singleuser]
endpoints: [{name: ssh, port: 2222, protocol: ssh, expose: nodeport}]
ports: [{name: nccl}, {name: master, count: 2}]
pods: [{role: chief}, {role: worker}]
special_permissions: [host_network]
pod: {hostNetwork: true}
"""


@pytest.mark.slow
def test_special_permissions_can_be_tried(tmp_path: Path) -> None:
    config, disk = copied_config(tmp_path / "config"), tmp_path / "disk"
    templates = shutil.copytree(ROOT / "templates", tmp_path / "templates")
    disk.mkdir(mode=0o777)
    (disk / "label").write_text("of the node")
    (templates / "jobs" / "disk.yaml").write_text(DISK % disk)
    (templates / "jobs" / "net.yaml").write_text(ON_THE_HOST)
    cluster = config / "cluster.yaml"
    switched_on = "special_permissions: [host_paths, host_network]\nhost_ports: {range: 21540-21559}"
    cluster.write_text(cluster.read_text().replace("special_permissions: []", switched_on))
    with running(tmp_path / "state", f"--config={config}", f"--templates={templates}") as stack:
        frank, admin = stack.person("frank"), stack.person("admin")
        assert "approves" in frank.start("disk", template="disk").json()["message"]
        for server in ("one", "two"):
            assert "approves" in frank.start(server, template="net").json()["message"]
        for request in admin.manager("GET", "/approvals?mine=decide").json()["items"]:
            admin.manager("POST", f"/jobs/{request['job']}/approve", {"reason": "To try it."})
        ssh = frank.ssh(tmp_path / "ssh")
        wait_for(lambda: frank.ready("disk"), "the approved job", 120)
        assert ssh.run("disk", "cat /disk/label").stdout == "of the node"

        given: list[int] = []
        for server in ("one", "two"):
            wait_for(lambda server=server: frank.ready(server), "the job on the node's network", 120)
            assert frank.get(f"/user/frank/{server}/api").json().keys() == {"version"}
            names = "DLSPAWNER_PORT_SSH DLSPAWNER_PORT_NOTEBOOK DLSPAWNER_PORT_NCCL DLSPAWNER_PORTS_MASTER"
            told = ssh.run(server, f"printenv {names}")
            ports = told.stdout.replace(",", "\n").split()
            assert len(ports) == 5, told.stderr
            given += map(int, ports)
            (job,) = [one for one in frank.jobs() if one["server"] == server]
            own, workers = frank.manager("GET", f"/jobs/{job['id']}").json()["ports"]
            assert [number for numbers in own.values() for number in numbers] == given[-5:]
            inside = ssh.run(server, "ssh worker-0 printenv DLSPAWNER_PORT_SSH MASTER_PORT")
            assert inside.stdout.split() == [str(workers["ssh"][0]), str(own["master"][0])], inside.stderr
            assert f"ssh {ports[0]}, notebook {ports[1]}" in frank.get(f"/services/jobs/jobs/{job['id']}").text
        assert len(set(given)) == 10
        assert set(given) <= set(range(21540, 21560))
        net = "-n", "jobs-special", "-l", "dlspawner.dev/template=net"
        assert len(set(stack.kubectl("get", "pods", *net, "-o=jsonpath={.items[*].status.podIP}").split())) == 1
        with begun(ssh.line("one", "python3 -m http.server 21559", options=("-tt",))) as wrong:
            read_until(wrong.stdout, "listens on port 21559 of the node, which is not this job's")
        counted = 'dlspawner_wrong_ports_total{template="net"} 1.0'
        wait_for(lambda: counted in admin.manager("GET", "/metrics").text, "the administrators' metrics have it")
