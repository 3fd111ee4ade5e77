"""The file that ``dlspawner submit`` reads and the form writes: a server and its options, as YAML. PURE.

    server: train            # left out: the default server
    options:
      template: ipython
      gpus: 2

The service checks the options; this module refuses only files of another format.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import yaml

Value = str | int | float | bool | None
_KEYS = ("server", "options", "user")
# PyYAML raises other errors, too, when a word is no valid value, such as the day 2026-99-99.
_NO_YAML = (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError)


class Malformed(ValueError):
    """A problem of the file, or of an argument that changes it."""


@dataclass(frozen=True, slots=True)
class Submission:
    options: dict[str, Value]
    server: str = ""
    user: str = ""  # another user; empty: the user of the command

    def body(self) -> dict[str, object]:
        owner = {"user": self.user} if self.user else {}
        return {"server": self.server, "options": self.options, **owner}


def read(text: str, name: str) -> Submission:
    """Returns the file's content; ``name`` is the file's name in errors."""
    try:
        content = yaml.safe_load(text)
    except _NO_YAML as problem:
        mark = getattr(problem, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise Malformed(f"{name}{where} is not YAML.") from None
    if not isinstance(content, dict):
        raise Malformed(f"{name} must say options:, and may say server:.")
    unknown = [key for key in content if key not in _KEYS]
    if unknown:
        raise Malformed(
            f"{name} has {unknown[0]!r}; known are {', '.join(_KEYS)}. What is chosen belongs below options."
        )
    options = content.get("options")
    server, user = content.get("server") or "", content.get("user") or ""
    if not isinstance(options, dict) or not all(isinstance(key, str) for key in options):
        raise Malformed(f"{name} needs options, such as {{template: ipython, gpus: 1}}.")
    if not isinstance(server, str) or not isinstance(user, str):
        raise Malformed(f"In {name} server and user must be text; put quotes around a number.")
    wrong = [key for key, value in options.items() if not isinstance(value, str | int | float | bool | None)]
    if wrong:
        raise Malformed(f"In {name} the option {wrong[0]!r} must be one text, number, true or false.")
    return Submission(options, server, user)


def changed(submission: Submission, settings: Iterable[str], server: str | None) -> Submission:
    """Returns the submission with options from arguments such as ``gpus=2``, and another server if one is named."""
    options = dict(submission.options)
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not (name and equals):
            raise Malformed(f"--set takes NAME=VALUE, such as gpus=2; this was {setting!r}.")
        options[name] = value
    return Submission(options, submission.server if server is None else server, submission.user)
