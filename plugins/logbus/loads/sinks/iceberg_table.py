"""The Iceberg table and its catalog: created, found, and extended with columns that a parser has gained since; what a window's
Parquet files hold: rows counted in constant memory, by the same rules as SQL does for tables, and bytes hashed; and the table in
DuckDB: views over exactly the files of its current snapshot.

Batches arrive in any order and may mix partitions. That no offset occurs twice is proved without keeping offsets: the
tasks write each partition in order, so the offsets of a batch rise, and the spans of batches do not overlap. If that
does not hold (the table was changed, or a reader returned records out of order), the offsets are counted one by one.

Files are written once and never changed, so a file whose hash differs from that of its load was tampered with. They are hashed in
pieces, at some gigabytes a second; in an object store that is one more download of each file, by the load and by the audit.

A table that logbus created is marked in its properties (`logbus.pipeline`). A table that others created is loaded as it
is: it needs the columns and the partition by `_window_start`, and is never altered.

    import duckdb
    from logbus.loads.sinks.iceberg_table import create_view

    with duckdb.connect() as connection:
        create_view(connection, table, "access_log")        # a pyiceberg Table
        connection.sql("select status, count(*) from access_log group by all").show()

pyiceberg plans the scan, DuckDB reads the files. So every query through a view sees the same windows, each complete; create it
again to see what was loaded since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import xxhash
from pyarrow import fs
from pyiceberg import types
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.transforms import IdentityTransform
from sqlalchemy import Engine

from logbus import errors, model
from logbus.fingerprint import MODULUS
from logbus.loads import tally
from logbus.loads.directory import Directory
from logbus.loads.target import validate_new_names
from logbus.model import PartitionTally
from logbus.parsing.batches import NUMERIC
from logbus.windows.table_names import SYSTEM_COLUMNS, parse_table

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


# The only columns that are read from the files.
COUNTED_COLUMNS = ["_partition", "_offset", "_timestamp", "_fingerprint"]

# Returns the rows from the start each time it is called.
Batches = Callable[[], Iterable[pa.RecordBatch]]


def counted_batches(paths: Sequence[str], filesystem: fs.FileSystem) -> Iterable[pa.RecordBatch]:
    """The counted columns of the files, a batch at a time. Without the default buffers, which hold a file's whole columns:
    20 M rows take 75 MiB this way and 265 MiB with them."""
    if not paths:
        return []
    format_ = ds.ParquetFileFormat(pre_buffer=False)
    dataset = ds.dataset(list(paths), format=format_, filesystem=filesystem)
    return dataset.to_batches(columns=COUNTED_COLUMNS, batch_readahead=2, fragment_readahead=1)


@dataclass(slots=True)
class Running:
    """One partition's counts so far. `spans` are the lowest and highest offset of each batch."""

    rows: int = 0
    fingerprint: int = 0
    first: datetime | None = None
    last: datetime | None = None
    spans: list[tuple[int, int]] = field(default_factory=list)
    is_rising: bool = True

    @property
    def is_distinct(self) -> bool:
        return self.is_rising and all(before[1] < after[0] for before, after in pairwise(sorted(self.spans)))


def count_batches(batches: Batches) -> tally.Counted:
    """Tallies and time spans by partition; every row counts as loaded."""
    running: dict[int, Running] = {}
    for batch in batches():
        for partition, rows in by_partition(batch):
            add(running.setdefault(partition, Running()), rows)
    return tally.Counted(
        tallies={partition: to_tally(partition, counts, batches) for partition, counts in running.items()},
        spans={partition: tally.TimeSpan(first=counts.first, last=counts.last) for partition, counts in running.items()},
    )


