"""The ledger's rows: locked, and converted to values and back. A pipeline also as JSON, its definition."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ARRAY, ColumnElement, Connection, RowMapping, Select, and_, exists, func, literal, select, text

from logbus import errors, fingerprint, formatting, model, pipeline_settings
from logbus.windows import schema

Row = RowMapping | dict[str, Any]

ATTEMPT_RUNNING = "running"
COMMITTED = "committed"
FAILED = "failed"
SUPERSEDED = "superseded"

NO_PROBLEMS = ("[]", "null")  # of an audit, in JSON as text

# Spark has to start between beginning an attempt and its driver's first beat; a warehouse restart costs some more beats.
HEARTBEAT_EXPIRY = timedelta(minutes=5)

# A client that holds a window's lock and is idle for this long has lost its network or its machine, and the server has not
# noticed: TCP would take two hours. A file sink's own commit happens during that time; it takes seconds.
HOLD_SILENTLY_MS_MAX = 600_000
HOLD_BRIEFLY = text(f"set local idle_in_transaction_session_timeout = {HOLD_SILENTLY_MS_MAX}")

NAMED_MAX = 5  # windows that an error names


# A pipeline's columns that have the same names as its fields.
PIPELINE_COLUMNS = ("name", "topic", "parse", "interval", "timezone", "lateness", "starts_at", "isolation_level")


def pipeline_values(pipeline: model.Pipeline, topic_id: str, now: datetime) -> dict[str, Any]:
    same = {name: getattr(pipeline, name) for name in PIPELINE_COLUMNS}
    table = {"table_name": pipeline.table, "settings": pipeline.options.given}
    return {**same, **table, "topic_id": topic_id, "registered_at": now}


def to_pipeline(row: Row) -> model.Pipeline:
    return model.Pipeline(**{name: row[name] for name in PIPELINE_COLUMNS}, table=row["table_name"], settings=row["settings"])


def pipeline_rows(connection: Connection) -> list[Row]:
    """The rows of all pipelines, by name."""
    return list(connection.execute(select(schema.pipeline).order_by(schema.pipeline.c.name)).mappings())


def pipeline_row(connection: Connection, name: str, *, lock: bool = False, share: bool = False) -> Row:
    """The pipeline's row. With `lock`, other freezes of this pipeline wait for us: one row stands for all its partitions. With
    `share` it cannot change until the transaction ends, and others may share the lock."""
    query = select(schema.pipeline).where(schema.pipeline.c.name == name)
    if lock or share:
        query = query.with_for_update(read=not lock)
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        raise errors.PipelineUnknown(
            f"no pipeline {name!r} is registered; `logbus pipeline ls` lists them, `logbus pipeline register` makes one"
        )
    return row


def load_windows(connection: Connection, query: Select[Any]) -> list[model.FrozenWindow]:
    """The windows that a query over `schema.window` selects, with their ranges, in the query's order."""
    window, attempt, part = schema.window, schema.attempt, schema.window_range
    # Of the query's tables only the window is meant, whatever else it joins.
    of_pipeline = select(schema.pipeline.c.topic).where(schema.pipeline.c.name == window.c.pipeline)
    topic = of_pipeline.correlate(window).scalar_subquery()
    is_running = exists().where(attempt.c.window_id == window.c.id, attempt.c.state == ATTEMPT_RUNNING).correlate(window)
    rows = connection.execute(query.add_columns(topic.label("topic"), is_running.label("is_running"))).mappings().all()
    if not rows:
        return []
    topics = {row["id"]: row["topic"] for row in rows}
    ranges: dict[int, list[model.OffsetRange]] = {window_id: [] for window_id in topics}
    of_them = select(part).where(among(part.c.window_id, topics)).order_by(part.c.partition)
    for range_row in connection.execute(of_them).mappings().all():  # all at once, not row by row: takes a third of the time
        ranges[range_row["window_id"]].append(to_range(topics[range_row["window_id"]], range_row))
    return [to_window(row, row["topic"], ranges[row["id"]], row["is_running"]) for row in rows]


def load_window(connection: Connection, window_id: int) -> model.FrozenWindow:
    return load_windows(connection, select(schema.window).where(schema.window.c.id == window_id))[0]


def to_range(topic: str, row: Row) -> model.OffsetRange:
    same = ("partition", "start_offset", "end_offset", "lost")
    return model.OffsetRange(topic=topic, **{name: row[name] for name in same})


