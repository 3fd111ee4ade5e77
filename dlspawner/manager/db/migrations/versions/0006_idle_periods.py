"""When jobs were not used: what idle windows are judged by."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "idle_periods",
        sa.Column("job", sa.String(64), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(["job"], ["jobs.job"], name=op.f("fk_idle_periods_job_jobs")),
        sa.PrimaryKeyConstraint("job", "since", name=op.f("pk_idle_periods")),
    )