def by_partition(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    partitions = batch.column("_partition")
    for partition in pc.unique(partitions).to_pylist():
        yield partition, batch.filter(pc.equal(partitions, partition))


def add(running: Running, rows: pa.RecordBatch) -> None:
    if not rows.num_rows:
        return
    offsets, stamps = rows.column("_offset"), pc.min_max(rows.column("_timestamp")).as_py()
    limits = pc.min_max(offsets).as_py()
    running.rows += rows.num_rows
    running.fingerprint = (running.fingerprint + _wrapping_sum(rows.column("_fingerprint"))) % MODULUS
    running.spans.append((limits["min"], limits["max"]))
    running.is_rising = running.is_rising and rises(offsets)
    running.first = min(filter(None, (running.first, stamps["min"])), default=None)
    running.last = max(filter(None, (running.last, stamps["max"])), default=None)


def _wrapping_sum(hashes: pa.Array) -> int:
    """Arrow's integer sum wraps at 64 bits, as a fingerprint does."""
    return pc.sum(hashes).as_py() or 0


def rises(offsets: pa.Array) -> bool:
    return len(offsets) < 2 or pc.all(pc.greater(offsets[1:], offsets[:-1])).as_py()


def to_tally(partition: int, counts: Running, batches: Batches) -> PartitionTally:
    return PartitionTally(
        partition=partition,
        loaded=counts.rows,
        distinct_offsets=counts.rows if counts.is_distinct else count_distinct(partition, batches),
        min_offset=min((low for low, _ in counts.spans), default=None),
        max_offset=max((high for _, high in counts.spans), default=None),
        fingerprint=counts.fingerprint,
    )


def count_distinct(partition: int, batches: Batches) -> int:
    offsets: set[int] = set()
    for batch in batches():
        chosen = batch.filter(pc.equal(batch.column("_partition"), partition))
        offsets.update(chosen.column("_offset").to_pylist())
    return len(offsets)


def with_dead_letters(rows: tally.Counted, dead: tally.Counted) -> tally.Counted:
    """Rows from files and dead letters from the ledger's database, in one count."""
    partitions = sorted({*rows.tallies, *dead.tallies})
    return tally.Counted(
        tallies={partition: joined(partition, rows, dead) for partition in partitions},
        spans={partition: _joined_span(partition, rows, dead) for partition in partitions},
    )


def joined(partition: int, rows: tally.Counted, dead: tally.Counted) -> PartitionTally:
    first, second = (part.tallies.get(partition, PartitionTally(partition=partition)) for part in (rows, dead))
    lows, highs = (first.min_offset, second.min_offset), (first.max_offset, second.max_offset)
    return PartitionTally(
        partition=partition,
        loaded=first.loaded,
        dead_lettered=second.dead_lettered,
        distinct_offsets=first.distinct_offsets + second.distinct_offsets,
        min_offset=min((low for low in lows if low is not None), default=None),
        max_offset=max((high for high in highs if high is not None), default=None),
        fingerprint=(first.fingerprint + second.fingerprint) % MODULUS,
    )


def _joined_span(partition: int, rows: tally.Counted, dead: tally.Counted) -> tally.TimeSpan:
    spans = [part.spans[partition] for part in (rows, dead) if partition in part.spans]
    return tally.TimeSpan(
        first=min((span.first for span in spans if span.first is not None), default=None),
        last=max((span.last for span in spans if span.last is not None), default=None),
    )


PIECE_BYTES = 4 * 1024 * 1024


def content_hashes(directory: Directory, paths: Sequence[str]) -> dict[str, str]:
    """Hashes by name relative to the directory, so that they stay valid if the table is moved with its files."""
    return {name_of(directory, path): _content_hash(directory, path) for path in paths}


def name_of(directory: Directory, path: str) -> str:
    return path.removeprefix(f"{directory.path}/")


def _content_hash(directory: Directory, path: str) -> str:
    digest = xxhash.xxh3_128()
    with directory.filesystem.open_input_stream(path) as stream:
        while piece := stream.read(PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def compare_files(directory: Directory, then: Mapping[str, str], paths: Sequence[str]) -> tally.ValuesReport:
    """Whether the window's current files are those that were loaded, with the same content."""
    return tally.ValuesReport(problems=tuple(_file_problems(directory, then, {name_of(directory, path): path for path in paths})))


def _file_problems(directory: Directory, then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    if missing := sorted(then.keys() - now.keys()):
        yield f"the table does not name {', '.join(missing)} any more, which was loaded: it was replaced or removed"
    if others := sorted(now.keys() - then.keys()):
        yield f"the table names {', '.join(others)}, which no load of this window wrote: rows were rewritten or added"
    for name in sorted(then.keys() & now.keys()):
        try:
            is_same = _content_hash(directory, now[name]) == then[name]
        except FileNotFoundError:
            yield f"the file {name} is gone"
            continue
        if not is_same:
            yield f"the file {name} does not hold what was loaded: it was changed"


# The Iceberg table and its catalog: created, found, and extended with columns that a parser has gained since.


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


# The table in DuckDB: views over exactly the files of its current snapshot.


DUCKDB_TYPES: dict[types.IcebergType, str] = {
    types.StringType(): "VARCHAR",
    types.IntegerType(): "INTEGER",
    types.LongType(): "BIGINT",
    types.FloatType(): "FLOAT",
    types.DoubleType(): "DOUBLE",
    types.BooleanType(): "BOOLEAN",
    types.TimestamptzType(): "TIMESTAMPTZ",
    types.BinaryType(): "BLOB",
}
NAME_MAPPING_PROPERTY = "schema.name-mapping.default"  # set where files without field ids were added to a table


def create_view(connection: DuckDBPyConnection, table: Table, name: str) -> None:
    """Creates or replaces the temporary view."""
    scan = table.scan()
    tasks = list(scan.plan_files())
    if not _can_read_files(table, tasks):
        connection.register(name, scan.to_arrow())
        return
    files = ", ".join(literal(urlsplit(task.file.file_path).path) for task in tasks)
    # By field id, as Iceberg has it: a column that was renamed keeps its values, and one that was added since is null.
    columns = ", ".join(
        f"{field.field_id}: {{name: {literal(field.name)}, type: {literal(DUCKDB_TYPES[field.field_type])}, default_value: NULL}}"
        for field in table.schema().fields
    )
    quoted = '"' + name.replace('"', '""') + '"'
    connection.execute(
        f"create or replace temp view {quoted} as select * from read_parquet([{files}], schema = MAP {{{columns}}})"
    )


def _can_read_files(table: Table, tasks: Sequence[FileScanTask]) -> bool:
    """Whether DuckDB can read the files itself. Otherwise pyiceberg reads them, all of them and all columns: what another writer
    deleted by delete files, a type that no load writes, a file system that is not local."""
    return (
        bool(tasks)
        and not any(task.delete_files or urlsplit(task.file.file_path).scheme not in ("", "file") for task in tasks)
        and all(field.field_type in DUCKDB_TYPES for field in table.schema().fields)
        and NAME_MAPPING_PROPERTY not in table.properties
    )


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def query(connection: DuckDBPyConnection, statement: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Column names and rows. Fetched as Arrow: DuckDB's own rows need another library for instants."""
    relation = connection.sql(statement)
    if relation is None:
        return [], []
    table = relation.to_arrow_table()
    columns = [column.to_pylist() for column in table.columns]
    return list(table.column_names), list(zip(*columns, strict=True)) if columns else []
