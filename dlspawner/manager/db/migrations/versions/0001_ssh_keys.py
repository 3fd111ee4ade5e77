"""People's SSH keys, and the keys found in their home directories."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    time = sa.DateTime(timezone=True)
    op.create_table(
        "ssh_keys",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("user_name", sa.String(255), nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("added", time, nullable=False),
        sa.Column("last_used", time),
        sa.PrimaryKeyConstraint("id", name="pk_ssh_keys"),
        sa.UniqueConstraint("user_name", "fingerprint", name="uq_ssh_keys_user_name_fingerprint"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "key_suggestions",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("user_name", sa.String(255), nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("source", sa.String(200), nullable=False),
        sa.Column("server_name", sa.String(255), nullable=False),
        sa.Column("found", time, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_key_suggestions"),
        sa.UniqueConstraint("user_name", "fingerprint", name="uq_key_suggestions_user_name_fingerprint"),
        sqlite_autoincrement=True,
    )
