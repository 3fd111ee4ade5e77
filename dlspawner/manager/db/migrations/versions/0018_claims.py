"""Requests that are carried out once."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.create_table(
        "claims",
        sa.Column("owner", sa.String(300), nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("request", sa.String(64), nullable=False),
        sa.Column("made", sa.DateTime(timezone=True), nullable=False),
        sa.Column("status", sa.Integer),
        sa.Column("answer", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("owner", "key", name="pk_claims"),
    )
    op.create_index("ix_claims_made", "claims", ["made"])
