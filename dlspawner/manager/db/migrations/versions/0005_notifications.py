"""Messages outside the pages: the settings of people, and the messages that were not sent yet."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "notification_settings",
        sa.Column("user_name", sa.String(255), nullable=False),
        sa.Column("topics", sa.String(200), nullable=False),
        sa.Column("email", sa.String(255), nullable=False),
        sa.Column("webhook", sa.String(1000), nullable=False),
        sa.Column("ntfy", sa.String(1000), nullable=False),
        sa.Column("email_told", sa.String(255), nullable=False),
        sa.Column("problem", sa.String(500), nullable=False),
        sa.PrimaryKeyConstraint("user_name", name=op.f("pk_notification_settings")),
    )
    op.create_table(
        "outbox",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("user_name", sa.String(255), nullable=False),
        sa.Column("channel", sa.String(20), nullable=False),
        sa.Column("target", sa.String(1000), nullable=False),
        sa.Column("title", sa.String(300), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("job", sa.String(64), nullable=False),
        sa.Column("posted", sa.DateTime(timezone=True), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("due", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outbox")),
    )
    op.create_index(op.f("ix_outbox_due"), "outbox", ["due"])
