"""How figures are kept and printed. Ratios compare two things measured in turn in the same run."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

ROOT = Path(__file__).parents[2]
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value; `better` is "lower" or "higher", `aim` what we want of it, `peer` what it is held against."""

    name: str
    value: float
    unit: str
    better: str = "lower"
    aim: float | None = None
    peer: str = ""

    @property
    def row(self) -> str:
        aim = "" if self.aim is None else f"{'≤' if self.better == 'lower' else '≥'} {self.aim:g}"
        return f"{self.name:<62} {self.value:>10.3f} {self.unit:<6} {aim:<8} {self.peer}"


def ratio(
    name: str, ours: list[float], peers: list[float], peer: str, aim: float | None = None, *, better: str = "lower"
) -> Figure:
    """Median of the ratios of each pair of rounds: machine noise that lasts longer than a round cancels out."""
    value = median(a / b for a, b in zip(ours, peers, strict=True))
    return Figure(f"{name}: ratio to {peer}", value, "ratio", better, aim, peer)


async def seconds_of(work: Iterable[Item], at_once: int, do: Callable[[Item], Awaitable[object]]) -> list[float]:
    """Does all of the work, a few at once, and returns the seconds of each."""
    left, seconds = iter(work), []

    async def one_after_the_other() -> None:
        for one in left:
            begun = time.perf_counter()
            await do(one)
            seconds.append(time.perf_counter() - begun)

    await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))
    return seconds


def processor_seconds(pid: int | str) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int | str) -> float:
    """Memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def publish(name: str, measure: Callable[[Path], list[Figure]]) -> None:
    """Measure with a folder of its own, print the table and write the list of objects."""
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder))
    figures.append(Figure("load of the machine in the last minute", os.getloadavg()[0], ""))
    path = ROOT / "build" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(figure) for figure in figures], indent=1) + "\n")
    print(f"{'figure':<62} {'value':>10} {'unit':<6} {'aim':<8} peer")
    print("\n".join(figure.row for figure in figures))
    print(f"written to {path}")
