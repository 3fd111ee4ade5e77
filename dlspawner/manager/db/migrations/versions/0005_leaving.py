"""Jobs that have to leave: notice, what turns preemptible, why they are stopped, and whether they wait again."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    time = sa.DateTime(timezone=True)
    op.add_column("jobs", sa.Column("notice", time))
    op.add_column("jobs", sa.Column("yields", time))
    op.add_column("jobs", sa.Column("requeue", sa.Boolean, nullable=False, server_default=sa.false()))
    op.add_column("jobs", sa.Column("stop_reason", sa.String(40)))
    op.add_column("jobs", sa.Column("stop_sentence", sa.Text))
