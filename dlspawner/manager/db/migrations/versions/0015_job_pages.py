"""Pages of jobs: the reason of each one's last event, and indexes to find them by."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0010"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("reason", sa.String(40), nullable=False, server_default=""))
    jobs, events = (
        sa.table("jobs", *map(sa.column, ("job", "reason"))),
        sa.table("job_events", *map(sa.column, ("id", "job", "reason"))),
    )
    last = sa.select(events.c.reason).where(events.c.job == jobs.c.job).order_by(events.c.id.desc()).limit(1)
    op.execute(sa.update(jobs).values(reason=sa.func.coalesce(last.scalar_subquery(), "")))
    op.create_index("ix_jobs_submitted_jobs_job", "jobs", ["submitted", "job"])
    op.create_index("ix_jobs_user_name_jobs_submitted_jobs_job", "jobs", ["user_name", "submitted", "job"])
    op.create_index("ix_jobs_team_jobs_submitted_jobs_job", "jobs", ["team", "submitted", "job"])
