"""The address of one job, at which people and their programs, and the Hub itself, ask.

GET     jobs/{id}    GetJobDetail
PUT     jobs/{id}    the Hub's question whether this job may start (``jobs_api``); nobody else may ask it
"""

from __future__ import annotations

from dlspawner.manager import jobs_api
from dlspawner.manager.rest import acts, jobs
from dlspawner.manager.web import ManagerHandler, for_hub


class JobHandler(jobs.JobDetailHandler, acts.EndJobHandler):
    """Who asks decides how they are recognised: the Hub by its own token, for its one method."""

    async def prepare(self) -> None:
        if self.request.method == "PUT":
            ManagerHandler.prepare(self)
            self.identity = for_hub(self)
        else:
            await super().prepare()

    async def put(self, job: str) -> None:
        await jobs_api.review_for_hub(self, job)

    async def delete(self, job: str) -> None:
        await self.end(await self.acted(job))
