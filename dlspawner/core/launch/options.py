"""The options that a user may choose, and the check of the chosen values.

The form and the check both come from `offered_options`, so a form can not offer what the check refuses. Strings from an
HTML form and JSON from the REST API are both accepted, and nothing else: every wrong value becomes one sentence that
says what would have worked, all of them together, never an exception.

An empty string and ``null`` mean *not given*, because that is what an untouched form field sends.

Accepted are exactly the value's own type and a string that spells it. Refused on purpose: ``true`` as the number 1,
``2.0`` as a whole number, ``NaN``, lists and objects, control characters, also those of the direction of writing, half
surrogate pairs, and what is too long.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeVar

from dlspawner.core import units
from dlspawner.core.config import DEFAULT_TEAM, ClusterConfig, CpuMemory, GpuType, Team
from dlspawner.core.template import MOST_PODS, Option, OptionChoice, OptionKind, Template, Value
from dlspawner.core.text import minutes, show
from dlspawner.core.units import GPU, counted, shown

TEMPLATE_KEY = "template"
HTTP_PORT = "http_port"

# Options with a kind and meaning that the product defines; a template says that it offers them and may narrow them.
BUILT_IN = {
    "gpus": Option("gpus", OptionKind.INTEGER, "GPUs"),
    "gpu_type": Option("gpu_type", OptionKind.CHOICE, "GPU type"),
    "cpu": Option("cpu", OptionKind.QUANTITY, "CPUs", "Default: what belongs to the GPUs."),
    "memory": Option("memory", OptionKind.QUANTITY, "Memory", "Default: what belongs to the GPUs."),
    "team": Option("team", OptionKind.CHOICE, "Team", "Whose quota the job is charged to."),
    "preemptible": Option("preemptible", OptionKind.BOOLEAN, "Preemptible"),
    "requeue": Option("requeue", OptionKind.BOOLEAN, "Requeue after preemption"),
    "priority": Option("priority", OptionKind.CHOICE, "Priority"),
    "log_dir": Option("log_dir", OptionKind.PATH, "Log directory"),
    "image": Option("image", OptionKind.IMAGE, "Image"),
    HTTP_PORT: Option(HTTP_PORT, OptionKind.INTEGER, "HTTP port", minimum=1024, maximum=65535),
}

_EXPLAINED = {
    "preemptible": "Uses idle GPUs outside your quota; can be stopped {notice}.",
    "requeue": (
        "When it is preempted, it keeps its place in the queue and restarts automatically; unsaved work is lost."
    ),
}

_SMALLEST = {"cpu": Fraction(1, 10), "memory": Fraction(64 * 1024**2)}


@dataclass(frozen=True, slots=True)
class InvalidOptions:
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SelectedRole:
    """So many pods of a role, and what each of them takes; ``gpus`` of the job's GPU type.

    ``least``: with so many of them the job starts, ``None`` for all.
    """

    name: str
    count: int
    gpus: int
    amount: CpuMemory
    command: tuple[str, ...] = ()
    least: int | None = None


@dataclass(frozen=True, slots=True)
class SelectedOptions:
    """The chosen options, checked and completed with defaults.

    ``values`` has every option of the template, ``None`` where nothing was given and nothing is the default; CPU and
    memory that come with the GPUs are only in ``amount``. ``priority`` is the level's name, the team's lowest without
    one; only jobs with GPUs are ``preemptible``. ``gpus`` and ``amount`` are those of the first pod; ``roles`` has all
    pods of a job of several, the first one first.
    """

    template: str
    team: str
    gpus: int
    gpu_type: GpuType | None
    amount: CpuMemory
    values: tuple[tuple[str, Value | None], ...] = ()
    priority: str = ""
    preemptible: bool = False
    requeue: bool = False
    roles: tuple[SelectedRole, ...] = ()

    def get(self, name: str) -> Value | None:
        return dict(self.values).get(name)

    @property
    def log_dir(self) -> str | None:
        """As it was chosen; ``rendering.log_dir`` makes it absolute."""
        chosen = self.get("log_dir")
        return chosen if isinstance(chosen, str) else None

    def user_options(self) -> dict[str, Value]:
        """The same choices as plain user options, for the Hub to keep."""
        return {TEMPLATE_KEY: self.template, **{name: value for name, value in self.values if value is not None}}


def usable_templates(templates: Iterable[Template], teams: Sequence[Team]) -> tuple[Template, ...]:
    """The templates that a member of these teams may launch, in their order."""
    return tuple(template for template in templates if _may_use(template, teams))


def find_template(
    templates: Sequence[Template], given: Mapping[str, object], teams: Sequence[Team] = (), default: str | None = None
) -> Template | InvalidOptions:
    """The template that the user options name: without a name the default one, or the first that the person may use."""
    allowed = usable_templates(templates, teams)
    if not allowed:
        return InvalidOptions(
            ("There is no job template that you may use; an administrator can allow one to your team.",)
        )
    name = given.get(TEMPLATE_KEY)
    if name is None or name == "":
        return next((template for template in allowed if template.name == default), allowed[0])
    found = next((template for template in allowed if template.name == name), None)
    if found is not None:
        return found
    if not isinstance(name, str):
        return InvalidOptions((f"The job template must be a name, not {show(name)}.",))
    names = [template.name for template in allowed]
    return InvalidOptions(
        (f"There is no job template {show(name)}{_nearest(name, names)}. Yours: {', '.join(names)}.",)
    )


def offered_options(template: Template, cluster: ClusterConfig, teams: Sequence[Team] = ()) -> tuple[Option, ...]:
    """The template's options with everything filled in that comes from the cluster and from the person's teams."""
    return tuple(_complete(option, template, cluster, teams) for option in template.options)


_NAMED = 5  # unknown options that are named one by one


def select_options(
    template: Template,
    cluster: ClusterConfig,
    given: Mapping[str, object],
    teams: Sequence[Team] = (),
    notebook_port: int | None = None,
) -> SelectedOptions | InvalidOptions:
    """Check user options against a template; ``teams`` are the person's, the one that pays by default first.

    ``notebook_port`` is where the job answers the Hub.
    """
    known = {option.name: option for option in offered_options(template, cluster, teams)}
    unknown = [name for name in given if name != TEMPLATE_KEY and name not in known]
    problems = [_unknown(template, name, known) for name in unknown[:_NAMED]]
    if len(unknown) > _NAMED:
        problems.append(f"{len(unknown) - _NAMED} more options are unknown.")
    values: dict[str, Value | None] = {}
    for name, option in known.items():
        try:
            values[name] = read_value(option, given.get(name))
        except WrongValueError as wrong:
            problems.append(f"{option.title} {wrong}")
    taken = _taken(template, notebook_port).get(values.get(HTTP_PORT))
    if taken is not None:
        problems.append(f"{known[HTTP_PORT].title} must not be {values[HTTP_PORT]}: {taken}.")
    if not problems:
        chosen = _complete_choices(template, cluster, values, known, teams)
        if isinstance(chosen, SelectedOptions):
            return chosen
        problems.extend(chosen.sentences)
    return InvalidOptions(tuple(problems))


def _taken(template: Template, notebook_port: int | None) -> Mapping[Value | None, str]:
    """Ports where the person's own server can not be, and why: the login proxy would lead to itself, or into sshd."""
    taken: dict[Value | None, str] = {template.ssh.port: "the job's sshd listens there"} if template.ssh else {}
    return taken if notebook_port is None else {**taken, notebook_port: "the job answers the Hub there"}


