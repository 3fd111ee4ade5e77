"""What a notebook server tells and asks the Manager of dlspawner, with the job's own token.

The browser asks its notebook server only: a page of a job must not use the Hub's services (their cookies are other
pages' business), and the token stays in the job. Outside a job, where the two environment variables are missing, this
does nothing.

A part is a module with a function ``start(app, manager)``; it adds handlers and returns the coroutine that runs as long
as the server does.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from dlspawner_jupyter import notices
from dlspawner_jupyter.manager import Manager

PARTS = (notices,)

# Tasks that nobody refers to may be collected while they run.
_running: set[asyncio.Task[None]] = set()


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    return [{"module": "dlspawner_jupyter"}]


def _load_jupyter_server_extension(app: Any) -> None:
    """Called by Jupyter Server when it starts."""
    url, token = os.environ.get("DLSPAWNER_MANAGER_URL", ""), os.environ.get("JUPYTERHUB_API_TOKEN", "")
    if not url or not token:
        app.log.info("dlspawner_jupyter: this is no job of dlspawner, nothing to do")
        return
    manager = Manager(url, token, app.log)
    for part in PARTS:
        work = part.start(app, manager)
        app.io_loop.add_callback(_run, part.__name__, work, app.log)


async def _run(name: str, work: Any, log: Any) -> None:
    """Run a part's coroutine; its end is a fault that is told, and the server goes on without it."""
    task = asyncio.create_task(work, name=name)
    _running.add(task)
    try:
        await task
    except Exception:
        log.exception("%s ended", name)
    finally:
        _running.discard(task)
