"""The uids of people whose authenticator tells none."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "accounts",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("user_name", sa.String(255), nullable=False),
        sa.Column("uid", sa.Integer, nullable=False),
        sa.Column("made", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_accounts"),
        sa.UniqueConstraint("user_name", name="uq_accounts_user_name"),
        sa.UniqueConstraint("uid", name="uq_accounts_uid"),
    )
