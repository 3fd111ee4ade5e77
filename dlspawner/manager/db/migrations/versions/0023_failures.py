"""At how many starts of a job the Hub itself has failed."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("failures", sa.Integer(), nullable=False, server_default="0"))
