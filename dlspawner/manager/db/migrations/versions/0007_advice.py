"""The latest simulation of other policies, for administrators."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "advice",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("asked", sa.DateTime(timezone=True), nullable=False),
        sa.Column("asked_by", sa.String(255), nullable=False),
        sa.Column("ended", sa.DateTime(timezone=True)),
        sa.Column("problem", sa.Text(), nullable=False),
        sa.Column("made", sa.DateTime(timezone=True)),
        sa.Column("result", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_advice")),
    )
