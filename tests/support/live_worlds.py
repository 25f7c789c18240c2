"""Several pipelines of JSON records and streams over them, without Spark: their drivers run in this process."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from logbus.loads.audit import audit_window
from logbus.loads.ledger import Ledger
from logbus.loads.sinks import sink_for
from logbus.model import milliseconds
from logbus.streams import stream_ledger
from logbus.streams.definition import Stream
from logbus.streams.proof import StreamProof, prove_due
from logbus_spark.stream_driver import StreamDriver, StreamRun
from sqlalchemy import Engine

from tests.support.in_process import TASKS, Tasks, driver
from tests.support.ledgers import NOW, World, at, hour
from tests.support.streams import run_tasks_in_memory

Record = tuple[float, Mapping[str, Any] | bytes | None]  # the hour at which it arrives, and what it holds


@dataclass
class LiveWorld:
    """Each pipeline's topic and table have its name."""

    world: World
    said: list[str] = field(default_factory=list)

    @property
    def engine(self) -> Engine:
        return self.world.ledger.engine

    def register(self, name: str, columns: Mapping[str, str], partitions: int = 1) -> None:
        if name not in self.world.log.topics:
            self.world.log.create(name, partitions)
        self.world.register(name=name, topic=name, table=name, parse="json", settings={"columns": columns, "max_error_rate": 0.5})

    def arrive(self, name: str, records: Iterable[Record], partition: int = 0) -> None:
        values = [
            (milliseconds(at(number)), json.dumps(value).encode() if isinstance(value, Mapping) else value)
            for number, value in records
        ]
        self.world.log.append_values(name, values, partition)

    def define(self, stream: Stream, since: datetime | None = None) -> None:
        stream_ledger.define(self.engine, stream, NOW, since=since)

    def once(self, name: str) -> StreamRun:
        application = driver(self.world.ledger, self.world.log, {TASKS: Tasks(log=self.world.log)})
        stream = StreamDriver(
            application=application, name=name, run_id="run", say=self.said.append, run_tasks=run_tasks_in_memory
        )
        return stream.run(once=True)

    def load(self, name: str, *hours: int, engine: Engine | None = None) -> None:
        """Freezes, loads and audits windows."""
        ledger = self.world.ledger if engine is None else Ledger(engine)
        for number in hours:
            ledger.freeze_or_get(name, hour(number), self.world.log, NOW)
        attempts = ledger.begin_attempts(name, [at(number) for number in hours], "run", 1, NOW)
        outcomes = driver(ledger, self.world.log).load(name, [attempt.token for attempt in attempts])
        assert [outcome.error for outcome in outcomes] == [None] * len(attempts)
        for number in hours:
            assert audit_window(ledger.engine, self.world.log, name, at(number), NOW, sink_for).ok

    def loaded(self, name: str) -> set[datetime]:
        query = f"select starts_at from logbus.window where pipeline = '{name}' and loaded_attempt is not null"
        return {start for (start,) in self.world.rows(query)}

    def prove(self, name: str) -> StreamProof:
        return prove_due(self.engine, name, NOW)
