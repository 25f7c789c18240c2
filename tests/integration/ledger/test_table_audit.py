"""`logbus audit-table` over tables that others loaded, in PostgreSQL and in Iceberg: rows removed, doubled, of another topic."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from logbus.cli import main, options
from logbus.errors import ExitCode
from logbus.kafka import topics
from logbus.model import instant_text, milliseconds
from logbus.status.ledger_facts import read_ledger
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.config import Config

from tests.support.ledgers import NOW, World, at, stamps

Row = tuple[Any, ...]
HOURS = (10, 10.2, 10.4, 11, 11.5, 12)  # in each of two partitions
ALL: list[Row] = [("t", part, offset) for part in (0, 1) for offset in range(len(HOURS))]
TEN, ELEVEN, TWELVE = (f"2015-05-17T{hour}:00:00Z" for hour in (10, 11, 12))
COLUMNS = ("topic", "partition", "offset")
TIMED: list[Row] = [(*row, at(HOURS[row[2]])) for row in ALL]
FOREIGN_TIMED: list[Row] = [
    ("other", 0, 1, at(10.5)),
    (None, 0, 1, at(11.5)),
    ("t", 7, 3, at(11.2)),
    ("t", 0, 6, at(12)),
    ("t", None, 1, None),
    ("t", 0, -1, at(3)),
]
# How a record's time may be stored: what makes it of an instant, and the column's type in PostgreSQL and in Iceberg.
TIMES: dict[str, tuple[Callable[[datetime], Any], str, pa.DataType]] = {
    "timestamptz": (lambda instant: instant, "timestamptz(3)", pa.timestamp("us", tz="UTC")),
    "timestamp": (lambda instant: instant.replace(tzinfo=None), "timestamp", pa.timestamp("us")),
    "milliseconds": (milliseconds, "bigint", pa.int64()),
    "milliseconds as text": (lambda instant: str(milliseconds(instant)), "text", pa.string()),
    "date-time": (instant_text, "text", pa.string()),
    "date": (lambda instant: instant.date(), "date", pa.date32()),
}


class Audited:
    """A table in one of the two, and the command that audits it."""

    def __init__(self, world: World, catalog: str | None) -> None:
        self.world, self.catalog = world, catalog

    def write(self, rows: Iterable[Row], names: Iterable[str] = COLUMNS, kind: str = "bigint", times: str = "timestamp") -> None:
        names, (stored, column_type, arrow_type) = list(names), TIMES[times]
        rows = [(*row[:3], *(instant and stored(instant) for instant in row[3:])) for row in rows]
        if self.catalog is None:
            columns = ", ".join(f'"{name}" {of}' for name, of in zip(names, ("text", kind, kind, column_type), strict=False))
            with self.world.ledger.engine.begin() as connection:
                connection.exec_driver_sql(f"drop table if exists theirs; create table theirs ({columns})")
                connection.exec_driver_sql(f"insert into theirs values ({', '.join(['%s'] * len(names))})", rows)
            return
        numbers = pa.int64() if kind == "bigint" else pa.string()
        values = [pa.array([row[0] for row in rows], pa.string())]
        values += [pa.array([row[place] for row in rows]).cast(numbers) for place in (1, 2)]
        values += [pa.array([row[3] for row in rows], arrow_type)] if len(names) > 3 else []
        table = pa.table(dict(zip(names, values, strict=True)))
        catalog = load_catalog(self.catalog)
        catalog.create_namespace_if_not_exists("theirs")
        if catalog.table_exists("theirs.t"):
            catalog.drop_table("theirs.t")
        catalog.create_table("theirs.t", table.schema).append(table)

    def run(self, *words: str, status: ExitCode = ExitCode.DONE) -> Result:
        place = ["theirs", "--database", self.world.url] if self.catalog is None else ["theirs.t", "--catalog", self.catalog]
        result = CliRunner().invoke(main, ["audit-table", *place, "--topic", "t", *words], catch_exceptions=False)
        assert result.exit_code == status, result.output
        return result

    def report(self, *words: str, status: ExitCode = ExitCode.DONE) -> Any:
        return json.loads(self.run(*words, "--json", status=status).stdout)


@pytest.fixture(params=["postgres", "iceberg"])
def audited(request: pytest.FixtureRequest, world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Audited:
    monkeypatch.setattr(topics, "Topics", lambda *arguments, **options: world.log)
    monkeypatch.setattr(options, "clock", lambda: NOW)
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", str(tmp_path))
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # is read when the module is imported
    world.log.fill("t", stamps(*HOURS), stamps(*HOURS))
    return Audited(world, None if request.param == "postgres" else "lake")


def verdicts(report: Any) -> dict[str, tuple[str, int, int, int, int]]:
    counts = ("verdict", "records", "rows", "missing", "doubled")
    return {hour["start"]: tuple(hour[name] for name in counts) for hour in report["hours"]}


def test_a_whole_table_is_exact_in_every_hour(audited: Audited) -> None:
    audited.write(ALL)
    report = audited.report()
    assert report["ok"]
    exact = {TEN: ("exact", 6, 6, 0, 0), ELEVEN: ("exact", 4, 4, 0, 0), TWELVE: ("exact", 2, 2, 0, 0)}
    assert verdicts(report) == exact
    assert verdicts(audited.report("--since", ELEVEN, "--until", TWELVE)) == {ELEVEN: exact[ELEVEN]}


def test_rows_that_were_removed_doubled_or_are_of_another_topic_are_found_and_kept(audited: Audited) -> None:
    rows = [row for row in ALL if row not in (("t", 0, 1), ("t", 0, 2), ("t", 1, 5))]
    rows += [("t", 1, 3)] * 2
    rows += [("other", 0, 1), (None, 0, 1), ("t", 7, 3), ("t", 0, 6), ("t", None, 1), ("t", 0, -1)]
    audited.write(rows)
    report = audited.report("--warehouse", audited.world.url, status=ExitCode.CHECK_FAILED)
    assert verdicts(report) == {
        TEN: ("wrong", 6, 4, 2, 0),
        ELEVEN: ("wrong", 4, 6, 0, 2),
        TWELVE: ("wrong", 2, 1, 1, 0),
    }
    assert [hour["remarks"] for hour in report["hours"]] == [
        ["missing: t-0 [1, 3)"],
        ["doubled: t-1 [3, 4)"],
        ["missing: t-1 [5, 6)"],
    ]
    assert report["foreign"] == 6
    assert "foreign: 1 row after the end of t-0 at 6, up to offset 6" in report["problems"]
    assert [hour["foreign"] for hour in report["hours"]] == [None] * 3
    assert "foreign rows have no hour: the table has no column" in report["notes"][0]
    (facts,) = read_ledger(audited.world.ledger.engine, timeout_seconds=60).tables
    assert (facts.hours, facts.missing, facts.doubled, facts.foreign) == ({"exact": 0, "wrong": 3, "unknown": 0}, 3, 2, 6)
    assert facts.foreign_in_hours is None
    audited.write(ALL)
    audited.run("--warehouse", audited.world.url)
    (facts,) = read_ledger(audited.world.ledger.engine, timeout_seconds=60).tables
    assert (facts.hours["exact"], facts.missing, facts.foreign) == (3, 0, 0)


@pytest.mark.parametrize(
    ("times", "names", "words"),
    [
        ("timestamptz", ("_topic", "_partition", "_offset", "_timestamp"), []),
        ("timestamp", (*COLUMNS, "timestamp"), []),
        ("milliseconds", ("kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp"), []),
        ("milliseconds as text", (*COLUMNS, "sent"), ["--timestamp-column", "sent"]),
        ("date-time", (*COLUMNS, "timestamp"), []),
    ],
)
def test_foreign_rows_count_in_the_hour_of_their_time(audited: Audited, times: str, names: list[str], words: list[str]) -> None:
    audited.write([*TIMED, *FOREIGN_TIMED], names, times=times)
    report = audited.report(*words, "--warehouse", audited.world.url, status=ExitCode.CHECK_FAILED)
    assert [(hour["verdict"], hour["foreign"], hour["remarks"]) for hour in report["hours"]] == [
        ("wrong", 1, ["foreign: 1 row"]),
        ("wrong", 2, ["foreign: 2 rows"]),
        ("wrong", 1, ["foreign: 1 row"]),
    ]
    column = words[-1] if words else names[-1]
    assert (report["foreign"], report["notes"]) == (6, [f"2 foreign rows whose {column} is in no hour that was audited"])
    (facts,) = read_ledger(audited.world.ledger.engine, timeout_seconds=60).tables
    assert (facts.hours["wrong"], facts.foreign, facts.foreign_in_hours) == (3, 6, 4)
    shared = audited.report(*words, "--shared", "--since", ELEVEN, status=ExitCode.CHECK_FAILED)
    assert [(hour["foreign"], hour["start"]) for hour in shared["hours"]] == [(1, ELEVEN), (1, TWELVE)]
    audited.write(TIMED, names, times=times)
    assert audited.run(*words).stdout.split()[6:14] == ["FOREIGN", TEN, "exact", *"66000"]


def test_a_usual_name_without_a_time_is_not_used(audited: Audited) -> None:
    audited.write([*TIMED, *FOREIGN_TIMED], (*COLUMNS, "timestamp"), times="date")
    assert audited.report(status=ExitCode.CHECK_FAILED)["hours"][0]["foreign"] is None
    output = audited.run("--timestamp-column", "timestamp", status=ExitCode.FAILED).output
    assert "is of type date: a record's time is a timestamp, an ISO date-time in UTC or whole milliseconds" in output


def test_an_offset_that_no_record_has_is_not_missing_and_one_that_the_log_lost_is_unknown(audited: Audited) -> None:
    audited.world.log.compact("t", 1, 4)
    audited.world.log.delete_records("t", 2, partition=1)
    audited.write([row for row in ALL if row not in (("t", 0, 1), ("t", 0, 4))])
    report = audited.report()
    assert verdicts(report) == {TEN: ("unknown", 3, 3, 0, 0), ELEVEN: ("exact", 3, 3, 0, 0), TWELVE: ("exact", 2, 2, 0, 0)}
    assert report["hours"][0]["remarks"] == ["unknown: the log of t-1 begins at 2"]
    assert report["notes"] == ["2 rows of t-1 from before the log begins, at 2"]


def test_a_timestamp_in_the_future_hides_no_hour(audited: Audited) -> None:
    audited.world.log.fill("t", [*stamps(10), 4_102_444_800_000, *stamps(11, 12)])
    audited.write([("t", 0, 0), ("t", 0, 1), ("t", 0, 3)])
    assert verdicts(audited.report(status=ExitCode.CHECK_FAILED)) == {
        TEN: ("exact", 2, 2, 0, 0),
        ELEVEN: ("wrong", 1, 0, 1, 0),
        TWELVE: ("exact", 1, 1, 0, 0),
    }


@pytest.mark.parametrize(
    ("names", "kind", "words"),
    [
        (("_topic", "_partition", "_offset"), "bigint", []),
        (("kafka_topic", "kafka_partition", "kafka_offset"), "text", []),
        (("a", "b", "c"), "text", ["--topic-column", "a", "--partition-column", "b", "--offset-column", "c"]),
        (("theme", "partition", "offset"), "bigint", []),
    ],
    ids=["our names", "numbers as text", "names by option", "no topic"],
)
def test_columns_have_any_name_and_type(audited: Audited, names: list[str], kind: str, words: list[str]) -> None:
    audited.write(ALL, names, kind)
    assert [hour["verdict"] for hour in audited.report(*words)["hours"]] == ["exact"] * 3


def test_a_table_may_hold_several_topics(audited: Audited) -> None:
    audited.write([*ALL, ("other", 0, 1)])
    assert "1 foreign" in audited.run(status=ExitCode.CHECK_FAILED).output
    audited.run("--shared")


@pytest.mark.parametrize(
    ("names", "words", "sentence"),
    [
        (("a", "b", "c"), [], "name them by --partition-column and --offset-column"),
        (COLUMNS, ["--offset-column", "nowhere"], "has no column 'nowhere'; its columns are topic, partition, offset"),
        (COLUMNS, ["--topic", "nowhere"], "no topic 'nowhere'"),
    ],
)
def test_a_wrong_name_is_said(audited: Audited, names: list[str], words: list[str], sentence: str) -> None:
    audited.write(ALL, names)
    status = ExitCode.NOT_FOUND if "--topic" in words else ExitCode.FAILED
    assert sentence in audited.run(*words, status=status).output
