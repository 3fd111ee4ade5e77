"""What teams may use and use now, as the portal's bars say it. PURE."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dlspawner.core.amounts import counted, shown
from dlspawner.core.model import Team
from dlspawner.core.world import ClusterState


@dataclass(frozen=True, slots=True)
class QuotaShare:
    """One team and GPU type, in milli-GPUs. ``quota`` is ``None`` while nobody has one."""

    team: str
    title: str
    gpu_type: str
    kind: str  # the type's title
    quota: int | None
    guaranteed: int
    borrowed: int

    @property
    def free(self) -> int:
        """What is left of the quota; 0 where more is held, since the quota was lowered."""
        return max(0, (self.quota or 0) - self.guaranteed)

    @property
    def sentence(self) -> str:
        """The bar in words."""
        lent = f", {shown(self.borrowed)} borrowed" if self.borrowed else ""
        if self.quota is None:
            return f"{counted(self.guaranteed)} used{lent}; no quota is set"
        over = self.guaranteed - self.quota
        rest = f"{shown(over)} more than the quota" if over > 0 else f"{shown(self.free)} free"
        return f"{shown(self.guaranteed)} of {counted(self.quota)} used, {rest}{lent}"

    @property
    def bars(self) -> tuple[float, float, float]:
        """Guaranteed, borrowed and free, in percent of the whole bar."""
        whole = max(1, self.guaranteed + self.borrowed + self.free)
        return tuple(round(100 * part / whole, 2) for part in (self.guaranteed, self.borrowed, self.free))  # type: ignore[return-value]


def quota_shares(world: ClusterState, teams: Iterable[Team]) -> tuple[QuotaShare, ...]:
    """A row for each type that a team is entitled to or uses."""
    has_quota = world.teams.has_quota
    found = []
    for team in teams:
        for kind in world.cluster.gpu_types:
            held, lent = world.guaranteed(team.name, kind.name), world.borrowed(team.name, kind.name)
            quota = team.entitled(kind.name) if has_quota else None
            if quota or held or lent:
                title = team.title or team.name
                found.append(QuotaShare(team.name, title, kind.name, kind.title or kind.name, quota, held, lent))
    return tuple(found)
