from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from logbus import parsing
from logbus.errors import UserError
from logbus.loads import sinks
from logbus.loads.target import COLUMN_TYPES
from logbus.model import Pipeline
from logbus.operators.freeze_window import FreezeWindowOperator
from logbus.operators.load_window import LoadWindowOperator
from logbus.operators.spark_submit_window import SparkSubmitWindowOperator
from logbus.parsing.decoders import FORMATS
from logbus.pipeline_definition import FIELDS, NAMES, PipelineOptions, as_pipeline, define_pipeline
from logbus.pipeline_settings import DECLARABLE_TYPES, OTHER_NAMES, PARSERS, SCHEMA_PARSERS, SETTINGS, SINKS
from logbus.windows.table_names import RESERVED_SCHEMAS


def test_topic_and_table_are_called_like_the_pipeline_unless_said_otherwise() -> None:
    assert define_pipeline("clicks", parse="json") == Pipeline(name="clicks", topic="clicks", table="clicks", parse="json")
    of_debezium = define_pipeline("shop.public.orders", parse="json")
    assert (of_debezium.topic, of_debezium.table) == ("shop.public.orders", "shop_public_orders")


def test_fields_and_settings_are_both_options_by_name() -> None:
    made = define_pipeline("c", parse="my.logs:parser", topic="t", lateness=timedelta(0), max_errors=3, settings={"mine": 1})
    assert (made.topic, made.lateness, made.settings) == ("t", timedelta(0), {"max_errors": 3, "mine": 1})


@pytest.mark.parametrize(("option", "advice"), [("max_eror_rate", "did you mean max_error_rate"), ("zzz", "there are lateness")])
def test_an_option_that_nobody_knows_is_an_error_with_advice(option: str, advice: str) -> None:
    with pytest.raises(UserError, match=advice):
        define_pipeline("c", parse="json", **{option: 1})


def test_a_pipeline_without_a_parser_is_told_how_to_name_one() -> None:
    with pytest.raises(UserError, match="parse='json'"):
        as_pipeline("c", {})


def test_a_pipeline_that_is_made_takes_no_more_options() -> None:
    made = Pipeline(name="c", topic="c", table="c", parse="json")
    assert as_pipeline(made, {}) is made
    with pytest.raises(UserError, match="already defined"):
        as_pipeline(made, {"sink": "iceberg"})


WRONG_VALUES: list[tuple[dict[str, Any], str]] = [
    ({"parse": "combind"}, r"no parser 'combind': did you mean combined\?"),
    ({"parse": "mine:"}, "module:function"),
    ({"parse": ":mine"}, "module:function"),
    ({"columns": {"a": "int"}}, r"column 'a' has the type 'int': did you mean integer\?"),
    ({"columns": {"a": "bigit"}}, r"did you mean bigint\?"),
    ({"columns": {"a": "uuid"}}, "there are text, integer"),
    ({"columns": {"Host": "text", "host": "text"}}, "'Host' and 'host' differ only in upper and lower case"),
    ({"columns": {f"c{number}": "text" for number in range(1_591)}}, "1,591 columns, and a table has room for 1,590"),
    ({"parse": "csv", "fields": ["a", "A"]}, "'a' and 'A' differ only"),
    ({"parse": "regex", "pattern": "(?P<Host>.)(?P<host>.)"}, "'Host' and 'host' differ only"),
    ({"comment": "#"}, "does not use comment; that is for parse='csv'"),
    ({"sink": "icberg"}, r"no sink 'icberg': did you mean iceberg\?"),
    ({"sink": "parquet"}, "sink='iceberg', warehouse='/data/lake' writes Parquet files"),
    ({"sink": "iceberg", "warehouse": "/logs", "table": "a/b"}, "the table 'a/b'"),
    ({"sink": "iceberg"}, "needs warehouse="),
    ({"sink": "iceberg", "warehouse": "lake"}, "got warehouse='lake'"),
    ({"warehouse": "/logs"}, "warehouse is for sink='iceberg', and this pipeline's sink is 'postgres'"),
    ({"parse": "combined", "columns": {"host": "text"}}, "parse='combined' does not use columns"),
    ({"parse": "logfmt", "infer": True}, "infer; that is for parse='json'"),
    ({"lateness": 5}, "lateness must be a timedelta"),
    ({"lateness": timedelta(-1)}, "negative"),
    *[
        ({"every": every}, "not among the lengths of windows: minutes that divide an hour")
        for every in ("7m", "40m", "90m", "5h", "2d", timedelta(0), timedelta(seconds=30))
    ],
    ({"every": "quarterly"}, "such as '15m', '1h' or '1d'; got 'quarterly'"),
    ({"every": 15}, "such as '15m', '1h' or '1d'; got 15"),
    ({"interval": timedelta(minutes=15)}, "no option 'interval'"),
    ({"timezone": "Europe/Berlin"}, "for windows of a day"),
    ({"every": "1d", "timezone": "Europe/Berlni"}, "no time zone 'Europe/Berlni'"),
    ({"every": "1d", "timezone": "../Berlin"}, "no time zone"),
    ({"starts_at": datetime(2026, 1, 1)}, "starts_at must be an instant"),
    ({"isolation_level": "read_comitted"}, "did you mean read_committed"),
    ({"table": "a.b.c"}, "pipeline c: table: a table is named table or schema.table"),
    *[({"table": f"{name}.t"}, "not for a load's rows") for name in RESERVED_SCHEMAS],
    ({"table": '"t"'}, "leave quotes and slashes out"),
    ({"topic": 7}, "topic must be a name"),
    ({"parse": "regex"}, "needs pattern="),
    ({"parse": "regex", "pattern": "("}, "not a regular expression"),
    ({"parse": "regex", "pattern": "a"}, "no named groups"),
    ({"parse": "regex", "pattern": "(?P<host>.)", "columns": {"hots": "text"}}, r"did you mean host\?"),
    ({"settings": {"colums": {"a": "text"}}}, r"no setting 'colums': did you mean columns\?"),
    ({"parse": "my.logs:parser", "settings": {"patience": timedelta(1)}}, "kept as JSON"),
]


