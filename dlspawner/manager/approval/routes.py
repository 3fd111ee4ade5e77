"""The addresses of approvals."""

from __future__ import annotations

from dlspawner.manager import web
from dlspawner.manager.approval import api, page

_JOB, _REQUEST = r"(j-[a-z2-7]{12})", r"([0-9a-f]{16})"
ROUTES: web.Routes = (
    ("approvals", page.Page),
    (f"approvals/{_REQUEST}/approve", page.Approve),
    (f"approvals/{_REQUEST}/deny", page.Deny),
    ("api/approvals", api.Approvals),
    (f"api/jobs/{_JOB}/approve", api.Approve),
    (f"api/jobs/{_JOB}/deny", api.Deny),
)
