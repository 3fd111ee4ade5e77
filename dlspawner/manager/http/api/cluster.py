"""GetClusterStatus, the teams' quotas, and the queue."""

from __future__ import annotations

from dlspawner.core.config import DEFAULT_TEAM, Team
from dlspawner.core.scheduling import queue, usage_report
from dlspawner.core.text import amount
from dlspawner.manager.http.api.base import JobApiHandler
from dlspawner.manager.http.api.jobs import JobResource
from dlspawner.manager.http.api.models.requests import QueueQuery
from dlspawner.manager.http.api.models.responses import (
    AmountsModel,
    ClusterModel,
    GpuTypeModel,
    ListModel,
    NodeExtendedModel,
    NodeGpusModel,
    NodeModel,
    QueueModel,
    QuotaModel,
    WaitingModel,
)
from dlspawner.manager.model.access import Viewer


class ClusterHandler(JobApiHandler):
    def get(self) -> None:
        self.sees()
        book = self.admission.store
        nodes = usage_report.node_statuses(book.cluster_state)
        types = usage_report.type_statuses(book.cluster_state, nodes)
        gpu_types = [GpuTypeModel.model_validate(one) for one in types]
        self.reply(ClusterModel(at=book.now(), gpu_types=gpu_types, nodes=[_node(one) for one in nodes]))


class QuotaHandler(JobApiHandler):
    async def get(self) -> None:
        viewer = self.sees()
        world = self.admission.store.cluster_state
        teams = await self._teams(viewer)
        items = [QuotaModel.model_validate(one) for one in usage_report.quota_statuses(world, teams)]
        self.reply(ListModel[QuotaModel](items=items, next=None))

    async def _teams(self, viewer: Viewer) -> tuple[Team, ...]:
        """Returns the caller's teams."""
        known = self.admission.store.cluster_state.teams
        if viewer.all:
            every = known.teams
            return every if known.named(DEFAULT_TEAM) else (*every, Team(DEFAULT_TEAM))
        user = await self.leader.hub.user(viewer.name)
        mine = {team.name for team in known.team_of(viewer.name, tuple(user.groups if user else ()))} | viewer.teams
        return tuple(team for team in known.teams if team.name in mine) or (Team(DEFAULT_TEAM),)


class QueueHandler(JobResource):
    """Places move; a page that was read a while ago may overlap with the next one."""

    async def get(self) -> None:
        viewer, query, desk = self.sees(), self.read_query(QueueQuery), self.admission
        begin, end = query.cursor, query.cursor + query.limit
        world, now = desk.store.cluster_state, desk.store.now()
        order = queue.order(world, now)
        seen = [job for job in order if viewer.reaches(job.user, job.team)]
        ids = [job.id for job in seen[begin:end]]
        kept = {one.id: one for one in await self.leader.ledger.find_many(ids)}
        setting = self.setting()
        types = usage_report.type_statuses(world, ())
        self.reply(
            QueueModel(
                items=[self.shown(kept[job], setting, now, {}) for job in ids if job in kept],
                next=str(end) if end < len(seen) else None,
                waiting=[WaitingModel.model_validate(one) for one in types],
                others=len(order) - len(seen),
            )
        )


def _node(one: usage_report.NodeStatus) -> NodeModel:
    return NodeModel(
        name=one.name,
        state=one.state,
        gpus=tuple(NodeGpusModel.model_validate(gpus) for gpus in one.gpus),
        extended=tuple(NodeExtendedModel.model_validate(other) for other in one.extended),
        cpu=AmountsModel(total=amount(one.cpu_milli), free=amount(one.cpu_free)),
        memory_bytes=AmountsModel(total=one.memory_bytes, free=one.memory_free),
    )
