"""What the pods of a job's last start have to know."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("nonce", sa.String(255), nullable=False, server_default=""))
