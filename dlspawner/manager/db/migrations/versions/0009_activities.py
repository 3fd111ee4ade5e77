"""What is known of the use of jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "activities",
        sa.Column("job", sa.String(64), nullable=False),
        sa.Column("facts", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("job", name="pk_activities"),
        sa.ForeignKeyConstraint(["job"], ["jobs.job"], name="fk_activities_job_jobs"),
    )
