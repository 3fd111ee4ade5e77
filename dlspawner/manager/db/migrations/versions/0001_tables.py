"""The tables of version 0.1.0."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "accounts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("user_name", sa.String(length=255), nullable=False),
        sa.Column("uid", sa.Integer(), nullable=False),
        sa.Column("made", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_accounts")),
        sa.UniqueConstraint("uid", name=op.f("uq_accounts_uid")),
        sa.UniqueConstraint("user_name", name=op.f("uq_accounts_user_name")),
    )
    op.create_table(
        "config_versions",
        sa.Column("name", sa.String(length=300), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_config_versions")),
    )
    op.create_table(
        "gpu_days",
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("team", sa.String(length=255), nullable=False),
        sa.Column("user_name", sa.String(length=255), nullable=False),
        sa.Column("gpu_type", sa.String(length=255), nullable=False),
        sa.Column("requested", sa.BigInteger(), nullable=False),
        sa.Column("allocated", sa.BigInteger(), nullable=False),
        sa.Column("measured", sa.BigInteger(), nullable=False),
        sa.Column("used", sa.BigInteger(), nullable=False),
        sa.Column("reclaimed", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("day", "team", "user_name", "gpu_type", name=op.f("pk_gpu_days")),
    )
    op.create_table(
        "gpu_free",
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("gpu_type", sa.String(length=255), nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=False),
        sa.Column("free", sa.BigInteger(), nullable=False),
        sa.Column("unschedulable", sa.BigInteger(), nullable=False),
        sa.Column("fragmented", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("day", "gpu_type", name=op.f("pk_gpu_free")),
    )
    op.create_table(
        "jobs",
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("user_name", sa.String(length=255), nullable=False),
        sa.Column("server_name", sa.String(length=255), nullable=False),
        sa.Column("team", sa.String(length=255), nullable=False),
        sa.Column("template", sa.String(length=255), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("preemptible", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("gpu_type", sa.String(length=255), nullable=True),
        sa.Column("gpus_milli", sa.BigInteger(), nullable=False),
        sa.Column("cpu_milli", sa.BigInteger(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("nodes", sa.Text(), nullable=False),
        sa.Column("submitted", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deadline", sa.DateTime(timezone=True), nullable=True),
        sa.Column("request_seconds", sa.Float(), nullable=False),
        sa.Column("started", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended", sa.DateTime(timezone=True), nullable=True),
        sa.Column("pod_uid", sa.String(length=64), nullable=True),
        sa.Column("pod_name", sa.String(length=255), nullable=True),
        sa.Column("notice", sa.DateTime(timezone=True), nullable=True),
        sa.Column("demote_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("requeue", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("stop_reason", sa.String(length=40), nullable=True),
        sa.Column("stop_sentence", sa.Text(), nullable=True),
        sa.Column("pods", sa.Text(), server_default="[]", nullable=False),
        sa.Column("options", sa.Text(), server_default="", nullable=False),
        sa.Column("awaiting_start", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("start_attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("nonce", sa.String(length=255), server_default="", nullable=False),
        sa.Column("exempt_from_quota", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("reason", sa.String(length=40), server_default="", nullable=False),
        sa.Column("special", sa.Text(), nullable=True),
        sa.Column("approved", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("folded", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("folded_until", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_jobs")),
    )
    op.create_index("ix_jobs_ended", "jobs", ["ended"], unique=False)
    op.create_index(op.f("ix_jobs_folded"), "jobs", ["folded"], unique=False)
    op.create_index("ix_jobs_server", "jobs", ["user_name", "server_name", "submitted"], unique=False)
    op.create_index(op.f("ix_jobs_state"), "jobs", ["state"], unique=False)
    op.create_index(op.f("ix_jobs_submitted_jobs_job"), "jobs", ["submitted", "job"], unique=False)
    op.create_index(op.f("ix_jobs_team_jobs_submitted_jobs_job"), "jobs", ["team", "submitted", "job"], unique=False)
    op.create_index(
        op.f("ix_jobs_user_name_jobs_submitted_jobs_job"), "jobs", ["user_name", "submitted", "job"], unique=False
    )
    op.create_table(
        "key_suggestions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("user_name", sa.String(length=255), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("source", sa.String(length=200), nullable=False),
        sa.Column("server_name", sa.String(length=255), nullable=False),
        sa.Column("found", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_key_suggestions")),
        sa.UniqueConstraint("user_name", "fingerprint", name=op.f("uq_key_suggestions_user_name_fingerprint")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("identity", sa.String(length=64), nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("expires", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )
    op.create_table(
        "notices",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("user_name", sa.String(length=255), nullable=False),
        sa.Column("server_name", sa.String(length=255), nullable=False),
        sa.Column("cause", sa.String(length=200), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("posted", sa.DateTime(timezone=True), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("keep", sa.Boolean(), nullable=False),
        sa.Column("seen", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_notices")),
        sa.UniqueConstraint("job", "kind", name=op.f("uq_notices_job_kind")),
    )
    op.create_table(
        "ssh_keys",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("user_name", sa.String(length=255), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("added", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_used", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ssh_keys")),
        sa.UniqueConstraint("user_name", "fingerprint", name=op.f("uq_ssh_keys_user_name_fingerprint")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "ssh_settings",
        sa.Column("user_name", sa.String(length=255), nullable=False),
        sa.Column("start_on_connect", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("user_name", name=op.f("pk_ssh_settings")),
    )
    op.create_table(
        "team_usage",
        sa.Column("team", sa.String(length=255), nullable=False),
        sa.Column("amount", sa.Float(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("rate", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("team", name=op.f("pk_team_usage")),
    )
    op.create_table(
        "uid_high_water",
        sa.Column("first", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("highest", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("first", name=op.f("pk_uid_high_water")),
    )
    op.create_table(
        "activities",
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.job"], name=op.f("fk_activities_job_jobs")),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_activities")),
    )
    op.create_table(
        "approvals",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("user_name", sa.String(length=255), nullable=False),
        sa.Column("server_name", sa.String(length=255), nullable=False),
        sa.Column("team", sa.String(length=255), nullable=False),
        sa.Column("gpu_type", sa.String(length=255), nullable=True),
        sa.Column("gpus_milli", sa.BigInteger(), nullable=False),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("requested", sa.DateTime(timezone=True), nullable=False),
        sa.Column("standing", sa.String(length=20), nullable=False),
        sa.Column("decided", sa.DateTime(timezone=True), nullable=True),
        sa.Column("decided_by", sa.String(length=255), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.job"], name=op.f("fk_approvals_job_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_approvals")),
    )
    op.create_index(op.f("ix_approvals_job"), "approvals", ["job"], unique=False)
    op.create_index(op.f("ix_approvals_requested"), "approvals", ["requested"], unique=False)
    op.create_index(op.f("ix_approvals_standing"), "approvals", ["standing"], unique=False)
    op.create_table(
        "gpu_use",
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("measured", sa.BigInteger(), nullable=False),
        sa.Column("used", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.job"], name=op.f("fk_gpu_use_job_jobs")),
        sa.PrimaryKeyConstraint("job", "day", name=op.f("pk_gpu_use")),
    )
    op.create_table(
        "job_events",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("reason", sa.String(length=40), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.job"], name=op.f("fk_job_events_job_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job_events")),
    )
    op.create_index(op.f("ix_job_events_job"), "job_events", ["job"], unique=False)
    op.create_table(
        "log_runs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("pod_uid", sa.String(length=64), nullable=False),
        sa.Column("pod_name", sa.String(length=255), nullable=False),
        sa.Column("container", sa.String(length=255), nullable=False),
        sa.Column("run", sa.Integer(), nullable=False),
        sa.Column("stamp", sa.String(length=64), nullable=False),
        sa.Column("lines", sa.Integer(), nullable=False),
        sa.Column("read", sa.DateTime(timezone=True), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("lost", sa.Boolean(), nullable=False),
        sa.Column("whole", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.job"], name=op.f("fk_log_runs_job_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_log_runs")),
        sa.UniqueConstraint("pod_uid", "container", "run", name=op.f("uq_log_runs_pod_uid_container_run")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_log_runs_job"), "log_runs", ["job"], unique=False)
    op.create_table(
        "pod_events",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("reason", sa.String(length=64), nullable=False),
        sa.Column("sentence", sa.Text(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.job"], name=op.f("fk_pod_events_job_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pod_events")),
        sa.UniqueConstraint("job", "key", name=op.f("uq_pod_events_job_key")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_pod_events_job"), "pod_events", ["job"], unique=False)
    op.create_table(
        "log_parts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("log", sa.Integer(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["log"], ["log_runs.id"], name=op.f("fk_log_parts_log_log_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_log_parts")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_log_parts_log"), "log_parts", ["log"], unique=False)