def to_window(row: Row, topic: str, ranges: Iterable[model.OffsetRange], is_running: bool) -> model.FrozenWindow:
    # A rerun in progress does not hide what is loaded: the table still holds it.
    state = model.WindowState.LOADING if is_running else model.WindowState.FROZEN
    if row["loaded_attempt"] is not None:
        state = model.WindowState.LOADED if row["audited_at"] is None else model.WindowState.AUDITED
    return model.FrozenWindow(
        counts=to_counts(row),
        id=row["id"],
        pipeline=row["pipeline"],
        topic=topic,
        interval=model.Interval(row["starts_at"], row["ends_at"]),
        topic_id=row["topic_id"],
        ranges=tuple(ranges),
        state=state,
        last_attempt=row["last_attempt"],
        loaded_attempt=row["loaded_attempt"],
        fingerprint=row["fingerprint"],
        head_unknown=row["head_unknown"],
        frozen_at=row["frozen_at"],
        loaded_at=row["loaded_at"],
        audited_at=row["audited_at"],
        other_records=tuple(row["other_records"] or ()),
        values_hash=row["values_hash"],
        loss_accepted=row["loss_accepted"],
    )


# The counts' columns in the ledger, by their names in `WindowCounts`.
COUNT_COLUMNS = {
    "read": "read_count",
    "loaded": "loaded_count",
    "dead_lettered": "dead_lettered_count",
    "filtered": "filtered_count",
    "late": "late_count",
    "early": "early_count",
    "lost": "lost_count",
    "bytes": "byte_count",
}


def to_counts(row: Row) -> model.WindowCounts | None:
    if row["loaded_attempt"] is None:
        return None
    return model.WindowCounts(**{name: row[column] for name, column in COUNT_COLUMNS.items()})


def proven_empty_values(now: datetime) -> dict[str, Any]:
    """The columns of a window whose boundaries prove that it holds no record: it is loaded with nothing, and exact."""
    return {
        **count_values(model.WindowCounts()),
        "fingerprint": fingerprint.as_text(0),
        "unstamped_count": 0,
        "far_count": 0,
        "loaded_attempt": model.PROVEN_EMPTY,
        "loaded_at": now,
        "audited_at": now,
        "audit_problems": [],
    }


def count_values(counts: model.WindowCounts) -> dict[str, int]:
    return {column: getattr(counts, name) for name, column in COUNT_COLUMNS.items()}


def to_attempt(row: Row, pipeline_name: str, interval: model.Interval) -> model.Attempt:
    same = ("window_id", "number", "staging_table", "dead_letter_table", "definition", "key")
    return model.Attempt(**{name: row[name] for name in same}, pipeline=pipeline_name, interval=interval)


# A boundary's columns for the record before it, by their names in `Witness`.
WITNESS_COLUMNS = {
    "offset": "witness_offset",
    "leader_epoch": "witness_epoch",
    "timestamp_ms": "witness_ms",
    "hash": "witness_hash",
}


def to_witness(row: Row) -> model.Witness | None:
    """A boundary's witness; None if it was not read, or there was no record before the boundary."""
    if row["witness_offset"] is None:
        return None
    return model.Witness(**{name: row[column] for name, column in WITNESS_COLUMNS.items()})


def witness_values(witness: model.Witness | None) -> dict[str, Any]:
    return {column: getattr(witness, name, None) for name, column in WITNESS_COLUMNS.items()}


def lock_windows(connection: Connection, pipeline_name: str, starts: Iterable[datetime]) -> list[Row]:
    """Locks the windows' rows in the order of their ids, as every transaction does, so that none deadlock."""
    connection.execute(HOLD_BRIEFLY)
    window, distinct = schema.window, set(starts)
    chosen = (window.c.pipeline == pipeline_name, among(window.c.starts_at, distinct))
    query = select(window).where(*chosen).order_by(window.c.id).with_for_update()
    rows: list[Row] = list(connection.execute(query).mappings())
    missing = sorted(distinct - {row["starts_at"] for row in rows})
    if missing:
        names = formatting.several([model.instant_text(start) for start in missing], NAMED_MAX)
        raise errors.WindowUnknown(
            f"no frozen window of {pipeline_name} starts at {names}: freeze it first (`logbus window ls` shows them)"
        )
    return rows


def lock_all_windows(connection: Connection, pipeline_names: Collection[str]) -> None:
    """The same before a statement that changes many windows: on its own it would lock them in the table's physical order."""
    window = schema.window
    of_pipelines = window.c.pipeline.in_(pipeline_names)
    connection.execute(select(window.c.id).where(of_pipelines).order_by(window.c.id).with_for_update())


def is_alive(now: datetime) -> ColumnElement[bool]:
    """The attempt is running and has sent a heartbeat recently."""
    row_of = schema.attempt
    return and_(row_of.c.state == ATTEMPT_RUNNING, row_of.c.heartbeat_at > now - HEARTBEAT_EXPIRY)


