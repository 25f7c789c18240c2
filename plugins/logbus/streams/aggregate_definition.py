"""What an aggregate is: of which pipeline, by which keys, with which measures, in windows of which length. Checked when a DAG is
parsed as far as that is possible without the table: whether it has these columns is known to the first run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from logbus import errors, expressions, model, pipeline_definition, pipeline_settings
from logbus.windows import table_names

EVENT_TIME_DEFAULT = "_timestamp"  # the record's own
WINDOW_START = "window_start"  # the column that an aggregate's table has beside its keys and measures
KEYS_MAX = 32
MEASURES_MAX = 200
MINUTE = timedelta(minutes=1)
NAME = re.compile(r"[^\W\d]\w{0,50}", re.ASCII)  # of a measure: room for _count, within what PostgreSQL does not cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """`window` is the length of what a row stands for. Whatever it is, rows are written again by the hour."""

    name: str
    pipeline: str
    table: str
    keys: tuple[str, ...]
    measures: Mapping[str, expressions.Measure]
    event_time: str = EVENT_TIME_DEFAULT
    window: timedelta = model.HOUR
    where: str | None = None
    condition: expressions.Condition | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "condition", None if self.where is None else expressions.parse_condition(self.where))

    @property
    def target(self) -> table_names.TableName:
        return table_names.parse_table(self.table)

    def definition(self) -> dict[str, Any]:
        """What the ledger stores, as JSON, beside name, pipeline and table."""
        return {
            "keys": list(self.keys),
            # A list: PostgreSQL's JSON sorts the names of an object.
            "measures": [[name, measure.function, measure.column] for name, measure in self.measures.items()],
            "event_time": self.event_time,
            "window_minutes": self.window // MINUTE,
            "where": self.where,
        }

    def words(self) -> str:
        """For people, on one line."""
        measures = ", ".join(f"{name} {measure}" for name, measure in self.measures.items())
        by = ", ".join((f"{self.window // MINUTE} min of {self.event_time}", *self.keys))
        return f"{measures} by {by}" + (f" where {self.where}" if self.where else "")


def of_ledger(row: Mapping[Any, Any]) -> Aggregate:
    """From a row of the ledger."""
    definition = row["definition"]
    return Aggregate(
        name=row["name"],
        pipeline=row["pipeline"],
        table=row["table_name"],
        keys=tuple(definition["keys"]),
        measures={name: expressions.Measure(*parts) for name, *parts in definition["measures"]},
        event_time=definition["event_time"],
        window=definition["window_minutes"] * MINUTE,
        where=definition["where"],
    )


def define_aggregate(
    name: str,
    pipeline: model.Pipeline | str,
    *,
    keys: Sequence[str],
    measures: Mapping[str, expressions.Measure],
    event_time: str = EVENT_TIME_DEFAULT,
    window: str | timedelta = model.HOUR,
    where: str | None = None,
    table: str | None = None,
    kind: str = "aggregate",
) -> Aggregate:
    """The aggregate of that name, in the table of the same name unless another is given. `UserError` for what no run could do;
    `kind` is what its messages call it."""

    def wrong(message: str) -> errors.UserError:
        return errors.UserError(f"{kind} {name!r}: {message}")

    its_table = table_for(name, pipeline, table, kind, wrong)
    length = timedelta(0)
    with suppress(errors.UserError):  # which would speak of a pipeline
        length = pipeline_definition.length_of(name, window)
    if length < MINUTE or length % MINUTE or model.HOUR % length:
        raise wrong(f"window is a part of an hour in whole minutes, such as '1m', '5m', '15m' or '1h'; got {window!r}")
    _check_columns(keys, measures, wrong)
    return Aggregate(
        name=name,
        pipeline=pipeline if isinstance(pipeline, str) else pipeline.name,
        table=its_table,
        keys=tuple(keys),
        measures=dict(measures),
        event_time=event_time,
        window=length,
        where=where,
    )


def table_for(name: str, pipeline: model.Pipeline | str, table: str | None, kind: str, wrong: pipeline_settings.MakeError) -> str:
    """Of what is computed from the pipeline under that name: the same name unless another is given."""
    if not isinstance(name, str) or not pipeline_definition.NAME.fullmatch(name):
        raise wrong(
            "its name may have letters (a to z), digits, dots, dashes and underscores, and not begin with a dot or a dash"
        )
    if isinstance(pipeline, model.Pipeline) and pipeline.options.sink != "postgres":
        raise wrong(
            f"pipeline {pipeline.name!r} loads into {pipeline.options.sink}, and {kind}s are computed in the transaction of "
            "a PostgreSQL that holds the rows: load into sink='postgres', or aggregate with Spark or DuckDB (`logbus query`)"
        )
    chosen = table or table_names.target_named_after(name)
    table_names.check_target(chosen)
    if isinstance(pipeline, model.Pipeline) and table_names.parse_table(chosen) == table_names.parse_table(pipeline.table):
        raise wrong(f"the table {chosen} is that of the pipeline's rows: give it another by table=...")
    return chosen


def _check_columns(keys: Sequence[str], measures: Mapping[str, expressions.Measure], wrong: pipeline_settings.MakeError) -> None:
    if isinstance(keys, str) or not all(isinstance(key, str) for key in keys) or len(keys) > KEYS_MAX:
        raise wrong(f"keys is a list of columns, {KEYS_MAX} at most; got {keys!r}")
    if not isinstance(measures, Mapping) or not 1 <= len(measures) <= MEASURES_MAX:
        raise wrong(f"measures has 1 to {MEASURES_MAX} names and what each is, such as {{'requests': count()}}")
    for name, measure in measures.items():
        if not isinstance(measure, expressions.Measure):
            raise wrong(f"measure {name!r} is count(), sum_of(...), min_of(...), max_of(...) or avg_of(...); got {measure!r}")
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise wrong(f"measure {name!r} becomes a column: letters (a to z), digits and underscores, 51 at most")
    averages = [name for name, measure in measures.items() if measure.function == "avg"]
    columns = [WINDOW_START, *keys, *measures, *(f"{name}_{part}" for name in averages for part in ("sum", "count"))]
    for number, column in enumerate(columns):
        if column.casefold() in map(str.casefold, columns[:number]):
            raise wrong(f"its table would have the column {column!r} twice, upper and lower case aside: give one another name")
