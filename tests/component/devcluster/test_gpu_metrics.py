"""The metrics of the simulated GPUs."""

from __future__ import annotations

import asyncio
import re

import aiohttp

from tests.component.devcluster.conftest import EmbeddedCluster

LINE = re.compile(r'DCGM_FI_DEV_GPU_UTIL\{gpu="(\d)",UUID="(GPU-[^"]+)",.*?(?:pod="(.*)")?\} (\d+)')
ONE = {"limits": {"nvidia.com/gpu": "1"}}


async def utilisation(embedded: EmbeddedCluster) -> dict[str, list[int]]:
    """The percentages of the first node's GPUs by pod; "" for free GPUs."""
    url = f"http://{embedded.agent.nodes[0].ip}:9400/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert answer.status == 200
        text = await answer.text()
    found: dict[str, list[int]] = {}
    for _, _, pod, percent in LINE.findall(text):
        found.setdefault(pod, []).append(int(percent))
    return found


async def test_each_gpu_has_its_pod_and_the_use_of_its_container(embedded: EmbeddedCluster) -> None:
    await embedded.pod("short", "true", resources=ONE)
    await embedded.phase("short", "Succeeded")
    assert await utilisation(embedded) == {"": [0, 0, 0, 0]}

    await embedded.pod("busy", "while :; do :; done", resources=ONE)
    await embedded.pod("idle", "sleep 1000", resources=ONE)
    await embedded.phase("busy", "Running")
    await embedded.phase("idle", "Running")
    async with asyncio.timeout(60):
        while (found := await utilisation(embedded)).get("busy", [0])[0] < 5:  # noqa: ASYNC110 (an exporter has no events)
            await asyncio.sleep(0.2)
    assert found["idle"][0] < 5
    assert found[""] == [0, 0]
