"""A load without Spark: the task's own function stages records made up here, then the window is sealed and committed.

Record `n` of partition `p` is the line `line p/n`; `BAD` offsets hold bytes that are no text, for dead letters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from logbus.warehouse.commit import SealedWindow
from logbus.warehouse.engine import libpq_uri
from logbus.warehouse.sinks import Sink, sink_for
from logbus.windows.model import Attempt, FrozenWindow, Pipeline, WindowCounts

from spark_jobs.application import Reads, staged_window, to_reads
from spark_jobs.kafka_source import to_batch
from spark_jobs.load_task import ARROW_RESULT_SCHEMA, TaskJob, load
from spark_jobs.parsers import parser_for
from tests.support.ledgers import NOW, World

BAD = b"\xff"


@dataclass(frozen=True)
class ResultRow:
    """A task's result as Spark's collect gives it."""

    task: int
    window_id: int
    partition: int
    read: int
    filtered: int
    late: int
    early: int
    bytes: int
    fingerprint: str


@dataclass
class Loading:
    """One attempt at one window, step by step, so that a test may stop or disturb it anywhere."""

    world: World
    url: str
    window: FrozenWindow
    bad_offsets: frozenset[int] = frozenset()
    attempt: Attempt = field(init=False)
    results: list[ResultRow] = field(default_factory=list)

    @property
    def pipeline(self) -> Pipeline:
        return self.world.ledger.pipeline(self.window.pipeline)

    @property
    def sink(self) -> Sink:
        return sink_for(self.pipeline, self.world.ledger.engine)

    def begin(self) -> Loading:
        start = self.window.interval.start
        (self.attempt,) = self.world.ledger.begin_attempts(self.window.pipeline, [start], "test", 1, NOW)
        return self

    def create(self) -> Loading:
        parser = parser_for(self.pipeline.parse, self.pipeline.settings)
        self.sink.ensure_target(parser.columns)
        self.sink.create_staging([self.attempt])
        return self

    def run_task(self, task: int, offsets: Iterable[tuple[int, int]] | None = None, *, wins: bool = True) -> Loading:
        """Stages these (partition, offset) records as a Spark task would; a task that does not win leaves its rows only."""
        job = TaskJob(
            topic=self.window.topic,
            parse=self.pipeline.parse,
            settings=self.pipeline.settings,
            warehouse_uri=libpq_uri(self.url),
            windows={self.window.id: staged_window(self.attempt)},
        )
        chosen = self.all_offsets() if offsets is None else offsets
        for batch in load(self.batches(chosen), job, task):
            rows = [ResultRow(**row) for row in batch.cast(ARROW_RESULT_SCHEMA).to_pylist()]
            self.results += rows if wins else []
        return self

    def all_offsets(self) -> Iterator[tuple[int, int]]:
        for part in self.window.ranges:
            yield from ((part.partition, offset) for offset in range(part.readable_from, part.end_offset))

    def batches(self, offsets: Iterable[tuple[int, int]]) -> Iterator[pa.RecordBatch]:
        rows = [self.record(partition, offset) for partition, offset in offsets]
        if rows:
            yield to_batch(rows)

    def record(self, partition: int, offset: int) -> tuple[object, ...]:
        stamp = self.world.log.topics[self.window.topic][partition].stamps_ms[offset]
        value = BAD if offset in self.bad_offsets else f"line {partition}/{offset}".encode()
        return self.window.id, partition, offset, stamp, b"key", value, [{"name": "host", "content": b"web-1"}]

    @property
    def reads(self) -> Reads:
        return to_reads(self.results)

    def seal(self) -> SealedWindow:
        """Seals what the tasks staged: from here on only the commit is missing."""
        staged = self.sink.seal(self.attempt, self.reads.winners, ())
        reads = self.reads.by_window.get(self.window.id, {})
        return SealedWindow(pipeline=self.pipeline, window=self.window, attempt=self.attempt, staged=staged, reads=reads)

    def commit(self) -> WindowCounts:
        return self.sink.commit(self.seal(), NOW)

    def load(self) -> WindowCounts:
        """Everything, undisturbed."""
        return self.begin().create().run_task(7).commit()
