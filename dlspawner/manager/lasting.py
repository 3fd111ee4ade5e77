"""Answers that go on for long outlive no right: while one is read, its reader is asked for again and again.

What cannot be asked ends nothing: as with sessions of the SSH gateway, an answer that did not come is no answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from dlspawner.hubapi import HubError
from dlspawner.manager.store import DatabaseUnavailable
from dlspawner.manager.web import ApiHandler, HttpProblem

RECHECK_SECONDS = 30.0
ENDED = "This stream has ended: {}"
_CANNOT_BE_ASKED = 500  # and more: not here, not now


async def until_access_ends(handler: ApiHandler, allowed: Callable[[], Awaitable[object]]) -> str:
    """Wait until this request's reader may not have it any more; the sentence for them.

    ``allowed`` raises `Problem` then; it finds who asks in the handler, recognised anew.
    """
    while True:
        await asyncio.sleep(RECHECK_SECONDS)
        try:
            await handler.recognise()
            handler.check_parameters()
            await allowed()
        except HttpProblem as problem:
            if problem.status_code < _CANNOT_BE_ASKED:
                return ENDED.format(problem.detail)
        except (HubError, DatabaseUnavailable):
            continue
