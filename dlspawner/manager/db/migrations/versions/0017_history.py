"""GPU-hours by day, what jobs and free GPUs were sampled to be, and which jobs are counted."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("folded", sa.Boolean, nullable=False, server_default=sa.false()))
    op.add_column("jobs", sa.Column("folded_until", sa.DateTime(timezone=True)))
    op.create_index("ix_jobs_folded", "jobs", ["folded"])
    op.create_index("ix_jobs_server", "jobs", ["user_name", "server_name", "submitted"])
    op.create_index("ix_jobs_ended", "jobs", ["ended"])
    op.create_table(
        "gpu_days",
        sa.Column("day", sa.Date, nullable=False),
        sa.Column("team", sa.String(255), nullable=False),
        sa.Column("user_name", sa.String(255), nullable=False),
        sa.Column("gpu_type", sa.String(255), nullable=False),
        *_amounts("requested", "allocated", "measured", "used", "reclaimed"),
        sa.PrimaryKeyConstraint("day", "team", "user_name", "gpu_type", name="pk_gpu_days"),
    )
    op.create_table(
        "gpu_use",
        sa.Column("job", sa.String(64), nullable=False),
        sa.Column("day", sa.Date, nullable=False),
        *_amounts("measured", "used"),
        sa.PrimaryKeyConstraint("job", "day", name="pk_gpu_use"),
        sa.ForeignKeyConstraint(["job"], ["jobs.job"], name="fk_gpu_use_job_jobs"),
    )
    op.create_table(
        "gpu_free",
        sa.Column("day", sa.Date, nullable=False),
        sa.Column("gpu_type", sa.String(255), nullable=False),
        *_amounts("total", "free", "closed", "fragmented"),
        sa.PrimaryKeyConstraint("day", "gpu_type", name="pk_gpu_free"),
    )


def _amounts(*names: str) -> "list[sa.Column[int]]":
    return [sa.Column(name, sa.BigInteger, nullable=False) for name in names]
