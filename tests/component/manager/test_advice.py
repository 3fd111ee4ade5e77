"""Advice on the policy: the real simulator in its process, on a small history; the page for administrators."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from select import select

import pytest
from sqlalchemy import Connection, insert

from dlspawner.manager.db.advice import FAILED, begin_advice, end_advice, read_advice
from dlspawner.manager.db.tables import idle_periods
from dlspawner.manager.history.advice import FEWEST_JOBS, Advisor
from dlspawner.manager.http.portal.advice import NOT_ADMIN
from tests.component.manager.history import NOON, Past, put_past
from tests.component.manager.manager_harness import Leader, ManagerHarness, until
from tests.component.manager.portals import Portal, browsing

PROGRAM = [sys.executable, "-m", "dlspawner.manager.history.advice"]


def put_history(connection: Connection) -> None:
    """Jobs of 2 GPUs on days of their own, 8 hours each: used for an hour, idle for four, used again."""
    days = [NOON + timedelta(days=number) for number in range(FEWEST_JOBS)]
    jobs = put_past(connection, *(Past("Q0 R0 E8", team="default", gpus=2, noon=day) for day in days))
    rows = [
        {"job": job, "since": day + timedelta(hours=1), "until": day + timedelta(hours=5)}
        for job, day in zip(jobs, days, strict=True)
    ]
    connection.execute(insert(idle_periods), rows)


def put_advice(connection: Connection) -> None:
    """A result, for the page."""
    point = dict.fromkeys(("window", "reclaimed", "lost", "wait_mean", "score"), 12.5)
    row = {"title": "idle window 15 min, notice 60 s", "unwanted": 3, "culls": 5, "preemptions": 2, **point}
    spans = {"window": 7200, "notice": 300, "min_run": 600, "dry_run": True}
    days = {"first": NOON.isoformat(), "last": NOON.isoformat()}
    known = {"jobs": 2000, "idle_jobs": 20, "gpus": 64.0, "settings": 217, "today": spans, **days}
    begin_advice(connection, NOON, "root-admin")
    result = json.dumps({**known, "now": row, "best": [row] * 3, "windows": [row] * 7})
    end_advice(connection, NOON, FAILED, problem="The simulation failed.", result=result)


def processes(parent: int) -> list[int]:
    """The processes of advice that this one has started."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            status, command = (place / "stat").read_text(), (place / "cmdline").read_text()
        except OSError:
            continue
        if int(status.rpartition(")")[2].split()[1]) == parent and PROGRAM[-1] in command:
            found.append(int(place.name))
    return found


async def test_history_is_replayed_in_a_process_of_low_priority(leader: Leader, db_url: str) -> None:
    await leader.repository._database.write(put_history)
    advisor = await begun(leader)
    (process,) = processes(os.getpid())
    os.kill(process, signal.SIGSTOP)
    advisor.start("bob")
    assert processes(os.getpid()) == [process], "one at a time"
    shown = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[1:-1]
    assert shown == [one.encode() for one in PROGRAM[1:]], "and no URL"
    os.kill(process, signal.SIGCONT)
    await until(lambda: not advisor.running, "it has ended")
    found = await leader.repository.read(read_advice)
    assert found is not None
    assert (found.state, found.asked_by, found.result["jobs"], found.result["gpus"]) == ("done", "alice", 20, 8)
    hours = [(one["window"] / 3600, one["reclaimed"], one["unwanted"]) for one in found.result["windows"]]
    day = 2 * FEWEST_JOBS
    assert hours == [
        *((window, day * (4 - window), FEWEST_JOBS) for window in (0.25, 0.5, 1, 2)),
        *((window, 0, 0) for window in (4, 8, 16)),
    ]
    assert found.result["best"][0]["window"] == 900


async def begun(leader: Leader) -> Advisor:
    """One that runs, by alice."""
    assert leader.advisor is not None
    leader.advisor.start("alice")
    await until(lambda: bool(processes(os.getpid())), "its process is there")
    return leader.advisor


