"""A pipeline defined in one call: `pipeline="clicks", topic="web.clicks", table="clicks", parse="json", max_error_rate=0.01`.

Fields of `Pipeline` decide where windows begin and where rows go; everything else is one of its settings. Here both are
options by name, typed for editors and type checkers; a misspelled one, or a value that no load could use, is an error with
advice when the DAG file is parsed, not a setting without effect.

Nothing is opened or imported for the checks. A parser of the user's own (`module:function`) may be installed only where Spark
runs, so only its form is checked, and settings unknown here are left to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict, Unpack

from logbus import errors, model, pipeline_settings
from logbus.kafka.client import ISOLATION_LEVELS
from logbus.windows import table_names

NAMES = ("topic", "table", "parse")
FIELDS: Mapping[str, str] = {
    "lateness": "how long after its end an hour stays open for records still on their way (timedelta)",
    "starts_at": "where the first window begins; by default at the earliest record",
    "every": "the length of a window: '1h' (by default), '15m', '6h', '1d', or a timedelta",
    "timezone": "at whose midnights windows of a day begin, such as 'Europe/Berlin'; UTC by default",
    "isolation_level": "read_committed or read_uncommitted",
}


class PipelineOptions(TypedDict, total=False):
    """The options that `define_pipeline`, `ingest` and `catch_up` take; `FIELDS` and `SETTINGS` say what each means."""

    topic: str | None
    table: str | None
    parse: str | None
    lateness: timedelta
    starts_at: datetime | None
    every: str | timedelta
    timezone: str
    isolation_level: Literal["read_committed", "read_uncommitted"]
    columns: Mapping[str, str] | None
    infer: bool | None
    registry: str | None
    pattern: str | None
    fields: Sequence[str] | None
    delimiter: str | None
    comment: str | None
    null_value: str | None
    filter: Mapping[str, Sequence[Any]] | None
    sink: Literal["postgres", "iceberg"] | None
    warehouse: str | None
    catalog: str | None
    keep_snapshots_days: float | None
    max_error_rate: float | None
    max_errors: int | None
    accept_producer_gaps: bool | None
    max_ahead_minutes: float | None
    offset_gaps: bool | None
    settings: Mapping[str, Any] | None  # all of those from `columns` on, or a parser's own


def define_pipeline(name: str, **options: Unpack[PipelineOptions]) -> model.Pipeline:
    """The pipeline of that name. Topic and table have the same name unless given; a table that cannot have it (a topic with two
    dots, `shop.public.orders`) gets a name made of it: `shop_public_orders`."""
    parse = options.get("parse")
    if parse is None:
        raise errors.UserError(f"pipeline {name!r}: choose how records become rows, for example parse='json'")
    _validate_names(name, options)
    fields: dict[str, Any] = {key: value for key, value in options.items() if key in FIELDS and key != "every"}
    if "every" in options:
        fields["interval"] = length_of(name, options["every"])
    pipeline = model.Pipeline(
        name=name,
        topic=options.get("topic") or name,
        table=options.get("table")
        or table_names.target_named_after(str(name)),  # a name of another type is rejected with the others
        parse=parse,
        settings={
            **(options.get("settings") or {}),
            **{key: value for key, value in options.items() if key in pipeline_settings.SETTINGS},
        },
        **fields,
    )
    check_pipeline(pipeline)
    return pipeline


LENGTH = re.compile(r"([1-9]\d{0,3})([mhd])")
UNITS: Mapping[str, timedelta] = {"m": timedelta(minutes=1), "h": model.HOUR, "d": model.DAY}


def length_of(name: str, every: str | timedelta) -> timedelta:
    """The length of a window, as it is or written: `15m`, `1h`, `1d`."""
    if isinstance(every, timedelta):
        return every
    if not isinstance(every, str) or (written := LENGTH.fullmatch(every)) is None:
        raise errors.UserError(f"pipeline {name!r}: every is the length of a window, such as '15m', '1h' or '1d'; got {every!r}")
    return int(written[1]) * UNITS[written[2]]


def _validate_names(name: str, options: Mapping[str, Any]) -> None:
    """An error for unknown options, with the closest known names."""
    names = [*FIELDS, *pipeline_settings.SETTINGS, "settings"]
    for option in options:
        if option not in (*names, *NAMES):
            raise errors.UserError(f"pipeline {name!r} has no option {option!r}: {pipeline_settings.advice(option, names)}")


def as_pipeline(pipeline: model.Pipeline | str, options: PipelineOptions) -> model.Pipeline:
    """A pipeline made already, or one defined by its name and options; never both."""
    if isinstance(pipeline, str):
        return define_pipeline(pipeline, **options)
    if options:
        raise errors.UserError(f"pipeline {pipeline.name!r} is already defined: pass {', '.join(options)} where it is defined")
    check_pipeline(pipeline)
    return pipeline


# What an Airflow DAG's id may consist of, and what can be typed after --pipeline without quotes.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,249}")
OWN_PARSER = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def check_pipeline(pipeline: model.Pipeline) -> None:
    """Raises `UserError` for the first value that no load could use, with what may have been meant."""
    from logbus.windows import registration, rows  # not before: Spark's Python workers import this module, and need no SQLAlchemy

    def wrong(message: str) -> errors.UserError:
        return errors.UserError(f"pipeline {pipeline.name!r}: {message}")

    _validate_fields(pipeline, wrong)
    _validate_parse(pipeline.parse, wrong)
    # A parser of the user's own receives all settings and decides which of them it takes.
    if not is_own_parser(pipeline.parse):
        _validate_setting_names(pipeline.settings, wrong)
    pipeline.options.validate(wrong)
    _validate_used(pipeline, wrong)
    _validate_pattern(pipeline, wrong)
    _validate_csv(pipeline, wrong)
    _validate_registry(pipeline, wrong)
    _validate_location(pipeline.options, wrong)
    # The ledger stores settings as JSON and compares them with those of the next DAG file: a value that JSON changes would be a
    # changed pipeline at every parse.
    rows.definition_of(pipeline)  # raises for settings that JSON cannot hold
    registration.validate_pipeline(pipeline)


def _validate_fields(pipeline: model.Pipeline, wrong: pipeline_settings.MakeError) -> None:
    for name in ("name", *NAMES):
        value = getattr(pipeline, name)
        if not isinstance(value, str) or not value.strip():
            raise wrong(f"{name} must be a name; got {value!r}")
    if not NAME.fullmatch(pipeline.name):
        raise wrong(
            "its name may have letters (a to z), digits, dots, dashes and underscores, 250 at most, and not begin with a dot or "
            "a dash"
        )
    for name in ("lateness", "interval"):
        value = getattr(pipeline, name)
        if not isinstance(value, timedelta):
            raise wrong(f"{name} must be a timedelta, such as timedelta(minutes=30); got {value!r}")
    starts_at = pipeline.starts_at
    if starts_at is not None and (not isinstance(starts_at, datetime) or starts_at.tzinfo is None):
        raise wrong(f"starts_at must be an instant, such as datetime(2026, 1, 1, tzinfo=UTC); got {starts_at!r}")
    pipeline_settings.check_one_of(ISOLATION_LEVELS)("isolation_level", pipeline.isolation_level, wrong)


def is_own_parser(parse: str) -> bool:
    return ":" in parse


def _validate_parse(parse: str, wrong: pipeline_settings.MakeError) -> None:
    if is_own_parser(parse):
        if not OWN_PARSER.fullmatch(parse):
            raise wrong(f"parse is module:function for a parser of your own, such as 'mypackage.logs:parser'; got {parse!r}")
    elif parse not in pipeline_settings.PARSERS:
        advice = pipeline_settings.advice(parse, pipeline_settings.PARSERS)
        raise wrong(f"there is no parser {parse!r}: {advice} (a parser of your own is module:function)")


def _validate_setting_names(settings: Mapping[str, Any], wrong: pipeline_settings.MakeError) -> None:
    """logbus's own parsers take no other settings than these."""
    names = sorted(pipeline_settings.SETTINGS)
    for name in settings:
        if name not in names:
            raise wrong(f"there is no setting {name!r}: {pipeline_settings.advice(str(name), names)}")


