"""Advice on the policy: the Manager's history replayed with other settings, in a process beside the Manager.

The process has the lowest priority and one core. It reads from its standard input all that it needs, so that no list of
processes shows the database's URL, and ends when that input is closed: with the run, with the leader's term, and with a
Manager that is killed. It writes how far it is, a line for each setting, and then the result. State and result are a
row of the database (`db.advice`); a run without its Manager has no result, and is to be asked for again.

Refused: a thread, because it would compete with the event loop; and resuming a run after a restart, because a run that
is too large for the machine would never end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import pickle
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

from dlspawner.core.config import ClusterConfig, TeamsConfig
from dlspawner.core.nodes import Node
from dlspawner.core.units import GPU
from dlspawner.manager.db import advice as rows
from dlspawner.manager.db.repository import JobRepository
from dlspawner.manager.db.store import DatabaseUnavailable
from dlspawner.manager.history import trace as history
from dlspawner.manager.state.job_store import JobStore
from dlspawner.simulate import sweep
from dlspawner.simulate.scenario import Scenario
from dlspawner.simulate.sweep import Setting
from dlspawner.simulate.trace import InvalidTrace, Trace

MOST_JOBS, FEWEST_JOBS = 10_000, 20  # that are replayed
_LOWEST_PRIORITY = 19
log = logging.getLogger("dlspawner.manager")


@dataclass(slots=True)
class Advisor:
    """One run at most, a task of the leader's term; ``progress``: settings that are replayed, and of how many."""

    store: JobStore
    repository: JobRepository
    group: asyncio.TaskGroup
    progress: tuple[int, int] = (0, 0)
    _run: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        return self._run is not None and not self._run.done()

    def start(self, who: str) -> None:
        """Begins a run, unless there is one."""
        if not self.running:
            self.progress = (0, 0)
            self._run = self.group.create_task(self._advise(who), name="advice on the policy")

    async def cancel(self, who: str) -> None:
        if self._run is not None and self._run.cancel():
            await asyncio.wait({self._run})
            log.info("advice on the policy: cancelled by=%s", who)
            await self._write(partial(rows.end_advice, at=self.store.now(), state=rows.CANCELLED))

    async def _advise(self, who: str) -> None:
        log.info("advice on the policy: begins by=%s", who)
        try:
            await self._write(partial(rows.begin_advice, at=self.store.now(), by=who))
            told = await self._simulate()
            problem = told.get("problem", "" if told else "The simulation failed; the Manager's log says why.")
            state, result = (rows.FAILED, "") if problem else (rows.DONE, json.dumps(told["result"]))
            log.info("advice on the policy: %s %s", state, problem)
            now = self.store.now()
            await self._write(partial(rows.end_advice, at=now, state=state, problem=problem, result=result))
        except (DatabaseUnavailable, OSError, ValueError):  # the page says that there is no result
            log.exception("advice on the policy: failed")

    async def _write(self, change: Callable[..., None]) -> None:
        await self.repository.write_as_leader(self.store.term, change)

    async def _simulate(self) -> dict[str, Any]:
        """Returns what the process says in the end; it is gone afterwards, however this ends."""
        state = self.store.cluster_state
        given = (self.repository.url, state.cluster, state.teams, tuple(self.store.nodes.values()))
        program = (sys.executable, "-m", "dlspawner.manager.history.advice")
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*program, stdin=pipe, stdout=pipe, limit=2**20)
        try:
            assert process.stdin is not None  # noqa: S101 - both are pipes
            assert process.stdout is not None  # noqa: S101
            process.stdin.write(pickle.dumps(given))
            told: dict[str, Any] = {}
            async for line in process.stdout:
                told = json.loads(line)
                done, of = told.get("progress", self.progress)
                self.progress = done, of
            return told if "progress" not in told else {}
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await asyncio.shield(process.wait())


# In the process


def main() -> None:
    os.nice(_LOWEST_PRIORITY)
    url, cluster, teams, nodes = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the Manager that started this process
    threading.Thread(target=_end_with_manager, daemon=True).start()
    try:
        trace = history.read(url, MOST_JOBS)
        _tell(result=advise(trace, scenario_of(cluster, teams, nodes), lambda *progress: _tell(progress=progress)))
    except InvalidTrace as problem:
        _tell(problem=str(problem))


def _end_with_manager() -> None:
    os.read(0, 1)  # returns when the Manager, which writes no more, closes its end
    os._exit(1)


def _tell(**what: object) -> None:
    print(json.dumps(what), flush=True)


def scenario_of(cluster: ClusterConfig, teams: TeamsConfig, nodes: tuple[Node, ...]) -> Scenario:
    """Today's cluster, all nodes in use."""
    if not cluster.scheduler.is_native:
        raise InvalidTrace(f"{cluster.scheduler.title} decides here, and its decisions cannot be replayed.")
    here = tuple(replace(one, cordoned=False, drain_at=None, ready=True) for one in nodes if one.gpus)
    if not here:
        raise InvalidTrace("There are no nodes with GPUs at the moment.")
    return Scenario(cluster, teams, here, sizes={})  # history knows the GPUs of each pod


def advise(trace: Trace, scenario: Scenario, told: Callable[[int, int], None]) -> dict[str, Any]:
    """Returns the present settings, the idle windows and the best settings, each with its figures.

    The other settings are played with the best window only: all together would take hours on one core.
    """
    jobs, idle = len(trace.jobs), sum(one.activity is not None for one in trace.jobs)
    if jobs < FEWEST_JOBS:
        raise InvalidTrace(f"Only {jobs} jobs with GPUs have run so far; advice needs {FEWEST_JOBS}.")
    windows = sweep.windows() if idle else []
    others = [one for one in sweep.candidates(trace) if one.window is None and one != Setting()]
    count, points = 1 + len(windows) + len(others), list[sweep.Point]()
    if count == 1:
        raise InvalidTrace("No job was idle or preemptible so far: there is nothing that other settings would change.")

    def play(setting: Setting) -> None:
        points.append(sweep.play(scenario, trace, setting))
        told(len(points), count)

    for setting in (Setting(), *windows):
        play(setting)
    window = max(points, key=lambda point: point.score).setting.window
    for setting in others:
        play(replace(setting, window=window))
    culling, rules = scenario.cluster.culling, scenario.cluster.scheduling
    return {
        "jobs": jobs,
        "idle_jobs": idle,
        "gpus": sum(milli for node in scenario.nodes for _, milli in node.gpus) / GPU,
        "first": trace.begin.isoformat(),
        "last": (trace.begin + timedelta(seconds=trace.span)).isoformat(),
        "today": {
            "window": culling.window.total_seconds() if culling.window else None,
            "dry_run": culling.dry_run,
            "notice": rules.notice.total_seconds(),
            "min_run": rules.min_run.total_seconds(),
        },
        "settings": count,
        "now": _named(points[0]),
        "windows": [_named(one) for one in points[1 : 1 + len(windows)]],
        "best": [_named(one) for one in sweep.best(points)],
    }


def _named(point: sweep.Point) -> dict[str, object]:
    return {"title": point.setting.title, **sweep.document(point)}


if __name__ == "__main__":
    main()
