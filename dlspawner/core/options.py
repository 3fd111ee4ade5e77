"""What a person may choose, and whether what they chose is all right.

The form and the check both come from :func:`offered`, so a form can not offer what the check refuses. Strings from an
HTML form and JSON from the REST API are both accepted, and nothing else: every wrong value becomes one sentence that
says what would have worked, all of them together, never an exception.

An empty string and ``null`` mean *not given*, because that is what an untouched form field sends.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from dlspawner.core import quantity
from dlspawner.core.model import DEFAULT_TEAM, ClusterConfig, CpuMemory, GpuType, Team
from dlspawner.core.telling import minutes
from dlspawner.core.template import Option, OptionChoice, OptionKind, Template, Value
from dlspawner.core.values import WrongValueError, read_value, show

TEMPLATE_KEY = "template"
HTTP_PORT = "http_port"

# Options whose kind and meaning are the product's; a template says that it offers them and may narrow them.
BUILT_IN = {
    "gpus": Option("gpus", OptionKind.INTEGER, "GPUs"),
    "gpu_type": Option("gpu_type", OptionKind.CHOICE, "GPU type"),
    "cpu": Option("cpu", OptionKind.QUANTITY, "CPUs", "Left empty: what belongs to the GPUs."),
    "memory": Option("memory", OptionKind.QUANTITY, "Memory", "Left empty: what belongs to the GPUs."),
    "team": Option("team", OptionKind.CHOICE, "Team", "Whose quota the job is charged to."),
    "preemptible": Option("preemptible", OptionKind.BOOLEAN, "Preemptible"),
    "requeue": Option("requeue", OptionKind.BOOLEAN, "Start again after being stopped for others"),
    "priority": Option("priority", OptionKind.CHOICE, "Priority"),
    "log_dir": Option("log_dir", OptionKind.PATH, "Log directory"),
    "image": Option("image", OptionKind.IMAGE, "Image"),
    HTTP_PORT: Option(HTTP_PORT, OptionKind.INTEGER, "HTTP port", minimum=1024, maximum=65535),
}

_EXPLAINED = {
    "preemptible": (
        "It runs on idle GPUs of anybody, outside the quota; it may be stopped after a notice of {notice}."
    ),
    "requeue": (
        "If it is stopped because others need the GPUs, it waits at its old place in the queue and starts anew; what "
        "was in its memory is lost."
    ),
}

_SMALLEST = {"cpu": Fraction(1, 10), "memory": Fraction(64 * 1024**2)}


@dataclass(frozen=True, slots=True)
class InvalidOptions:
    """Why nothing was started: sentences for the user."""

    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SelectedOptions:
    """What was chosen, checked and completed with defaults.

    ``values`` has every option of the template, ``None`` where nothing was given and nothing is the default; CPU and
    memory that come with the GPUs are only in ``amount``. ``priority`` is the level's name, the team's lowest without
    one; only jobs with GPUs are ``preemptible``.
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
    if template.pods != 1:
        problems.append(
            f"“{template.title}” asks for {template.pods} pods; jobs of more than one pod can not be launched yet."
        )
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
        notice = minutes(cluster.scheduling.notice)
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
        help=option.help or "Orders the jobs that wait, those of all teams. Left empty: the lowest that your team has.",
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
    if problems:
        return InvalidOptions(tuple(problems))
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
    if preemptible and team.borrow_limit is not None and gpus > team.borrow_limit:
        may = f"at most {team.borrow_limit} GPUs" if team.borrow_limit else "no GPUs"
        problems.append(f"Team {team.title or name} may borrow {may} for preemptible jobs; you asked for {gpus}.")
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
    )


def work_share(template: Template, share: CpuMemory) -> CpuMemory:
    """What the work container may have of a job's share; one that is too small for the others is refused later."""
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
    """Those of a person's teams that may pay for a job of this template."""
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
        """What the job gets in the base unit; a wish outside the limits becomes a problem."""
        limit, least = self.limit, self._base(_SMALLEST[self.name])
        if self.option is not None:
            limit = limit if self.option.maximum is None else min(limit, self._base(Fraction(self.option.maximum)))
            least = max(least, self._base(Fraction(self.option.minimum or 0)))
        asked = quantity.parse_quantity(str(wanted or ""))
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
        return quantity.cpu_milli(value) if self.name == "cpu" else quantity.memory_bytes(value)

    def _text(self, amount: int) -> str:
        return quantity.cpu(amount) if self.name == "cpu" else quantity.memory(amount)


def _unknown(template: Template, name: object, known: Iterable[str]) -> str:
    names = sorted(known)
    have = f"It has: {', '.join(names)}." if names else "It has no options."
    return f"“{template.title}” has no option {show(name)}{_nearest(name, names)}. {have}"


def _nearest(name: object, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name[:64], names, n=1) if isinstance(name, str) else []
    return f" (did you mean {near[0]}?)" if near else ""