def _may_use(template: Template, teams: Sequence[Team]) -> bool:
    if not teams:
        return not template.who
    return any(team.may_use(template.name) and (not template.who or team.name in template.who) for team in teams)


def _complete(option: Option, template: Template, cluster: ClusterConfig, teams: Sequence[Team]) -> Option:
    if option.name == "gpus":
        largest = max((kind.max_per_job for kind in _gpu_types(template, cluster)), default=0)
        own = largest if option.maximum is None else int(option.maximum)
        lowest = int(option.minimum or 0)
        maximum = min(own, largest)
        default = option.default if option.default is not None else lowest
        return replace(option, minimum=lowest, maximum=maximum, default=min(int(default), maximum))
    if option.name == "gpu_type":
        kinds = _gpu_types(template, cluster)
        first = kinds[0].name if kinds else None
        choices = tuple(OptionChoice(kind.name, kind.title) for kind in kinds)
        return replace(option, choices=choices, default=first if option.default is None else option.default)
    if option.name == "team":
        paying = usable_teams(template, teams) or (Team(DEFAULT_TEAM),)
        choices = tuple(OptionChoice(team.name, team.title or team.name) for team in paying)
        return replace(option, choices=choices, default=choices[0].value)
    if option.name == "priority":
        return _priorities(option, cluster, usable_teams(template, teams) or (Team(DEFAULT_TEAM),))
    if option.name in _EXPLAINED:
        span = cluster.scheduling.notice
        notice = f"with {minutes(span)} of notice" if span else "without notice"
        return replace(option, help=option.help or _EXPLAINED[option.name].format(notice=notice))
    return option


