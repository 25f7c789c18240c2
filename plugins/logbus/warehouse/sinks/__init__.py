"""Sinks: where a pipeline's rows become public. `sink_for(pipeline, engine)` returns the one its settings name.

This is the driver's side: targets, sealing, committing, counting again. What a Spark task does with its rows is in
`spark_jobs.sinks`. Each sink is a separate module that is imported only when a pipeline uses it, so no pipeline pays for
another sink's libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pkgutil import resolve_name
from typing import cast

from sqlalchemy import Engine

from logbus.errors import UserError
from logbus.model import Pipeline
from logbus.warehouse.sinks.base import Sink, Upkeep

MakeSink = Callable[[Pipeline, Engine], Sink]

SINKS: Mapping[str, str] = {
    "postgres": "logbus.warehouse.sinks.postgres:PostgresSink",
    "iceberg": "logbus.warehouse.sinks.iceberg:IcebergSink",
    "parquet": "logbus.warehouse.sinks.parquet:ParquetSink",
}


def sink_for(pipeline: Pipeline, engine: Engine) -> Sink:
    """The pipeline's sink. `engine` is the PostgreSQL that holds the ledger and the dead letters, whatever the sink."""
    name = pipeline.options.sink
    if name not in SINKS:
        raise UserError(f"pipeline {pipeline.name} loads into sink {name!r}, which is none of {', '.join(SINKS)}")
    try:
        make = cast(MakeSink, resolve_name(SINKS[name]))
    except ModuleNotFoundError as error:
        raise UserError(f"the sink {name} needs {error.name}, which is not installed: pip install 'logbus[{name}]'") from None
    return make(pipeline, engine)


def each_sink_once() -> Callable[[Pipeline, Engine], Sink]:
    """`sink_for` for work on many windows: a pipeline's sink, with all it opens, is created only once."""
    made: dict[str, Sink] = {}

    def get(pipeline: Pipeline, engine: Engine) -> Sink:
        if pipeline.name not in made:
            made[pipeline.name] = sink_for(pipeline, engine)
        return made[pipeline.name]

    return get


__all__ = ["SINKS", "Sink", "Upkeep", "each_sink_once", "sink_for"]
