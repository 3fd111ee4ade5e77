"""The Manager's tables as the code uses them now; `migrations/` says how a database gets there.

A test upgrades an empty database and compares it with this file, so the two cannot drift apart. Users are the Hub's:
there is no table of them, only their names, so a name without rows looks like one that does not exist.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Date,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
)
from sqlalchemy.types import TypeDecorator

metadata = MetaData(
    # Names for everything, or SQLite could never alter a constraint again.
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(column_0_N_label)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    }
)


class UtcDateTime(TypeDecorator[datetime]):
    """Aware datetimes in UTC, on SQLite too, which stores none."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


ssh_keys = Table(
    "ssh_keys",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("user_name", String(255), nullable=False),
    Column("key", Text, nullable=False),  # "type base64"
    Column("fingerprint", String(64), nullable=False),
    Column("name", String(100), nullable=False),
    Column("added", UtcDateTime, nullable=False),
    Column("last_used", UtcDateTime),
    # Once per user, not once for all: the login name selects the account, so two accounts may share a key,
    # no user can block another user's key by adding it first, and no answer reveals that another account has it.
    UniqueConstraint("user_name", "fingerprint"),
    sqlite_autoincrement=True,  # an id is never given again: a late "used" cannot hit another key
)

ssh_settings = Table(
    "ssh_settings",
    metadata,
    Column("user_name", String(255), primary_key=True),
    Column("start_on_connect", Boolean, nullable=False),
)

key_suggestions = Table(
    "key_suggestions",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("user_name", String(255), nullable=False),
    Column("key", Text, nullable=False),
    Column("fingerprint", String(64), nullable=False),
    Column("name", String(100), nullable=False),
    Column("source", String(200), nullable=False),  # the file it was found in, as the job says
    Column("server_name", String(255), nullable=False),
    Column("found", UtcDateTime, nullable=False),
    UniqueConstraint("user_name", "fingerprint"),
    sqlite_autoincrement=True,
)

# The uid, and gid of the same number, of users without one from the authenticator. Rows stay for ever: files may
# outlive their owner's name in the Hub, and must never become another user's.
accounts = Table(
    "accounts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("user_name", String(255), nullable=False, unique=True),
    Column("uid", Integer, nullable=False, unique=True),
    Column("made", UtcDateTime, nullable=False),
)

# The accounts (names in `accounts`) of renamed people. Rows stay when a person is removed: the
# account's uid and home directory are never given to another person of the account's name.
renamed = Table(
    "renamed",
    metadata,
    Column("user_name", String(255), primary_key=True),
    Column("account", String(255), nullable=False, unique=True),
)

# How far uids have been given out, for each beginning that the range had: the next one is larger, also when a user
# removes rows of `accounts` by hand.
uid_high_water = Table(
    "uid_high_water",
    metadata,
    Column("first", Integer, primary_key=True, autoincrement=False),
    Column("highest", Integer, nullable=False),
)

