"""Whether what the Hub has kept of a server is what a job of it was started with. PURE.

The Hub keeps the options of the last start that was asked for, also of one that was refused and left no job. Of a job
the Manager knows what it costs and for whom; its image, its command and a template's own options it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dlspawner.core import options
from dlspawner.core.amounts import GPU
from dlspawner.core.model import Team
from dlspawner.manager.kept import JobHistory
from dlspawner.settings import Settings


def differences(
    kept: JobHistory, given: Mapping[str, object], settings: Settings, teams: Sequence[Team]
) -> tuple[str, ...]:
    """What would be another thing, in words; nothing where the Hub will refuse these options by itself."""
    template = options.find_template(settings.templates, given, teams, settings.cluster.default_template)
    if isinstance(template, options.InvalidOptions):
        return ()
    if template.name != kept.template:
        return (_not("template", template.name, kept.template),)
    chosen = options.select_options(template, settings.cluster, given, teams)
    if isinstance(chosen, options.InvalidOptions):
        return ()
    kind = chosen.gpu_type.name if chosen.gpu_type else None
    told = (
        ("team", chosen.team if given.get("team") else kept.team, kept.team),
        ("GPUs", chosen.gpus, kept.gpus_milli // GPU),
        ("GPU type", kind, kept.gpu_type),
        ("preemptible", chosen.preemptible, kept.preemptible),
        ("waiting again after it was stopped for others", chosen.requeue, kept.requeue),
    )
    return tuple(_not(name, now, then) for name, now, then in told if now != then)


def _not(name: str, now: object, then: object) -> str:
    return f"{name}: {_word(now)}, not {_word(then)}"


def _word(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return str(value)
