"""Columns inferred from a pipeline's records, with the setting `{"infer": true}`.

A column is stored once, with the type it was first seen with, and never changes: two concurrent loads that look at different
records agree. Inferred columns follow the declared ones, which take precedence, whenever the pipeline is read from the ledger.
Of names that differ only in case the first has the column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection, Engine, select
from sqlalchemy.dialects.postgresql import insert

from logbus.model import Pipeline
from logbus.windows import schema
from logbus.windows.rows import pipeline_row

# PostgreSQL allows 1,600 columns: a topic whose member names are data must not use them up.
INFERRED_COLUMNS_MAX = 250


def with_inferred(connection: Connection, pipeline: Pipeline) -> Pipeline:
    """The pipeline with the inferred columns added to its setting `columns`."""
    if not pipeline.options.infer:
        return pipeline
    column = schema.inferred_column.c
    query = select(column.name, column.type).where(column.pipeline == pipeline.name).order_by(column.found_at, column.name)
    inferred: dict[str, str] = {row.name: row.type for row in connection.execute(query)}
    columns = with_new(pipeline.options.columns, inferred)
    return replace(pipeline, settings={**pipeline.settings, "columns": columns})


def remember(engine: Engine, pipeline: Pipeline, columns: Mapping[str, str], now: datetime) -> None:
    """Stores new columns, up to `INFERRED_COLUMNS_MAX` in all; members beyond that get no column."""
    if not new_columns(pipeline, columns):
        return
    with engine.begin() as connection:
        # One load at a time: two could otherwise store names that differ only in case, and each add its own to the table.
        pipeline_row(connection, pipeline.name, lock=True)
        new = new_columns(with_inferred(connection, pipeline), columns)
        rows = [{"pipeline": pipeline.name, "name": name, "type": columns[name], "found_at": now} for name in new]
        if rows:
            connection.execute(insert(schema.inferred_column).values(rows).on_conflict_do_nothing())


def new_columns(pipeline: Pipeline, inferred: Mapping[str, str]) -> list[str]:
    columns = pipeline.options.columns
    return [*with_new(columns, inferred)][len(columns) :][: max(0, INFERRED_COLUMNS_MAX - len(columns))]


def with_new(columns: Mapping[str, str], inferred: Mapping[str, str]) -> dict[str, str]:
    """The columns, and after them those of the inferred ones whose names no other has, in whatever case."""
    joined, names = {**columns}, {name.casefold() for name in columns}
    for name, kind in inferred.items():
        if name.casefold() not in names:
            joined[name] = kind
            names.add(name.casefold())
    return joined
