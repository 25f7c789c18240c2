"""`logbus audit-table` over tables that others loaded, in PostgreSQL and in Iceberg: rows removed, doubled, of another topic."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from logbus.cli import main, options
from logbus.exit_codes import ExitCode
from logbus.kafka import topics
from logbus.status.ledger_totals import read_ledger
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.config import Config

from tests.support.ledgers import NOW, World, stamps

Row = tuple[str | None, int | None, int | None]
HOURS = (10, 10.2, 10.4, 11, 11.5, 12)  # in each of two partitions
ALL: list[Row] = [("t", part, offset) for part in (0, 1) for offset in range(len(HOURS))]
TEN, ELEVEN, TWELVE = (f"2015-05-17T{hour}:00:00Z" for hour in (10, 11, 12))
COLUMNS = ("topic", "partition", "offset")


class Audited:
    """A table in one of the two, and the command that audits it."""

    def __init__(self, world: World, catalog: str | None) -> None:
        self.world, self.catalog = world, catalog

    def write(self, rows: Iterable[Row], names: Iterable[str] = COLUMNS, kind: str = "bigint") -> None:
        rows, names = list(rows), list(names)
        if self.catalog is None:
            columns = ", ".join(f'"{name}" {"text" if name == names[0] else kind}' for name in names)
            with self.world.ledger.engine.begin() as connection:
                connection.exec_driver_sql(f"drop table if exists theirs; create table theirs ({columns})")
                connection.exec_driver_sql("insert into theirs values (%s, %s, %s)", rows)
            return
        numbers = pa.int64() if kind == "bigint" else pa.string()
        values = [pa.array([row[0] for row in rows], pa.string())]
        values += [pa.array([row[place] for row in rows]).cast(numbers) for place in (1, 2)]
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
    (facts,) = read_ledger(audited.world.ledger.engine, timeout_seconds=60).tables
    assert (facts.hours, facts.missing, facts.doubled, facts.foreign) == ({"exact": 0, "wrong": 3, "unknown": 0}, 3, 2, 6)
    audited.write(ALL)
    audited.run("--warehouse", audited.world.url)
    (facts,) = read_ledger(audited.world.ledger.engine, timeout_seconds=60).tables
    assert (facts.hours["exact"], facts.missing, facts.foreign) == (3, 0, 0)


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
    audited.run(*words)


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
