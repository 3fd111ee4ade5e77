"""Environment, volumes, GPUs and ports of pods."""

import asyncio
import base64
from pathlib import Path

import pytest

from dlspawner.clients.kubernetes import CLAIMS, CONFIG_MAPS, PODS, SECRETS
from tests.component.devcluster.conftest import EmbeddedCluster, main_status

ENV = [
    {"name": "A", "value": "1"},
    {"name": "B", "value": "$(A)2 $(MISSING) $$(A)"},
    {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
    {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
    {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    {"name": "NO", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "k", "optional": True}}},
]


async def _secret(embedded: EmbeddedCluster, name: str, **data: str) -> None:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    await embedded.cluster.create(SECRETS, {"metadata": {"name": name, "namespace": "jobs"}, "data": encoded})


async def test_environment_is_that_of_a_kubelet(embedded: EmbeddedCluster) -> None:
    await _secret(embedded, "s", k="secret")
    data = {"FROM": "map", "A": "overridden"}
    await embedded.cluster.create(CONFIG_MAPS, {"metadata": {"name": "m", "namespace": "jobs"}, "data": data})
    text = await embedded.output(
        "env",
        'echo "$A|$B|$IP|$APP|$CPU|$S|${NO-unset}|$FROM|$HOME|$(hostname)|$(id -u):$(id -g)"; echo "$0"',
        env=ENV,
        envFrom=[{"configMapRef": {"name": "m"}}],
        resources={"limits": {"cpu": "1500m"}},
        args=["arg $(A)"],
    )
    pod = await embedded.cluster.get(PODS, "env", "jobs")
    ip = pod["status"]["podIP"]
    first, second = text.splitlines()
    assert first == f"1|12 $(MISSING) $(A)|{ip}|env|1500|secret|unset|map|/|env|1000:1000"
    assert second == "arg 1"


async def test_every_kind_of_volume_is_mounted(embedded: EmbeddedCluster) -> None:
    await _secret(embedded, "keys", a="alpha", b="beta")
    volumes = [
        {"name": "keys", "secret": {"secretName": "keys", "defaultMode": 0o400}},
        {"name": "one", "secret": {"secretName": "keys", "items": [{"key": "b", "path": "x/y", "mode": 0o600}]}},
        {"name": "gone", "secret": {"secretName": "none", "optional": True}},
        {"name": "down", "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        {"name": "scratch", "emptyDir": {}},
        {"name": "host", "hostPath": {"path": str(embedded.state.parent / "host"), "type": "DirectoryOrCreate"}},
        {
            "name": "all",
            "projected": {"sources": [{"secret": {"name": "keys"}}, {"serviceAccountToken": {"path": "t"}}]},
        },
    ]
    mounts = [
        {"name": "keys", "mountPath": "/etc/deep/keys"},
        {"name": "keys", "mountPath": "/etc/passwd", "subPath": "a"},
        {"name": "one", "mountPath": "/one"},
        {"name": "gone", "mountPath": "/gone"},
        {"name": "down", "mountPath": "/down"},
        {"name": "scratch", "mountPath": "/scratch"},
        {"name": "scratch", "mountPath": "/scratch/nested", "subPathExpr": "$(POD_IP)"},
        {"name": "host", "mountPath": "/host", "readOnly": True},
        {"name": "all", "mountPath": "/all"},
    ]
    script = """set -e
    cat /etc/deep/keys/a /etc/passwd /one/x/y /down/name; echo
    stat -c %a /etc/deep/keys/a /one/x/y; ls /gone /all
    touch /scratch/f /scratch/nested/g; ls "/scratch/$POD_IP"
    for path in /host/x /etc/deep/keys/x /usr/x /etc/x; do touch $path 2>/dev/null && echo "wrote $path"; done; true
    test -f /etc/hostname && touch /tmp/private && echo fine"""
    text = await embedded.output("vols", script, spec_volumes=volumes, volumeMounts=mounts)
    assert text.split() == ["alphaalphabetavols", "400", "600", "/all:", "a", "b", "/gone:", "g", "fine"]


async def test_a_file_that_the_machine_replaces_leaves_the_mount_over_it_alone(
    embedded: EmbeddedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``useradd`` on the machine replaces /etc/passwd, over which running jobs have theirs."""
    monkeypatch.setenv("DEVCLUSTER_PATH", str(tmp_path / "machine"))
    (tmp_path / "machine").mkdir()
    file = tmp_path / "machine/passwd"
    file.write_text("of the machine")
    await _secret(embedded, "keys", a="of the job")
    volumes = [
        {"name": "keys", "secret": {"secretName": "keys"}},
        {"name": "host", "hostPath": {"path": str(tmp_path / "host"), "type": "DirectoryOrCreate"}},
    ]
    mounts = [{"name": "keys", "mountPath": str(file), "subPath": "a"}, {"name": "host", "mountPath": "/host"}]
    script = f"echo begun; until test -e /host/replaced; do sleep 0.1; done; cat {file}"
    await embedded.pod("late", script, spec_volumes=volumes, volumeMounts=mounts)
    await embedded.said("late")

    (tmp_path / "machine/new").write_text("of the machine, replaced")
    (tmp_path / "machine/new").rename(file)
    (tmp_path / "host/replaced").touch()
    await embedded.phase("late", "Succeeded")
    assert embedded.log("late") == "begun\nof the job"


async def test_root_has_the_directory_that_its_sshd_wants(embedded: EmbeddedCluster) -> None:
    told = await embedded.output("root", "stat -c '%u %a' /run/sshd", securityContext={"runAsUser": 0, "runAsGroup": 0})
    assert told == "0 755"


async def test_claim_is_provided_bound_and_kept(embedded: EmbeddedCluster) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await embedded.cluster.create(CLAIMS, {"metadata": {"name": "home", "namespace": "jobs"}, "spec": spec})
    volumes = [{"name": "home", "persistentVolumeClaim": {"claimName": "home"}}]
    mounts = [
        {"name": "home", "mountPath": "/home/alice", "subPath": "homes/alice"},
        {"name": "home", "mountPath": "/job", "subPath": "jobs/1"},
    ]
    fields = {"spec_volumes": volumes, "volumeMounts": mounts}
    await embedded.output("write", "echo kept > /home/alice/f; echo job > /job/f", **fields)
    await embedded.cluster.delete(PODS, "write", "jobs")
    assert await embedded.output("read", "cat /home/alice/f /job/f", **fields) == "kept\njob"
    assert (embedded.state / "volumes/jobs/home/homes/alice/f").read_text() == "kept\n"


async def test_subpath_out_of_its_volume_is_refused(embedded: EmbeddedCluster) -> None:
    fields = {
        "spec_volumes": [{"name": "v", "emptyDir": {}}],
        "spec_initContainers": [
            {
                "name": "i",
                "image": "x",
                "command": ["ln", "-s", "/etc", "/v/out"],
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            }
        ],
        "volumeMounts": [{"name": "v", "mountPath": "/x", "subPath": "out/deep"}],
    }
    await embedded.pod("out", "cat /x/*", **fields)
    pod = await embedded.until("out", lambda pod: "CreateContainerConfigError" in str(pod["status"]))
    assert "leads out of the volume" in main_status(pod)["state"]["waiting"]["message"]


async def test_pod_waits_for_a_missing_secret(embedded: EmbeddedCluster) -> None:
    volumes = [{"name": "late", "secret": {"secretName": "late"}}]
    await embedded.pod(
        "late", "cat /late/k", spec_volumes=volumes, volumeMounts=[{"name": "late", "mountPath": "/late"}]
    )
    event = await embedded.event("late", "FailedMount")
    assert event["message"] == 'MountVolume.SetUp failed for volume "late" : secret "late" not found'
    pod = await embedded.cluster.get(PODS, "late", "jobs")
    assert main_status(pod)["state"] == {"waiting": {"reason": "ContainerCreating"}}
    await _secret(embedded, "late", k="here")
    await embedded.phase("late", "Succeeded")
    assert embedded.log("late") == "here"


async def test_gpus_are_distinct_and_released(embedded: EmbeddedCluster) -> None:
    def asking(count: int) -> dict[str, object]:
        return {"resources": {"limits": {"nvidia.com/gpu": count}}}

    for name, count in (("one", 1), ("three", 3)):
        await embedded.pod(name, "echo $NVIDIA_VISIBLE_DEVICES; exec sleep 60", **asking(count))
        await embedded.ready(name)
    held = [await embedded.said(name) for name in ("one", "three")]
    devices = ",".join(held).split(",")
    assert len(set(devices)) == 4
    assert all(device.startswith("GPU-") for device in devices)
    await embedded.pod("fifth", "echo $NVIDIA_VISIBLE_DEVICES", **asking(2))
    await embedded.cluster.delete(PODS, "three", "jobs", grace=0)
    await embedded.phase("fifth", "Succeeded")
    assert set(embedded.log("fifth").split(",")) < set(held[1].split(","))
    assert await embedded.output("none", "echo ${NVIDIA_VISIBLE_DEVICES-unset}") == "unset"
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    assert await embedded.output("void", "echo $NVIDIA_VISIBLE_DEVICES", env=env, **asking(1)) == "void"


async def test_pods_have_their_own_ports_and_processes(embedded: EmbeddedCluster) -> None:
    serve = "ps ax | wc -l; exec python3 -m http.server --bind $POD_IP 8080"
    probe = {"httpGet": {"port": 8080}}
    for name in ("one", "two"):
        await embedded.pod(name, serve, readinessProbe=probe)
    pods = [await embedded.ready(name) for name in ("one", "two")]
    addresses = {pod["status"]["podIP"] for pod in pods}
    assert len(addresses) == 2
    for address in addresses:
        _, writer = await asyncio.open_connection(address, 8080)
        writer.close()
    assert int((await embedded.said("one")).split()[0]) <= 4
