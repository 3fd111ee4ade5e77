"""The ports of the host's network that jobs have."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("ports", sa.Text(), nullable=False, server_default="[]"))
