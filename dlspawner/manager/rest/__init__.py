"""The resources for programs, under /services/jobs/api/; README.md beside this file describes them."""

from __future__ import annotations

from dlspawner.manager import web
from dlspawner.manager.rest import acts, cluster, jobs, one, openapi

REST_JOB = r"(j-[a-z2-7]{12})"
REST_ROUTES: web.Routes = (
    ("api/jobs", jobs.JobsHandler),
    (f"api/jobs/{REST_JOB}", one.JobHandler),
    (f"api/jobs/{REST_JOB}/events", jobs.JobEventsHandler),
    (f"api/jobs/{REST_JOB}/cancel", acts.CancelHandler),
    (f"api/jobs/{REST_JOB}/requeue", acts.RequeueHandler),
    ("api/cluster", cluster.ClusterHandler),
    ("api/quota", cluster.QuotaHandler),
    ("api/queue", cluster.QueueHandler),
    (r"api/openapi\.json", openapi.OpenApiHandler),
)