def _priorities(option: Option, cluster: ClusterConfig, teams: Sequence[Team]) -> Option:
    """The levels that one of the person's teams may use, and that the template does not leave out."""
    narrowed = {choice.value for choice in option.choices}
    allowed = {one.name for team in teams for one in cluster.allowed_priorities(team)}
    names = [one.name for one in cluster.priorities if one.name in allowed and (not narrowed or one.name in narrowed)]
    titles = {choice.value: choice.title for choice in option.choices}
    return replace(
        option,
        choices=tuple(OptionChoice(name, titles.get(name, name)) for name in names),
        default=option.default if option.default in names else None,
        help=option.help or "Order in the queue. Default: your team's lowest level.",
    )


def _gpu_types(template: Template, cluster: ClusterConfig) -> list[GpuType]:
    option = template.option("gpu_type")
    narrowed = {choice.value for choice in option.choices} if option else set()
    return [kind for kind in cluster.gpu_types if not narrowed or kind.name in narrowed]


def _complete_choices(
    template: Template,
    cluster: ClusterConfig,
    values: dict[str, Value | None],
    known: Mapping[str, Option],
    teams: Sequence[Team],
) -> SelectedOptions | InvalidOptions:
    problems: list[str] = []
    gpus = int(values.get("gpus") or 0)
    kind = None
    if gpus:
        kinds = _gpu_types(template, cluster)
        kind = cluster.gpu_type(str(values["gpu_type"])) if values.get("gpu_type") else kinds[0]
        if kind is not None and gpus > kind.max_per_job:
            problems.append(f"GPUs of type {kind.name} must be at most {kind.max_per_job}; you asked for {gpus}.")
    default = kind.per_gpu.times(gpus) if kind else cluster.cpu_only_default
    limit = work_share(template, kind.per_gpu.times(gpus) if kind else cluster.cpu_only_max)
    basis = f"{gpus} × {kind.name}" if kind else "a job without GPUs"
    cpu = _Share("cpu", known.get("cpu"), default.cpu_milli, limit.cpu_milli, basis)
    memory = _Share("memory", known.get("memory"), default.memory_bytes, limit.memory_bytes, basis)
    amount = CpuMemory(cpu.take(values.get("cpu"), problems), memory.take(values.get("memory"), problems))
    roles = _roles(template, cluster, values, kind, SelectedRole("", 1, gpus, amount))
    problems += [
        f"The number of pods “{role.name}” must be between 0 and {MOST_PODS}; you asked for {role.count}."
        for role in roles
        if not 0 < role.count <= MOST_PODS
    ]
    if kind is not None:
        problems += [
            f"Each pod “{role.name}” asks for {role.gpus} GPUs; {kind.max_per_job} of type {kind.name} are the most."
            for role in roles[1:]
            if role.gpus > kind.max_per_job
        ]
    else:
        there = {role.name for role in roles}
        problems += [
            f"Each pod “{role.name}” has {counted(role.gpus * GPU)}, so the first one needs GPUs too: "
            "ask for one at least."
            for role in template.roles[1:]
            if role.gpus and role.name in there
        ]
    if problems:
        return InvalidOptions(tuple(problems))
    total = sum((role.count if role.least is None else role.least) * role.gpus for role in roles) or gpus
    paying = usable_teams(template, teams)
    name = str(values.get("team") or (paying[0].name if paying else DEFAULT_TEAM))
    team = next((one for one in paying if one.name == name), Team(name))
    level = cluster.priority(team, _own_priority(values, known, cluster, team))
    preemptible = bool(gpus and values.get("preemptible"))
    if level is None:
        allowed = ", ".join(one.name for one in cluster.allowed_priorities(team))
        problems.append(
            f"{known['priority'].title} must be one that team {team.title or name} may use: {allowed}; "
            f"you asked for {show(values['priority'])}."
        )
    asked = total * (kind.milli if kind else GPU)
    if preemptible and team.borrow_limit is not None and asked > team.borrow_limit:
        may = f"at most {counted(team.borrow_limit)}" if team.borrow_limit else "no GPUs"
        sentence = f"Team {team.title or name} may borrow {may} for preemptible jobs; you asked for {shown(asked)}."
        problems.append(sentence)
    if level is None or problems:
        return InvalidOptions(tuple(problems))
    return SelectedOptions(
        template.name,
        name,
        gpus,
        kind,
        amount,
        tuple(values.items()),
        priority=level.name,
        preemptible=preemptible,
        requeue=bool(values.get("requeue")),
        roles=roles,
    )


