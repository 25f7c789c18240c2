"""Windows that begin and end at the same offset in every partition: their boundaries prove them empty, and no load is needed."""

from __future__ import annotations

from typing import Any

import pytest
from logbus.model import PROVEN_EMPTY, FrozenWindow, WindowCounts, WindowState

from tests.support.ledgers import NOW, World, at, stamps
from tests.support.loads import Loading

EMPTY = range(2, 8)  # hours between the two that hold records
OWN = {"id", "starts_at", "ends_at", "frozen_at", "loaded_at", "audited_at"}  # what two empty windows differ in


@pytest.fixture
def quiet(world: World) -> World:
    """Hours 1 and 8 hold records in two partitions, the hours between them none."""
    world.log.fill("t", *[stamps(1.2, 8.2)] * 2)
    world.register()
    return world


def freeze_one_by_one(world: World) -> list[FrozenWindow]:
    return [world.freeze(number) for number in range(1, 9)][1:-1]


def freeze_in_bulk(world: World) -> list[FrozenWindow]:
    return world.ledger.freeze_plan(world.ledger.plan_load("p", world.log, NOW), world.log, NOW)[1:-1]


@pytest.mark.parametrize("freeze", [freeze_one_by_one, freeze_in_bulk])
def test_what_the_boundaries_prove_empty_is_exact_from_the_moment_it_is_frozen(quiet: World, freeze: Any) -> None:
    windows = freeze(quiet)
    assert [window.interval.start.hour for window in windows] == list(EMPTY)
    for window in windows:
        assert (window.state, window.needs_load, window.loaded_attempt) == (WindowState.AUDITED, False, PROVEN_EMPTY)
        assert (window.counts, window.audited_at) == (WindowCounts(), NOW)
    assert quiet.one("select count(*) from logbus.attempt") == 0
    assert quiet.ledger.window("p", at(8)).state is WindowState.FROZEN


def test_in_bulk_and_one_by_one_the_ledger_is_the_same(quiet: World) -> None:
    freeze_in_bulk(quiet)
    quiet.register(name="q", table="u")
    for number in range(1, 9):
        quiet.ledger.freeze_or_get("q", quiet.ledger.window("p", at(number)).interval, quiet.log, NOW)
    together, alone = (
        [{name: value for name, value in row.items() if name not in {*OWN, "pipeline"}} for row in rows(quiet, pipeline)]
        for pipeline in ("p", "q")
    )
    assert together == alone


def rows(world: World, pipeline: str) -> list[dict[str, Any]]:
    with world.ledger.engine.connect() as connection:
        query = f"select * from logbus.\"window\" where pipeline = '{pipeline}' order by starts_at"
        return [dict(row) for row in connection.exec_driver_sql(query).mappings()]


def test_an_audit_finds_it_exact_before_there_is_a_table_and_after(quiet: World) -> None:
    quiet.freeze(2)
    assert (quiet.audit(2).verdict, quiet.audit(2).notes) == ("exact", ())
    Loading.of(quiet, 1).load()
    assert (quiet.audit(2).verdict, quiet.audit(2).notes) == ("exact", ())


def test_rows_that_should_not_be_there_are_found_by_an_audit_and_gone_after_a_load(quiet: World) -> None:
    quiet.freeze(4)
    Loading.of(quiet, 4).load()  # gives the hour a leaf
    quiet.execute(
        "insert into t (_topic, _partition, _offset, _window_start, _fingerprint) values ('t', 0, 1, '2015-05-17T04:00:00Z', 1)",
        'update logbus."window" set loaded_attempt = 0, values_hash = null',
    )
    assert "accounted for: 1 (+1)" in quiet.audit(4).verdict
    assert (quiet.ledger.window("p", at(4)).needs_load, quiet.ledger.window("p", at(4)).state) == (True, WindowState.LOADED)
    Loading.of(quiet, 4).load()
    assert quiet.audit(4).verdict == "exact"
    assert quiet.ledger.window("p", at(4)).loaded_attempt == 2


def test_what_may_have_lost_records_is_not_proven_empty(quiet: World) -> None:
    for partition in (0, 1):
        quiet.log.delete_records("t", before_offset=1, partition=partition)
    window = quiet.accept_loss(1)
    assert (window.record_count, window.is_proven_empty, window.state) == (0, False, WindowState.FROZEN)


def test_a_checkup_reads_those_windows_alone_that_it_may_have_to_speak_of(quiet: World) -> None:
    """Not those of ten quiet years."""
    freeze_in_bulk(quiet)
    Loading.of(quiet, 1).load()
    assert [window.interval.start.hour for window in quiet.ledger.remarkable_windows("p")] == [1, 8]
