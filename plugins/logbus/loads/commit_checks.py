"""What is about to become public, and all that may refuse it while nothing is changed yet: the equation, the same records as
before, the error budget; and the schemas that values were decoded by, frozen with their window: in the transaction that makes
rows public, so that a load years later decodes the same values without a registry.

A pipeline's values are of one registry: an id means one schema, whatever the registry's URL is called meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, Engine, delete, insert, select, text
from sqlalchemy.dialects.postgresql import insert as insert_if_absent

from logbus import errors, model, pipeline_settings
from logbus.fingerprint import as_text
from logbus.formatting import many, shown_value
from logbus.loads import read_tally, tally
from logbus.loads.read_tally import ReadTally
from logbus.parsing.decoders import ImportedSchema, Schema, SchemaBook, reference_of, schema_guid, schema_id
from logbus.windows import schema
from logbus.windows.table_names import TableName, parse_table, tables_of_attempt

# If a pipeline sets neither limit: whichever of the two allows more.
ERROR_RATE_DEFAULT = 0.1
ERRORS_DEFAULT_MIN = 10

# Kept in the ledger for an attempt over budget: enough to see what is wrong, and never more than about 50 KB.
CLASSES_KEPT_MAX = 10
EXAMPLES_KEPT_MAX = 20
VALUE_BYTES_KEPT_MAX = 2_000
EXAMPLES_TOLD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRecords:
    """A load of a window, public or about to be. `partitions` as the ledger stores them for each attempt."""

    attempt: int
    fingerprint: str
    read: int
    partitions: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class SealedWindow:
    """A window ready to commit: what its attempt staged is sealed, and `staged` is what was counted there."""

    pipeline: model.Pipeline
    window: model.FrozenWindow
    attempt: model.Attempt
    staged: tally.Counted = field(default_factory=tally.Counted)
    reads: Mapping[int, ReadTally] = field(default_factory=dict)
    files: Sequence[str] = ()
    schemas: Mapping[bytes, Schema] = field(default_factory=dict)  # by reference, for values that name theirs
    target: TableName = field(init=False)
    rows: TableName = field(init=False)  # sealed
    dead: TableName = field(init=False)  # sealed

    def __post_init__(self) -> None:
        object.__setattr__(self, "target", parse_table(self.pipeline.table))
        tables = tables_of_attempt(self.attempt.staging_table)
        object.__setattr__(self, "rows", tables.sealed_rows)
        object.__setattr__(self, "dead", tables.sealed_dead_letters)

    @cached_property
    def read(self) -> ReadTally:
        """Of all partitions, with the hours nearest to the window."""
        whole = sum(self.reads.values(), ReadTally())
        whole.hours = read_tally.nearest_hours(whole.hours, model.milliseconds(self.window.interval.start))
        return whole

    @cached_property
    def counts(self) -> model.WindowCounts:
        read, dead_lettered = self.read, sum(part.dead_lettered for part in self.staged.tallies.values())
        return model.WindowCounts(
            read=read.read,
            loaded=read.read - read.filtered - dead_lettered,
            dead_lettered=dead_lettered,
            filtered=read.filtered,
            late=read.late,
            early=read.early,
            lost=sum(part.lost for part in self.window.ranges),
            bytes=read.bytes,
        )

    @cached_property
    def records(self) -> LoadedRecords:
        """Of all records that were read, those that were filtered included; by partition, for comparing attempts."""
        partitions, whole = {}, self.read
        for number in sorted({*self.reads, *self.staged.tallies}):
            read = self.reads.get(number, ReadTally())
            staged = self.staged.tallies.get(number, model.PartitionTally(partition=number))
            partitions[str(number)] = {
                "read": read.read,
                "loaded": staged.loaded,
                "dead_lettered": staged.dead_lettered,
                "filtered": read.filtered,
                "fingerprint": as_text(read.fingerprint),
            }
        return LoadedRecords(
            attempt=self.attempt.number, fingerprint=as_text(whole.fingerprint), read=whole.read, partitions=partitions
        )


def refuse_mismatch(load: SealedWindow) -> None:
    """The equation, per window and partition: wrong rows are never public."""
    tallies = load.staged.tallies
    gaps_allowed = load.pipeline.options.offset_gaps
    filtered = {partition: read.filtered for partition, read in load.reads.items()}
    wrong = tally.problems(load.window, tallies, filtered, gaps_allowed=gaps_allowed)
    for partition in sorted({*tallies, *load.reads}):
        read, staged = load.reads.get(partition, ReadTally()), tallies.get(partition, model.PartitionTally(partition=partition))
        if read.read != staged.loaded + staged.dead_lettered + read.filtered:
            wrong.append(f"partition {partition}: tasks read {read.read}, {staged.loaded + staged.dead_lettered} staged")
        if read.staged_fingerprint != staged.fingerprint:
            wrong.append(f"partition {partition}: the staged rows are not the records the tasks read (fingerprints differ)")
    if wrong:
        what = f"window {load.attempt.interval} of {load.pipeline.name} does not add up: {'; '.join(wrong)}"
        raise errors.EquationMismatch(what + _hint(load, gaps_allowed))


def _hint(load: SealedWindow, gaps_allowed: bool) -> str:
    """What to do where everything that was read is staged and only offsets are missing: then they hold no record."""
    read, staged = load.read, sum(part.loaded + part.dead_lettered for part in load.staged.tallies.values())
    if gaps_allowed or read.read != staged + read.filtered or read.read >= load.window.record_count:
        return ""
    return (
        ". All that the broker gave is staged: if the topic is compacted or holds transactions, offsets without a record are as "
        'they should be, and the pipeline\'s setting {"offset_gaps": true} says so'
    )


# A reload must bring the same records: what a window was loaded from is compared with what is about to replace it.
#
# Offsets alone do not prove that. Compaction, a log restored from a backup or the election of a lagging replica put other
# records, or fewer, under the same offsets; a reload would overwrite the warehouse's only copy of the original ones. So a loaded
# window keeps its rows unless the fingerprint is the same. A run can be told to accept other records nevertheless; that it did is
# recorded in the ledger forever (`window.other_records`).


def other_records(
    connection: Connection, attempt: model.Attempt, load: LoadedRecords, now: datetime, published: LoadedRecords | None
) -> list[Mapping[str, Any]] | None:
    """What the window's row keeps forever about reloads that replaced its records by others; None if this is not one. Called
    under the window's lock. `published`: what the target's own metadata lists as loaded, if the ledger has no load.

    Raises `OtherRecords` unless the attempt accepts other records.
    """
    window, row_of = schema.window, schema.attempt
    query = (
        select(window.c.loaded_attempt, window.c.fingerprint, window.c.read_count, window.c.other_records)
        .add_columns(row_of.c.run_id, row_of.c.accepts_other_records)
        .join(row_of, row_of.c.window_id == window.c.id)
        .where(row_of.c.window_id == attempt.window_id, row_of.c.number == attempt.number)
    )
    row = connection.execute(query).one()
    former = published if row.loaded_attempt is None else _in_ledger(connection, attempt.window_id, row)
    if former is None or former.fingerprint == load.fingerprint:
        return None
    if not row.accepts_other_records:
        raise errors.OtherRecords(_refusal(attempt, former, load))
    note = {
        "attempt": load.attempt,
        "run_id": row.run_id,
        "at": model.instant_text(now),
        "attempt_before": former.attempt,
        "fingerprint_before": former.fingerprint,
        "fingerprint_after": load.fingerprint,
        "read_before": former.read,
        "read_after": load.read,
    }
    return [*(row.other_records or ()), note]


def _in_ledger(connection: Connection, window_id: int, row: Any) -> LoadedRecords:
    """The load that is public according to the ledger."""
    row_of = schema.attempt
    loaded = (row_of.c.window_id == window_id, row_of.c.number == row.loaded_attempt)
    partitions = connection.execute(select(row_of.c.partitions).where(*loaded)).scalar_one_or_none()
    return LoadedRecords(
        attempt=row.loaded_attempt, fingerprint=row.fingerprint, read=row.read_count, partitions=partitions or {}
    )


def _refusal(attempt: model.Attempt, former: LoadedRecords, load: LoadedRecords) -> str:
    start, name = model.instant_text(attempt.interval.start), attempt.pipeline
    return (
        f"window {attempt.interval} of {name} keeps the rows that attempt {former.attempt} loaded: the log gives other records "
        f"now. {former.read} were read then, {load.read} now ({_differences(former, load)}). Compaction, a log restored from a "
        f"backup or an unclean election does that. `logbus window diff --pipeline {name} --against broker {start}` shows what "
        f"differs; to replace the rows for good: `logbus replay run --pipeline {name} --window {start} --accept-other-records`"
    )


def _differences(former: LoadedRecords, load: LoadedRecords) -> str:
    """The differences by partition, if the former load's figures by partition were stored."""
    nothing = {"read": 0, "fingerprint": as_text(0)}
    parts = sorted({*former.partitions, *load.partitions}, key=int) if former.partitions else []
    pairs = {part: (former.partitions.get(part, nothing), load.partitions.get(part, nothing)) for part in parts}
    changes = [
        f"partition {part}: {many(then['read'], 'record')} then, {now['read']:,} now"
        for part, (then, now) in pairs.items()
        if then["fingerprint"] != now["fingerprint"]
    ]
    return "; ".join(changes) or f"fingerprint {former.fingerprint} then, {load.fingerprint} now"


