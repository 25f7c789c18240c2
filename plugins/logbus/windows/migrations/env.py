"""What alembic runs for every command: the revisions, on the caller's connection and in its transaction."""

from __future__ import annotations

from alembic import context

from logbus.windows import schema

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=schema.metadata,
    version_table_schema=schema.metadata.schema,
)
with context.begin_transaction():
    context.run_migrations()
