"""Which special permissions a job asks for, for which image, and whether a Hub admin has approved that."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("special", sa.Text))
