from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from logbus.errors import UserError
from logbus.expressions import avg_of, count, sum_of
from logbus.model import Pipeline
from logbus.streams.aggregate_definition import Aggregate, define_aggregate, of_ledger

ACCESS_LOG = Pipeline(name="access_log", topic="t", table="access_log", parse="combined")
PLAIN: dict[str, Any] = {"keys": ["status"], "measures": {"requests": count(), "size": avg_of("bytes")}}


def test_what_the_ledger_stores_is_the_same_aggregate() -> None:
    aggregate = define_aggregate("traffic", ACCESS_LOG, **PLAIN, window="5m", event_time="time", where="status < 500")
    stored = json.loads(json.dumps(aggregate.definition()))
    row = {"name": "traffic", "pipeline": "access_log", "table_name": "traffic", "definition": stored}
    assert of_ledger(row) == aggregate
    assert aggregate.words() == "requests count(), size avg(bytes) by 5 min of time, status where status < 500"


def test_a_pipeline_may_be_named_and_a_table_too() -> None:
    aggregate = define_aggregate("traffic", "access_log", **PLAIN, table="web.traffic")
    assert (aggregate.pipeline, aggregate.target.schema, aggregate.window) == ("access_log", "web", timedelta(hours=1))


@pytest.mark.parametrize("window", ["7m", "2h", "1d", "an hour", 60, timedelta(seconds=30), timedelta(minutes=1, seconds=1)])
def test_a_window_is_a_part_of_an_hour(window: Any) -> None:
    with pytest.raises(UserError, match="part of an hour in whole minutes"):
        define_aggregate("traffic", ACCESS_LOG, **PLAIN, window=window)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keys": "status"}, "keys is a list"),
        ({"measures": {}}, "1 to 200 names"),
        ({"measures": {"requests": "count"}}, r"is count\(\), sum_of"),
        ({"measures": {"so many": count()}}, "becomes a column"),
        ({"measures": {"Status": count()}}, "column 'Status' twice"),
        ({"measures": {"window_start": count()}}, "column 'window_start' twice"),
        ({"measures": {"size": avg_of("bytes"), "size_sum": sum_of("bytes")}}, "column 'size_sum' twice"),
        ({"where": "status <"}, "is not understood"),
        ({"where": "agent = '\0'"}, "NUL"),
        ({"table": "access_log"}, "that of the pipeline's rows"),
        ({"table": "logbus.traffic"}, "not for a load's rows"),
    ],
)
def test_what_no_run_could_do_is_refused_when_it_is_defined(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        define_aggregate("traffic", ACCESS_LOG, **{**PLAIN, **changes})


def test_a_lakehouse_is_refused_with_what_to_do_instead() -> None:
    lake = Pipeline(name="lake", topic="t", table="t", parse="raw", settings={"sink": "iceberg", "warehouse": "/lake"})
    with pytest.raises(UserError, match="loads into iceberg, .*`logbus query`"):
        define_aggregate("traffic", lake, **PLAIN)


def test_two_aggregates_are_the_same_if_their_definitions_are() -> None:
    one, other = (define_aggregate("traffic", ACCESS_LOG, **PLAIN, where=where) for where in ("status < 500", "status < 400"))
    assert isinstance(one, Aggregate)
    assert one != other
