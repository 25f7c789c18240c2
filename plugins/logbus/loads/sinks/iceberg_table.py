"""The Iceberg table and its catalog: created, found, and extended with columns that a parser has gained since.

A table that logbus created is marked in its properties (`logbus.pipeline`). A table that others created is loaded as it
is: it needs the columns and the partition by `_window_start`, and is never altered.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from pyiceberg import types
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from sqlalchemy import Engine

from logbus import errors, model
from logbus.loads.target import validate_new_names
from logbus.parsing.batches import NUMERIC
from logbus.windows.table_names import SYSTEM_COLUMNS, parse_table

CATALOG_NAME = "logbus"
OWNER_PROPERTY = "logbus.pipeline"

TABLE_PROPERTIES = {
    # Every commit writes a new metadata file of the table; the older ones have no use.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}

# By PostgreSQL's names, with which parsers declare columns. Iceberg has no JSON type: it is text there.
TYPES: Mapping[str, types.IcebergType] = {
    "text": types.StringType(),
    "integer": types.IntegerType(),
    "bigint": types.LongType(),
    "double precision": types.DoubleType(),
    "boolean": types.BooleanType(),
    "timestamptz": types.TimestamptzType(),
    "date": types.DateType(),
    "jsonb": types.StringType(),
    "bytea": types.BinaryType(),
}


def iceberg_type(definition: str) -> types.IcebergType:
    """Of a column as PostgreSQL defines it."""
    if (numeric := NUMERIC.fullmatch(definition)) is not None:
        return types.DecimalType(int(numeric[1]), int(numeric[2]))
    return TYPES[definition.removesuffix(" not null")]


def open_catalog(pipeline: model.Pipeline, engine: Engine) -> Catalog:
    """The pipeline's catalog: one from pyiceberg's configuration, or a SQL catalog in the engine's database."""
    named = pipeline.options.catalog
    if named is not None:
        return load_catalog(named)
    warehouse = pipeline.options.warehouse
    if not warehouse:
        raise errors.UserError(
            f"pipeline {pipeline.name} loads into Iceberg, so its settings must name a location for the files, "
            '{"warehouse": "/data/lake"}, or a catalog of pyiceberg\'s configuration, {"catalog": "prod"}'
        )
    if not urlsplit(warehouse).scheme and not warehouse.startswith("/"):
        raise errors.UserError(
            f"pipeline {pipeline.name}: the warehouse {warehouse!r} is relative, and tasks run in other directories: give an "
            "absolute path or a URI"
        )
    catalog = SqlCatalog(CATALOG_NAME, uri=engine.url.render_as_string(hide_password=False), warehouse=warehouse)
    catalog.engine.dispose()  # its own connections would stay open until the process ends
    catalog.engine = engine
    return catalog


def identifier(pipeline: model.Pipeline) -> tuple[str, str]:
    target = parse_table(pipeline.table)
    return target.schema, target.name


def find_table(catalog: Catalog, pipeline: model.Pipeline) -> Table | None:
    """None before the first load."""
    try:
        return catalog.load_table(identifier(pipeline))
    except NoSuchTableError:
        return None


def table_exists(catalog: Catalog, pipeline: model.Pipeline) -> bool:
    return catalog.table_exists(identifier(pipeline))


def load_table(catalog: Catalog, pipeline: model.Pipeline) -> Table:
    table = find_table(catalog, pipeline)
    if table is None:
        raise errors.UserError(f"there is no Iceberg table {pipeline.table} yet: the first load creates it")
    return table


def ensure_table(catalog: Catalog, pipeline: model.Pipeline, columns: Mapping[str, str]) -> Table:
    """The table, created unless it exists, with the parser's columns; `UserError` if it cannot take the rows."""
    definitions = {**SYSTEM_COLUMNS, **columns}
    table = find_table(catalog, pipeline)
    if table is None:
        validate_new_names(pipeline.table, (), definitions)
        return create_table(catalog, pipeline, definitions)
    _validate_partition_spec(table, pipeline)
    present = {field.name: field.field_type for field in table.schema().fields}
    validate_types(present, definitions, pipeline)
    missing = {name: kind for name, kind in definitions.items() if name not in present}
    validate_new_names(pipeline.table, present, missing)
    if missing:
        add_columns(table, missing, pipeline)
    return table


def create_table(catalog: Catalog, pipeline: model.Pipeline, definitions: Mapping[str, str]) -> Table:
    fields = [_new_field(number, name, definition) for number, (name, definition) in enumerate(definitions.items(), 1)]
    window = next(field.field_id for field in fields if field.name == "_window_start")
    part = PartitionField(source_id=window, field_id=1000, transform=IdentityTransform(), name="_window_start")
    try:
        catalog.create_namespace(identifier(pipeline)[:-1])
    except NamespaceAlreadyExistsError:
        pass
    properties = {**TABLE_PROPERTIES, OWNER_PROPERTY: pipeline.name}
    return catalog.create_table(identifier(pipeline), Schema(*fields), partition_spec=PartitionSpec(part), properties=properties)


def _new_field(number: int, name: str, definition: str) -> types.NestedField:
    is_required = definition.endswith(" not null")
    return types.NestedField(number, name, iceberg_type(definition), required=is_required)


def _validate_partition_spec(table: Table, pipeline: model.Pipeline) -> None:
    """A window is replaced as whole files, so no file may hold rows of two windows."""
    names = {table.schema().find_column_name(field.source_id): field.transform for field in table.spec().fields}
    if names.get("_window_start") != IdentityTransform():
        raise errors.UserError(
            f"the Iceberg table {pipeline.table} is not partitioned by identity(_window_start), so no window can be replaced "
            "in it: add that partition field, or load into another table"
        )


def validate_types(present: Mapping[str, types.IcebergType], definitions: Mapping[str, str], pipeline: model.Pipeline) -> None:
    for name, definition in definitions.items():
        kind = iceberg_type(definition)
        if name in present and present[name] != kind:
            raise errors.UserError(
                f"column {name} of the Iceberg table {pipeline.table} is {present[name]}, but the pipeline loads {kind}: "
                "declare the column as it is, or load into another table"
            )


def add_columns(table: Table, missing: Mapping[str, str], pipeline: model.Pipeline) -> None:
    if OWNER_PROPERTY not in table.properties:
        names = ", ".join(f"{name} {iceberg_type(kind)}" for name, kind in missing.items())
        raise errors.UserError(
            f"the Iceberg table {pipeline.table} lacks columns that a load fills; it is yours, so add them: {names}"
        )
    with table.update_schema() as update:
        # As a path of one step: as a text, a name with a dot would be a member of another column, and refused.
        for name, definition in missing.items():
            update.add_column((name,), iceberg_type(definition))
