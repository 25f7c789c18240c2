"""Reading an Iceberg table in DuckDB: the view, and the command over it. Only published rows are seen."""

from __future__ import annotations

import json
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner
from logbus.cli import main
from logbus.loads.sinks.iceberg import IcebergSink
from logbus.loads.sinks.iceberg_table import create_view, query

from tests.support.sinks import HOUR_TEN, Bench

pytestmark = pytest.mark.parametrize("bench", ["iceberg"], indirect=True)

COUNT = "select count(*) from t"


def table(bench: Bench) -> Any:
    sink = bench.sink
    assert isinstance(sink, IcebergSink)
    return sink.table()


def run(bench: Bench, *arguments: str) -> str:
    result = CliRunner().invoke(main, ["query", *arguments, "--warehouse", bench.url])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_view_keeps_the_windows_it_was_made_over_and_a_new_one_sees_what_was_loaded_since(bench: Bench) -> None:
    bench.start(10).load()
    with duckdb.connect() as connection:
        create_view(connection, table(bench), "t")
        bench.start(11).load()
        bench.start(10).load()
        assert query(connection, COUNT)[1] == [(5,)]
        create_view(connection, table(bench), "t")
        assert query(connection, COUNT)[1] == [(8,)]


def test_a_table_without_windows_has_its_columns_and_no_rows(bench: Bench) -> None:
    bench.start(10).begin().create()
    with duckdb.connect() as connection:
        create_view(connection, table(bench), "nothing_yet")
        names, rows = query(connection, "select * from nothing_yet")
    assert (names[-1], rows) == ("line", [])


def test_a_column_is_found_by_its_id_whatever_its_name_was_when_a_file_was_written(bench: Bench) -> None:
    bench.start(10).load()
    with table(bench).update_schema() as update:
        update.rename_column("line", "text")
        update.add_column("more", table(bench).schema().find_type("line"))
    with duckdb.connect() as connection:
        create_view(connection, table(bench), "t")
        assert query(connection, "select text, more from t where _partition = 1 order by _offset")[1] == [
            ("line 1/0", None),
            ("line 1/1", None),
        ]


def test_what_another_writer_deleted_is_not_seen(bench: Bench) -> None:
    bench.start(10).load()
    table(bench).delete("_offset = 1")
    assert json.loads(run(bench, "select count(*) as n from t", "--json")) == [{"n": 3}]


def test_the_command_answers_with_whole_windows(bench: Bench) -> None:
    bench.start(10).load()
    bench.start(11).begin().create().run_task(1)
    rows = json.loads(run(bench, "select _partition, _offset, line from t order by 1, 2", "--json"))
    assert [tuple(row.values()) for row in rows] == HOUR_TEN
    assert "2015-05-17T10:00:00Z" in run(bench, "select _window_start, _key, count(*) from t group by all")


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("select from", "error: the query failed: Parser Error"),
        ("select * from t", "no window of pipeline p is loaded yet, so t does not exist"),
        ("select count(*) from plain", "web.plain of pipeline q is a table in PostgreSQL: psql "),
        ("select * from clicks", "there is no table clicks; the Iceberg tables are t"),
    ],
)
def test_a_query_that_fails_says_what_to_do(statement: str, message: str, bench: Bench) -> None:
    bench.world.register(name="q", table="web.plain")
    result = CliRunner().invoke(main, ["query", statement, "--warehouse", bench.url])
    assert result.exit_code == 1
    assert message in " ".join(result.output.split())
