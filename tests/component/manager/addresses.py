"""Every address of the Manager, walked from the application itself, so that no new one goes unseen."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from tornado.web import RequestHandler

from dlspawner.manager.http.auth import HubServiceInfo
from dlspawner.manager.http.handlers import ManagerContext
from dlspawner.manager.server import make_web

PREFIX = "/services/jobs/"
SAMPLES = {
    r"(j-[a-z2-7]{12})": "{id}",
    r"([0-9a-f]{16})": "{notice}",
    r"(\d{1,9})": "{number}",
    r"([^/]*)": "{user}",
    r"([\w@/.-]+)": "{file}",
    r"([a-z0-9.-]{1,253})": "{node}",
}


@dataclass(frozen=True)
class Address:
    """A method of an address below the service's prefix, with {places} for what is a name or an id."""

    method: str
    path: str

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def addresses() -> Iterator[Address]:
    """All that this application answers."""
    service = HubServiceInfo(
        "jobs", PREFIX, "http://127.0.0.1:1", "http://127.0.0.1:2", "a token", "/", "", "service-jobs"
    )
    manager = ManagerContext(service, *cast("Any", (None, None, None, 1, None)))
    for rule in make_web(manager).wildcard_router.rules:
        handler = cast("Any", rule.target)
        pattern = cast("Any", rule.matcher).regex.pattern
        for method in RequestHandler.SUPPORTED_METHODS:
            if getattr(handler, method.lower()) is not getattr(RequestHandler, method.lower()):
                yield Address(method, _template(pattern))


def _template(pattern: str) -> str:
    path = pattern.removeprefix(PREFIX).removesuffix("$").replace(r"\.", ".")
    for group, place in SAMPLES.items():
        path = path.replace(group, place)
    assert not re.search(r"[(\[\\]", path), f"{pattern} has a part that no test knows"
    return path.replace("{user}/{user}", "{user}/{server}").replace("servers/{user}", "servers/{server}")
