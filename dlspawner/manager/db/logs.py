"""Logs in the database.

A log is a row with its mark and parts with its text: a reading adds what is new to the last part, or begins another
one, and the oldest go when there is too much. So a reading costs what was printed since the one before, however long
the log is. Compressing is the caller's, outside of any transaction.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, true, update

from dlspawner.core.job import JobState
from dlspawner.manager.db.tables import jobs, log_parts, log_runs, pod_events
from dlspawner.manager.model.log_mark import LogMark

PART = 64 * 1024  # bytes of text in one part
RUNS_OF_CONTAINER, RUNS_OF_JOB = 5, 40  # newest ones that are kept
_AT_ONCE = 20  # logs that one transaction deletes

Key = tuple[str, str, int]  # the pod's uid, a container, and which run of it


@dataclass(frozen=True, slots=True)
class StoredLog:
    """The stored log of one run of a container."""

    id: int
    job: str
    pod: str
    key: Key
    mark: LogMark
    read: datetime
    size: int
    lost: bool
    whole: bool


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A piece of a log, compressed, and its size when it is not; `id` of one that is in the database."""

    size: int
    body: bytes
    id: int = 0


@dataclass(frozen=True, slots=True)
class LogReading:
    """The result of a reading: new parts, of which the first may replace the last known one.

    One that is read `anew` replaces all that was kept of this log.
    """

    job: str
    pod: str
    key: Key
    mark: LogMark
    at: datetime
    lost: bool
    whole: bool
    parts: tuple[LogChunk, ...] = ()
    replaces: int = 0
    anew: bool = False


def compressed(text: bytes) -> tuple[LogChunk, ...]:
    pieces = (text[at : at + PART] for at in range(0, len(text), PART))
    return tuple(LogChunk(len(piece), zlib.compress(piece)) for piece in pieces)


def live(connection: Connection) -> list[StoredLog]:
    """Returns the stored logs of jobs that have not ended."""
    going = select(jobs.c.job).where(jobs.c.state != JobState.ENDED.value)
    return [_kept(row) for row in connection.execute(select(log_runs).where(log_runs.c.job.in_(going)))]


def of_job(connection: Connection, job: str) -> list[StoredLog]:
    """Returns the stored logs of a job, oldest first."""
    query = select(log_runs).where(log_runs.c.job == job).order_by(log_runs.c.id)
    # A container's run may be read before the one that it had before.
    return sorted((_kept(row) for row in connection.execute(query)), key=lambda kept: kept.key[2])


def text(connection: Connection, log: int) -> bytes:
    query = select(log_parts.c.body).where(log_parts.c.log == log).order_by(log_parts.c.id)
    return b"".join(zlib.decompress(body) for body in connection.scalars(query))


def last_part(connection: Connection, key: Key) -> LogChunk | None:
    query = (
        select(log_parts.c.id, log_parts.c.size, log_parts.c.body)
        .join(log_runs, log_runs.c.id == log_parts.c.log)
        .where(_is(key))
        .order_by(log_parts.c.id.desc())
        .limit(1)
    )
    row = connection.execute(query).first()
    return None if row is None or row.size >= PART else LogChunk(row.size, row.body, row.id)


def write(connection: Connection, readings: Sequence[LogReading], most: int) -> None:
    """Stores new log parts, and of every log only its end; unknown jobs are skipped."""
    known = set(connection.scalars(select(jobs.c.job).where(jobs.c.job.in_({one.job for one in readings}))))
    for reading in readings:
        if reading.job in known:
            _add(connection, reading, most)


def sweep(connection: Connection, before: datetime) -> bool:
    """Forget some of what is kept of jobs that ended before; False when there was nothing to forget."""
    old = select(jobs.c.job).where(jobs.c.state == JobState.ENDED.value, jobs.c.ended < before)
    logs = [*connection.scalars(select(log_runs.c.id).where(log_runs.c.job.in_(old)).limit(_AT_ONCE))]
    events = [*connection.scalars(select(pod_events.c.id).where(pod_events.c.job.in_(old)).limit(10 * _AT_ONCE))]
    _forget(connection, logs)
    connection.execute(delete(pod_events).where(pod_events.c.id.in_(events)))
    return bool(logs or events)


def _add(connection: Connection, reading: LogReading, most: int) -> None:
    values = {"stamp": reading.mark.stamp, "lines": reading.mark.lines, "read": reading.at, "whole": reading.whole}
    row = connection.execute(select(log_runs.c.id, log_runs.c.lost).where(_is(reading.key))).first()
    if row is None:
        uid, container, run = reading.key
        named = {"job": reading.job, "pod_uid": uid, "pod_name": reading.pod, "container": container, "run": run}
        made = connection.execute(insert(log_runs).values(**named, **values, size=0, lost=reading.lost))
        log, lost = int(made.inserted_primary_key[0]), reading.lost  # type: ignore[index]  # one row was inserted
        _limit_runs(connection, reading)
    else:
        log, lost = int(row.id), reading.lost or (row.lost and not reading.anew)
    old = true() if reading.anew else log_parts.c.id == reading.replaces
    connection.execute(delete(log_parts).where((log_parts.c.log == log) & old))
    if reading.parts:
        bodies = [{"log": log, "size": part.size, "body": part.body} for part in reading.parts]
        connection.execute(insert(log_parts), bodies)
    size, cut = _shorten(connection, log, most)
    connection.execute(update(log_runs).where(log_runs.c.id == log).values(**values, size=size, lost=lost or cut))


def _shorten(connection: Connection, log: int, most: int) -> tuple[int, bool]:
    """Drop the oldest parts that are not needed for the last bytes; the size of what is left, and whether any went."""
    query = select(log_parts.c.id, log_parts.c.size).where(log_parts.c.log == log).order_by(log_parts.c.id)
    parts = connection.execute(query).all()
    size, old = sum(part.size for part in parts), []
    for part in parts:
        if size - part.size < most:
            break
        size -= part.size
        old.append(part.id)
    connection.execute(delete(log_parts).where(log_parts.c.id.in_(old)))
    return size, bool(old)


def _limit_runs(connection: Connection, reading: LogReading) -> None:
    """Deletes all but the newest runs of a container that restarts often."""
    uid, container, _ = reading.key
    ids = select(log_runs.c.id).order_by(log_runs.c.id.desc())
    same = ids.where((log_runs.c.pod_uid == uid) & (log_runs.c.container == container))
    old = [*connection.scalars(same.offset(RUNS_OF_CONTAINER).limit(_AT_ONCE))]
    old += connection.scalars(ids.where(log_runs.c.job == reading.job).offset(RUNS_OF_JOB).limit(_AT_ONCE))
    _forget(connection, old)


def _forget(connection: Connection, logs: Sequence[int]) -> None:
    connection.execute(delete(log_parts).where(log_parts.c.log.in_(logs)))
    connection.execute(delete(log_runs).where(log_runs.c.id.in_(logs)))


def _is(key: Key) -> Any:
    return (log_runs.c.pod_uid == key[0]) & (log_runs.c.container == key[1]) & (log_runs.c.run == key[2])


def _kept(row: Row[Any]) -> StoredLog:
    key, mark = (row.pod_uid, row.container, row.run), LogMark(row.stamp, row.lines)
    return StoredLog(row.id, row.job, row.pod_name, key, mark, row.read, row.size, row.lost, row.whole)
