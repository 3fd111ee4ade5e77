"""A thread beside the loop for what may hang as network drives do: neither the loop nor the process's end waits for it.

Refused: `ThreadPoolExecutor`, whose threads the interpreter joins before it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

Answer = TypeVar("Answer")


class Hand:
    """Does one thing after the other, from the first that it is given until `stop`; given by one thread only."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._todo: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._stopped = False

    def submit(self, work: Callable[[], Answer]) -> Future[Answer]:
        """What comes of the work; cancelled, if it is stopped before."""
        future = Future[Answer]()
        if self._stopped:
            future.cancel()
            future.set_running_or_notify_cancel()
            return future
        self._todo.put((future, work))
        if self._thread is None:
            self._thread = Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        return future

    def stop(self) -> None:
        """Begin nothing more; what goes on is not waited for."""
        self._stopped = True
        try:
            while (job := self._todo.get_nowait()) is not None:
                job[0].cancel()
                job[0].set_running_or_notify_cancel()
        except Empty:
            self._todo.put(None)

    def _run(self) -> None:
        while (job := self._todo.get()) is not None:
            future, work = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                answer = work()
            except BaseException as problem:  # noqa: BLE001  (whoever waits for the answer gets it)
                future.set_exception(problem)
            else:
                future.set_result(answer)
