"""One pipeline and one window for the pages that show them.

A pipeline: its definition, its progress, its recent hours and attempts, its aggregates and streams. A window: what `logbus window
show` prints, the equation, dead letters by shape, with samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Engine

from logbus.aggregates import listing as aggregates
from logbus.loads import dead_letters, ledger
from logbus.loads.history import AttemptRecord, WindowHistory
from logbus.model import FrozenWindow, Pipeline, instant_text
from logbus.status import window_facts
from logbus.streams import listing as streams
from logbus.web.dag_runs import log_url

HOURS_SHOWN = 168
ATTEMPTS_SHOWN = 20


def pipeline_detail(engine: Engine, name: str) -> dict[str, Any]:
    """As JSON-ready values. `hours` are columns by their name, one value for each of the newest loaded hours."""
    pipeline = ledger.Ledger(engine).pipeline(name)
    with engine.connect() as connection:
        hours = window_facts.loaded_hours(connection, name, HOURS_SHOWN)
        attempts = window_facts.recent_attempts(connection, name, ATTEMPTS_SHOWN)
        dead = window_facts.dead_letter_classes(connection, name, hours[0].start) if hours else []
    columns = {column: [getattr(hour, column) for hour in hours] for column in ("read", "dead_lettered", "late", "seconds")}
    return {
        "pipeline": _definition_json(pipeline),
        "hours": {"start": [instant_text(hour.start) for hour in hours], **columns},
        "dead_letters": dead,
        "attempts": [_with_log_url(attempt) for attempt in attempts],
    }


def computed_detail(engine: Engine, name: str, log_ends: Mapping[int, int] | None, now: datetime) -> dict[str, Any]:
    """The aggregates and streams of a pipeline, as JSON-ready values. Without `log_ends` the lag of streams is unknown."""
    with engine.connect() as connection:
        of_streams = streams.all_statuses(connection, now, name)
        of_aggregates = aggregates.all_statuses(connection, name)
    return {
        "aggregates": [{**status.summary(), "words": status.aggregate.words()} for status in of_aggregates],
        "streams": [{**status.summary(status.lag(log_ends)), "words": status.stream.words()} for status in of_streams],
    }


def _with_log_url(attempt: Mapping[str, Any]) -> dict[str, Any]:
    names = ("dag_id", "run_id", "task_id", "map_index", "try_number")
    return {**attempt, "log_url": log_url(**{name: attempt[name] for name in names})}


def _definition_json(pipeline: Pipeline) -> dict[str, Any]:
    """What the DAG's author defined, and the columns that are known: declared, or inferred if the pipeline infers them."""
    settings = {name: value for name, value in pipeline.settings.items() if name != "columns"}
    return {
        "name": pipeline.name,
        "topic": pipeline.topic,
        "table": pipeline.table,
        "parse": pipeline.parse,
        "sink": pipeline.options.sink,
        "interval_seconds": int(pipeline.interval.total_seconds()),
        "timezone": pipeline.timezone,
        "lateness_seconds": pipeline.lateness.total_seconds(),
        "starts_at": pipeline.starts_at and instant_text(pipeline.starts_at),
        "isolation_level": pipeline.isolation_level,
        "settings": settings,
        "columns": dict(pipeline.options.columns),
    }


def window_detail(engine: Engine, history: WindowHistory) -> dict[str, Any]:
    """As JSON-ready values: the history's own, and what else the page needs."""
    with engine.connect() as connection:
        shapes = dead_letters.shapes_of(connection, history.window.id)
        stay = dead_letters.dead_by_partition(connection, history.window.id)
    summary = history.summary()
    letters = {
        "total": sum(history.dead_letters.values()),
        "by_error": [{"error_class": name, "count": count} for name, count in history.dead_letters.items()],
        "shapes": [shape.summary() for shape in shapes],
    }
    return {
        **summary,
        "attempts": [_with_log_url(attempt) for attempt in summary["attempts"]],
        "equation": equation(history.window),
        "ranges": _ranges_json(history, stay),
        "dead_letters": letters,
        "audit": {"audited_at": summary["audited_at"], "problems": summary["audit_problems"]},
    }


def equation(window: FrozenWindow) -> dict[str, Any] | None:
    """read = loaded + dead-lettered + filtered, and whether it holds; None if nothing is loaded."""
    counts = window.counts
    if counts is None:
        return None
    return {
        "read": counts.read,
        "loaded": counts.loaded,
        "dead_lettered": counts.dead_lettered,
        "filtered": counts.filtered,
        "holds": counts.read == counts.loaded + counts.dead_lettered + counts.filtered,
    }


def _ranges_json(history: WindowHistory, stay: Mapping[int, int]) -> list[dict[str, Any]]:
    """By partition. `stay` are dead letters that are still there; what a redrive moved counts as loaded."""
    window = history.window
    attempt = None if window.loaded_attempt is None else history.attempt(window.loaded_attempt)
    loaded = _loaded_by_partition(window, attempt, stay)
    return [
        {
            "partition": part.partition,
            "start_offset": part.start_offset,
            "end_offset": part.end_offset,
            "count": part.count,
            "lost": part.lost,
            "loaded": loaded.get(part.partition),
            "dead_lettered": stay.get(part.partition, 0) if window.counts else None,
            "first_timestamp": first and instant_text(first),
            "last_timestamp": last and instant_text(last),
        }
        for part in window.ranges
        for first, last in [history.spans.get(part.partition, (None, None))]
    ]


def _loaded_by_partition(window: FrozenWindow, attempt: AttemptRecord | None, stay: Mapping[int, int]) -> dict[int, int]:
    """Rows of each partition; empty if they do not add up to the window's, because a redrive left some out on purpose."""
    if window.is_proven_empty:
        return {part.partition: 0 for part in window.ranges}
    if attempt is None or attempt.partitions is None or window.counts is None:
        return {}
    read_by_partition = {int(part): tally["loaded"] + tally["dead_lettered"] for part, tally in attempt.partitions.items()}
    loaded_by_part = {
        part.partition: read_by_partition.get(part.partition, 0) - stay.get(part.partition, 0) for part in window.ranges
    }
    return loaded_by_part if sum(loaded_by_part.values()) == window.counts.loaded else {}
