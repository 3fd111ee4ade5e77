"""The metrics of a node's pretended GPUs, as NVIDIA's dcgm-exporter serves them: its names, labels and port.

There is no computation on them, so a GPU is as busy as the processes of the container that holds it: their share of one
CPU. It is measured between two looks, at least a second apart, as an exporter's own samples are. An idle GPU has 0 %,
and memory is in use where a container holds it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

PORT = 9400
_LOOK_SECONDS = 1.0
_TICKS = os.sysconf("SC_CLK_TCK")
_MIB_TOTAL = 81920
_MIB_HELD = 512


@dataclass(frozen=True, slots=True)
class Holder:
    """A container that holds GPUs: what it is called, which it has, and the process that began it, if it runs."""

    namespace: str
    pod: str
    container: str
    devices: tuple[str, ...]
    pid: int | None = None


@dataclass(slots=True)
class _Look:
    at: float
    seconds: Mapping[int, float]  # of CPU, by the process that began a container
    percent: Mapping[int, float]


class Exporter:
    """`start` it for one node; `devices` are all of its GPUs, `holders` returns the present holders."""

    def __init__(self, node: str, model: str, devices: Sequence[str], holders: Callable[[], Iterable[Holder]]) -> None:
        self._node, self._model, self._devices, self._holders = node, model, devices, holders
        self._last = _Look(0.0, {}, {})
        self._runner: web.AppRunner | None = None

    async def start(self, ip: str, port: int = PORT) -> None:
        """Listen. Where the port is another's, nothing is served, as on a node without an exporter."""
        app = web.Application()
        app.router.add_get("/metrics", self._answer)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, ip, port).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, _: web.Request) -> web.Response:
        holders = list(self._holders())
        percent = await asyncio.to_thread(self._look, [one.pid for one in holders if one.pid is not None])
        return web.Response(text=self._text(holders, percent), headers={"Content-Type": "text/plain; version=0.0.4"})

    def _look(self, pids: Sequence[int]) -> Mapping[int, float]:
        now = time.monotonic()
        if now - self._last.at >= _LOOK_SECONDS:
            seconds, passed = cpu_seconds(pids), now - self._last.at
            before = self._last.seconds
            percent = {pid: min(100.0, 100 * (seconds[pid] - before[pid]) / passed) for pid in pids if pid in before}
            self._last = _Look(now, seconds, percent)
        return self._last.percent

    def _text(self, holders: Iterable[Holder], percent: Mapping[int, float]) -> str:
        by_device = {device: holder for holder in holders for device in holder.devices}
        used, memory, free = [], [], []
        for number, device in enumerate(self._devices):
            holder = by_device.get(device)
            labels = self._labels(number, device, holder)
            busy = percent.get(holder.pid, 0.0) if holder and holder.pid is not None else 0.0
            held = _MIB_HELD if holder else 0
            used.append(f"DCGM_FI_DEV_GPU_UTIL{labels} {max(0.0, busy):.0f}")
            memory.append(f"DCGM_FI_DEV_FB_USED{labels} {held}")
            free.append(f"DCGM_FI_DEV_FB_FREE{labels} {_MIB_TOTAL - held}")
        parts = (
            ("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", used),
            ("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).", memory),
            ("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).", free),
        )
        return "".join(
            f"# HELP {name} {about}\n# TYPE {name} gauge\n" + "".join(f"{line}\n" for line in lines)
            for name, about, lines in parts
        )

    def _labels(self, number: int, device: str, holder: Holder | None) -> str:
        labels = {
            "gpu": str(number),
            "UUID": device,
            "device": f"nvidia{number}",
            "modelName": self._model,
            "Hostname": self._node,
        }
        if holder is not None:
            labels |= {"container": holder.container, "namespace": holder.namespace, "pod": holder.pod}
        return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def cpu_seconds(roots: Sequence[int]) -> dict[int, float]:
    """CPU time of each of these processes and of all that came of it, also of what has ended."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            words = (path / "stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2].split()
        except OSError:
            continue  # it has ended
        pid = int(path.name)
        ticks[pid] = sum(int(word) for word in words[11:15])  # utime, stime, cutime, cstime
        children.setdefault(int(words[1]), []).append(pid)
    found = {}
    for root in roots:
        total, left = 0, [root]
        while left:
            pid = left.pop()
            total += ticks.get(pid, 0)
            left += children.get(pid, ())
        found[root] = total / _TICKS
    return found
