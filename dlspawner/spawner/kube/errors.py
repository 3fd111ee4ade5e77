"""``StartRefused``: the exception that ends a spawn for a known reason, with a sentence for the user.

The Hub shows a refusal in three ways (the form again, the failed-spawn page, a REST answer), and each reads other
attributes of the exception; ``StartRefused`` sets them all, on JupyterHub 5.5 and 6.x. It never contains a traceback, a
manifest or another user's name.

* On 6.x it is a ``SpawnException``: logged in one line, not counted as a failure of the Hub. On 5.5 that class does not
  exist, an ``HTTPError`` is the nearest, and ``consecutive_failure_limit`` has to be 0 there (5.5 counts everything).
* The Hub's form handler and ``apply_user_options`` log every exception with its traceback. ``QuietRefusals``, a filter
  on the Hub's own logger, turns that into the line the operator needs. Refused: replacing those handlers.
"""

from __future__ import annotations

import html
import logging
import re
from asyncio import CancelledError
from collections.abc import Sequence

from jupyterhub.apihandlers.base import APIHandler
from tornado import web

from dlspawner.core.decisions import Reason

try:
    from jupyterhub.spawner import SpawnException as _Base
except ImportError:  # JupyterHub 5.5
    from tornado.web import HTTPError as _Base

# JupyterHub 5.5 knows no exception that it does not count.
COUNTS_REFUSALS = _Base is web.HTTPError


_LINE = re.compile(r": refused \([a-z0-9-]+\): ")  # the text of a refusal inside a line of the Hub


def limit_problem(limit: int) -> str | None:
    """Returns the problem of this ``consecutive_failure_limit`` on this JupyterHub."""
    if not limit or not COUNTS_REFUSALS:
        return None
    return (
        f"consecutive_failure_limit is {limit} and must be 0 with JupyterHub 5, which counts refused starts as failures"
        " and would exit"
    )


class StartRefused(_Base):
    """The spawn is refused: ``sentences`` say why and what would work; ``reason`` is a word for metrics and logs."""

    def __init__(self, *sentences: str, reason: str, status: int = 400) -> None:
        # Neither base's __init__ is called: SpawnException's leaves "%" in a string that tornado formats.
        web.HTTPError.__init__(self, status, " ".join(sentences), reason=reason)
        self.sentences = sentences
        self.message = self.jupyterhub_message = " ".join(sentences)
        self.message_html = self.jupyterhub_html_message = _as_html(sentences)
        self.log_message = self.message.replace("%", "%%")  # what JupyterHub 5.5 answers by REST
        self.reason = reason

    waits = False  # true if the job will be started without another request
    outcome_unknown = False  # true if the pod may be created nevertheless: the answer to a request was lost

    def get_message(self) -> str:
        """Returns the text of the REST API on Hubs that do not know ``jupyterhub_message``."""
        return self.message

    def link_log(self, page: str) -> None:
        """Adds a link to the log of the job, for pages."""
        link = f' <a data-log href="{html.escape(page)}">Log</a>'
        self.message_html = self.jupyterhub_html_message = f"{self.message_html}{link}"

    @property
    def log_message(self) -> str:
        return self._line

    @log_message.setter
    def log_message(self, line: str) -> None:
        self._line = line

    def __str__(self) -> str:
        return f"refused ({self.reason}): {self.message}"


class StartQueued(StartRefused):
    """The job waits in the Manager's queue, or for an approval; ``page`` is the address of its page.

    The Hub's form handler would show the form again; as long as it has not answered, it redirects to the page instead.
    REST clients, and pages that are opened later, show the sentences.
    """

    waits = True

    def __init__(self, *sentences: str, reason: str, page: str, handler: web.RequestHandler | None) -> None:
        self._handler = None if handler is None or isinstance(handler, APIHandler) else handler
        super().__init__(*sentences, reason=reason, status=429)
        self.page = page
        what = "Where its approval stands" if reason == Reason.APPROVAL.value else "Its place in the queue"
        self.message = self.jupyterhub_message = f"{self.message} {what}: {page}"
        link = f'<p><a data-waits href="{html.escape(page)}">{what}</a></p>'
        self.message_html = self.jupyterhub_html_message = f"{self.message_html}{link}"
        self.log_message = self.message.replace("%", "%%")

    @property
    def _leads(self) -> bool:
        return self._handler is not None and not self._handler._finished

    @property
    def status_code(self) -> int:
        return 303 if self._leads else self._status

    @status_code.setter
    def status_code(self, status: int) -> None:
        self._status = status

    @property
    def headers(self) -> dict[str, str]:
        """Headers that the Hub's handlers add to their answer."""
        return {"Location": self.page} if self._leads else {}


# The Hub forgets a request's task when a start takes longer than a second or two. These loggers report later that the
# result was never retrieved; the Hub itself has logged the refusal by then.
_ECHOES = ("asyncio", "tornado.application")


class QuietRefusals(logging.Filter):
    """Logs a refusal, or a start that was stopped, as one line at level INFO where the Hub would print a traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        problem = record.exc_info[1] if record.exc_info else None
        if isinstance(problem, StartRefused):
            record.msg = f"{record.getMessage()}: {problem}"
            record.args = None
            record.exc_info = record.exc_text = None
            record.levelno, record.levelname = logging.INFO, "INFO"
            return record.name not in _ECHOES
        if isinstance(problem, CancelledError) and record.getMessage().startswith("Uncaught exception"):
            # The request for the start still waited for the Hub's answer.
            record.msg = f"{record.getMessage().splitlines()[0]}: the server was stopped before it had started"
            record.args = record.exc_info = record.exc_text = None
            record.levelno, record.levelname = logging.INFO, "INFO"
        # Lines of JupyterHub contain the text: "Not starting …", "Previous spawn … failed", "Error starting …".
        if problem is None and record.levelno == logging.ERROR and _LINE.search(record.getMessage()):
            record.exc_info = record.exc_text = None
            record.levelno, record.levelname = logging.INFO, "INFO"
        return True

    @classmethod
    def install(cls, log: logging.Logger | logging.LoggerAdapter[logging.Logger]) -> None:
        """Adds the filter once to the logger of the Hub's handlers and spawners, and to `_ECHOES`."""
        hub = log.logger if isinstance(log, logging.LoggerAdapter) else log
        for logger in (hub, *map(logging.getLogger, _ECHOES)):
            if not any(isinstance(known, cls) for known in logger.filters):
                logger.addFilter(cls())


def _as_html(sentences: Sequence[str]) -> str:
    escaped = [html.escape(sentence) for sentence in sentences]
    if len(escaped) == 1:
        return escaped[0]
    return "<ul>" + "".join(f"<li>{sentence}</li>" for sentence in escaped) + "</ul>"
