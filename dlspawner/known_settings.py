"""Settings that a program does not have.

traitlets warns about one and goes on without it: with a slip in the name of what keeps somebody out, or unused jobs
from holding GPUs, it does not. Here it is a reason not to start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from traitlets.config import Application, Config


def unknown(config: Config, of: type[Application], words: Sequence[str] = ()) -> str | None:
    """A sentence on the first setting that neither ``of`` nor its ``classes`` have, or a word that is no option.

    Values are not in it: what was to be a password may be one.
    """
    for section, name in _settings(config):
        if not _is_known(section, name, of):
            return _sentence(section, name, of)
    for word in words:
        written = word.partition("=")[0]
        section, _, name = written.rpartition(".")
        return f"write --{written}=…" if _is_known(section, name, of) else _sentence(section, name, of)
    return None


def _is_known(section: str, name: str, of: type[Application]) -> bool:
    return any(
        section in one.section_names() and name in one.class_trait_names(config=True) for one in (of, *of.classes)
    )


def _sentence(section: str, name: str, of: type[Application]) -> str:
    configured = [of, *of.classes]
    meant = [one for one in configured if section in one.section_names()] or configured
    named = {
        trait.lower(): f"{one.__name__}.{trait}"
        for one in reversed(meant)
        for trait in one.class_trait_names(config=True)
    }
    nearest = get_close_matches(name.lower(), named, n=1)
    hint = f"did you mean {named[nearest[0]]}?" if nearest else "--help-all tells all that there are"
    return f"there is no setting {f'{section}.{name}' if section else name}: {hint}"


def _settings(config: Config, section: str = "") -> Iterator[tuple[str, str]]:
    """Section and name of everything that is set."""
    for name, value in config.items():
        if isinstance(value, Config):
            yield from _settings(value, f"{section}.{name}" if section else name)
        else:
            yield section, name
