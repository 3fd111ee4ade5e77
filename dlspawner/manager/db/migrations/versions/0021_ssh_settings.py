"""Whether a login of a person's starts the job that it is for."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    op.create_table(
        "ssh_settings",
        sa.Column("user_name", sa.String(255), nullable=False),
        sa.Column("start_on_connect", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("user_name", name="pk_ssh_settings"),
    )
