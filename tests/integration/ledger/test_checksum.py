"""The checksum over values: what it detects, what it survives, and when it reports that it cannot compare. Real PostgreSQL."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta

import pytest
from logbus.loads import tally
from logbus.loads.maintenance import merge_closed_days
from logbus.loads.tally import Checksum, Published
from logbus.windows.table_names import parse_table

from tests.support.ledgers import NOW, World, at, stamps
from tests.support.loads import Loading

VALUE = b'{"status": 404, "size": 12, "share": 0.5, "ok": true, "at": "2015-05-17T10:05:03Z", "more": {"a": 1}, "line": "x y"}'
COLUMNS = {
    "line": "text",
    "status": "integer",
    "size": "bigint",
    "share": "double precision",
    "ok": "boolean",
    "at": "timestamptz",
    "more": "jsonb",
}


@pytest.fixture
def loaded(world: World) -> World:
    """Hours 10 and 11 in two partitions, with every type among their columns."""
    world.log.fill("t", *[stamps(10, 10.5, 11, 12)] * 2)
    world.register(parse="json", settings={"columns": COLUMNS})
    for hour in (10, 11):
        Loading.of(world, hour).load(VALUE)
    return world


FORGERIES = {
    "line": "'forged'",
    "status": "200",
    "size": "null",
    "share": "share + 1e-9",
    "ok": "false",
    '"at"': "\"at\" + interval '1 microsecond'",
    "more": "'{\"a\": 2}'",
    "_timestamp": "_timestamp + interval '1 second'",
    "_key": "'other'",
    "_headers": "null",
}


def test_a_changed_value_of_any_column_is_found_and_its_partition_named(loaded: World) -> None:
    loaded.execute("create table kept as select * from t")
    for column, value in FORGERIES.items():
        assert loaded.audit().problems == ()
        loaded.execute(f"update t set {column} = {value} where _partition = 1 and _offset = 0")
        said = ("partition 1: public.t does not hold the values that were loaded, rows were changed",)
        assert (column, loaded.audit().problems) == (column, said)
        loaded.execute("delete from t", "insert into t select * from kept")
    assert loaded.audit(11).ok


def test_values_that_two_rows_exchange_are_found(world: World) -> None:
    """The table holds the same set of values as before: nothing new, nothing missing."""
    world.fill(10, 10.5)
    Loading.of(world, 10).load()
    assert world.audit().problems == ()
    world.execute("update t set line = case line when 'line 0/0' then 'line 0/1' else 'line 0/0' end")
    assert world.audit().problems == ("partition 0: public.t does not hold the values that were loaded, rows were changed",)


SAME_VALUES = {
    "a column of the user's": ["alter table t add column note text", "update t set note = 'mine'"],
    "integer to bigint": ["alter table t alter column status type bigint"],
    "text to varchar": ["alter table t alter column line type varchar(200)"],
    "bigint to numeric": ["alter table t alter column size type numeric"],
    "written anew": [
        *("create table copied as select * from t", "delete from t", "insert into t select * from copied order by _offset desc")
    ],
}


def test_what_holds_the_same_values_is_exact(loaded: World) -> None:
    for what, statements in SAME_VALUES.items():
        loaded.execute(*statements)
        assert (what, loaded.audit().problems) == (what, ())


def test_leaves_that_are_merged_into_days_keep_their_checksums(loaded: World) -> None:
    merged, _ = merge_closed_days(loaded.ledger.engine, parse_table("t"), NOW - timedelta(days=35), lambda seconds: None)
    assert merged == [at(0)]
    assert (loaded.audit().problems, loaded.audit(11).problems) == ((), ())
    loaded.execute("update t set line = 'forged' where _partition = 0 and _offset = 0")
    assert (loaded.audit().ok, loaded.audit(11).ok) == (False, True)


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("alter table t drop column status", "public.t has no column status any more, which was loaded"),
        (
            "alter table t alter column ok type double precision using 1",
            "the values of public.t cannot be compared, ok was boolean and is double precision: cannot cast",
        ),
        ("alter table t alter column share type integer", "does not hold the values that were loaded"),
    ],
    ids=["a column dropped", "a type that cannot be cast back", "a type that rounds"],
)
def test_what_took_the_values_away_is_a_problem_that_says_so(loaded: World, statement: str, problem: str) -> None:
    loaded.execute(statement)
    assert problem in loaded.audit().problems[0]


def test_a_server_that_hashes_otherwise_is_noted_and_no_problem(loaded: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a major upgrade that changed hash functions, or on a machine with the other byte order."""
    monkeypatch.setattr(tally, "PROBE", "cast(7 as bigint)")
    report = loaded.audit()
    assert report.ok
    assert "hashes values otherwise" in report.notes[0]


def test_checksums_are_read_from_the_ledger_as_they_were_written() -> None:
    table = Checksum(sums={"0": "1" * 16}, probe="2" * 16, columns={"line": "text"})
    for values in (
        Published(staged={0: "3" * 16}, table=table, dead_letters=table),
        Published(staged={}, files={"a.parquet": "4" * 32}),
    ):
        assert Published.from_json(asdict(values)) == values
