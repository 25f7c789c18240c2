"""Joins of streams: views over two of them."""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"

TABLES = """
create table logbus.stream_join (
    name text primary key,
    left_stream text not null references logbus.stream,
    right_stream text not null references logbus.stream,
    table_name text not null unique,
    definition jsonb not null,
    registered_at timestamptz not null
);
"""


def upgrade() -> None:
    op.execute(TABLES)
