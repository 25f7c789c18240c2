"""Spark's tasks have logins of their own while their job runs: which there are, and why an attempt's tasks had none."""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.execute("alter table logbus.attempt add column task_logins jsonb, add column task_logins_note text")
    op.execute("create index ix_logbus_attempt_task_logins on logbus.attempt (window_id) where task_logins is not null")
