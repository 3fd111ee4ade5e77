"""The addresses of logs."""

from __future__ import annotations

from dlspawner.manager.logs import log_api, log_page
from dlspawner.manager.web import Routes

_JOB = r"(j-[a-z2-7]{12})"
ROUTES: Routes = (
    (f"api/jobs/{_JOB}/logs", log_api.Logs),
    (f"api/jobs/{_JOB}/log", log_api.Log),
    (f"api/jobs/{_JOB}/log-kept", log_api.LogKept),
    (f"api/jobs/{_JOB}/pod-events", log_api.PodEvents),
    (f"jobs/{_JOB}/log", log_page.LogPage),
)
TEMPLATES = ("job_log.html",)
