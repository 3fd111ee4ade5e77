"""What teams have used lately, and all pods of a job."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "team_usage",
        sa.Column("team", sa.String(255), nullable=False),
        sa.Column("amount", sa.Float, nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("rate", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("team", name="pk_team_usage"),
    )
    op.add_column("jobs", sa.Column("pods", sa.Text, nullable=False, server_default="[]"))
    _fill()


def _fill() -> None:
    """The one pod that was known of a job is its first."""
    jobs = sa.table("jobs", *map(sa.column, ("job", "charge", "started", "pod_uid", "pod_name", "pods")))
    connection = op.get_bind()
    query = sa.select(jobs).where(jobs.c.pod_uid.is_not(None))
    filled = [{"this": row.job, "all": _pods(row)} for row in connection.execute(query)]
    if filled:
        change = sa.update(jobs).where(jobs.c.job == sa.bindparam("this")).values(pods=sa.bindparam("all"))
        connection.execute(change, filled)


def _pods(row: "sa.Row[tuple[object, ...]]") -> str:
    first = {"uid": row.pod_uid, "name": row.pod_name or "", "running": row.started is not None}
    more = len(json.loads(row.charge)["pods"]) - 1
    return json.dumps([first, *[None] * more])
