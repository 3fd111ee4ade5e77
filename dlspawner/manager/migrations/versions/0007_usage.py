"""What teams have used lately, and all pods of a job."""

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
