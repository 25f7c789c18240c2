"""One record of a topic, followed into the tables: which window of a pipeline holds its offset, and what became of it there.

A record is where its offset is, whatever its time says (docs/which-window.md). In a loaded window it is a row, a dead letter,
or was left out by the pipeline's filter. Offsets are those of the topic as it is now: windows of a topic that was recreated since
are of other records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Engine, select
from sqlalchemy.exc import DBAPIError

from logbus import errors, formatting, model
from logbus.loads import commit_checks, dead_letters
from logbus.loads.sinks import sink_for
from logbus.windows import rows, schema, sql_errors


class RecordFate(StrEnum):
    """What became of a record."""

    NO_WINDOW = "in no window yet"
    NOT_LOADED = "not loaded yet"
    LOADED = "loaded"
    DEAD_LETTER = "dead letter"
    NO_ROW = "no row"  # a filter left it out, or there never was a record at this offset, or its row was deleted since
    UNKNOWN = "unknown"  # the table did not say


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordTrace:
    """Of one record in one pipeline. `problem` is why the table did not say."""

    pipeline: model.Pipeline
    fate: RecordFate
    window: model.FrozenWindow | None = None
    rows: Sequence[Mapping[str, Any]] = ()
    dead_letter: dead_letters.DeadLetter | None = None
    problem: str | None = None

    def summary(self) -> dict[str, Any]:
        """As JSON-ready values."""
        return {
            "pipeline": self.pipeline.name,
            "table": self.pipeline.table,
            "sink": self.pipeline.options.sink,
            "fate": self.fate.value,
            "window": None if self.window is None else self.window.summary(),
            "rows": [{name: shown(value) for name, value in row.items()} for row in self.rows],
            "dead_letter": self.dead_letter
            and {
                "error_class": self.dead_letter.error_class,
                "error": self.dead_letter.error,
                "attempt": self.dead_letter.attempt,
            },
            "problem": self.problem,
        }


def shown(value: Any) -> Any:
    """A column's value in JSON: bytes as text if they are text, long values cut."""
    if isinstance(value, bytes | memoryview):
        content = formatting.shown_value(formatting.cut(bytes(value), commit_checks.VALUE_BYTES_KEPT_MAX))
        return content.get("value", f"base64 {content.get('value_base64')}")
    if isinstance(value, datetime):
        return model.instant_text(value)
    if isinstance(value, int | float | bool | None):
        return value
    return str(value)[: commit_checks.VALUE_BYTES_KEPT_MAX]


def trace_record(engine: Engine, pipeline: model.Pipeline, partition: int, offset: int) -> RecordTrace:
    """The record at this offset of the pipeline's topic."""
    with engine.connect() as connection:
        window = window_at(connection, pipeline.name, partition, offset)
        if window is None:
            return RecordTrace(pipeline=pipeline, fate=RecordFate.NO_WINDOW)
        if window.counts is None:
            return RecordTrace(pipeline=pipeline, fate=RecordFate.NOT_LOADED, window=window)
        dead_letter = dead_letters.at(connection, window, partition, offset)
    if dead_letter is not None:
        return RecordTrace(pipeline=pipeline, fate=RecordFate.DEAD_LETTER, window=window, dead_letter=dead_letter)
    try:
        in_table = sink_for(pipeline, engine).rows_of(window, partition, offset)
    except (errors.UserError, DBAPIError, OSError) as error:
        reason = sql_errors.reason_of(error) if isinstance(error, DBAPIError) else str(error)
        problem = f"table {pipeline.table} was not asked: {reason}"
        return RecordTrace(pipeline=pipeline, fate=RecordFate.UNKNOWN, window=window, problem=problem)
    fate = RecordFate.LOADED if in_table else RecordFate.NO_ROW
    return RecordTrace(pipeline=pipeline, fate=fate, window=window, rows=in_table)


def window_at(connection: Connection, pipeline_name: str, partition: int, offset: int) -> model.FrozenWindow | None:
    """The window of the topic as it is now that holds this offset."""
    window, part, pipeline = schema.window, schema.window_range, schema.pipeline
    query = (
        select(window)
        .join(part, part.c.window_id == window.c.id)
        .join(pipeline, (pipeline.c.name == window.c.pipeline) & (pipeline.c.topic_id == window.c.topic_id))
        .where(
            window.c.pipeline == pipeline_name,
            part.c.partition == partition,
            part.c.start_offset <= offset,
            part.c.end_offset > offset,
        )
        .order_by(window.c.starts_at.desc())
        .limit(1)
    )
    return next(iter(rows.load_windows(connection, query)), None)
