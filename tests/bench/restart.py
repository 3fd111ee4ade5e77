"""A Hub that comes back to a thousand servers that run: how long its event loop is held up, and until all are known.

`python -m tests.bench.restart` prints the figures; nothing else needs to run. The servers are one process that answers
for all of them, and the Hub is as much of one as checks its servers: each is polled, and asked where it is.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlspawner.spawner import DLSpawner
from dlspawner.spawner.kube.pod_store import PodWatch
from dlspawner.spawner.kube.reflector import pack
from dlspawner.spawner.recovery import AlwaysUpServer
from tests.bench.figures import Figure, publish
from tests.harness.spawner_builders import make_spawner

SERVERS = 1000
AIM_SECONDS = 0.01
ANSWERS = """
import asyncio

async def answer(reader, writer):
    await reader.readline()
    writer.write(b"HTTP/1.1 200 OK\\r\\n\\r\\n")
    writer.close()

async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


def running_pod(name: str) -> dict[str, Any]:
    status = {"name": "notebook", "ready": True, "state": {"running": {}}}
    padding = [{"name": f"VARIABLE_{number}", "value": "x" * 40} for number in range(60)]  # to a pod's usual 7 KiB
    return {
        "metadata": {"name": name, "namespace": "jobs", "uid": name, "resourceVersion": "1"},
        "spec": {"nodeName": "node-1", "containers": [{"name": "notebook", "env": padding}]},
        "status": {"phase": "Running", "podIP": "127.0.0.1", "containerStatuses": [status]},
    }


async def check(spawner: Any) -> bool:
    """As JupyterHub does with each of its servers, all at once; whether it is known to run."""
    if await spawner.poll() is not None:
        return False
    await spawner.get_url()
    return not isinstance(spawner._server, AlwaysUpServer)


async def come_back(port: int) -> tuple[float, float, int]:
    """The longest time in which nobody else had a turn, the time for all, and how many are known to run.

    What the machine gave to others meanwhile is not ours, and is left out of the first.
    """
    at = f"http://127.0.0.1:{port}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kubespawner.reflector.shared_client", lambda _group: None)
        watch, listed = PodWatch(), asyncio.get_running_loop().create_future()
        watch.first_load_future = listed

        async def known_watch(*_: Any, **__: Any) -> PodWatch:
            return watch

        patch.setattr(DLSpawner, "pod_reflector", watch)
        patch.setattr(DLSpawner, "server", SimpleNamespace(base_url="/user/x/", url=f"{at}/user/x/"))
        patch.setattr("kubespawner.KubeSpawner._start_reflector", known_watch)
        patch.setattr("dlspawner.spawner.orphans.look_after", lambda *_: None)
        patch.setattr(DLSpawner, "_repair_owned_objects", _nothing_is_missing)
        patch.setattr(DLSpawner, "_get_pod_url", lambda *_: at)
        patch.setattr(
            "dlspawner.spawner.recovery.resume_start", lambda spawner: setattr(spawner, "_spawn_pending", True)
        )
        made = [make_spawner(patch, f"user{number}", settings=None) for number in range(SERVERS)]
        for spawner in made:
            watch.resources.kept[spawner.pod_key] = pack(running_pod(spawner.pod_name))
        gc.collect(), gc.freeze()  # as the Hub's first list does
        worst = 0.0

        async def others() -> None:
            nonlocal worst
            while True:
                before = time.process_time()
                await asyncio.sleep(0)
                worst = max(worst, time.process_time() - before)

        checks = [asyncio.create_task(check(spawner)) for spawner in made]
        await asyncio.sleep(0.1)  # all of them wait for the first list
        ticking = asyncio.create_task(others())
        began = time.perf_counter()
        listed.set_result(None)
        known = sum(await asyncio.gather(*checks))
        took = time.perf_counter() - began
        ticking.cancel()
    return worst, took, known


async def _nothing_is_missing(*_: Any) -> bool:
    return True


def measure(_: Path) -> list[Figure]:
    with subprocess.Popen([sys.executable, "-c", ANSWERS], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            worst, took, known = asyncio.run(come_back(int(process.stdout.readline())))
        finally:
            process.terminate()
    title = f"a Hub back to {SERVERS} servers"
    return [
        Figure(f"{title}, longest stall", worst, "s", aim=AIM_SECONDS),
        Figure(f"{title}, until all are known", took, "s"),
        Figure(f"{title}, taken for starts under way", SERVERS - known, "1", aim=0),
    ]


if __name__ == "__main__":
    publish("bench-restart", measure)
