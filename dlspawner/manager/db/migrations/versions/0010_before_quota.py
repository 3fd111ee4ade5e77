"""Which jobs started when nobody had a quota."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("exempt_from_quota", sa.Boolean, nullable=False, server_default=sa.false()))
