"""What a team's members may hold, in a sentence for the form. PURE.

The Manager decides, with what is in use by then; this is what the files say, so that nobody asks for what can never be.
"""

from __future__ import annotations

from collections.abc import Sequence

from dlspawner.core.amounts import GPU, counted, shown
from dlspawner.core.model import GpuType, Team


def quota_hint(team: Team, kinds: Sequence[GpuType], *, quotas: bool, preemptible: bool) -> str:
    """Empty where nothing limits the team. ``quotas``: some team has one; ``preemptible``: such jobs are offered."""
    words = []
    if quotas:
        own = [f"{shown(team.entitled(kind.name))} {kind.title}" for kind in kinds if team.entitled(kind.name)]
        words.append(", ".join(own) if own else "no GPUs of its own")
        if preemptible:
            words.append(_borrowed(team.borrow_limit))
    words += _for_one(team.user_caps.soft, team.user_caps.hard)
    return f"Team {team.title or team.name}: {'; '.join(words)}." if words else ""


def _borrowed(limit: int | None) -> str:
    if limit is None:
        return "idle ones of others for preemptible jobs"
    return f"up to {limit} idle ones for preemptible jobs" if limit else "none for preemptible jobs"


def _for_one(soft: int | None, hard: int | None) -> list[str]:
    """What one person may hold; above ``soft`` only what is approved."""
    if soft is None or (hard is not None and soft >= hard):
        return [] if hard is None else [f"at most {counted(hard * GPU)} for one person"]
    more = "" if hard is None else f", and {shown(hard * GPU)} with one"
    return [f"at most {counted(soft * GPU)} for one person without an approval{more}"]
