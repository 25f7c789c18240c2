"""Which pipelines still need the records of a topic that is to be deleted: those that have not loaded all of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Engine

from logbus.kafka.topics import SettingsLog
from logbus.ledger.rows import pipeline_rows
from logbus.status.lag import lag_of
from logbus.wording import many


@dataclass(frozen=True, slots=True, kw_only=True)
class Unloaded:
    """What a pipeline has not loaded of its topic. `records` None: they cannot be counted, for the reason in `problem`."""

    pipeline: str
    topic: str
    records: int | None
    hours: int = 0
    problem: str | None = None

    def __str__(self) -> str:
        if self.records is None:
            return f"{self.pipeline} (how many is unknown: {self.problem})"
        return f"{self.pipeline} ({many(self.records, 'record')} in {many(self.hours, 'closed hour')} and the open one)"

    def summary(self) -> dict[str, Any]:
        """As JSON-ready values."""
        return {"pipeline": self.pipeline, "topic": self.topic, "records": self.records, "problem": self.problem}


def unloaded_of(engine: Engine, log: SettingsLog, topics: Collection[str], now: datetime) -> Iterator[Unloaded]:
    """Of the pipelines that read these topics, those that have not loaded everything."""
    with engine.connect() as connection:
        places = [(row["name"], row["topic"]) for row in pipeline_rows(connection) if row["topic"] in topics]
    for name, topic in places:
        lag = lag_of(engine, log, name, now)
        if lag.problem is not None:
            yield Unloaded(pipeline=name, topic=topic, records=None, problem=lag.problem)
        elif lag.records + lag.records_open:
            yield Unloaded(pipeline=name, topic=topic, records=lag.records + lag.records_open, hours=lag.hours_behind)
