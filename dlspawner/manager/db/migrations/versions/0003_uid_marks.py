"""How far uids have been given out; what is known of that before is the accounts that are there."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "uid_marks",
        sa.Column("first", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("highest", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("first", name="pk_uid_marks"),
    )
    # A mark for each: which ranges they come from is not known, and one over all would fill what is between.
    op.execute("INSERT INTO uid_marks (first, highest) SELECT uid, uid FROM accounts")
