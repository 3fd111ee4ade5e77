"""The job form: what it shows, and what comes back from it. Pure, apart from reading its HTML template.

A form field is called ``<template>--<option>``, so that templates with options of the same name do not mix when a
browser without JavaScript sends all of them. A plain ``<option>`` is accepted as well: links, buttons and scripts that
know which template they mean use it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from dlspawner.core import units
from dlspawner.core.config import DEFAULT_TEAM, ClusterConfig, GpuType, Team, format_permissions
from dlspawner.core.launch import options
from dlspawner.core.launch.options import quota_hint
from dlspawner.core.template import EndpointProtocol, Option, OptionChoice, OptionKind, TeamDataAccess, Template
from dlspawner.settings import Settings

_SEPARATOR = "--"
_IGNORED = frozenset({"_xsrf", "next", "display_name"})
_FOLDED = frozenset({"cpu", "memory", "priority", "requeue", "log_dir", "http_port"})
_ENDPOINT_WORDS = {EndpointProtocol.HTTP: "web", EndpointProtocol.SSH: "SSH"}


@dataclass(frozen=True, slots=True)
class FormField:
    """One control of the form; ``control`` is an input type, ``select``, ``textarea`` or ``cards``.

    ``cards`` have lines of text about each choice.
    """

    name: str
    id: str
    control: str
    label: str
    help: str = ""
    value: str = ""
    choices: tuple[OptionChoice, ...] = ()
    minimum: int | float | None = None
    maximum: int | float | None = None
    step: str = ""
    placeholder: str = ""
    required: bool = False
    folded: bool = False  # below “More options”, unless it was given
    cards: tuple[tuple[str, str, tuple[str, ...]], ...] = ()  # title, value and lines of each


@dataclass(frozen=True, slots=True)
class TemplatePanel:
    name: str
    title: str
    description: str
    icon: str
    endpoints: tuple[str, ...]
    fields: tuple[FormField, ...]
    checked: bool


def pages(directory: Path) -> Environment:
    """Jinja with autoescape on everything: names and values on these pages come from users and YAML."""
    return Environment(
        loader=FileSystemLoader(directory),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def read_form_options(form: Mapping[str, Any], template: Template) -> dict[str, object]:
    """Returns the plain user options of a submitted form: this template's fields, and no others."""
    mine = template.name + _SEPARATOR
    given: dict[str, object] = {options.TEMPLATE_KEY: template.name}
    for name, values in form.items():
        value = first_value(values)
        if value is None or name in _IGNORED or name == options.TEMPLATE_KEY:
            continue
        if name.startswith(mine):
            given[name.removeprefix(mine)] = value
        elif _SEPARATOR not in name:
            given[name] = value
    return given


def panels(
    settings: Settings,
    teams: Sequence[Team],
    checked: str,
    given: Mapping[str, object],
    free: Mapping[str, tuple[float, float]] | None = None,
) -> list[TemplatePanel]:
    """Returns the panels for a member of these teams: the checked template with the given options, others with
    defaults.

    ``free``: of each GPU type, how many are free now, and on one node, as far as known; ``None`` where no Manager
    counts: otherwise the form names the quota.
    """
    shown, cluster = [], settings.cluster
    for template in options.usable_templates(settings.templates, teams):
        values = given if template.name == checked else {}
        offered = options.offered_options(template, cluster, teams)
        told = "" if free is None else _allowances(template, offered, settings, teams)
        kinds = _offered_types(offered, cluster)
        cards = tuple((kind.title, kind.name, tuple(_of_type(template, kind, free or {}, teams))) for kind in kinds)
        if len(cards) == 1 and free:
            told = f"{cards[0][0]}: {cards[0][2][0]}. {told}".strip()
        fields = (_field(template, option, cluster, values.get(option.name), told) for option in offered)
        shown.append(
            TemplatePanel(
                template.name,
                template.title,
                " ".join(part for part in (template.description, note(template)) if part),
                template.icon,
                tuple(dict.fromkeys(_ENDPOINT_WORDS.get(end.protocol, end.name) for end in template.endpoints)),
                tuple(replace(field, cards=cards if field.control == "cards" else ()) for field in fields if field),
                template.name == checked,
            )
        )
    return shown


def note(template: Template) -> str:
    """Returns the note on a template with special permissions; else an empty text."""
    if not template.special:
        return ""
    told = (
        f"Its jobs have special permissions ({format_permissions(template.special)}): "
        "an administrator approves each start."
    )
    if template.mounts.home is TeamDataAccess.NONE:
        return told
    return f"{told} Their home directory is another one than that of your other jobs."


def first_value(values: Any) -> str | None:
    """The first text of a form value; uploaded files are nothing that a job can be asked with."""
    if isinstance(values, str):
        return values
    if isinstance(values, list | tuple) and values and isinstance(values[0], str):
        return values[0]
    return None