async def test_end_of_the_term_leaves_no_process(harness: ManagerHarness) -> None:
    async with harness.manager() as leader:
        await begun(leader)
        os.kill(processes(os.getpid())[0], signal.SIGSTOP)
    assert processes(os.getpid()) == []
    async with harness.manager() as leader:
        found = await leader.repository.read(read_advice)
        assert (found and found.state, leader.advisor and leader.advisor.running) == ("running", False)


def test_killed_manager_leaves_no_process() -> None:
    """Its history is in a database that never answers."""
    start = "import subprocess, sys; p = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)"
    start += "; p.stdin.write(sys.stdin.buffer.read()); p.stdin.flush(); p.wait()"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql+psycopg://nobody@127.0.0.1:{silent.getsockname()[1]}/none?connect_timeout=600"
        manager = subprocess.Popen([sys.executable, "-c", start, *PROGRAM], stdin=subprocess.PIPE)
        assert manager.stdin is not None
        manager.stdin.write(pickle.dumps((url, None, None, ())))
        manager.stdin.close()
        with silent.accept()[0]:
            (process,) = processes(manager.pid)
            watched = os.pidfd_open(process)
            manager.kill()
            manager.wait()
            assert select([watched], [], [], 60)[0], "its end is told"
            os.close(watched)


async def test_page_is_for_administrators(portal: Portal) -> None:
    assert NOT_ADMIN in (await portal.read("vera", "cluster/policy")).text
    assert "cluster/policy" not in (await portal.read("vera", "cluster")).body
    assert "cluster/policy" in (await portal.read("root-admin", "cluster")).body


async def test_page_shows_each_state_and_the_result(portal: Portal) -> None:
    async def page() -> str:
        return (await portal.read("root-admin", "cluster/policy")).text

    async def press(button: str) -> None:
        assert (await portal.read("root-admin", f"cluster/policy/{button}", "POST")).location.endswith(
            "/cluster/policy"
        )

    leader = portal.served.leader
    assert leader.advisor is not None
    assert (await page()).endswith("no setting is changed. Run")
    await press("run")
    await until(lambda: not leader.advisor.running, "there is no history")  # type: ignore[union-attr]
    assert "No job with GPUs has ever run. Run again" in await page()
    await leader.repository._database.write(put_history)
    await press("run")
    await until(lambda: bool(processes(os.getpid())), "its process is there")
    assert re.search("Started by root-admin .* Cancel$", await page())
    await press("cancel")
    assert re.search("The latest run was cancelled .* Run again", await page())
    await press("run")
    await until(lambda: not leader.advisor.running, "it has a result")  # type: ignore[union-attr]
    text = await page()
    assert "with 20 jobs, 20 of them idle at times, from 2030-01-01 to 2030-01-20, on 8 GPUs." in text
    assert "As it is today 0.0 0 0 0.0 0.0 0.0 Idle window 15 min 150.0 (+150.0) 20 (+20)" in text
    assert "2 h 80.0 20 20 4 h 0.0 0 0" in text
    assert "None of them has a better balance" not in text


@pytest.mark.browser
async def test_page_is_reloaded_with_its_charts_when_a_run_ends(portal: Portal) -> None:
    await portal.served.leader.repository._database.write(put_history)
    async with browsing(portal, "root-admin", forgives=("Applying inline style violates",)) as page:
        await page.goto(f"{portal.real_hub.jobs}/cluster/policy")
        await page.get_by_role("button", name="Run").press("Enter")
        chart = page.locator("[data-chart=windows-table]").first
        await chart.locator("canvas").wait_for()
        await chart.locator(".plot").focus()
        await page.keyboard.press("Home")
        assert await chart.locator("time").text_content() == "15 min"
        assert await chart.locator("output").text_content() == "150.0"