# The error budget: how much of a window may fail to parse before the load as a whole is refused.
#
# It is set by a pipeline's `max_errors` (records of one window) and `max_error_rate` (0 to 1, of the records read). The default
# is a tenth, and ten records of a window however small it is: a bad parser is caught, a bad line is tolerated. A window of which
# not one record parses is never a success, unless `max_error_rate` is 1. Over budget nothing becomes public: the window stays as
# it was, and the failed attempt keeps a bounded sample of what did not parse, because its dead letters are dropped with the rest.


def overrun(options: pipeline_settings.PipelineSettings, *, read: int, failed: int) -> str | None:
    """The limit that this many errors among this many records exceed; None if they exceed none."""
    most, rate = options.max_errors, options.max_error_rate
    if most is not None and failed > most:
        return f"max_errors {most}"
    if rate is not None and failed > rate * read:
        return f"max_error_rate {rate:g}"
    if most is None and rate is None and failed > max(ERRORS_DEFAULT_MIN, ERROR_RATE_DEFAULT * read):
        return "a tenth of them, unless max_errors or max_error_rate say otherwise"
    if read and failed == read and rate != 1:
        return "less than all of them, unless max_error_rate is 1"
    return None


def refuse_errors(connection: Connection, load: SealedWindow) -> None:
    """Raises `ErrorBudgetExceeded` with examples from the attempt's own dead letters."""
    pipeline, read, failed = load.pipeline, load.counts.read, load.counts.dead_lettered
    limit = overrun(pipeline.options, read=read, failed=failed)
    if limit is None:
        return
    samples = take_samples(connection, load.dead.sql)
    classes = ", ".join(f"{sample['error_class']} {sample['count']}" for sample in samples["classes"])
    examples = "; ".join(
        f"{pipeline.topic}-{sample['partition']} offset {sample['offset']}: {sample['error']}"
        for sample in samples["examples"][:EXAMPLES_TOLD]
    )
    raise errors.ErrorBudgetExceeded(
        f"window {load.attempt.interval} of {pipeline.name}: {failed:,} of {many(read, 'record')} cannot be parsed. Its error "
        f"budget is {limit}, so nothing became public. Most frequent: {classes}. For example: {examples}. "
        f"`logbus window show --pipeline {pipeline.name} {model.instant_text(load.attempt.interval.start)}` has more. "
        "Mend the parser or raise the budget in the pipeline's settings, then load the window again",
        samples=samples,
    )


