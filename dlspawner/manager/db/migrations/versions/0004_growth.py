"""How many GPUs a job had at each of its events: jobs of several pods grow."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("job_events", sa.Column("gpus_milli", sa.BigInteger()))
