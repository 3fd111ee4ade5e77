"""What is wrong with a setting or its surroundings, in one sentence, before anybody is served.

traitlets warns about a setting that it does not know and goes on without it: with a slip in the name of what keeps
somebody out, they come in. Here it is a reason not to start.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from traitlets.config import Application, Config


class CannotRun(Exception):
    """A setting or its surroundings are wrong; the message names the setting."""


def check(config: Config, of: type[Application], words: Sequence[str] = ()) -> None:
    """CannotRun for the first setting that ``of`` does not have, or for a word that is none at all."""
    sections, traits = of.section_names(), of.class_trait_names(config=True)
    for section, name in [*_settings(config), *(("", word) for word in words)]:
        if section in sections and name in traits:
            continue
        written = f"{section}.{name}" if section else name
        nearest = get_close_matches(name.lower(), traits, n=1)
        hint = f"did you mean {of.__name__}.{nearest[0]}?" if nearest else "--help-all tells all that there are"
        raise CannotRun(f"there is no setting {written}: {hint}")


def required(name: str) -> str:
    """What an environment variable says, which has to say something."""
    value = os.environ.get(name, "")
    if not value:
        raise CannotRun(f"environment variable {name} is not set")
    return value


@contextlib.contextmanager
def taking(ip: str, port: int, setting: str) -> Iterator[None]:
    """Say which setting is to blame for a port that cannot be had."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise CannotRun(f"port {port} on {ip} cannot be used: {why} (settings {setting} and Gateway.ip)") from error


def _settings(config: Config, section: str = "") -> Iterator[tuple[str, str]]:
    """Section and name of everything that is set."""
    for name, value in config.items():
        if isinstance(value, Config):
            yield from _settings(value, f"{section}.{name}" if section else name)
        else:
            yield section, name
