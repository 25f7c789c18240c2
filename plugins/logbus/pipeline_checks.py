"""Values of a pipeline's options, looked at where its DAG is read: what no load could use is an import error with advice.

Nothing is opened or imported for it. A parser of the user's own (`module:function`) may be installed only where Spark runs, so of
that the form alone is looked at, and settings that nobody here knows are its own affair.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from logbus.errors import UserError
from logbus.kafka.client import ISOLATION_LEVELS
from logbus.ledger.definition import SINK, SINK_DEFAULT
from logbus.ledger.definition import definition_of as refuse_what_json_cannot_hold
from logbus.ledger.registration import refuse_nonsense
from logbus.model import Pipeline

# Those of logbus.parsing, sinks and readers, which a DAG file shall not import (Arrow); a test holds the names together.
PARSERS = ("combined", "csv", "json", "lines", "logfmt", "nginx_json", "raw", "regex", "syslog")
SINKS = ("postgres", "iceberg", "parquet")
READERS = ("python", "connector")
DECLARABLE_TYPES = ("text", "integer", "bigint", "double precision", "boolean", "timestamptz", "jsonb")

# What other systems call the same.
OTHER_NAMES: Mapping[str, str] = {
    "int": "integer",
    "int4": "integer",
    "int8": "bigint",
    "long": "bigint",
    "str": "text",
    "string": "text",
    "varchar": "text",
    "float": "double precision",
    "float8": "double precision",
    "double": "double precision",
    "bool": "boolean",
    "json": "jsonb",
    "timestamp": "timestamptz",
    "datetime": "timestamptz",
}

OWN_PARSER = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
COLUMN_BYTES_MAX = 63  # PostgreSQL cuts longer names silently

Say = Callable[[str], UserError]


def check_pipeline(pipeline: Pipeline, known_settings: Iterable[str]) -> None:
    """Raises `UserError` for the first value that no load could use."""

    def wrong(message: str) -> UserError:
        return UserError(f"pipeline {pipeline.name!r}: {message}")

    check_fields(pipeline, wrong)
    check_parse(pipeline.parse, wrong)
    # A parser of the user's own is given all settings, and which of them it knows is its affair.
    if not is_own_parser(pipeline.parse):
        refuse_unknown(pipeline.settings, known_settings, wrong)
    for name, check in CHECKS.items():
        if pipeline.settings.get(name) is not None:
            check(name, pipeline.settings[name], wrong)
    refuse_idle(pipeline, wrong)
    check_pattern(pipeline, wrong)
    check_csv(pipeline, wrong)
    check_place(pipeline.settings, wrong)
    # The ledger keeps settings as JSON, and compares them with those of the next DAG file: a value that JSON changes would be a
    # changed pipeline at every parse.
    refuse_what_json_cannot_hold(pipeline)
    refuse_nonsense(pipeline)


def check_fields(pipeline: Pipeline, wrong: Say) -> None:
    for name in ("name", "topic", "table", "parse"):
        value = getattr(pipeline, name)
        if not isinstance(value, str) or not value.strip():
            raise wrong(f"{name} is a name; {value!r} is none")
    for name in ("lateness", "interval"):
        value = getattr(pipeline, name)
        if not isinstance(value, timedelta):
            raise wrong(f"{name} is a timedelta, such as timedelta(minutes=30); {value!r} is none")
    starts_at = pipeline.starts_at
    if starts_at is not None and (not isinstance(starts_at, datetime) or starts_at.tzinfo is None):
        raise wrong(f"starts_at is an instant, such as datetime(2026, 1, 1, tzinfo=UTC); {starts_at!r} is none")
    check_one_of(ISOLATION_LEVELS)("isolation_level", pipeline.isolation_level, wrong)
    if not isinstance(pipeline.settings, Mapping):
        raise wrong(f"settings are a mapping of names to values; {pipeline.settings!r} is none")


def is_own_parser(parse: str) -> bool:
    return ":" in parse


def check_parse(parse: str, wrong: Say) -> None:
    if is_own_parser(parse):
        if not OWN_PARSER.fullmatch(parse):
            raise wrong(f"parse is module:function for a parser of your own, such as 'mypackage.logs:parser'; got {parse!r}")
    elif parse not in PARSERS:
        raise wrong(f"there is no parser {parse!r}: {advice(parse, PARSERS)}; or a parser of your own, module:function")


def refuse_unknown(settings: Mapping[str, Any], known: Iterable[str], wrong: Say) -> None:
    """Settings that nobody looks at: a parser that logbus has takes no others."""
    names = sorted(known)
    for name in settings:
        if name not in names:
            raise wrong(f"there is no setting {name!r}: {advice(str(name), names)}")


def advice(given: str, names: Iterable[str]) -> str:
    """What may have been meant, or what there is."""
    choices = list(names)
    meant = difflib.get_close_matches(given, choices)
    return f"did you mean {' or '.join(meant)}?" if meant else f"there are {', '.join(choices)}"


Check = Callable[[str, Any, Say], None]


def check_one_of(names: Iterable[str]) -> Check:
    choices = list(names)

    def check(name: str, value: Any, wrong: Say) -> None:
        if value not in choices:
            raise wrong(f"there is no {name} {value!r}: {advice(str(value), choices)}")

    return check


def check_boolean(name: str, value: Any, wrong: Say) -> None:
    if not isinstance(value, bool):
        raise wrong(f"{name} is True or False; {value!r} is neither")


def check_columns(name: str, value: Any, wrong: Say) -> None:
    if not isinstance(value, Mapping):
        raise wrong(f"{name} map names to types, such as {{'host': 'text', 'bytes': 'bigint'}}; {value!r} does not")
    for column, kind in value.items():
        if not isinstance(column, str) or not 0 < len(column.encode()) <= COLUMN_BYTES_MAX or column.startswith("_"):
            raise wrong(
                f"{column!r} cannot be the name of a column: up to {COLUMN_BYTES_MAX} bytes, and those with _ are logbus's own"
            )
        if kind not in DECLARABLE_TYPES:
            raise wrong(f"column {column!r} has the type {kind!r}: {advised_type(kind)}")


def advised_type(kind: Any) -> str:
    if isinstance(kind, str) and kind.lower() in OTHER_NAMES:
        return f"did you mean {OTHER_NAMES[kind.lower()]}?"
    return advice(str(kind), DECLARABLE_TYPES)


def check_filter(name: str, value: Any, wrong: Say) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(wanted, list | tuple) for wanted in value.values()):
        raise wrong(f"{name} maps columns to lists of values, such as {{'status': [500, 503]}}; {value!r} does not")


def check_text(name: str, value: Any, wrong: Say) -> None:
    if not isinstance(value, str) or not value:
        raise wrong(f"{name} is a text; {value!r} is none")


def check_names(name: str, value: Any, wrong: Say) -> None:
    is_list = isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)
    if not is_list or not value or len({*value}) < len(value):
        raise wrong(f"{name} is a list of names, each once, in the order of a line; {value!r} is none")


def check_delimiter(name: str, value: Any, wrong: Say) -> None:
    if not isinstance(value, str) or len(value) != 1:
        raise wrong(f"{name} is one character, such as ';'; {value!r} is none")


def check_days(name: str, value: Any, wrong: Say) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise wrong(f"{name} is a number of days, 0 or more; {value!r} is none")


CHECKS: Mapping[str, Check] = {
    "columns": check_columns,
    "infer": check_boolean,
    "filter": check_filter,
    "fields": check_names,
    "delimiter": check_delimiter,
    SINK: check_one_of(SINKS),
    "warehouse": check_text,
    "catalog": check_text,
    "directory": check_text,
    "keep_snapshots_days": check_days,
    "reader": check_one_of(READERS),
    "accept_loss": check_boolean,
    "accept_producer_gaps": check_boolean,
    "offset_gaps": check_boolean,
}


# Settings that only these parsers, or only these sinks, look at.
OF_PARSERS: Mapping[str, tuple[str, ...]] = {
    "columns": ("csv", "json", "logfmt", "regex"),
    "infer": ("json",),
    "pattern": ("regex",),
    "fields": ("csv",),
    "delimiter": ("csv",),
}
OF_SINKS: Mapping[str, str] = {
    "directory": "parquet",
    "warehouse": "iceberg",
    "catalog": "iceberg",
    "keep_snapshots_days": "iceberg",
}


def refuse_idle(pipeline: Pipeline, wrong: Say) -> None:
    """A setting that nobody looks at promises what nobody does: files in a directory, while rows go to PostgreSQL."""
    settings, sink = pipeline.settings, pipeline.settings.get(SINK, SINK_DEFAULT)
    for name, parsers in OF_PARSERS.items():
        if settings.get(name) and not is_own_parser(pipeline.parse) and pipeline.parse not in parsers:
            raise wrong(f"parse={pipeline.parse!r} does not look at {name}; that is for parse={' or '.join(map(repr, parsers))}")
    for name, wanted in OF_SINKS.items():
        if settings.get(name) is not None and sink != wanted:
            raise wrong(f"{name} is for sink={wanted!r}, and this pipeline's sink is {sink!r}")


def check_csv(pipeline: Pipeline, wrong: Say) -> None:
    """As the parser `csv` will: columns are some of the fields, which have to be there."""
    if pipeline.parse != "csv":
        return
    fields = pipeline.settings.get("fields")
    if not fields:
        raise wrong("parse='csv' needs fields=[...], the names of a line's fields in their order")
    for column in pipeline.settings.get("columns") or {}:
        if column not in fields:
            raise wrong(f"column {column!r} is not among fields: {advice(column, fields)}")


def check_pattern(pipeline: Pipeline, wrong: Say) -> None:
    """As the parser `regex` will: the pattern has named groups, and columns are some of them."""
    if pipeline.parse != "regex":
        return
    pattern = pipeline.settings.get("pattern")
    if not isinstance(pattern, str):
        raise wrong("parse='regex' needs pattern=..., a regular expression with named groups, (?P<name>...)")
    try:
        groups = re.compile(pattern).groupindex
    except re.error as error:
        raise wrong(f"pattern is no regular expression: {error}") from None
    if not groups:
        raise wrong("pattern has no named groups, (?P<name>...): they become the columns")
    for column in pipeline.settings.get("columns") or ():
        if column not in groups:
            raise wrong(f"column {column!r} is no named group of the pattern: {advice(column, groups)}")


def check_place(settings: Mapping[str, Any], wrong: Say) -> None:
    """Files need a place, and tasks run in other directories than whoever says it."""
    sink = settings.get(SINK, SINK_DEFAULT)
    if sink == "parquet" and not str(settings.get("directory") or "").startswith("/"):
        raise wrong(f"sink='parquet' needs directory=..., an absolute path; got {settings.get('directory')!r}")
    if sink == "iceberg" and settings.get("catalog") is None:
        warehouse = settings.get("warehouse")
        if not warehouse or not (warehouse.startswith("/") or "://" in warehouse):
            raise wrong(
                "sink='iceberg' needs warehouse=..., an absolute path or a URI, or catalog=..., a catalog of pyiceberg's "
                f"configuration; got warehouse={warehouse!r}"
            )
