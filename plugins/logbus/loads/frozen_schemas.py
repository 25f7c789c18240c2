"""The schemas that a pipeline's values were decoded by, frozen with its windows: in the transaction that makes rows public, so
that a load years later decodes the same values without a registry.

A pipeline's values are of one registry: an id means one schema, whatever the registry's URL is called meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, delete, insert, select
from sqlalchemy.dialects.postgresql import insert as insert_if_absent

from logbus import model
from logbus.loads.commit_checks import SealedWindow
from logbus.schemas.schema_book import ImportedSchema, Schema, SchemaBook
from logbus.schemas.wire_format import reference_of, schema_guid, schema_id
from logbus.windows import schema


def book_of(engine: Engine, pipeline_name: str, window_ids: Iterable[int] = ()) -> SchemaBook:
    """The pipeline's frozen schemas; those by which these windows were decoded before are met."""
    frozen, use = schema.frozen_schema.c, schema.schema_use.c
    with engine.connect() as connection:
        rows = connection.execute(select(schema.frozen_schema).where(frozen.pipeline == pipeline_name)).all()
        used = connection.scalars(select(use.prefix).where(use.window_id.in_([*window_ids])).distinct()).all()
    schemas = {row.reference: _to_schema(row) for row in rows}
    met = {prefix for prefix in used if reference_of(prefix) in schemas}
    return SchemaBook(schemas=schemas, met=met, unknown_before=frozenset({*map(reference_of, used)} - schemas.keys()))


def _to_schema(row: Any) -> Schema:
    imports = tuple(ImportedSchema(**imported) for imported in row.imports)
    return Schema(reference=row.reference, type=row.type, text=row.text, guid=row.guid, imports=imports)


@contextmanager
def asking(book: SchemaBook, pipeline: model.Pipeline, settings: Mapping[str, Any]) -> Iterator[SchemaBook]:
    """While this lasts, the book asks the pipeline's registry for what it does not hold. `settings`: the client's, which may have
    the credentials."""
    from logbus.schemas.registry_client import RegistryClient  # and an HTTP client: of no use to a load without schemas

    with RegistryClient(str(pipeline.options.registry), settings) as registry:
        book.ask = registry.fetch
        try:
            yield book
        finally:
            book.ask = None


def freeze(connection: Connection, load: SealedWindow, now: datetime) -> None:
    """The schemas of a window's values, in the transaction of its commit."""
    use, counts = schema.schema_use, load.read.schemas
    connection.execute(delete(use).where(use.c.window_id == load.window.id))
    used = {*map(reference_of, counts)} & load.schemas.keys()
    freeze_schemas(connection, load.pipeline, {reference: load.schemas[reference] for reference in used}, now)
    # Those that the registry does not have as well: that is what a reload without a registry has to go by.
    rows = [
        {"window_id": load.window.id, "prefix": prefix, "attempt": load.attempt.number, "record_count": count}
        for prefix, count in counts.items()
    ]
    if rows:
        connection.execute(insert(use), rows)


def freeze_schemas(connection: Connection, pipeline: model.Pipeline, schemas: Mapping[bytes, Schema], now: datetime) -> None:
    """Those that are not frozen yet."""
    # In one order: two commits of a pipeline that freeze the same schemas wait for each other, and never both.
    for reference, registered in sorted(schemas.items()):
        values = {
            "pipeline": pipeline.name,
            "reference": reference,
            "type": registered.type,
            "text": registered.text,
            "id": schema_id(reference),
            "guid": registered.guid or schema_guid(reference),
            "imports": [asdict(imported) for imported in registered.imports],
            "registry": pipeline.options.registry,
            "frozen_at": now,
        }
        connection.execute(insert_if_absent(schema.frozen_schema).values(values).on_conflict_do_nothing())
