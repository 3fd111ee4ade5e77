"""GetClusterStatus and maintenance of nodes, the teams' quotas, and the queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from dlspawner.clients.kubernetes import KubernetesError
from dlspawner.core.config import DEFAULT_TEAM, Team
from dlspawner.core.scheduling import queue, usage_report
from dlspawner.core.text import amount
from dlspawner.manager.cluster.maintenance import NodeMaintenance
from dlspawner.manager.http.api.base import JobApiHandler, leader_of
from dlspawner.manager.http.api.jobs import JobResource
from dlspawner.manager.http.api.models.requests import CordonBody, QueueQuery
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
from dlspawner.manager.http.handlers import NOT_YET, HttpProblem, IdentityHandler, log
from dlspawner.manager.model.access import AccessRight, Viewer, actor_name


class ClusterHandler(JobApiHandler):
    def get(self) -> None:
        self.sees()
        store = self.admission.store
        nodes = usage_report.node_statuses(store.cluster_state)
        types = usage_report.type_statuses(store.cluster_state, nodes)
        gpu_types = [GpuTypeModel.model_validate(one) for one in types]
        self.reply(ClusterModel(at=store.now(), gpu_types=gpu_types, nodes=[_node(one) for one in nodes]))


class QuotaHandler(JobApiHandler):
    async def get(self) -> None:
        viewer = self.sees()
        state = self.admission.store.cluster_state
        teams = await self._teams(viewer)
        items = [QuotaModel.model_validate(one) for one in usage_report.quota_statuses(state, teams)]
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
        viewer, query, admission = self.sees(), self.read_query(QueueQuery), self.admission
        begin, end = query.cursor, query.cursor + query.limit
        state, now = admission.store.cluster_state, admission.store.now()
        order = queue.order(state, now)
        seen = [job for job in order if viewer.reaches(job.user, job.team)]
        ids = [job.id for job in seen[begin:end]]
        kept = {one.id: one for one in await self.leader.repository.find_many(ids)}
        setting = self.setting()
        types = usage_report.type_statuses(state, ())
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
        reason=one.reason,
        drain_at=one.drain_at,
        jobs=one.jobs,
    )


NOT_ADMIN = "Only administrators of the Hub do that to nodes."
NO_NODE = "There is no such node."
FORBIDDEN = "The Manager may not change nodes: its ClusterRole needs the verb patch on nodes."


async def change_node(
    handler: IdentityHandler, node: str, change: Callable[[NodeMaintenance, str], Awaitable[None]]
) -> None:
    """Lets an administrator of the Hub change a node; ``change`` gets the name for the log."""
    viewer, leader = handler.viewer(AccessRight.ACT), leader_of(handler.manager)
    if not viewer.all:
        raise HttpProblem(403, NOT_ADMIN)
    if leader.maintenance is None:
        raise HttpProblem(503, NOT_YET)
    if node not in leader.maintenance.store.nodes:
        raise HttpProblem(404, NO_NODE)
    try:
        await change(leader.maintenance, actor_name(handler.caller))
    except KubernetesError as problem:
        log.warning("node=%s cannot be changed: %s", node, problem)
        sentence = FORBIDDEN if problem.status == 403 else "Kubernetes does not answer. Try again soon."
        raise HttpProblem(503, sentence) from None


class CordonHandler(JobApiHandler):
    async def post(self, node: str) -> None:
        self.acts()
        body = self.read_body(CordonBody)
        await change_node(self, node, lambda nodes, who: nodes.cordon(node, body.reason, who, body.drain_at))
        self.set_status(204)


class UncordonHandler(JobApiHandler):
    async def post(self, node: str) -> None:
        self.acts()
        await change_node(self, node, lambda nodes, who: nodes.uncordon(node, who))
        self.set_status(204)