def _roles(
    template: Template,
    cluster: ClusterConfig,
    values: Mapping[str, Value | None],
    kind: GpuType | None,
    first: SelectedRole,
) -> tuple[SelectedRole, ...]:
    """Returns the job's roles with their numbers of pods; none for a job of one pod."""
    selected = [replace(first, name=role.name) for role in template.roles[:1]]
    for role in template.roles[1:]:
        count = role.count if isinstance(role.count, int) else int(values.get(role.count) or 0)
        gpus, amount = first.gpus, first.amount
        if kind is None or role.gpus is not None:
            gpus = role.gpus if kind is not None and role.gpus is not None else 0
            share = kind.per_gpu.times(gpus) if kind is not None and gpus else cluster.cpu_only_default
            amount = work_share(template, share) if role.gpus is not None else first.amount
        if role.cpu is not None:
            amount = replace(amount, cpu_milli=units.cpu_milli(role.cpu))
        if role.memory is not None:
            amount = replace(amount, memory_bytes=units.memory_bytes(role.memory))
        least = None if role.least is None else min(role.least, count)
        selected.append(SelectedRole(role.name, count, gpus, amount, role.command, least))
    return tuple(role for role in selected if role.count)


def work_share(template: Template, share: CpuMemory) -> CpuMemory:
    """Returns the work container's part of a job's share; too small a share is refused later."""
    beside = template.companions
    cpu, memory = share.cpu_milli - beside.cpu_milli, share.memory_bytes - beside.memory_bytes
    return CpuMemory(cpu if cpu > 0 else share.cpu_milli, memory if memory > 0 else share.memory_bytes)


def _own_priority(
    values: Mapping[str, Value | None], known: Mapping[str, Option], cluster: ClusterConfig, team: Team
) -> str | None:
    """The level that is asked for; a template's default gives way where the team may not use it."""
    name = values.get("priority")
    if name is None or (name == known["priority"].default and cluster.priority(team, str(name)) is None):
        return None
    return str(name)


def usable_teams(template: Template, teams: Sequence[Team]) -> tuple[Team, ...]:
    """Returns the user's teams that may pay for a job of this template."""
    return tuple(team for team in teams if _may_use(template, [team]))


@dataclass(frozen=True, slots=True)
class _Share:
    """CPU or memory: the option that asks for it, and what the cluster gives and allows for so many GPUs."""

    name: str
    option: Option | None
    default: int
    limit: int
    basis: str

    def take(self, wanted: Value | None, problems: list[str]) -> int:
        """Returns the amount of the job in the base unit; an amount outside the limits becomes a problem."""
        limit, least = self.limit, self._base(_SMALLEST[self.name])
        if self.option is not None:
            limit = limit if self.option.maximum is None else min(limit, self._base(Fraction(self.option.maximum)))
            least = max(least, self._base(Fraction(self.option.minimum or 0)))
        asked = units.parse_quantity(str(wanted or ""))
        if asked is None:
            return min(self.default, limit)
        amount = self._base(asked)
        if amount > limit and self.option is not None and wanted == self.option.default:
            return limit  # the template's own default gives way to a small share: the user did not ask for it
        if not least <= amount <= limit:
            problems.append(
                f"{self.option.title if self.option else self.name} must be between {self._text(least)} and "
                f"{self._text(limit)} for {self.basis}; you asked for {self._text(amount)}."
            )
        return amount

    def _base(self, value: Fraction) -> int:
        return units.cpu_milli(value) if self.name == "cpu" else units.memory_bytes(value)

    def _text(self, amount: int) -> str:
        return units.cpu(amount) if self.name == "cpu" else units.size(amount)


def _unknown(template: Template, name: object, known: Iterable[str]) -> str:
    names = sorted(known)
    have = f"It has: {', '.join(names)}." if names else "It has no options."
    return f"“{template.title}” has no option {show(name)}{_nearest(name, names)}. {have}"


