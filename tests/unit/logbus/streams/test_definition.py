from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from logbus.errors import UserError
from logbus.expressions import avg_of, count
from logbus.model import Pipeline
from logbus.streams.definition import Lookup, define_live_rows, define_stream, of_ledger
from logbus.windows.table_names import TableName

ACCESS_LOG = Pipeline(name="access_log", topic="t", table="access_log", parse="combined")
PLAIN: dict[str, Any] = {"keys": ["status"], "measures": {"requests": count(), "size": avg_of("bytes")}}


def test_what_the_ledger_stores_is_the_same_stream() -> None:
    stream = define_stream("live", ACCESS_LOG, **PLAIN, where="status < 500", trigger="500ms", max_offsets_per_trigger=10)
    row = {"name": "live", "pipeline": "access_log", "table_name": "live"}
    assert of_ledger({**row, "definition": json.loads(json.dumps(stream.definition()))}) == stream
    assert (stream.trigger, stream.content.window) == (timedelta(seconds=0.5), timedelta(minutes=1))


@pytest.mark.parametrize(("view", "table"), [("live", ("live_by_arrival", "public")), ("web.live", ("live_by_arrival", "web"))])
def test_the_table_lies_beside_the_view(view: str, table: tuple[str, str]) -> None:
    stream = define_stream("live", "access_log", **PLAIN, table=view)
    assert stream.by_arrival == TableName(name=table[0], schema=table[1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"measures": {"requests": "count"}}, r"stream 'live': measure 'requests' is count\(\), sum_of"),
        ({"keys": ["arrived_hour"]}, "'arrived_hour' is a column of its own table"),
        ({"measures": {"_Group": count()}}, "'_Group' is a column of its own table"),
        ({"trigger": "2"}, "such as '2s' or '1m'; got '2'"),
        ({"trigger": "1ms"}, "between 100 ms and one hour"),
        ({"trigger": timedelta(hours=2)}, "between 100 ms and one hour"),
        ({"max_offsets_per_trigger": 0}, "a number from 1 to 10,000,000; got 0"),
        ({"table": "access_log"}, "that of the pipeline's rows"),
    ],
)
def test_what_no_epoch_could_do_is_refused_when_it_is_defined(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        define_stream("live", ACCESS_LOG, **{**PLAIN, **changes})


def test_a_lakehouse_is_refused() -> None:
    lake = Pipeline(name="lake", topic="t", table="t", parse="raw", settings={"sink": "iceberg", "warehouse": "/lake"})
    with pytest.raises(UserError, match="loads into iceberg, and streams are"):
        define_stream("live", lake, **PLAIN)


def test_what_the_ledger_stores_of_rows_and_of_a_lookup_is_the_same_stream() -> None:
    row = {"name": "live", "pipeline": "access_log", "table_name": "live"}
    lookup = Lookup(table="statuses", on="status", columns=("meaning",))
    for stream in (
        define_live_rows("live", ACCESS_LOG, columns=["status", "_key"], indexed=["status"], trigger="1m"),
        define_stream("live", ACCESS_LOG, **PLAIN, lookup=lookup),
    ):
        assert of_ledger({**row, "definition": json.loads(json.dumps(stream.definition()))}) == stream
    assert stream.words().endswith("status, with meaning of statuses for status")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": []}, r"stream 'live': columns is a list of columns of the pipeline's table; got \[\]"),
        ({"columns": "status"}, "columns is a list .*; got 'status'"),
        ({"columns": ["status", "status"]}, "columns names 'status' twice"),
        ({"columns": ["_offset"]}, "'_offset' is a column of its own table"),
        ({"columns": ["Arrived_Hour"]}, "'Arrived_Hour' is a column of its own table"),
        ({"columns": ["status"], "indexed": ["bytes"]}, "indexed names 'bytes', which columns does not have"),
        ({"columns": ["status"], "table": "access_log"}, "is that of the pipeline's rows"),
        ({"columns": ["status"], "trigger": "1ms"}, "between 100 ms and one hour"),
    ],
)
def test_rows_that_no_epoch_could_bring_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        define_live_rows("live", ACCESS_LOG, **changes)


@pytest.mark.parametrize(
    ("lookup", "message"),
    [
        ({"on": "host"}, "stream 'live': lookup=: on='host' is none of the keys: status"),
        ({"columns": ()}, r"columns is a list of columns of statuses; got \(\)"),
        ({"columns": ("requests",)}, "the view has a column 'requests' already"),
        ({"table": "a.b.c"}, "a table is named table or schema.table"),
    ],
)
def test_a_table_that_cannot_be_looked_up_is_refused(lookup: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        define_stream(
            "live", ACCESS_LOG, **PLAIN, lookup=Lookup(**{"table": "statuses", "on": "status", "columns": ("meaning",), **lookup})
        )
