"""The portal: what people see of jobs, at the service's own address. `mine` and `shares` are pure, `pages` answers.

Every page is made of the Hub's templates, works without JavaScript, and says nothing that its reader may not know
(`access`). With JavaScript its live parts are looked at again.
"""

from __future__ import annotations

from dlspawner.manager.portal import events, job, lists, pages
from dlspawner.manager.portal_page import JOB_ID
from dlspawner.manager.web import Routes

PORTAL_JOB = f"({JOB_ID.pattern})"

PORTAL_ROUTES: Routes = (
    ("", pages.MyJobsPage),
    ("new", pages.NewJobPage),
    ("start", pages.StartButton),
    ("tensorboard", pages.TensorBoardButton),
    ("api/events", events.EventStreamHandler),
    ("queue", lists.QueuePage),
    ("cluster", lists.ClusterPage),
    ("teams", lists.TeamsPage),
    ("all", lists.AllJobsPage),
    (f"jobs/{PORTAL_JOB}", job.JobPage),
    (f"jobs/{PORTAL_JOB}/stop", pages.StopButton),
    (f"jobs/{PORTAL_JOB}/keep", pages.KeepJobButton),
)
# Without which the Manager does not start.
PORTAL_TEMPLATES = ("my_jobs.html", "queue.html", "cluster.html", "job.html", "teams.html", "all_jobs.html")
