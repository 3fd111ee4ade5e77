"""The addresses of approvals."""

from __future__ import annotations

from dlspawner.manager import web
from dlspawner.manager.approval import api, page

_APPROVAL_JOB, _REQUEST = r"(j-[a-z2-7]{12})", r"([0-9a-f]{16})"
APPROVAL_ROUTES: web.Routes = (
    ("approvals", page.ApprovalsPage),
    (f"approvals/{_REQUEST}/approve", page.ApproveButton),
    (f"approvals/{_REQUEST}/deny", page.DenyButton),
    ("api/approvals", api.ApprovalsHandler),
    (f"api/jobs/{_APPROVAL_JOB}/approve", api.ApproveHandler),
    (f"api/jobs/{_APPROVAL_JOB}/deny", api.DenyHandler),
)
