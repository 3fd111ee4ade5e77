"""What is wrong with a setting or its surroundings, in one sentence, before anybody is served."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

from traitlets.config import Application, Config

from dlspawner.known_settings import unknown, unreadable


class GatewayMisconfigured(Exception):
    """A setting or its surroundings are wrong; the message names the setting."""


def check_settings(config: Config, of: type[Application], words: Sequence[str] = ()) -> None:
    """CannotRun for the first setting that ``of`` does not have, or for a word that is none at all."""
    said = unknown(config, of, words)
    if said is not None:
        raise GatewayMisconfigured(said)


def check_arguments(arguments: Sequence[str], app: Application) -> None:
    """CannotRun for the first option that is none, before it is printed."""
    said = unreadable(arguments, app)
    if said is not None:
        raise GatewayMisconfigured(said)


def required(name: str) -> str:
    """What an environment variable says, which has to say something."""
    value = os.environ.get(name, "")
    if not value:
        raise GatewayMisconfigured(f"environment variable {name} is not set")
    return value


@contextlib.contextmanager
def taking(ip: str, port: int, setting: str) -> Iterator[None]:
    """Say which setting is to blame for a port that cannot be had."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise GatewayMisconfigured(
            f"port {port} on {ip} cannot be used: {why} (settings {setting} and Gateway.ip)"
        ) from error
