"""A load without Spark: the task's own function stages records made up here, then the window is sealed and committed.

Record `n` of partition `p` is the line `line p/n`; `bad_offsets` hold `BAD`, which is not text, for dead letters. Values are the
log's: a reload with other `bad_offsets` or another value reads other records. For a better parser, set `mended`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any, Self

from logbus.loads.commit_checks import SealedWindow
from logbus.loads.sinks import Sink, sink_for
from logbus.loads.sinks.iceberg import IcebergSink
from logbus.model import Attempt, FrozenWindow, Pipeline, WindowCounts, milliseconds
from logbus.parsing import parser_for
from logbus.windows.rows import pipeline_of
from logbus_spark.application import TaskReads, to_reads
from logbus_spark.load_task import load
from logbus_spark.records import Records, StagedWindow, TaskJob, TaskResult

from tests.support.ledgers import NOW, World
from tests.support.mended import MENDED

BAD = b"\xff"


def load_hours(world: World, *numbers: int, **how: Any) -> None:
    """Freezes and loads these hours of `world`."""
    for number in numbers:
        Loading.of(world, number, **how).load()


@dataclass
class Loading:
    """One attempt at one window, step by step, so that a test can stop or disturb it anywhere."""

    world: World
    url: str
    window: FrozenWindow
    bad_offsets: frozenset[int] = frozenset()
    fixed_value: bytes | None = None
    mended: bool = False  # the parser has been improved since: it parses BAD too
    accept_other_records: bool = False
    numbers: Mapping[tuple[int, int], bytes] = field(default_factory=dict)  # headers `logbus-sent` by partition and offset
    attempt: Attempt = field(init=False)
    results: list[TaskResult] = field(default_factory=list)

    @classmethod
    def of(cls, world: World, number: int, **how: Any) -> Self:
        """At this hour of `world`."""
        return cls(world=world, url=world.url, window=world.freeze(number), **how)

    @property
    def pipeline(self) -> Pipeline:
        """The definition that the driver uses: that of when the attempt began."""
        ledger, attempt = self.world.ledger, getattr(self, "attempt", None)
        if attempt is None:
            return ledger.pipeline(self.window.pipeline)
        return ledger.with_inferred(pipeline_of(attempt.definition))

    @cached_property
    def sink(self) -> Sink:
        """One for the whole load, as in the application."""
        return sink_for(self.pipeline, self.world.ledger.engine)

    @property
    def file_sink(self) -> IcebergSink:
        sink = self.sink
        assert isinstance(sink, IcebergSink)
        return sink

    def begin(self) -> Loading:
        start = self.window.interval.start
        accepted = [start] if self.accept_other_records else []
        begin = self.world.ledger.begin_attempts
        (self.attempt,) = begin(self.window.pipeline, [start], "test", 1, NOW, accept_other_records=accepted)
        return self

    def create(self) -> Loading:
        parser = parser_for(self.pipeline.parse, self.pipeline.settings)
        self.sink.ensure_target(parser.columns)
        self.sink.create_staging([self.attempt])
        return self

    def run_task(self, task: int, offsets: Iterable[tuple[int, int]] | None = None, *, wins: bool = True) -> Loading:
        """Stages these (partition, offset) records as a Spark task would; a task that does not win only leaves its rows."""
        results = load(self.chunks(self.all_offsets() if offsets is None else offsets), self.job(), task)
        self.results += results if wins else []
        return self

    def job(self) -> TaskJob:
        return TaskJob(
            pipeline=self.window.pipeline,
            topic=self.window.topic,
            parse=MENDED if self.mended else self.pipeline.parse,
            settings=self.pipeline.settings,
            windows={
                self.window.id: StagedWindow(
                    window_id=self.window.id,
                    attempt=self.attempt.number,
                    start_ms=milliseconds(self.attempt.interval.start),
                    end_ms=milliseconds(self.attempt.interval.end),
                    staging_table=self.attempt.staging_table,
                    dead_letter_table=self.attempt.dead_letter_table,
                )
            },
            grid=self.pipeline.grid,
            sink=self.sink.name,
            sink_options=self.sink.task_options(self.world.ledger.engine.url),
        )

    def all_offsets(self) -> Iterator[tuple[int, int]]:
        for part in self.window.ranges:
            yield from ((part.partition, offset) for offset in range(part.readable_from, part.end_offset))

    def chunks(self, chosen: Iterable[tuple[int, int]]) -> Iterator[Records]:
        for partition, group in groupby(chosen, key=itemgetter(0)):
            offsets = [offset for _, offset in group]
            stamps = self.world.log.topics[self.window.topic][partition].stamps_ms
            yield Records(
                window_id=self.window.id,
                partition=partition,
                offsets=offsets,
                stamps_ms=[stamps[offset] for offset in offsets],
                keys=[b"key"] * len(offsets),
                values=[self.value(partition, offset) for offset in offsets],
                headers=[self.headers(partition, offset) for offset in offsets],
            )

    def headers(self, partition: int, offset: int) -> list[tuple[str, bytes | None]]:
        number = self.numbers.get((partition, offset))
        return [("host", b"web-1")] + ([("logbus-sent", number)] if number else [])

    def value(self, partition: int, offset: int) -> bytes:
        if offset in self.bad_offsets:
            return BAD
        return f"line {partition}/{offset}".encode() if self.fixed_value is None else self.fixed_value

    @property
    def reads(self) -> TaskReads:
        return to_reads(self.results)

    def seal(self) -> SealedWindow:
        """Seals what the tasks have staged: only the commit is missing then."""
        files = self.reads.files.get(self.window.id, ())
        staged = self.sink.seal(self.attempt, self.reads.winners, files)
        reads = self.reads.by_window.get(self.window.id, {})
        return SealedWindow(
            pipeline=self.pipeline, window=self.window, attempt=self.attempt, staged=staged, reads=reads, files=files
        )

    def commit(self) -> WindowCounts:
        return self.sink.commit(self.seal(), NOW)

    def load(self, value: bytes | None = None) -> WindowCounts:
        """All steps, undisturbed; with `value`, all records have that value."""
        self.fixed_value = value
        return self.begin().create().run_task(7).commit()
