"""Is a span of time loaded? What a downstream task waits for, whatever the length of its own interval.

A daily task that reads an hourly pipeline waits for 24 windows, a quarter-hourly one for the window that contains it. Windows
of a pipeline form a chain, so a span is covered when the loaded ones that overlap it leave no gap; time before the pipeline's
start is never loaded and is not waited for.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import Connection, Engine, select, text

from logbus import errors, model
from logbus.windows import rows, schema


def complete_until(connection: Connection, pipeline_name: str) -> datetime | None:
    """Before which instant all of the pipeline's table is audited, without a gap; None: nothing is. As the ledger's view says."""
    query = text("select complete_until from logbus.complete_until where pipeline = :name")
    return connection.execute(query, {"name": pipeline_name}).scalar_one_or_none()


def missing_span(engine: Engine, pipeline_name: str, span: model.Interval, *, audited: bool = False) -> model.Interval | None:
    """The first part of the span that is not loaded (or, if `audited`, not audited) yet; None when all of it is.

    All of it is missing if the pipeline is not registered yet: its first run registers it.
    """
    with engine.connect() as connection:
        try:
            pipeline = rows.to_pipeline(rows.pipeline_row(connection, pipeline_name))
        except errors.PipelineUnknown:
            return span
        expected = expected_span(pipeline, span)
        return first_gap(expected, ready_intervals(connection, pipeline_name, expected, audited=audited))


def expected_span(pipeline: model.Pipeline, span: model.Interval) -> model.Interval:
    """The part of the span that the pipeline will ever load."""
    if pipeline.starts_at is None or pipeline.starts_at <= span.start:
        return span
    if pipeline.starts_at >= span.end:
        raise errors.WrongRequest(
            f"pipeline {pipeline.name} starts at {model.instant_text(pipeline.starts_at)}: it will never load {span}, "
            "so there is nothing to wait for"
        )
    return model.Interval(pipeline.starts_at, span.end)


def ready_intervals(connection: Connection, pipeline_name: str, span: model.Interval, *, audited: bool) -> list[model.Interval]:
    """Intervals of the loaded (or audited) windows that overlap the span."""
    window = schema.window
    ready = window.c.audited_at.is_not(None) if audited else window.c.loaded_attempt.is_not(None)
    query = select(window.c.starts_at, window.c.ends_at).where(
        window.c.pipeline == pipeline_name, window.c.starts_at < span.end, window.c.ends_at > span.start, ready
    )
    return [model.Interval(start, end) for start, end in connection.execute(query)]


def first_gap(span: model.Interval, covered: Iterable[model.Interval]) -> model.Interval | None:
    """The earliest part of the span that none of the intervals covers."""
    gaps = model.uncovered(span.start, span.end, ((interval.start, interval.end) for interval in covered))
    return next((model.Interval(start, end) for start, end in gaps), None)
