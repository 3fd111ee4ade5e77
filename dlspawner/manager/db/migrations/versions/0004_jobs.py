"""Jobs, what became of them, and who of several Managers acts."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    time = sa.DateTime(timezone=True)
    op.create_table(
        "jobs",
        sa.Column("job", sa.String(64), nullable=False),
        sa.Column("user_name", sa.String(255), nullable=False),
        sa.Column("server_name", sa.String(255), nullable=False),
        sa.Column("team", sa.String(255), nullable=False),
        sa.Column("template", sa.String(255), nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("preemptible", sa.Boolean, nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("gpu_type", sa.String(255)),
        sa.Column("gpus_milli", sa.BigInteger, nullable=False),
        sa.Column("cpu_milli", sa.BigInteger, nullable=False),
        sa.Column("memory_bytes", sa.BigInteger, nullable=False),
        sa.Column("charge", sa.Text, nullable=False),
        sa.Column("nodes", sa.Text, nullable=False),
        sa.Column("submitted", time, nullable=False),
        sa.Column("deadline", time),
        sa.Column("request_seconds", sa.Float, nullable=False),
        sa.Column("started", time),
        sa.Column("ended", time),
        sa.Column("pod_uid", sa.String(64)),
        sa.Column("pod_name", sa.String(255)),
        sa.PrimaryKeyConstraint("job", name="pk_jobs"),
    )
    op.create_index("ix_jobs_state", "jobs", ["state"])
    op.create_table(
        "job_events",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("job", sa.String(64), nullable=False),
        sa.Column("at", time, nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("reason", sa.String(40), nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_job_events"),
        sa.ForeignKeyConstraint(["job"], ["jobs.job"], name="fk_job_events_job_jobs"),
    )
    op.create_index("ix_job_events_job", "job_events", ["job"])
    op.create_table(
        "leases",
        sa.Column("name", sa.String(40), nullable=False),
        sa.Column("holder", sa.String(64), nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("expires", time, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )
