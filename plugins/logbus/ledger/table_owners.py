"""One table, one pipeline: two pipelines that load into the same table would delete each other's rows.

Names are compared in their canonical form. An older ledger may hold two pipelines with different names for the same table:
neither may load anything until one gets its own table, because there is no telling whose rows a leaf of it holds. Iceberg
catalogs and some file systems treat `Web` and `web` as the same name, so for sinks that write files, names that differ only in
case are the same too.
"""

from __future__ import annotations

from sqlalchemy import Connection, func, select

from logbus.errors import PipelineConflict
from logbus.ledger import schema
from logbus.ledger.rows import to_pipeline
from logbus.ledger.table_names import aliases_of, canonical_table
from logbus.model import Pipeline
from logbus.pipeline_settings import PipelineSettings


def others_of_table(connection: Connection, pipeline: Pipeline) -> list[str]:
    """The other pipelines that are registered for the same table, by name."""
    row_of = schema.pipeline
    forms = [form.lower() for form in aliases_of(pipeline.table)]
    query = select(row_of).where(func.lower(row_of.c.table_name).in_(forms), row_of.c.name != pipeline.name)
    found = [to_pipeline(row) for row in connection.execute(query).mappings()]
    return sorted(other.name for other in found if is_one_table(pipeline, other))


def is_one_table(one: Pipeline, other: Pipeline) -> bool:
    names = {canonical_table(one.table), canonical_table(other.table)}
    if are_files(one) and are_files(other):
        names = {name.casefold() for name in names}
    return len(names) == 1


def are_files(pipeline: Pipeline) -> bool:
    return pipeline.options.sink != PipelineSettings.sink.default


def refuse_shared_table(connection: Connection, pipeline: Pipeline) -> None:
    """`PipelineConflict` if another pipeline is registered for the pipeline's table, under any form of its name."""
    if others := others_of_table(connection, pipeline):
        raise PipelineConflict(
            f"table {canonical_table(pipeline.table)} is loaded by pipeline {' and '.join(others)}: two pipelines need two "
            "tables, or each deletes the other's rows. If both are registered already, give one a table of its own: "
            "`logbus pipeline move NAME --table OTHER`"
        )