def take_samples(connection: Connection, dead_letter_table: str) -> dict[str, Any]:
    """The most frequent error classes, and examples: the first of each class, then the second of each, and so on."""
    classes = connection.execute(
        text(f"select error_class, count(*) from {dead_letter_table} group by 1 order by 2 desc, 1 limit :n"),
        {"n": CLASSES_KEPT_MAX},
    )
    numbered = (
        "select *, row_number() over each nth, count(*) over (partition by error_class) of_class "
        f'from {dead_letter_table} window each as (partition by error_class order by "partition", "offset")'
    )
    examples = connection.execute(
        text(
            f'select "partition", "offset", error_class, left(error, 500) error, substring(value for :bytes) head, '
            f"octet_length(value) size from ({numbered}) numbered order by nth, of_class desc, error_class limit :n"
        ),
        {"n": EXAMPLES_KEPT_MAX, "bytes": VALUE_BYTES_KEPT_MAX},
    )
    return {
        "classes": [{"error_class": name, "count": count} for name, count in classes],
        "examples": [example(row) for row in examples.mappings()],
    }


def example(row: Mapping[Any, Any]) -> dict[str, Any]:
    plain = {name: row[name] for name in ("partition", "offset", "error_class", "error", "size")}
    return {**plain, **shown_value(row["head"])}


def samples_of(error: Exception) -> Mapping[str, Any] | None:
    """The samples that an error carries of the records that caused it."""
    return error.samples if isinstance(error, errors.ErrorBudgetExceeded) else None


# The schemas that a pipeline's values were decoded by, frozen with its windows: in the transaction that makes rows public,
# so that a load years later decodes the same values without a registry.


def schema_book(engine: Engine, pipeline_name: str, window_ids: Iterable[int] = ()) -> SchemaBook:
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
def asking_registry(book: SchemaBook, pipeline: model.Pipeline, settings: Mapping[str, Any]) -> Iterator[SchemaBook]:
    """While this lasts, the book asks the pipeline's registry for what it does not hold. `settings`: the client's, which may have
    the credentials."""
    from logbus.parsing.registry_client import RegistryClient  # and an HTTP client: of no use to a load without schemas

    with RegistryClient(str(pipeline.options.registry), settings) as registry:
        book.ask = registry.fetch
        try:
            yield book
        finally:
            book.ask = None


def freeze_used_schemas(connection: Connection, load: SealedWindow, now: datetime) -> None:
    """The schemas of a window's values, in the transaction of its commit."""
    use, counts = schema.schema_use, load.read.schemas
    connection.execute(delete(use).where(use.c.window_id == load.window.id))
    used = {*map(reference_of, counts)} & load.schemas.keys()
    if used:
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
