"""Foreign rows of a table that others load count in the hour of their time, where the table has one."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.execute("alter table logbus.audited_hour add column foreign_count bigint")
