"""KubeSpawner's profiles: what people choose is checked before anything is done, and applied as its documentation says.

KubeSpawner checks only what comes with a profile's name, so a REST start with an unlisted choice and no profile has it
applied to the default profile unchecked; a choice that does not exist is a ``KeyError``, shown as an internal error and
counted as one of the Hub; patterns may match the beginning of a value; coroutines are not awaited. Here everything
wrong with a choice is one sentence that says what there is.

What is no option of any profile is left alone: hooks and forms of administrators have options of their own.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jupyterhub.utils import maybe_future
from kubespawner import KubeSpawner
from kubespawner.utils import recursive_format
from traitlets import default

from dlspawner.spawner.kube.errors import StartRefused

Profile = Mapping[str, Any]

UNLISTED = "--unlisted-choice"
_SPECIAL = frozenset("<>&\"'`{}")


def profile_problem(profiles: Sequence[Profile], given: Mapping[str, object]) -> str | None:
    """What is wrong with the options that somebody gave, in a sentence for them."""
    if not profiles:
        return None
    profile = chosen(profiles, given)
    if profile is None:
        names = ", ".join(str(one["slug"]) for one in profiles)
        return f"There is no profile {quoted(given['profile'])}. There are: {names}."
    options = profile.get("profile_options") or {}
    elsewhere = {name for one in profiles for name in one.get("profile_options") or {}} - options.keys()
    for key in given:
        name = str(key).removesuffix(UNLISTED)
        if name not in options and (name in elsewhere or name != key):
            known = ", ".join(options) or "none"
            return f"The profile {profile['slug']} has no option {quoted(name)}. It has: {known}."
    return next(filter(None, (_option_problem(name, option, given) for name, option in options.items())), None)


def _option_problem(name: str, option: Mapping[str, Any], given: Mapping[str, object]) -> str | None:
    choice, unlisted = given.get(name), given.get(name + UNLISTED)
    choices = option.get("choices") or {}
    if unlisted:
        return _unlisted_problem(name, option.get("unlisted_choice") or {}, unlisted)
    if choice and not (isinstance(choice, str) and choice in choices):
        return f"The option {name} has no choice {quoted(choice)}. It has: {', '.join(map(str, choices)) or 'none'}."
    if not choice and not choices:
        return f"The option {name} needs a value."
    return None


def _unlisted_problem(name: str, rules: Mapping[str, Any], value: object) -> str | None:
    if not rules.get("enabled"):
        return f"The option {name} takes only the choices that it lists."
    pattern = rules.get("validation_regex")
    fits = isinstance(value, str) and not set("{}") & set(value) and (not pattern or re.fullmatch(pattern, value))
    if fits:
        return None
    rule = str(rules.get("validation_message") or (f"It has to match {pattern}." if pattern else ""))
    return f"The option {name} cannot be {quoted(value)}. {rule}".strip()


def chosen(profiles: Sequence[Profile], given: Mapping[str, object]) -> Profile | None:
    """The profile that was asked for, the default one if none was; ``None``: there is no such profile."""
    slug = given.get("profile")
    if not slug:
        return next(profile for profile in profiles if profile.get("default"))
    return next((profile for profile in profiles if profile["slug"] == slug), None)


def overrides(profile: Profile, given: Mapping[str, object]) -> Iterator[Mapping[str, Any]]:
    """What a profile and the choices of its options change, in KubeSpawner's order; ``given`` has been checked."""
    yield profile.get("kubespawner_override") or {}
    for name, option in (profile.get("profile_options") or {}).items():
        choices = option.get("choices") or {}
        if value := given.get(name + UNLISTED):
            rules = option["unlisted_choice"].get("kubespawner_override") or {}
            yield {key: recursive_format(inner, value=value) for key, inner in rules.items()}
            continue
        choice = given.get(name)
        picked = choices[choice] if choice else next(one for one in choices.values() if one.get("default"))
        yield picked.get("kubespawner_override") or {}


def harmless(given: Mapping[str, object]) -> dict[str, object]:
    """Saved options as a form may show them: nothing escapes there, so without what means something in HTML."""
    return {
        name: value
        for name, value in given.items()
        if isinstance(value, bool | int | float | str) and not _SPECIAL & {*str(value), *str(name)}
    }


def escaped(profiles: Sequence[Profile]) -> list[dict[str, Any]]:
    """For KubeSpawner's own form: what it puts between quotation marks. Titles and descriptions may be HTML."""
    return [
        {
            **profile,
            "slug": html.escape(str(profile["slug"])),
            "profile_options": {
                html.escape(str(name)): _escaped_option(option)
                for name, option in (profile.get("profile_options") or {}).items()
            },
        }
        for profile in profiles
    ]


def _escaped_option(option: Mapping[str, Any]) -> dict[str, Any]:
    rules = dict(option.get("unlisted_choice") or {})
    for name in ("validation_regex", "validation_message"):
        if rules.get(name):
            rules[name] = html.escape(str(rules[name]))
    choices = {html.escape(str(name)): choice for name, choice in (option.get("choices") or {}).items()}
    return {**option, "unlisted_choice": rules, **({"choices": choices} if choices else {})}


def quoted(value: object) -> str:
    """What somebody has sent, for a sentence: cut, on one line."""
    words = " ".join(str(value).split())
    return f"“{words if len(words) <= 60 else words[:59] + '…'}”"


class ProfileSpawner(KubeSpawner):
    """KubeSpawner with its profiles closed against what people send."""

    user_options: Any

    @default("apply_user_options")
    def _apply_user_options_default(self) -> Any:
        """Where there are profiles they take the options: the Hub (5.3 on) would warn of each that nobody does."""
        return _taken_by_profiles if self.profile_list else None

    async def load_user_options(self) -> None:
        profiles = self._sorted_dict_values(self.profile_list)
        if callable(profiles):
            profiles = await maybe_future(profiles(self))
        profiles = self._get_initialized_profile_list(profiles)
        given = self.user_options if isinstance(self.user_options, Mapping) else {}
        if wrong := profile_problem(profiles, given):
            raise StartRefused(wrong, reason="options")
        if not profiles:
            if given.get("profile"):
                self.log.warning("Profile %s requested, but there are no profiles", quoted(given["profile"]))
            return
        profile = chosen(profiles, given)
        for changes in overrides(profile or {}, given):
            # Each after those before it: a function may look at what they have changed.
            for trait, value in changes.items():
                known = _known(await maybe_future(value(self))) if callable(value) else value
                self._apply_overrides({trait: known})

    def _validate_user_options(self, profile_list: list[dict[str, Any]]) -> None:
        """Asked by KubeSpawner's form, which selects what was chosen last when nothing is wrong with it."""
        if wrong := profile_problem(profile_list, self.user_options or {}):
            raise ValueError(wrong)

    def _render_options_form(self, profile_list: Any) -> str:
        given = self.user_options
        profiles = self._get_initialized_profile_list(profile_list)
        usual = not (self.profile_form_template or self.additional_profile_form_template_paths)
        # KubeSpawner looks whether the saved options are valid, and renders them all the same.
        fits = isinstance(given, Mapping) and profile_problem(profiles, given) is None
        self.user_options = harmless(given) if fits else {}
        try:
            return str(super()._render_options_form(escaped(profiles) if usual else profile_list))
        finally:
            self.user_options = given


def _known(value: Any) -> Callable[[Any], Any]:
    """A function with the answer of another: KubeSpawner would call an answer that is a hook."""
    return lambda _: value


def _taken_by_profiles(spawner: Any, given: Any) -> None:
    """``load_user_options`` applies them, when the spawn starts."""
