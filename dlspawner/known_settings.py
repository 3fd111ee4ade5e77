"""Rejects unknown settings and numbers that are not finite, so that a program does not start with them.

traitlets only warns about an unknown setting: a misspelled name would silently switch off an access rule, or the
culling of unused jobs. `nan` is within any bounds and would switch off a time-out.

Sentences name settings and never repeat a value, or a word that may be a value: it may be a password.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any

import traitlets
from traitlets.config import Application, Config

_OPTION = re.compile(r"--?[A-Za-z]\w*(?:\.\w+)*")  # what traitlets' parser takes; any other one it prints whole
ALL = "--help-all tells all that there are"


class Float(traitlets.Float[float, float]):
    """A finite number."""

    info_text = "a finite number"

    def validate(self, obj: Any, value: Any) -> float:
        found = super().validate(obj, value)
        if not math.isfinite(found):
            self.error(obj, value)
        return found


def unknown(config: Config, of: type[Application], words: Sequence[str] = ()) -> str | None:
    """A sentence on the first setting that neither ``of`` nor its ``classes`` have, or on words that are no options."""
    for section, name in _settings(config):
        if not _is_known(section, name, of):
            return _sentence(section, name, of)
    return _stray(words[0], of) if words else None


def unreadable(arguments: Sequence[str], app: Application) -> str | None:
    """A sentence on the first option that the parser would not take, before it prints that."""
    names = [(key,) if isinstance(key, str) else key for key in (*app.aliases, *app.flags)]
    short = {f"--{name}" for several in names for name in several}
    for argument in arguments:
        if argument == "--":
            break
        written = argument.partition("=")[0]
        if written.startswith("-") and written not in short and not _OPTION.fullmatch(written):
            return _stray(written.lstrip("-"), type(app))
    return None


def _stray(word: str, of: type[Application]) -> str:
    section, _, name = word.partition("=")[0].rpartition(".")
    if _is_known(section, name, of):
        return f"write --{section}.{name}=…"
    meant = _meant(section, name, of)
    return f"a word on the command line is no setting: {f'did you mean --{meant}=…?' if meant else ALL}"


def _is_known(section: str, name: str, of: type[Application]) -> bool:
    return any(
        section in one.section_names() and name in one.class_trait_names(config=True) for one in (of, *of.classes)
    )


def _sentence(section: str, name: str, of: type[Application]) -> str:
    meant = _meant(section, name, of)
    written = f"{section}.{name}" if section else name
    return f"there is no setting {written}: {f'did you mean {meant}?' if meant else ALL}"


def _meant(section: str, name: str, of: type[Application]) -> str | None:
    """The setting whose name is nearest."""
    configured = [of, *of.classes]
    chosen = [one for one in configured if section in one.section_names()] or configured
    named = {
        trait.lower(): f"{one.__name__}.{trait}"
        for one in reversed(chosen)
        for trait in one.class_trait_names(config=True)
    }
    nearest = get_close_matches(name.lower(), named, n=1)
    return named[nearest[0]] if nearest else None


def _settings(config: Config, section: str = "") -> Iterator[tuple[str, str]]:
    for name, value in config.items():
        if isinstance(value, Config):
            yield from _settings(value, f"{section}.{name}" if section else name)
        else:
            yield section, name