@pytest.mark.parametrize("name", ["bad name!", "a/b", "-x", ".x", "é", "a" * 251, "a@b"])
def test_a_name_that_could_not_be_typed_or_be_a_dags_is_an_error(name: str) -> None:
    with pytest.raises(UserError, match="underscores, 250 at most, and not begin with a dot or a dash"):
        define_pipeline(name, topic="c", table="c", parse="json")


@pytest.mark.parametrize(("options", "said"), WRONG_VALUES)
def test_a_value_that_no_load_could_use_is_an_error_where_the_dag_is_read(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        define_pipeline("c", **{"parse": "json", **options})


def test_a_pipeline_made_by_hand_is_looked_at_by_every_operator_that_takes_it() -> None:
    wrong = Pipeline(name="c", topic="c", table="c", parse="combind")
    for operator, more in (
        (FreezeWindowOperator, {}),
        (LoadWindowOperator, {}),
        (SparkSubmitWindowOperator, {"application": "a.py"}),
    ):
        with pytest.raises(UserError, match="combined"):
            operator(task_id="task", pipeline=wrong, **more)
    with pytest.raises(UserError, match="combined"):
        as_pipeline(wrong, {})


def test_what_is_right_passes() -> None:
    own = define_pipeline("c", parse="my.logs:parser", settings={"anything": [1]})
    assert (own.parse, own.settings) == ("my.logs:parser", {"anything": [1]})
    regex = define_pipeline("c", parse="regex", pattern="(?P<host>.*)", columns={"host": "text"})
    assert (regex.options.pattern, regex.options.columns) == ("(?P<host>.*)", {"host": "text"})
    prod = define_pipeline("c", parse="json", sink="iceberg", catalog="prod", keep_snapshots_days=7, filter={"a": (1, None)})
    assert (prod.options.catalog, prod.options.keep_snapshots_days) == ("prod", 7)
    lake = define_pipeline("c", parse="json", sink="iceberg", warehouse="/data", infer=True, max_error_rate=0)
    assert (lake.options.warehouse, lake.options.infer, lake.options.max_error_rate) == ("/data", True, 0)


def test_the_names_that_are_known_here_are_those_of_the_rooms_they_come_from() -> None:
    assert sorted(PARSERS) == sorted([*parsing.PARSERS, *parsing.SCHEMA_PARSERS])
    assert sorted(SCHEMA_PARSERS) == sorted(parsing.SCHEMA_PARSERS) == sorted(FORMATS)
    assert sorted(SINKS) == sorted(sinks.SINKS)
    assert {*DECLARABLE_TYPES, "bytea"} == set(COLUMN_TYPES)
    assert set(OTHER_NAMES.values()) <= set(DECLARABLE_TYPES)


def test_editors_and_type_checkers_know_every_option() -> None:
    assert set(PipelineOptions.__annotations__) == {*NAMES, *FIELDS, *SETTINGS, "settings"}
