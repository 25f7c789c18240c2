"""Checks of a pipeline's options when its DAG file is parsed: a value that no load could use is an import error with advice.

Nothing is opened or imported for this. A parser of the user's own (`module:function`) may be installed only where Spark runs, so
only its form is checked, and settings unknown here are left to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from logbus.errors import UserError
from logbus.kafka.client import ISOLATION_LEVELS
from logbus.ledger.definition import definition_of as refuse_what_json_cannot_hold
from logbus.ledger.registration import refuse_nonsense
from logbus.model import Pipeline
from logbus.pipeline_settings import PARSERS, SETTINGS, PipelineSettings, Say, advice, check_one_of, refuse_columns

# What an Airflow DAG's id may consist of, and what can be typed after --pipeline without quotes.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,249}")
OWN_PARSER = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def check_pipeline(pipeline: Pipeline) -> None:
    """Raises `UserError` for the first value that no load could use, with what may have been meant."""

    def wrong(message: str) -> UserError:
        return UserError(f"pipeline {pipeline.name!r}: {message}")

    check_fields(pipeline, wrong)
    check_parse(pipeline.parse, wrong)
    # A parser of the user's own receives all settings and decides which of them it takes.
    if not is_own_parser(pipeline.parse):
        refuse_unknown(pipeline.settings, wrong)
    pipeline.options.refuse_wrong(wrong)
    refuse_idle(pipeline, wrong)
    check_pattern(pipeline, wrong)
    check_csv(pipeline, wrong)
    check_place(pipeline.options, wrong)
    # The ledger stores settings as JSON and compares them with those of the next DAG file: a value that JSON changes would be a
    # changed pipeline at every parse.
    refuse_what_json_cannot_hold(pipeline)
    refuse_nonsense(pipeline)


def check_fields(pipeline: Pipeline, wrong: Say) -> None:
    for name in ("name", "topic", "table", "parse"):
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
    check_one_of(ISOLATION_LEVELS)("isolation_level", pipeline.isolation_level, wrong)


def is_own_parser(parse: str) -> bool:
    return ":" in parse


def check_parse(parse: str, wrong: Say) -> None:
    if is_own_parser(parse):
        if not OWN_PARSER.fullmatch(parse):
            raise wrong(f"parse is module:function for a parser of your own, such as 'mypackage.logs:parser'; got {parse!r}")
    elif parse not in PARSERS:
        raise wrong(f"there is no parser {parse!r}: {advice(parse, PARSERS)} (a parser of your own is module:function)")


def refuse_unknown(settings: Mapping[str, Any], wrong: Say) -> None:
    """Refuses unknown settings: logbus's own parsers take no others."""
    names = sorted(SETTINGS)
    for name in settings:
        if name not in names:
            raise wrong(f"there is no setting {name!r}: {advice(str(name), names)}")


def refuse_idle(pipeline: Pipeline, wrong: Say) -> None:
    """Refuses a setting that nothing would read, such as a directory for files while rows go to PostgreSQL."""
    sink, known = pipeline.options.sink, [setting for name, setting in SETTINGS.items() if name in pipeline.settings]
    for setting in known:
        name, value = setting.name, pipeline.settings[setting.name]
        if setting.parsers and value and not is_own_parser(pipeline.parse) and pipeline.parse not in setting.parsers:
            meant = " or ".join(map(repr, setting.parsers))
            raise wrong(f"parse={pipeline.parse!r} does not use {name}; that is for parse={meant}")
        if setting.sink and sink != setting.sink:
            raise wrong(f"{name} is for sink={setting.sink!r}, and this pipeline's sink is {sink!r}")


def check_csv(pipeline: Pipeline, wrong: Say) -> None:
    """As the parser `csv` will: fields have to be given, and columns have to be among them."""
    if pipeline.parse != "csv":
        return
    fields = pipeline.options.fields
    if not fields:
        raise wrong("parse='csv' needs fields=[...], the names of a line's fields in their order")
    for column in pipeline.options.columns:
        if column not in fields:
            raise wrong(f"column {column!r} is not among fields: {advice(column, fields)}")


def check_pattern(pipeline: Pipeline, wrong: Say) -> None:
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
    refuse_columns("groups of the pattern", groups, wrong)
    for column in pipeline.options.columns:
        if column not in groups:
            raise wrong(f"column {column!r} is not a named group of the pattern: {advice(column, groups)}")


def check_place(options: PipelineSettings, wrong: Say) -> None:
    """Files need an absolute place: tasks run in other directories than the DAG file's."""
    if options.sink == "parquet" and not str(options.directory or "").startswith("/"):
        raise wrong(f"sink='parquet' needs directory=..., an absolute path; got {options.directory!r}")
    if options.sink == "iceberg" and options.catalog is None:
        warehouse = options.warehouse
        if not warehouse or not (warehouse.startswith("/") or "://" in warehouse):
            raise wrong(
                "sink='iceberg' needs warehouse=..., an absolute path or a URI, or catalog=..., a catalog of pyiceberg's "
                f"configuration; got warehouse={warehouse!r}"
            )