def among(column: ColumnElement[Any], values: Iterable[Any]) -> ColumnElement[bool]:
    """`in` with one parameter for all values. A statement takes 65,535; a pipeline of minutes has more windows in six weeks, a
    fleet in ten days."""
    return column == func.any(literal(list(values), ARRAY(column.type)))


# A pipeline's definition: what it loads, where and how, in the form that the ledger stores with attempts and DAGs.
#
# Two definitions are the same if their JSON is: a tuple in a DAG file equals the list read back from the ledger. `differences`
# lists option by option how two of them differ, under the names that a user writes.


Definition = Mapping[str, Any]

SETTINGS = "settings"
NOT_GIVEN = "not given"

SINK = pipeline_settings.PipelineSettings.sink

# By sink: the settings that determine where its rows are stored, in order of precedence.
LOCATING: Mapping[str, tuple[str, ...]] = {"iceberg": ("catalog", "warehouse")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One option in which two definitions of a pipeline differ."""

    option: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.option}: {self.before} -> {self.after}"

    @property
    def contradiction(self) -> str:
        """The same, if neither definition came first."""
        return f"{self.option}: {self.before} against {self.after}"


def definition_of(pipeline: model.Pipeline) -> dict[str, Any]:
    """The pipeline as it would be read back from the ledger. Raises `UserError` for settings that JSON cannot hold."""
    try:
        settings = json.loads(json.dumps(pipeline.options.given, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise errors.UserError(
            f"pipeline {pipeline.name}: its settings are kept as JSON, which cannot hold them: {error}"
        ) from None
    if settings.get(SINK.name) == SINK.default:
        del settings[SINK.name]  # the same as not given
    return {
        "name": pipeline.name,
        "topic": pipeline.topic,
        "table": pipeline.table,
        "parse": pipeline.parse,
        "interval_seconds": pipeline.interval.total_seconds(),
        "lateness_seconds": pipeline.lateness.total_seconds(),
        "starts_at": pipeline.starts_at and model.instant_text(pipeline.starts_at),
        "isolation_level": pipeline.isolation_level,
        SETTINGS: settings,
        # Left out where it is UTC: so a definition is the same as it was before there were other time zones.
        **({} if pipeline.timezone == model.UTC_NAME else {"timezone": pipeline.timezone}),
    }


def pipeline_of(definition: Definition) -> model.Pipeline:
    """The inverse of `definition_of`."""
    return model.Pipeline(
        name=definition["name"],
        topic=definition["topic"],
        table=definition["table"],
        parse=definition["parse"],
        interval=timedelta(seconds=definition["interval_seconds"]),
        timezone=definition.get("timezone", model.UTC_NAME),
        lateness=timedelta(seconds=definition["lateness_seconds"]),
        starts_at=definition["starts_at"] and model.parse_instant(definition["starts_at"]),
        isolation_level=definition["isolation_level"],
        settings=definition[SETTINGS],
    )


def differences(before: Definition, after: Definition) -> list[Difference]:
    """How `after` differs from `before`, option by option; empty if they are the same definition."""
    first, second = options_of(before), options_of(after)
    return [
        Difference(option=option, before=shown(first, option), after=shown(second, option))
        for option in dict.fromkeys((*first, *second))
        if option not in first or option not in second or first[option] != second[option]
    ]


def options_of(definition: Definition) -> dict[str, Any]:
    """Fields and settings in one mapping, under the names that a user writes."""
    options = {"timezone": model.UTC_NAME, **definition, SINK.name: SINK.default, **definition[SETTINGS]}
    del options[SETTINGS]
    options["every"] = model.length_text(timedelta(seconds=options.pop("interval_seconds")))
    options["lateness"] = timedelta(seconds=options.pop("lateness_seconds"))
    return options


def shown(options: Mapping[str, Any], option: str) -> str:
    if option not in options or options[option] is None:
        return NOT_GIVEN
    value = options[option]
    return str(value) if isinstance(value, str | timedelta) else json.dumps(value, ensure_ascii=False)


def location_of(definition: Definition) -> str:
    """The setting that determines where the pipeline's rows are stored; the names of table and sink determine the rest. Paths are
    without insignificant parts: `/data/` and `file:///data` are `/data`."""
    settings = definition[SETTINGS]
    for option in LOCATING.get(settings.get(SINK.name, SINK.default), ()):
        if option in settings:
            return f"{option} {posixpath.normpath(str(settings[option]).removeprefix('file://'))}"
    return "no place at all"


def in_words(changes: Sequence[Difference]) -> str:
    """The differences between two contradicting definitions, in one line."""
    return "; ".join(difference.contradiction for difference in changes)
