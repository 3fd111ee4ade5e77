"""Kinds of notices are stored under the names that the code has for them."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

_NAMES = {
    "waiting-login": "login-required",
    "goes-on": "preemption-cancelled",
    "file-broken": "config-invalid",
    "hub-refuses": "hub-forbids",
}


def upgrade() -> None:
    notices = sa.table("notices", sa.column("kind", sa.String))
    for old, new in _NAMES.items():
        op.execute(notices.update().where(notices.c.kind == old).values(kind=new))
