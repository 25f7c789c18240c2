"""Maintenance of every pipeline's target: what `logbus maintain` and MaintainOperator do."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Engine

from logbus.errors import LogbusError, PipelineUnknown
from logbus.ledger.ledger import Ledger
from logbus.warehouse.sinks import Upkeep, sink_for


def maintain(engine: Engine, upkeep: Upkeep, pipeline_names: Collection[str] = ()) -> dict[str, list[str]]:
    """Maintains the targets of these pipelines, or of all; returns what was done, by pipeline.

    If one fails, the others still get their turn; the failures are raised together at the end.
    """
    pipelines = Ledger(engine).pipelines()
    unknown = sorted(set(pipeline_names) - {pipeline.name for pipeline in pipelines})
    if unknown:
        raise PipelineUnknown(f"no pipeline {', '.join(unknown)} is registered; `logbus pipeline ls` lists them")
    done: dict[str, list[str]] = {}
    failures: list[str] = []
    for pipeline in pipelines:
        if not pipeline_names or pipeline.name in pipeline_names:
            try:
                done[pipeline.name] = sink_for(pipeline, engine).maintain(upkeep)
            except Exception as error:  # a sink's libraries raise errors of many kinds
                failures.append(f"{pipeline.name}: {error}")
    if failures:
        raise LogbusError(
            f"maintenance failed for {len(failures)} of {len(done) + len(failures)} pipelines: {'; '.join(failures)}"
        )
    return done
