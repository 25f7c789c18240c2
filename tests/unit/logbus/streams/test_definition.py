from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from logbus.errors import UserError
from logbus.expressions import avg_of, count
from logbus.model import Pipeline
from logbus.streams.definition import define_stream, of_ledger
from logbus.windows.table_names import TableName

ACCESS_LOG = Pipeline(name="access_log", topic="t", table="access_log", parse="combined")
PLAIN: dict[str, Any] = {"keys": ["status"], "measures": {"requests": count(), "size": avg_of("bytes")}}


def test_what_the_ledger_stores_is_the_same_stream() -> None:
    stream = define_stream("live", ACCESS_LOG, **PLAIN, where="status < 500", trigger="500ms", max_offsets_per_trigger=10)
    row = {"name": "live", "pipeline": "access_log", "table_name": "live"}
    assert of_ledger({**row, "definition": json.loads(json.dumps(stream.definition()))}) == stream
    assert (stream.trigger, stream.aggregate.window) == (timedelta(seconds=0.5), timedelta(minutes=1))


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
