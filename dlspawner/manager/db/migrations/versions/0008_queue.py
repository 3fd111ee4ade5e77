"""Jobs that wait: whose turn has come, and how often."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("due", sa.Boolean, nullable=False, server_default=sa.false()))
    op.add_column("jobs", sa.Column("turns", sa.Integer, nullable=False, server_default="0"))
