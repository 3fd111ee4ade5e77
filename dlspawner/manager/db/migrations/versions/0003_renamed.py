"""The accounts of people who were renamed."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "renamed",
        sa.Column("user_name", sa.String(255), nullable=False),
        sa.Column("account", sa.String(255), nullable=False),
        sa.PrimaryKeyConstraint("user_name", name=op.f("pk_renamed")),
        sa.UniqueConstraint("account", name=op.f("uq_renamed_account")),
    )