def _nearest(name: object, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name[:64], names, n=1) if isinstance(name, str) else []
    return f" (did you mean {near[0]}?)" if near else ""


def quota_hint(team: Team, kinds: Sequence[GpuType], *, quotas: bool, preemptible: bool) -> str:
    """Empty where nothing limits the team. ``quotas``: some team has one; ``preemptible``: such jobs are offered."""
    words = []
    if quotas:
        own = [f"{shown(team.entitled(kind.name))} {kind.name}" for kind in kinds if team.entitled(kind.name)]
        words.append(", ".join(own) if own else "no GPUs of its own")
        if preemptible:
            words.append(_borrowed(team.borrow_limit))
    words += _for_one(team.user_caps.soft, team.user_caps.hard)
    return f"Team {team.title or team.name}: {'; '.join(words)}." if words else ""


def _borrowed(limit: int | None) -> str:
    if limit is None:
        return "idle ones of others for preemptible jobs"
    return f"up to {shown(limit)} idle ones for preemptible jobs" if limit else "none for preemptible jobs"


def _for_one(soft: int | None, hard: int | None) -> list[str]:
    """Returns the limit of one user; above ``soft`` an approval is needed."""
    if soft is None or (hard is not None and soft >= hard):
        return [] if hard is None else [f"at most {counted(hard)} for one person"]
    more = "" if hard is None else f", and {shown(hard)} with one"
    return [f"at most {counted(soft)} for one person without an approval{more}"]


LONGEST = {OptionKind.STRING: 4096, OptionKind.PATH: 1024, OptionKind.IMAGE: 512}

# The grammar of github.com/distribution/reference, by which container runtimes read names of images.
_LABEL, _PART = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?", r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:(?:{_LABEL}(?:\.{_LABEL})*|\[[A-Fa-f0-9:]+\])(?::[0-9]+)?/)?{_PART}(?:/{_PART})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@(?:sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128}))?"
)
# What a shell would expand and nothing else does, and addresses: each would be a directory of that very name.
_NO_PATH = re.compile(r"~[^/]|.*(?:\$[A-Za-z_{(]|://)")
_STORE = re.compile(r"(?!https?:|ftp:|file:|ssh:|sftp:)[a-z][a-z0-9]*://[^$]+")
_DECIMAL = r"[+-]?(?=\.?[0-9])[0-9]{0,20}\.?[0-9]{0,20}([eE][+-]?[0-9]{1,2})?"
_TRUE, _FALSE = frozenset({"true", "on", "yes", "1"}), frozenset({"false", "off", "no", "0"})
# Control characters other than tab and line ends; what turns the direction of writing, so that a text reads otherwise
# than it is; Unicode's own line ends; halves of surrogate pairs, which JSON can carry and UTF-8 can not.
_UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)

_Number = TypeVar("_Number", int, float, Fraction)


class WrongValueError(Exception):
    """A value is wrong; the text is the rest of a sentence that begins with the option's title."""


def read_value(option: Option, value: object) -> Value | None:
    """The value in the option's own type; its default, or ``None`` without one, where nothing was given."""
    if isinstance(value, str):
        # Browsers send CR LF for each line end of a text area, at which a shell's commands break.
        value = re.sub(r"\r\n?", "\n", value) if option.kind is OptionKind.STRING else value.strip()
    if value is None or value == "":
        if option.default is None:
            return None
        value = option.default
    if not isinstance(value, bool | int | float | str):
        raise WrongValueError(f"must be one plain value, not {show(value)}.")
    return _READERS[option.kind](option, value)


def check_value(option: Option, value: object) -> str | None:
    """Returns the problem of an option's value as a sentence, ``None`` for a valid one; for defaults in files."""
    try:
        read_value(replace(option, default=None), value)
    except WrongValueError as wrong:
        return f"{option.title or option.name} {wrong}"
    return None


def _integer(option: Option, value: Value) -> int:
    number: int | None = None
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,18}", value, re.ASCII):
        number = int(value)
    if number is None:
        raise WrongValueError(f"must be a whole number{_range(option)}; you gave {show(value)}.")
    return _within(option, number, f"asked for {_as_given(value)}")


def _number(option: Option, value: Value) -> float:
    number = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value) if abs(value) < 1e300 else math.nan
    elif isinstance(value, str) and re.fullmatch(_DECIMAL, value, re.ASCII):
        number = float(value)
    if not math.isfinite(number):
        raise WrongValueError(f"must be a number{_range(option)}; you gave {show(value)}.")
    return _within(option, number, f"gave {_as_given(value)}")


