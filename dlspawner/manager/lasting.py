"""Answers that go on for long outlive no right: while one is read, its reader is asked for again and again.

What cannot be asked ends nothing: as with sessions of the SSH gateway, an answer that did not come is no answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from dlspawner.hubapi import HubError
from dlspawner.manager.store import StoreUnavailable
from dlspawner.manager.web import ApiHandler, Problem

RECHECK_SECONDS = 30.0
ENDED = "This stream has ended: {}"
_CANNOT_BE_ASKED = 500  # and more: not here, not now


async def until_it_is_over(handler: ApiHandler, allowed: Callable[[], Awaitable[object]]) -> str:
    """Wait until this request's reader may not have it any more; the sentence for them.

    ``allowed`` raises `Problem` then; it finds who asks in the handler, recognised anew.
    """
    while True:
        await asyncio.sleep(RECHECK_SECONDS)
        try:
            await handler.recognise()
            handler.known()
            await allowed()
        except Problem as problem:
            if problem.status_code < _CANNOT_BE_ASKED:
                return ENDED.format(problem.detail)
        except (HubError, StoreUnavailable):
            continue
