"""What somebody has to approve, who did, when and why; and which jobs soft caps do not count for."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    time = sa.DateTime(timezone=True)
    op.add_column("jobs", sa.Column("approved", sa.Boolean, nullable=False, server_default=sa.false()))
    op.create_table(
        "approvals",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("job", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("user_name", sa.String(255), nullable=False),
        sa.Column("server_name", sa.String(255), nullable=False),
        sa.Column("team", sa.String(255), nullable=False),
        sa.Column("gpu_type", sa.String(255)),
        sa.Column("gpus_milli", sa.BigInteger, nullable=False),
        sa.Column("what", sa.Text, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("asked", time, nullable=False),
        sa.Column("standing", sa.String(20), nullable=False),
        sa.Column("decided", time),
        sa.Column("decided_by", sa.String(255), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_approvals"),
        sa.ForeignKeyConstraint(["job"], ["jobs.job"], name="fk_approvals_job_jobs"),
    )
    op.create_index("ix_approvals_job", "approvals", ["job"])
    op.create_index("ix_approvals_standing", "approvals", ["standing"])
    op.create_index("ix_approvals_asked", "approvals", ["asked"])
