"""The machine's clock was set: an epoch that finds that begins by putting every time right that was written down.

`acting` notices it while it acts. When a clock was set back while no Manager acted, or the next one is on a machine
whose clock is behind, times that were written down have not come yet. Set forward meanwhile, it looks like so much time
without a Manager; nothing tells the two apart.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from functools import partial

from dlspawner.core.jobs import JobState
from dlspawner.manager.activity import ActivityRecord, counted_anew
from dlspawner.manager.book import JobStore
from dlspawner.manager.ledger import JobRepository
from dlspawner.manager.preempting import shift

JUMP = timedelta(seconds=30)  # a clock that is this far from where it should be has been set
log = logging.getLogger("dlspawner.manager")


async def put_right(book: JobStore, ledger: JobRepository, jump: timedelta) -> None:
    """Before anything is decided in this epoch; ``jump`` is by how much the clock was seen to be set before it."""
    by = jump or _set_back(book)
    if not by:
        return
    log.warning("epoch=%d the clock was set by %.0f seconds: all times move with it", book.term, by.total_seconds())
    now, known = book.now(), await ledger.activities()
    running = [job for job, record in book.records.items() if record.job.state is JobState.RUNNING]
    await ledger.write_activities(
        book.term, {job: counted_anew(known.get(job, ActivityRecord()), now) for job in running}
    )
    await book.transact(partial(shift, by=by))


def _set_back(book: JobStore) -> timedelta:
    """By how much the clock was set back while nobody looked."""
    times = [usage.since for usage in book.cluster_state.usage.values()]
    for record in book.records.values():
        times += [record.job.submitted, record.job.started or record.job.submitted]
    now = book.now()
    ahead = max(times, default=now) - now
    return -ahead if ahead > JUMP else timedelta(0)
