"""What people are told about their jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    time = sa.DateTime(timezone=True)
    op.create_table(
        "notices",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("job", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(40), nullable=False),
        sa.Column("user_name", sa.String(255), nullable=False),
        sa.Column("server_name", sa.String(255), nullable=False),
        sa.Column("cause", sa.String(200), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("posted", time, nullable=False),
        sa.Column("until", time),
        sa.Column("keep", sa.Boolean, nullable=False),
        sa.Column("seen", time),
        sa.PrimaryKeyConstraint("id", name="pk_notices"),
        sa.UniqueConstraint("job", "kind", name="uq_notices_job_kind"),
    )
