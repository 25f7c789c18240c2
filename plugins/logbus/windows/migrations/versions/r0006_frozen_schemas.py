"""The schemas by which windows were decoded are kept with them: a reload needs no registry."""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.execute(
        "create table logbus.schema (pipeline text not null references logbus.pipeline (name), reference bytea not null, "
        "type text not null, text text not null, id bigint, guid text, imports jsonb not null, registry text, "
        "frozen_at timestamptz not null, primary key (pipeline, reference))"
    )
    op.execute(
        'create table logbus.schema_use (window_id bigint not null references logbus."window" (id), prefix bytea not null, '
        "attempt integer not null, record_count bigint not null, primary key (window_id, prefix))"
    )
