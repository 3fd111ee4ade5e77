"""What an exporter of metrics says of the pretended GPUs."""

from __future__ import annotations

import asyncio
import re

import aiohttp

from tests.component.devcluster.conftest import World

LINE = re.compile(r'DCGM_FI_DEV_GPU_UTIL\{gpu="(\d)",UUID="(GPU-[^"]+)",.*?(?:pod="(.*)")?\} (\d+)')
ONE = {"limits": {"nvidia.com/gpu": "1"}}


async def utilisation(world: World) -> dict[str, list[int]]:
    """Percent of every GPU of the first node, by the pod that holds it; "" for free ones."""
    url = f"http://{world.agent.nodes[0].ip}:9400/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert answer.status == 200
        text = await answer.text()
    found: dict[str, list[int]] = {}
    for _, _, pod, percent in LINE.findall(text):
        found.setdefault(pod, []).append(int(percent))
    return found


async def once_used(world: World, pod: str) -> dict[str, list[int]]:
    while True:
        found = await utilisation(world)
        if found.get(pod, [0])[0] >= 5:
            return found
        await asyncio.sleep(0.2)


async def test_gpu_is_as_busy_as_the_container_that_holds_it(world: World) -> None:
    await world.pod("busy", "while :; do :; done", resources=ONE)
    await world.pod("idle", "sleep 1000", resources=ONE)
    await world.phase("busy", "Running")
    await world.phase("idle", "Running")
    async with asyncio.timeout(60):
        found = await once_used(world, "busy")
    assert found["idle"][0] < 5
    assert found[""] == [0, 0]


async def test_released_gpu_has_no_pod(world: World) -> None:
    await world.pod("short", "true", resources=ONE)
    await world.phase("short", "Succeeded")
    assert await utilisation(world) == {"": [0, 0, 0, 0]}