def _as_given(value: Value) -> str:
    """The number as it was typed, for a sentence; for texts that are known to spell one."""
    return value if isinstance(value, str) else show(value)


def _within(option: Option, number: _Number, what: str) -> _Number:
    low, high = option.minimum, option.maximum
    if (low is not None and number < low) or (high is not None and number > high):
        raise WrongValueError(f"must be{_range(option)}; you {what}.")
    return number


def _range(option: Option) -> str:
    low, high = (None if bound is None else _bound(option, bound) for bound in (option.minimum, option.maximum))
    if low is not None and high is not None:
        return f" between {low} and {high}"
    if low is not None:
        return f" at least {low}"
    return f" at most {high}" if high is not None else ""


def _bound(option: Option, bound: int | float | Fraction) -> str:
    if option.kind is OptionKind.QUANTITY:
        exact = Fraction(bound)
        return units.size(int(exact)) if exact >= 1024 and exact.denominator == 1 else units.cpu(units.cpu_milli(exact))
    return f"{bound:.15g}" if isinstance(bound, float) else str(bound)


def _boolean(_: Option, value: Value) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE
    raise WrongValueError(f"must be yes or no; you gave {show(value)}.")


def _choice(option: Option, value: Value) -> str:
    text = value if isinstance(value, str) else show(value)
    names = [choice.value for choice in option.choices]
    if text not in names:
        one_of = f"must be one of {', '.join(names)}" if names else "has nothing to choose from"
        raise WrongValueError(f"{one_of}; you chose {show(value)}.")
    return text


def _quantity(option: Option, value: Value) -> str:
    text = re.sub(r" *([KMGTPE]i)B", r"\1", _as_given(value))  # "8 GiB", as sentences write it
    number = None if isinstance(value, bool) else units.parse_quantity(text)
    if number is None:
        raise WrongValueError(f"must be an amount such as 4, 500m or 16Gi; you gave {show(value)}.")
    _within(option, number, f"asked for {text}")
    return text


def _text(option: Option, value: Value) -> str:
    if not isinstance(value, str):
        raise WrongValueError(f"must be text; you gave {show(value)}.")
    longest = LONGEST[option.kind]
    if len(value) > longest:
        raise WrongValueError(f"must be at most {longest} characters long; yours has {len(value)}.")
    if _UNPRINTABLE.search(value) or (not option.multiline and re.search(r"[\t\r\n]", value)):
        raise WrongValueError(f"must {'be printable text' if option.multiline else 'be one line of printable text'}.")
    if option.pattern is not None and not re.fullmatch(option.pattern, value):
        raise WrongValueError(f"must match {option.pattern}; you gave {show(value)}.")
    if option.choices:
        return _choice(option, value)
    if option.kind is OptionKind.IMAGE and not _IMAGE.fullmatch(value):
        case = ", its repository in lower case," if _IMAGE.fullmatch(value.lower()) else ""
        example = "registry.example.org/team/name:tag"
        raise WrongValueError(f"must be an image{case} such as {example}; you gave {show(value)}.")
    if option.kind is OptionKind.PATH:
        _check_path(value, stores=option.name == "log_dir")
    return value


def _check_path(path: str, *, stores: bool) -> None:
    """Refuses what is no place in the job; ``stores``: an object store's address, which TensorBoard reads, is one."""
    if ".." in path.split("/"):
        raise WrongValueError(f"must not contain “..”; you gave {show(path)}.")
    if _NO_PATH.match(path) and not (stores and _STORE.fullmatch(path)):
        works = "must be a path such as runs, ~/runs or /data/runs, without $VARIABLES and other people's ~"
        store = ", or an object store's address such as s3://bucket/runs" if stores else ""
        raise WrongValueError(f"{works}{store}; you gave {show(path)}.")


_READERS: dict[OptionKind, Callable[[Option, Value], Value]] = {
    OptionKind.INTEGER: _integer,
    OptionKind.NUMBER: _number,
    OptionKind.BOOLEAN: _boolean,
    OptionKind.CHOICE: _choice,
    OptionKind.QUANTITY: _quantity,
    OptionKind.STRING: _text,
    OptionKind.PATH: _text,
    OptionKind.IMAGE: _text,
}
