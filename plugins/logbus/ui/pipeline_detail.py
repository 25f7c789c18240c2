"""One pipeline for the page that shows it: its definition, its progress, its recent hours and attempts."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine

from logbus.ledger.ledger import Ledger
from logbus.ledger.pipeline_trend import dead_letter_classes, loaded_hours, recent_attempts
from logbus.model import Pipeline, instant_text

HOURS_SHOWN = 168
ATTEMPTS_SHOWN = 20


def detail(engine: Engine, name: str) -> dict[str, Any]:
    """As JSON-ready values. `hours` are columns by their name, one value for each of the newest loaded hours."""
    pipeline = Ledger(engine).pipeline(name)
    with engine.connect() as connection:
        hours = loaded_hours(connection, name, HOURS_SHOWN)
        attempts = recent_attempts(connection, name, ATTEMPTS_SHOWN)
        dead = dead_letter_classes(connection, name, hours[0].start) if hours else []
    return {
        "pipeline": definition_json(pipeline),
        "hours": {
            "start": [instant_text(one.start) for one in hours],
            "read": [one.read for one in hours],
            "dead_lettered": [one.dead_lettered for one in hours],
            "late": [one.late for one in hours],
            "seconds": [one.seconds for one in hours],
        },
        "dead_letters": dead,
        "attempts": [one.summary() for one in attempts],
    }


def definition_json(pipeline: Pipeline) -> dict[str, Any]:
    """What the DAG's author defined, and the columns that are known: declared, or inferred if the pipeline infers them."""
    settings = {name: value for name, value in pipeline.settings.items() if name != "columns"}
    return {
        "name": pipeline.name,
        "topic": pipeline.topic,
        "table": pipeline.table,
        "parse": pipeline.parse,
        "sink": pipeline.options.sink,
        "interval_seconds": int(pipeline.interval.total_seconds()),
        "lateness_seconds": pipeline.lateness.total_seconds(),
        "starts_at": pipeline.starts_at and instant_text(pipeline.starts_at),
        "isolation_level": pipeline.isolation_level,
        "settings": settings,
        "columns": dict(pipeline.options.columns),
    }
