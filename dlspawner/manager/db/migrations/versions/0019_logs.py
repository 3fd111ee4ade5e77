"""What jobs have printed, and what became of their pods."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def _of_job(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["job"], ["jobs.job"], name=f"fk_{table}_job_jobs", ondelete="CASCADE")


def upgrade() -> None:
    time = sa.DateTime(timezone=True)
    op.create_table(
        "log_runs",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("job", sa.String(64), nullable=False),
        sa.Column("pod_uid", sa.String(64), nullable=False),
        sa.Column("pod_name", sa.String(255), nullable=False),
        sa.Column("container", sa.String(255), nullable=False),
        sa.Column("run", sa.Integer, nullable=False),
        sa.Column("stamp", sa.String(64), nullable=False),
        sa.Column("lines", sa.Integer, nullable=False),
        sa.Column("read", time, nullable=False),
        sa.Column("size", sa.Integer, nullable=False),
        sa.Column("lost", sa.Boolean, nullable=False),
        sa.Column("whole", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_log_runs"),
        sa.UniqueConstraint("pod_uid", "container", "run", name="uq_log_runs_pod_uid_container_run"),
        _of_job("log_runs"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_log_runs_job", "log_runs", ["job"])
    op.create_table(
        "log_parts",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("log", sa.Integer, nullable=False),
        sa.Column("size", sa.Integer, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_log_parts"),
        sa.ForeignKeyConstraint(["log"], ["log_runs.id"], name="fk_log_parts_log_log_runs", ondelete="CASCADE"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_log_parts_log", "log_parts", ["log"])
    op.create_table(
        "pod_events",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("job", sa.String(64), nullable=False),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("at", time, nullable=False),
        sa.Column("reason", sa.String(64), nullable=False),
        sa.Column("sentence", sa.Text, nullable=False),
        sa.Column("count", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_pod_events"),
        sa.UniqueConstraint("job", "key", name="uq_pod_events_job_key"),
        _of_job("pod_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_pod_events_job", "pod_events", ["job"])
