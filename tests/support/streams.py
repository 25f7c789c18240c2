"""A stream over the log in memory, whose driver runs without Spark: the same code of driver and tasks, in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from logbus.expressions import count, max_of
from logbus.kafka.topics import OffsetLog
from logbus.loads.ledger import Ledger
from logbus.streams import stream_ledger
from logbus.streams.definition import Stream, define_stream
from logbus.streams.proof import StreamProof, prove_due
from logbus_spark.records import PlanSlice, pack_slices
from logbus_spark.stream_driver import StreamDriver
from logbus_spark.stream_task import EpochJob, EpochTaskResult, aggregate_chunks
from sqlalchemy import Engine

from tests.support.in_process import TASKS, Tasks, driver
from tests.support.ledgers import NOW, World, at

NAME = "s"


def run_tasks_in_memory(job: EpochJob, slices: Sequence[PlanSlice], config: Mapping[str, Any]) -> list[EpochTaskResult]:
    """Two tasks, one after the other."""
    tasks: Tasks = config[TASKS]
    plans = pack_slices(slices, 2, records_per_task_min=1)
    return [aggregate_chunks(tasks.records(plan, job.topic), job) for plan in plans]


@dataclass
class StreamWorld:
    """The stream `s` over the pipeline `p`: lines by minute of their arrival; of five records, one is a dead letter."""

    world: World
    said: list[str] = field(default_factory=list)
    runs: int = 0

    def define(self, since: datetime | None = None, **settings: Any) -> Stream:
        measures = {"lines": count(), "last_line": max_of("line")}
        stream = define_stream(NAME, "p", keys=(), measures=measures, **{"trigger": "100ms", **settings})
        stream_ledger.define(self.world.ledger.engine, stream, NOW, since=since)
        return stream

    def driver(
        self,
        engine: Engine | None = None,
        log: OffsetLog | None = None,
        run_tasks: Callable[..., list[EpochTaskResult]] = run_tasks_in_memory,
        now: Callable[[], datetime] = lambda: NOW,
        checkpoint_location: str | None = None,
    ) -> StreamDriver:
        ledger = self.world.ledger if engine is None else Ledger(engine)
        self.runs += 1
        application = driver(ledger, log or self.world.log, {TASKS: Tasks(log=self.world.log)}, now)
        return StreamDriver(
            application=application,
            name=NAME,
            run_id=f"run {self.runs}",
            say=self.said.append,
            run_tasks=run_tasks,
            away_poll_seconds=0.01,
            checkpoint_location=checkpoint_location,
        )

    def load(self, *hours: int) -> None:
        """Loads and audits windows; they are frozen."""
        attempts = self.world.begin(*hours)
        application = driver(self.world.ledger, self.world.log)
        outcomes = application.load("p", [attempt.token for attempt in attempts])
        assert [outcome.error for outcome in outcomes] == [None] * len(hours)
        for hour in hours:
            assert self.world.audit(hour).ok

    def prove(self) -> StreamProof:
        return prove_due(self.world.ledger.engine, NAME, NOW)

    def view(self) -> dict[datetime, tuple[int, str]]:
        return {start: (lines, last) for start, lines, last in self.world.rows(f"select * from {NAME}")}

    def truth(self) -> dict[datetime, tuple[int, str]]:
        """From the log itself, up to where the stream has read."""
        lines: dict[datetime, list[str]] = {}
        for partition, end in stream_ledger.positions(self.world.ledger.engine, NAME).items():
            part = self.world.log.topics["t"][partition]
            for record in part.all_records(self.first_offset(partition), end):
                value = self.world.log.value("t", partition, record)
                if record.timestamp_ms >= 0 and not value.startswith(b"\xff"):
                    minute = record.timestamp_ms // 60_000 * 60_000
                    lines.setdefault(at((minute / 1000 - at(0).timestamp()) / 3600), []).append(value.decode())
        return {start: (len(texts), max(texts)) for start, texts in lines.items()}

    def first_offset(self, partition: int) -> int:
        return int(self.world.one(f"select start_offset from logbus.stream_partition where partition = {partition}"))

    def hours(self, partition: int = 0) -> dict[tuple[int, int], int]:
        """By range of offsets the hour of the day, of adjacent parts of one hour together."""
        parts = self.world.rows(
            "select hour, min(start_offset), max(end_offset) from logbus.epoch_part "
            f"where partition = {partition} group by hour order by hour"
        )
        return {(start, end): hour.hour for hour, start, end in parts}

    def refuse_gaps(self) -> None:
        """The parts tile what is committed."""
        rows = self.world.rows(
            "select p.partition, p.start_offset, lag(p.end_offset, 1, s.start_offset) over w, s.end_offset, "
            "max(p.end_offset) over (partition by p.partition) from logbus.epoch_part p "
            "join logbus.stream_partition s using (stream, partition) window w as (partition by p.partition order by p.start_offset)"
        )
        for partition, start, before, committed, last in rows:
            assert (start, committed) == (before, last), f"partition {partition} has a gap or reads twice before {start}"
