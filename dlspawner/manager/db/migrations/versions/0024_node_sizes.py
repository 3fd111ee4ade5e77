"""What nodes had before they lost it or went."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    op.create_table(
        "node_sizes",
        sa.Column("name", sa.String(253), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("name", name="pk_node_sizes"),
    )
