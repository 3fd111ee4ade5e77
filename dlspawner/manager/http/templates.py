"""The templates of pages: how they are found, and the filters that they use."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from jinja2 import BaseLoader, ChoiceLoader, Environment, FileSystemLoader, PrefixLoader
from jupyterhub._data import DATA_FILES_PATH

from dlspawner.core.text import escape_hidden
from dlspawner.core.units import shown
from dlspawner.manager.model.ssh_keys import describe_type


class NonceLoader(BaseLoader):
    """Gives every script that is written in a template the page's nonce; what data smuggles in gets none."""

    def __init__(self, inner: BaseLoader) -> None:
        self._inner = inner

    def get_source(self, environment: Environment, template: str) -> tuple[str, str | None, Callable[[], bool] | None]:
        source, filename, uptodate = self._inner.get_source(environment, template)
        return re.sub(r"<script(?=[\s>])", '<script nonce="{{ csp_nonce }}"', source), filename, uptodate


def make_environment(paths: Sequence[str]) -> Environment:
    """Templates as JupyterHub finds them: ours first, then the Hub's; "templates/…" always names the Hub's own."""
    hub = str(Path(DATA_FILES_PATH) / "templates")
    loader = ChoiceLoader([PrefixLoader({"templates": FileSystemLoader([hub])}, "/"), FileSystemLoader([*paths, hub])])
    environment = Environment(loader=NonceLoader(loader), autoescape=True, finalize=_visible)
    environment.filters["ago"] = ago
    environment.filters["gpus"] = shown
    environment.filters["cpu"] = lambda milli: f"{milli / 1000:.1f}".removesuffix(".0")
    environment.filters["memory"] = lambda count: f"{count / 2**30:.1f}".removesuffix(".0") + " GiB"
    environment.filters["pair"] = lambda text: (text, text)
    environment.filters["key_type"] = lambda key: describe_type(key.partition(" ")[0])
    return environment


def _visible(value: object) -> object:
    """Nothing hides in what pages hold. What is markup already, as after ``|e`` in hidden fields, stays."""
    return escape_hidden(value) if type(value) is str else value


def ago(then: datetime, now: datetime) -> str:
    seconds = abs(int((now - then).total_seconds()))
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            many = seconds // size
            words = f"{many} {unit}{'s' if many > 1 else ''}"
            return f"{words} ago" if then < now else f"in {words}"
    return "just now"
