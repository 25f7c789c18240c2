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

from logbus.ledger import schema
from logbus.model import Pipeline
from logbus.pipeline_settings import is_column_name

# PostgreSQL allows 1,600 columns: a topic whose member names are data must not use them up.
INFERRED_COLUMNS_MAX = 250


def with_inferred(connection: Connection, pipeline: Pipeline) -> Pipeline:
    """The pipeline with the inferred columns added to its setting `columns`."""
    if not pipeline.options.infer:
        return pipeline
    column = schema.inferred_column.c
    query = select(column.name, column.type).where(column.pipeline == pipeline.name).order_by(column.found_at, column.name)
    # A ledger may hold a name from before such names were left out: a column that no table can have would fail every load.
    found: dict[str, str] = {row.name: row.type for row in connection.execute(query) if is_column_name(row.name)}
    columns = with_new(pipeline.options.columns, found)
    return replace(pipeline, settings={**pipeline.settings, "columns": columns})


def remember(engine: Engine, pipeline: Pipeline, columns: Mapping[str, str], now: datetime) -> None:
    """Stores new columns, up to `INFERRED_COLUMNS_MAX` in all; members beyond that get no column."""
    known = pipeline.options.columns
    new = [*with_new(known, columns)][len(known) :][: max(0, INFERRED_COLUMNS_MAX - len(known))]
    if not new:
        return
    rows = [{"pipeline": pipeline.name, "name": name, "type": columns[name], "found_at": now} for name in new]
    with engine.begin() as connection:
        connection.execute(insert(schema.inferred_column).values(rows).on_conflict_do_nothing())


def with_new(known: Mapping[str, str], found: Mapping[str, str]) -> dict[str, str]:
    """The known columns, and after them those of the found ones whose names no other has, in whatever case."""
    columns, taken = {**known}, {name.casefold() for name in known}
    for name, kind in found.items():
        if name.casefold() not in taken:
            columns[name] = kind
            taken.add(name.casefold())
    return columns
