"""The portal: what people see of jobs, at the service's own address. `mine` and `shares` are pure, `pages` answers.

Every page is made of the Hub's templates, works without JavaScript, and says nothing that its reader may not know
(`access`). With JavaScript its live parts are looked at again.
"""

from __future__ import annotations

from dlspawner.manager.portal import events, job, lists, pages
from dlspawner.manager.portal_page import JOB_ID
from dlspawner.manager.web import Routes

JOB = f"({JOB_ID.pattern})"

ROUTES: Routes = (
    ("", pages.MyJobs),
    ("new", pages.New),
    ("start", pages.Start),
    ("tensorboard", pages.TensorBoard),
    ("api/events", events.Events),
    ("queue", lists.Queue),
    ("cluster", lists.Cluster),
    ("teams", lists.Teams),
    ("all", lists.All),
    (f"jobs/{JOB}", job.JobPage),
    (f"jobs/{JOB}/stop", pages.Stop),
    (f"jobs/{JOB}/keep", pages.Keep),
)
# Without which the Manager does not start.
TEMPLATES = ("my_jobs.html", "queue.html", "cluster.html", "job.html", "teams.html", "all_jobs.html")
