"""Reading a Parquet table in DuckDB: the view, the SQL file next to the data files, the command. Only published rows are seen."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner
from logbus.cli import main
from logbus.errors import UserError
from logbus.warehouse.duckdb_view import create_view, query

from tests.support.sinks import HOUR_TEN, Bench, ParquetReader

pytestmark = pytest.mark.parametrize("bench", ["parquet"], indirect=True)

COUNT = "select count(*) from t"


def root(bench: Bench) -> Path:
    reader = bench.reader
    assert isinstance(reader, ParquetReader)
    return reader.root


def run(bench: Bench, *arguments: str) -> str:
    result = CliRunner().invoke(main, ["query", *arguments, "--warehouse", bench.url])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_view_keeps_the_windows_it_was_made_over_and_a_new_one_sees_what_was_loaded_since(bench: Bench) -> None:
    bench.start(10).load()
    with duckdb.connect() as connection:
        assert create_view(connection, root(bench)) == "t"
        bench.start(11).load()
        bench.start(10).load()
        assert query(connection, COUNT)[1] == [(5,)]
        create_view(connection, root(bench))
        assert query(connection, COUNT)[1] == [(8,)]


def test_a_table_without_windows_has_its_columns_and_no_rows(bench: Bench) -> None:
    bench.start(10).begin().create()
    with duckdb.connect() as connection:
        create_view(connection, root(bench), "nothing_yet")
        names, rows = query(connection, "select * from nothing_yet")
    assert (names[-1], rows) == ("line", [])


def test_a_directory_that_is_no_table_is_named(bench: Bench, tmp_path: Path) -> None:
    with duckdb.connect() as connection, pytest.raises(UserError, match="no manifests"):
        create_view(connection, tmp_path)


def test_the_command_answers_with_whole_windows(bench: Bench) -> None:
    bench.start(10).load()
    bench.start(11).begin().create().run_task(1)
    rows = json.loads(run(bench, "select _partition, _offset, line from t order by 1, 2", "--json"))
    assert [tuple(row.values()) for row in rows] == HOUR_TEN
    assert "2015-05-17T10:00:00Z" in run(bench, "select _window_start, _key, count(*) from t group by all")


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("select from", "error: the query failed: Parser Error"),
        ("select * from t", "no window of pipeline p is loaded yet, so t has no files"),
        (
            "select count(*) from plain",
            "web.plain of pipeline q is of the sink postgres, and this command reads Parquet files: psql ",
        ),
        ("select * from clicks", "there is no table clicks; those in Parquet files are t"),
    ],
)
def test_a_query_that_fails_says_what_to_do(statement: str, said: str, bench: Bench) -> None:
    bench.world.register(name="q", table="web.plain")
    result = CliRunner().invoke(main, ["query", statement, "--warehouse", bench.url])
    assert result.exit_code == 1
    assert said in " ".join(result.output.split())
