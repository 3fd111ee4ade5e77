"""Start, failure, probes, restart and stop of containers, and their status."""

import asyncio

from dlspawner.clients.kubernetes import PODS
from dlspawner.devcluster.node import Agent
from tests.component.devcluster.conftest import NODES, SECONDS, EmbeddedCluster, is_ready, main_status


async def test_failing_init_container_fails_the_pod(embedded: EmbeddedCluster) -> None:
    inits = [{"name": "a", "image": "x", "command": ["sh", "-c", "exit 3"]}]
    await embedded.pod("bad", "echo never", spec_initContainers=inits)
    pod = await embedded.phase("bad", "Failed")
    assert pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
    assert "waiting" in main_status(pod)["state"]


async def test_command_that_does_not_exist_is_a_start_error(embedded: EmbeddedCluster) -> None:
    await embedded.pod("typo", ["foo", "--bar"])
    pod = await embedded.phase("typo", "Failed")
    state = main_status(pod)["state"]["terminated"]
    assert (state["reason"], state["exitCode"]) == ("StartError", 128)
    assert 'exec: "foo": executable file not found in $PATH' in state["message"]


async def test_readiness_follows_the_probe(embedded: EmbeddedCluster) -> None:
    probe = {"exec": {"command": ["test", "-e", "/v/up"]}, "periodSeconds": 1, "failureThreshold": 1}
    volumes, mounts = [{"name": "v", "emptyDir": {}}], [{"name": "v", "mountPath": "/v"}]
    await embedded.pod("probe", "exec sleep 60", readinessProbe=probe, spec_volumes=volumes, volumeMounts=mounts)
    running = await embedded.phase("probe", "Running")
    assert not is_ready(running)
    up = embedded.state / "node/pods" / running["metadata"]["uid"] / "volumes/v/up"
    up.touch()
    await embedded.ready("probe")
    up.unlink()
    await embedded.until("probe", lambda pod: not is_ready(pod))
    assert (await embedded.event("probe", "Unhealthy"))["message"].startswith("Readiness probe failed")


async def test_liveness_failure_restarts_the_container(embedded: EmbeddedCluster) -> None:
    probe = {"tcpSocket": {"port": 9}, "periodSeconds": 1, "failureThreshold": 1}
    probe |= {"terminationGracePeriodSeconds": 1}
    await embedded.pod("live", "exec sleep 60", livenessProbe=probe, spec_restartPolicy="Always")
    pod = await embedded.until("live", lambda pod: main_status(pod).get("restartCount", 0) >= 1)
    assert main_status(pod)["lastState"]["terminated"]["exitCode"] == 137
    assert "failed liveness probe" in (await embedded.event("live", "Killing"))["message"]


async def test_hooks_run_around_the_life_of_a_container_of_which_nothing_is_left(embedded: EmbeddedCluster) -> None:
    script = "trap 'echo term >> /v/log; exit 0' TERM; while :; do sleep 0.05; done"
    hooks = {
        "postStart": {"exec": {"command": ["sh", "-c", "echo post >> /v/log"]}},
        "preStop": {"exec": {"command": ["sh", "-c", "echo pre >> /v/log"]}},
    }
    path = embedded.state.parent / "hooks"
    volumes = [{"name": "v", "hostPath": {"path": str(path), "type": "DirectoryOrCreate"}}]
    mounts = [{"name": "v", "mountPath": "/v"}]
    await embedded.pod("hooks", script, lifecycle=hooks, spec_volumes=volumes, volumeMounts=mounts)
    pod = await embedded.ready("hooks")
    await embedded.cluster.delete(PODS, "hooks", "jobs", grace=10)
    await embedded.gone("hooks")
    assert (path / "log").read_text().split() == ["post", "pre", "term"]
    directory = embedded.state / "node/pods" / pod["metadata"]["uid"]
    async with asyncio.timeout(SECONDS):
        while directory.exists() or embedded.agent.pods:  # noqa: ASYNC110  (files have no events)
            await asyncio.sleep(0.01)


async def test_deadline_ends_a_pod(embedded: EmbeddedCluster) -> None:
    await embedded.pod("slow", "exec sleep 60", spec_activeDeadlineSeconds=1)
    pod = await embedded.phase("slow", "Failed")
    assert pod["status"]["reason"] == "DeadlineExceeded"


async def test_pods_continue_after_a_restart_of_the_nodes_or_have_failed(embedded: EmbeddedCluster) -> None:
    gpu = {"resources": {"limits": {"nvidia.com/gpu": 2}}}
    await embedded.pod("stay", "echo $NVIDIA_VISIBLE_DEVICES; exec sleep 60", spec_restartPolicy="Always", **gpu)
    sidecar = {"name": "sidecar", "image": "i", "command": ["sleep", "60"], "restartPolicy": "Always"}
    await embedded.pod("once", "exec sleep 60", spec_initContainers=[sidecar])
    await embedded.pod("over", "true")
    await embedded.ready("once")
    before = await embedded.ready("stay")
    await embedded.phase("over", "Succeeded")
    held = await embedded.said("stay")
    await embedded.agent.stop()
    stopped = await embedded.cluster.get(PODS, "stay", "jobs")
    assert stopped["status"] == before["status"]
    embedded.agent = Agent(embedded.cluster, embedded.state, NODES, stop_seconds=0.1)
    await embedded.agent.start()
    after = await embedded.until("stay", lambda pod: main_status(pod)["restartCount"] == 1 and is_ready(pod))
    assert after["status"]["podIP"] == before["status"]["podIP"]
    assert await embedded.said("stay") == held
    once = await embedded.phase("once", "Failed")
    assert main_status(once)["state"]["terminated"]["exitCode"] == 137
    over = await embedded.cluster.get(PODS, "over", "jobs")
    assert over["status"]["phase"] == "Succeeded"
    assert main_status(over)["restartCount"] == 0
    await embedded.cluster.delete(PODS, "over", "jobs")
    await embedded.gone("over")
