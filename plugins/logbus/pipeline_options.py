"""A pipeline defined in one call: `pipeline="clicks", topic="web.clicks", table="clicks", parse="json", max_error_rate=0.01`.

Fields of `Pipeline` decide where windows begin and where rows go; everything else is one of its settings. Here both are options
by name, typed for editors and type checkers; a misspelled one is an error when the DAG file is parsed, not a setting without
effect. Their values are checked, too (`pipeline_checks`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict, Unpack

from logbus.errors import UserError
from logbus.ledger.table_names import target_named_after
from logbus.model import Pipeline
from logbus.pipeline_checks import check_pipeline
from logbus.pipeline_settings import SETTINGS, advice

FIELDS: Mapping[str, str] = {
    "lateness": "how long after its end an hour stays open for records still on their way (timedelta)",
    "starts_at": "where the first window begins; by default at the earliest record",
    "interval": "the length of a window; an hourly pipeline leaves it alone",
    "isolation_level": "read_committed or read_uncommitted",
}


class OptionsBesideNames(TypedDict, total=False):
    """A pipeline's options apart from its topic, table and parser; `FIELDS` and `SETTINGS` say what each means."""

    lateness: timedelta
    starts_at: datetime | None
    interval: timedelta
    isolation_level: Literal["read_committed", "read_uncommitted"]
    columns: Mapping[str, str] | None
    infer: bool | None
    pattern: str | None
    fields: Sequence[str] | None
    delimiter: str | None
    comment: str | None
    null_value: str | None
    filter: Mapping[str, Sequence[Any]] | None
    sink: Literal["postgres", "iceberg", "parquet"] | None
    warehouse: str | None
    catalog: str | None
    keep_snapshots_days: float | None
    directory: str | None
    reader: Literal["python", "connector"] | None
    max_error_rate: float | None
    max_errors: int | None
    accept_loss: bool | None
    accept_producer_gaps: bool | None
    max_ahead_minutes: float | None
    offset_gaps: bool | None
    settings: Mapping[str, Any] | None  # all of those from `columns` on, or a parser's own


class PipelineOptions(OptionsBesideNames, total=False):
    """The options that `hourly_ingest` and `catch_up` take when they define the pipeline themselves."""

    topic: str | None
    table: str | None
    parse: str | None


def define_pipeline(
    name: str, *, parse: str | None, topic: str | None = None, table: str | None = None, **options: Unpack[OptionsBesideNames]
) -> Pipeline:
    """The pipeline of that name. Topic and table have the same name unless given; a table that cannot have it (a topic with two
    dots, `shop.public.orders`) gets a name made of it: `shop_public_orders`."""
    if parse is None:
        raise UserError(f"pipeline {name!r}: say how records become rows, parse='json' for example")
    refuse_unknown(name, options)
    settings = {**(options.get("settings") or {}), **{key: value for key, value in options.items() if key in SETTINGS}}
    fields: dict[str, Any] = {key: value for key, value in options.items() if key in FIELDS}
    table = table or target_named_after(str(name))  # a name of another type is refused with the others
    made = Pipeline(name=name, topic=topic or name, table=table, parse=parse, settings=settings, **fields)
    check_pipeline(made)
    return made


def refuse_unknown(name: str, options: Mapping[str, Any]) -> None:
    """An error for unknown options, with the closest known names."""
    known = [*FIELDS, *SETTINGS, "settings"]
    for option in options:
        if option not in known:
            raise UserError(f"pipeline {name!r} has no option {option!r}: {advice(option, known)}")


def as_pipeline(pipeline: Pipeline | str, options: PipelineOptions) -> Pipeline:
    """A pipeline made already, or one defined by its name and options; never both."""
    if isinstance(pipeline, str):
        return define_pipeline(pipeline, **{"parse": None, **options})  # type: ignore[arg-type]  # mypy does not join the two
    if options:
        raise UserError(f"pipeline {pipeline.name!r} is defined already: give {', '.join(options)} where it is made")
    check_pipeline(pipeline)
    return pipeline