def _validate_used(pipeline: model.Pipeline, wrong: pipeline_settings.MakeError) -> None:
    """Rejects a setting that nothing would read, such as a catalog while rows go to PostgreSQL."""
    sink, given = (
        pipeline.options.sink,
        [setting for name, setting in pipeline_settings.SETTINGS.items() if name in pipeline.settings],
    )
    for setting in given:
        name, value = setting.name, pipeline.settings[setting.name]
        if setting.parsers and value and not is_own_parser(pipeline.parse) and pipeline.parse not in setting.parsers:
            meant = " or ".join(map(repr, setting.parsers))
            raise wrong(f"parse={pipeline.parse!r} does not use {name}; that is for parse={meant}")
        if setting.sink and sink != setting.sink:
            raise wrong(f"{name} is for sink={setting.sink!r}, and this pipeline's sink is {sink!r}")


def _validate_csv(pipeline: model.Pipeline, wrong: pipeline_settings.MakeError) -> None:
    """As the parser `csv` will: fields have to be given, and columns have to be among them."""
    if pipeline.parse != "csv":
        return
    fields = pipeline.options.fields
    if not fields:
        raise wrong("parse='csv' needs fields=[...], the names of a line's fields in their order")
    for column in pipeline.options.columns:
        if column not in fields:
            raise wrong(f"column {column!r} is not among fields: {pipeline_settings.advice(column, fields)}")


def _validate_registry(pipeline: model.Pipeline, wrong: pipeline_settings.MakeError) -> None:
    if pipeline.parse in pipeline_settings.SCHEMA_PARSERS and not pipeline.options.registry:
        raise wrong(f"parse={pipeline.parse!r} needs registry='https://...', the URL of the schema registry")


def _validate_pattern(pipeline: model.Pipeline, wrong: pipeline_settings.MakeError) -> None:
    """As the parser `regex` will: the pattern has to have named groups, and columns have to be among them."""
    if pipeline.parse != "regex":
        return
    pattern = pipeline.options.pattern
    if not isinstance(pattern, str):
        raise wrong("parse='regex' needs pattern=..., a regular expression with named groups, (?P<name>...)")
    try:
        groups = re.compile(pattern).groupindex
    except re.error as error:
        raise wrong(f"pattern is not a regular expression: {error}") from None
    if not groups:
        raise wrong("pattern has no named groups, (?P<name>...): they become the columns")
    pipeline_settings.validate_columns("groups of the pattern", groups, wrong)
    for column in pipeline.options.columns:
        if column not in groups:
            raise wrong(f"column {column!r} is not a named group of the pattern: {pipeline_settings.advice(column, groups)}")


def _validate_location(options: pipeline_settings.PipelineSettings, wrong: pipeline_settings.MakeError) -> None:
    """Files need an absolute place: tasks run in other directories than the DAG file's."""
    if options.sink == "iceberg" and options.catalog is None:
        warehouse = options.warehouse
        if not warehouse or not (warehouse.startswith("/") or "://" in warehouse):
            raise wrong(
                "sink='iceberg' needs warehouse=..., an absolute path or a URI, or catalog=..., a catalog of pyiceberg's "
                f"configuration; got warehouse={warehouse!r}"
            )