# One row per job that was ever admitted or queued. `request` is what it holds, whole, as JSON; the numbers beside it
# are for people and reports. `deadline` and `request_seconds` say until when its pods may still appear. `pods` says
# which they are, as JSON: one for each pod of the request, null for an unobserved pod; `pod_uid` and `pod_name` are the
# first one's.
jobs = Table(
    "jobs",
    metadata,
    Column("job", String(64), primary_key=True),
    Column("user_name", String(255), nullable=False),
    Column("server_name", String(255), nullable=False),
    Column("team", String(255), nullable=False),
    Column("template", String(255), nullable=False),
    Column("priority", Integer, nullable=False),
    Column("preemptible", Boolean, nullable=False),
    Column("state", String(20), nullable=False, index=True),
    Column("gpu_type", String(255)),
    Column("gpus_milli", BigInteger, nullable=False),
    Column("cpu_milli", BigInteger, nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("request", Text, nullable=False),
    Column("nodes", Text, nullable=False),
    Column("submitted", UtcDateTime, nullable=False),
    Column("deadline", UtcDateTime),
    Column("request_seconds", Float, nullable=False),
    Column("started", UtcDateTime),
    Column("ended", UtcDateTime),
    Column("pod_uid", String(64)),
    Column("pod_name", String(255)),
    # `notice`: when a victim is stopped; `demote_at`: when a guaranteed job turns preemptible; `stop_…`: that it was
    # decided to stop the job, and what its owner reads about it.
    Column("notice", UtcDateTime),
    Column("demote_at", UtcDateTime),
    Column("requeue", Boolean, nullable=False, server_default=false()),
    Column("stop_reason", String(40)),
    Column("stop_sentence", Text),
    Column("pods", Text, nullable=False, server_default="[]"),
    Column("awaiting_start", Boolean, nullable=False, server_default=false()),  # scheduled; the Hub is to be asked
    Column("start_attempts", Integer, nullable=False, server_default="0"),  # how often it was scheduled
    Column("failures", Integer, nullable=False, server_default="0"),  # starts at which the Hub itself has failed
    Column("options", Text, nullable=False, server_default=""),  # the user options, as JSON
    Column("nonce", String(255), nullable=False, server_default=""),  # of its last start, which its pods have
    Column(
        "exempt_from_quota", Boolean, nullable=False, server_default=false()
    ),  # it started when no quota was configured
    Column("reason", String(40), nullable=False, server_default=""),  # of its last event
    Column("special", Text),  # the special permissions it asks for, for which image, and if they are approved, as JSON
    Column("approved", Boolean, nullable=False, server_default=false()),  # soft caps do not count for it
    Column("ports", Text, nullable=False, server_default="[]"),  # the host's, of each of its pods, as JSON
    # For pages of jobs, the newest first: all, a person's, a team's.
    Index(None, "submitted", "job"),
    Index(None, "user_name", "submitted", "job"),
    Index(None, "team", "submitted", "job"),
    # Whether its GPU-hours are in `gpu_days`, and until when; every write of the job says that they are not all there.
    Column("folded", Boolean, nullable=False, server_default=false(), index=True),
    Column("folded_until", UtcDateTime),
    Index("ix_jobs_server", "user_name", "server_name", "submitted"),
    Index("ix_jobs_ended", "ended"),
)

# Every approval that a job has waited for: what was asked, the approver's name, time and reason. Rows stay as history.
approvals = Table(
    "approvals",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("job", String(64), ForeignKey("jobs.job"), nullable=False, index=True),
    Column("kind", String(20), nullable=False),
    Column("user_name", String(255), nullable=False),
    Column("server_name", String(255), nullable=False),
    Column("team", String(255), nullable=False),
    Column("gpu_type", String(255)),
    Column("gpus_milli", BigInteger, nullable=False),
    Column("what", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("requested", UtcDateTime, nullable=False, index=True),
    Column("standing", String(20), nullable=False, index=True),
    Column("decided", UtcDateTime),
    Column("decided_by", String(255), nullable=False),
    Column("reason", Text, nullable=False),
)

# Every transition of a job, with its reason: what history, portal and metrics read.
job_events = Table(
    "job_events",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("job", String(64), ForeignKey("jobs.job"), nullable=False, index=True),
    Column("at", UtcDateTime, nullable=False),
    Column("state", String(20), nullable=False),
    Column("reason", String(40), nullable=False),
    Column("detail", Text, nullable=False),
    Column("gpus_milli", BigInteger),  # that the job asked for then; NULL: what it asks for now
)

# What the runs of a job's containers have printed, as far as it was read: the mark where the next reading goes on
# (`stamp`, `lines`), the size of what is kept, whether more was printed than that, and whether all of it was read.
log_runs = Table(
    "log_runs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("job", String(64), ForeignKey("jobs.job", ondelete="CASCADE"), nullable=False, index=True),
    Column("pod_uid", String(64), nullable=False),
    Column("pod_name", String(255), nullable=False),
    Column("container", String(255), nullable=False),
    Column("run", Integer, nullable=False),
    Column("stamp", String(64), nullable=False),
    Column("lines", Integer, nullable=False),
    Column("read", UtcDateTime, nullable=False),
    Column("size", Integer, nullable=False),
    Column("lost", Boolean, nullable=False),
    Column("whole", Boolean, nullable=False),
    UniqueConstraint("pod_uid", "container", "run"),
    sqlite_autoincrement=True,
)

# The text itself, compressed, in parts of one size at most; only the last one still grows.
log_parts = Table(
    "log_parts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("log", Integer, ForeignKey("log_runs.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("size", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
    sqlite_autoincrement=True,
)

# What Kubernetes has told of a job's pods, in our words; `key` is what makes it the same one when it is told again.
pod_events = Table(
    "pod_events",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("job", String(64), ForeignKey("jobs.job", ondelete="CASCADE"), nullable=False, index=True),
    Column("key", String(64), nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("reason", String(64), nullable=False),
    Column("sentence", Text, nullable=False),
    Column("count", Integer, nullable=False),
    UniqueConstraint("job", "key"),
    sqlite_autoincrement=True,
)

# What people are told about their jobs and have not been told the end of; "" as job and user: for administrators.
notices = Table(
    "notices",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("job", String(64), nullable=False),
    Column("kind", String(40), nullable=False),
    Column("user_name", String(255), nullable=False),
    Column("server_name", String(255), nullable=False),
    Column("cause", String(200), nullable=False),
    Column("text", Text, nullable=False),
    Column("posted", UtcDateTime, nullable=False),
    Column("until", UtcDateTime),
    Column("keep", Boolean, nullable=False),
    Column("seen", UtcDateTime),
    UniqueConstraint("job", "kind"),
)

# What a person wants to be told outside the pages, and where; `email_told` is the address that the authenticator knows.
notification_settings = Table(
    "notification_settings",
    metadata,
    Column("user_name", String(255), primary_key=True),
    Column("topics", String(200), nullable=False),
    Column("email", String(255), nullable=False),
    Column("webhook", String(1000), nullable=False),
    Column("ntfy", String(1000), nullable=False),
    Column("email_told", String(255), nullable=False),
    Column("problem", String(500), nullable=False),
)

# Messages that were not sent yet. `attempts` and `due` change before an attempt; the row goes when it was sent.
outbox = Table(
    "outbox",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("user_name", String(255), nullable=False),
    Column("channel", String(20), nullable=False),
    Column("target", String(1000), nullable=False),
    Column("title", String(300), nullable=False),
    Column("text", Text, nullable=False),
    Column("job", String(64), nullable=False),
    Column("posted", UtcDateTime, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("due", UtcDateTime, nullable=False, index=True),
)

# How much each team has used lately, decayed: milli-GPU-seconds at a time, and milli-GPUs held since then.
team_usage = Table(
    "team_usage",
    metadata,
    Column("team", String(255), primary_key=True),
    Column("amount", Float, nullable=False),
    Column("since", UtcDateTime, nullable=False),
    Column("rate", BigInteger, nullable=False),
)

# What is known of the use of a job that has not ended, as JSON: times when a user, or a GPU, was last seen busy, when
# that was last known at all, and the warnings that its owner was given.
activities = Table(
    "activities",
    metadata,
    Column("job", String(64), ForeignKey("jobs.job"), primary_key=True),
    Column("facts", Text, nullable=False),
)

# When a job was not used for some minutes; `until` is NULL as long as that lasts, and where the job has ended so.
idle_periods = Table(
    "idle_periods",
    metadata,
    Column("job", String(64), ForeignKey("jobs.job"), primary_key=True),
    Column("since", UtcDateTime, primary_key=True),
    Column("until", UtcDateTime),
)

# The latest simulation of other policies, one row: its state, and the result of the latest one that had any, as JSON.
advice = Table(
    "advice",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("state", String(20), nullable=False),
    Column("asked", UtcDateTime, nullable=False),
    Column("asked_by", String(255), nullable=False),
    Column("ended", UtcDateTime),
    Column("problem", Text, nullable=False),
    Column("made", UtcDateTime),
    Column("result", Text, nullable=False),
)

# GPU-hours of jobs that have ended, by UTC day, in milli-GPU-seconds (`core.accounting`); they outlive the jobs.
gpu_days = Table(
    "gpu_days",
    metadata,
    Column("day", Date, primary_key=True),
    Column("team", String(255), primary_key=True),
    Column("user_name", String(255), primary_key=True),
    Column("gpu_type", String(255), primary_key=True),
    Column("requested", BigInteger, nullable=False),
    Column("allocated", BigInteger, nullable=False),
    Column("measured", BigInteger, nullable=False),
    Column("used", BigInteger, nullable=False),
    Column("reclaimed", BigInteger, nullable=False),
)

# What the GPUs of a job computed, as sampled, until it is in `gpu_days`.
gpu_use = Table(
    "gpu_use",
    metadata,
    Column("job", String(64), ForeignKey("jobs.job"), primary_key=True),
    Column("day", Date, primary_key=True),
    Column("measured", BigInteger, nullable=False),
    Column("used", BigInteger, nullable=False),
)

# GPUs of a type, free ones, and free ones of no use, as sampled: milli-GPU-seconds by UTC day.
gpu_free = Table(
    "gpu_free",
    metadata,
    Column("day", Date, primary_key=True),
    Column("gpu_type", String(255), primary_key=True),
    Column("total", BigInteger, nullable=False),
    Column("free", BigInteger, nullable=False),
    Column("unschedulable", BigInteger, nullable=False),
    Column("fragmented", BigInteger, nullable=False),
)

# The administrators' files as they were when they were last all right: "cluster", "teams", "jobs/NAME.yaml".
config_versions = Table(
    "config_versions",
    metadata,
    Column("name", String(300), primary_key=True),
    Column("text", Text, nullable=False),
)

# The leader. A Manager that takes over counts `term` up, and every write of a job says which term it belongs to.
leases = Table(
    "leases",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("identity", String(64), nullable=False),
    Column("term", BigInteger, nullable=False),
    Column("expires", UtcDateTime, nullable=False),
)
