"""What one Spark task does for a stream: parse the records it is given as a load does, add them up, and report what it read.

It writes nothing: the sums travel back with the task's result, and the driver commits those of the tasks that won.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.compute as pc
from logbus import fingerprint, model
from logbus.parsing import Parser, batches, parser_for
from logbus.parsing.decoders import SchemaBook, SchemasUnmet
from logbus.streams.kinds import Content, collector_of
from logbus.windows.table_names import SYSTEM_COLUMNS

from logbus_spark.load_task import all_unmet, collecting_rarely, keep_pandas_out, parse_records, to_rows
from logbus_spark.records import Records, TaskPlan, read_plan

if TYPE_CHECKING:
    from logbus.streams.kinds import Collector


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochJob:
    """Everything a task needs. `hours`: the interval of arrival of each part, by its number, which plans call `window_id`."""

    content: Content
    topic: str
    isolation_level: str
    parse: str
    settings: Mapping[str, Any]
    hours: Mapping[int, datetime]
    horizon_ms: int  # later stamps are of clocks that are wrong
    book: SchemaBook | None = None  # for values that name their schema


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTally:
    """What was read of one part. `untimed` are the rows that have no event time, and so are in no group."""

    read: int = 0
    filtered: int = 0
    dead_lettered: int = 0
    untimed: int = 0
    fingerprint: int = 0
    newest_ms: int = -1  # the greatest timestamp that is not in the future

    def __add__(self, other: Self) -> PartTally:
        return PartTally(
            read=self.read + other.read,
            filtered=self.filtered + other.filtered,
            dead_lettered=self.dead_lettered + other.dead_lettered,
            untimed=self.untimed + other.untimed,
            fingerprint=(self.fingerprint + other.fingerprint) % fingerprint.MODULUS,
            newest_ms=max(self.newest_ms, other.newest_ms),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochTaskResult:
    """What one task attempt has read, by part, and what it adds up to. `unmet`: as of a load."""

    tallies: Mapping[int, PartTally] = field(default_factory=dict)
    deltas: pa.Table | None = None
    unmet: frozenset[bytes] = frozenset()


def row_columns(parser: Parser) -> dict[str, str]:
    """Name to type of a loaded row's columns: where it comes from, then the parser's."""
    return {**{name: kind.removesuffix(" not null") for name, kind in SYSTEM_COLUMNS.items()}, **parser.columns}


def epoch_plans(job: EpochJob, client_config: Mapping[str, Any]) -> Callable[[Iterator[TaskPlan]], Iterator[EpochTaskResult]]:
    """The tasks' function. It is sent pickled, with the secrets it holds."""

    def run(plans: Iterator[TaskPlan]) -> Iterator[EpochTaskResult]:
        keep_pandas_out()
        chunks = (records for plan in plans for records in read_plan(plan, client_config, job.topic, job.isolation_level))
        yield aggregate_chunks(chunks, job)

    return run


def aggregate_chunks(chunks: Iterable[Records], job: EpochJob) -> EpochTaskResult:
    parser = parser_for(job.parse, job.settings, job.book)
    schema, aggregator = batches.parser_schema(parser.columns), collector_of(job.content, row_columns(parser))
    tallies: dict[int, PartTally] = {}
    chunks = iter(chunks)
    try:
        with collecting_rarely():
            for records in chunks:
                part = records.window_id
                tallies[part] = tallies.get(part, PartTally()) + add(records, job, parser, schema, aggregator)
    except SchemasUnmet as unmet:
        return EpochTaskResult(unmet=all_unmet(unmet, parser, chunks))
    return EpochTaskResult(tallies=tallies, deltas=aggregator.result())


def add(records: Records, job: EpochJob, parser: Parser, schema: pa.Schema, aggregator: Collector) -> PartTally:
    hashes = fingerprint.record_hashes(
        records.partition, records.offsets, records.stamps_ms, records.keys, records.values, records.headers
    )
    parsed, _ = parse_records(records, parser, schema)
    stamps, hour = pa.array(records.stamps_ms, pa.int64()), job.hours[records.window_id]
    untimed = 0
    if parsed.indexes:
        rows = to_rows(records, job.topic, model.milliseconds(hour), stamps, hashes, parsed)
        untimed = aggregator.add(rows, hour)
    return PartTally(
        read=len(records),
        filtered=len(parsed.filtered),
        dead_lettered=len(parsed.rejected),
        untimed=untimed,
        fingerprint=sum(hashes) % fingerprint.MODULUS,
        newest_ms=newest(stamps, job.horizon_ms),
    )


def newest(stamps_ms: pa.Array, horizon_ms: int) -> int:
    latest = pc.max(stamps_ms).as_py()
    if latest > horizon_ms:
        latest = pc.max(stamps_ms.filter(pc.less_equal(stamps_ms, horizon_ms))).as_py()
    return -1 if latest is None else int(latest)