def _allowances(template: Template, offered: Sequence[Option], settings: Settings, teams: Sequence[Team]) -> str:
    """Returns the GPUs of each team that may pay for such a job."""
    kinds = _offered_types(offered, settings.cluster)
    paying = options.usable_teams(template, teams) or (Team(DEFAULT_TEAM),)
    quotas, preemptible = settings.teams.has_quota, any(option.name == "preemptible" for option in offered)
    found = (quota_hint(team, kinds, quotas=quotas, preemptible=preemptible) for team in paying)
    return " ".join(one for one in found if one)


def _offered_types(offered: Sequence[Option], cluster: ClusterConfig) -> list[GpuType]:
    named = {choice.value for option in offered if option.name == "gpu_type" for choice in option.choices}
    return [kind for kind in cluster.gpu_types if not named or kind.name in named]


def _of_type(
    template: Template, kind: GpuType, free: Mapping[str, tuple[float, float]], teams: Sequence[Team]
) -> Iterator[str]:
    """Yields what is known of a GPU type: free GPUs, what a job may have, and the quota of each team."""

    def counted(gpus: float) -> str:
        milli = round(gpus * units.GPU)
        return units.shown(milli) if kind.share == 1 else units.counted(milli // kind.milli * units.GPU, "part")

    if kind.name in free:
        total, most = free[kind.name]
        yield f"{counted(total)} free now{f', at most {counted(most)} on one node' if most < total else ''}"
    own, largest = template.option("gpus"), kind.max_per_job
    if not template.roles and own and own.maximum is not None:
        largest = min(largest, int(own.maximum))
    part = "" if kind.share == 1 else f" parts, each {kind.share} of a GPU"
    share = f"{units.counted(kind.per_gpu.cpu_milli, 'CPU')} and {units.size(kind.per_gpu.memory_bytes)} each"
    yield f"Up to {largest}{part}{' in all pods' if template.roles else ''}, with {share}"
    for team in teams:
        if quota := team.entitled(kind.name):
            yield f"Quota of {team.title or team.name}: {counted(quota / units.GPU)}"


def _field(
    template: Template, option: Option, cluster: ClusterConfig, given: object, allowances: str
) -> FormField | None:
    """The control for an option; ``None`` where there is nothing to decide."""
    if option.name in ("team", "gpu_type", "priority") and len(option.choices) < 2:
        return None
    if option.name == "gpus" and not option.maximum:
        return None
    # An empty field is one that was not given: what is used then is the default, or nothing.
    value = option.default if given in (None, "") or isinstance(given, list | dict) else given
    control, step = ("cards", "") if option.name == "gpu_type" else _control(option)
    choices = option.choices
    if control == "select" and option.default is None:
        choices = (OptionChoice("", "—"), *choices)
    return FormField(
        name=option.name,
        id=f"{template.name}{_SEPARATOR}{option.name}",
        control=control,
        label=option.title or option.name,
        help=" ".join(
            one for one in (_help(template, option, cluster), allowances if option.name == "gpus" else "") if one
        ),
        value=_text(value),
        choices=choices,
        minimum=_number(option.minimum) if control == "number" else None,
        maximum=_number(option.maximum) if control == "number" else None,
        step=step,
        placeholder={"cpu": "for instance 4 or 500m", "memory": "for instance 16Gi"}.get(option.name, ""),
        required=option.default is None and option.name == "image",
        folded=option.name in _FOLDED and value == option.default,
    )


def _number(bound: int | float | Fraction | None) -> int | float | None:
    return float(bound) if isinstance(bound, Fraction) else bound


def _control(option: Option) -> tuple[str, str]:
    if option.choices or option.kind is OptionKind.CHOICE:
        return "select", ""
    match option.kind:
        case OptionKind.INTEGER:
            return "number", "1"
        case OptionKind.NUMBER:
            return "number", "any"
        case OptionKind.BOOLEAN:
            return "checkbox", ""
        case _:
            return ("textarea" if option.multiline else "text"), ""


def _help(template: Template, option: Option, cluster: ClusterConfig) -> str:
    """The template's own words, and the limits that the check will apply."""
    words = [option.help] if option.help else []
    most = options.work_share(template, cluster.cpu_only_max)
    if option.name == "gpus":
        words.append(f"0 to {option.maximum}." if not option.minimum else f"{option.minimum} to {option.maximum}.")
    elif option.name == "cpu":
        words.append(f"At most what belongs to the GPUs, or {units.cpu(most.cpu_milli)} without GPUs.")
    elif option.name == "memory":
        words.append(f"At most what belongs to the GPUs, or {units.size(most.memory_bytes)} without GPUs.")
    elif (
        option.kind in (OptionKind.INTEGER, OptionKind.NUMBER)
        and option.minimum is not None
        and option.maximum is not None
    ):
        words.append(f"{option.minimum} to {option.maximum}.")
    elif option.kind in (OptionKind.INTEGER, OptionKind.NUMBER) and option.maximum is not None:
        words.append(f"At most {option.maximum}.")
    return " ".join(words)


def _text(value: object) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
