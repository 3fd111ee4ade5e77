"""The resources for programs, under /services/jobs/api/; README.md beside this file describes them."""

from __future__ import annotations

from dlspawner.manager import web
from dlspawner.manager.rest import acts, cluster, jobs, one, openapi

JOB = r"(j-[a-z2-7]{12})"
ROUTES: web.Routes = (
    ("api/jobs", jobs.Jobs),
    (f"api/jobs/{JOB}", one.Job),
    (f"api/jobs/{JOB}/events", jobs.Events),
    (f"api/jobs/{JOB}/cancel", acts.Cancel),
    (f"api/jobs/{JOB}/requeue", acts.Requeue),
    ("api/cluster", cluster.Cluster),
    ("api/quota", cluster.Quota),
    ("api/queue", cluster.Queue),
    (r"api/openapi\.json", openapi.OpenApi),
)
