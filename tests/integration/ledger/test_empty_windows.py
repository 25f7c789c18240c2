"""Windows without records, loaded thousands at a time: the ledger ends up as if each had been loaded alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from logbus.errors import AttemptSuperseded
from logbus.model import WindowState
from logbus.proof.audit import audit_window
from logbus.warehouse import empty_windows
from logbus.warehouse.sinks import sink_for

from tests.support.ledgers import NOW, World, at, stamps
from tests.support.loads import Loading
from tests.support.quiet_hours import EMPTY, TABLES, execute, hours, loaded_together, rows, windows


@pytest.mark.parametrize("table", TABLES)
def test_the_ledger_is_the_same_as_if_each_had_been_loaded_alone(quiet: World, table: str) -> None:
    Loading.of(quiet, 2).load()
    audit_window(quiet.ledger.engine, quiet.log, "p", at(2), NOW, sink_for)
    assert hours(loaded_together(quiet, 3)) == [3]
    assert rows(quiet, table, 3) == rows(quiet, table, 2)


def test_they_are_loaded_and_audited_and_an_audit_alone_finds_the_same(quiet: World) -> None:
    reports = loaded_together(quiet)
    assert hours(reports) == list(EMPTY)
    assert {report.verdict for report in reports} == {"exact"}
    assert {window.state for window in windows(quiet)} == {WindowState.AUDITED}
    alone = audit_window(quiet.ledger.engine, quiet.log, "p", at(4), NOW, sink_for)
    assert (alone.ok, alone.notes) == (True, ())


def test_many_transactions_give_what_one_gives(quiet: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(empty_windows, "WINDOWS_PER_TRANSACTION", 4)
    assert hours(loaded_together(quiet)) == list(EMPTY)


def test_a_window_with_records_is_never_among_them(quiet: World) -> None:
    assert hours(loaded_together(quiet, 1, 2, 8)) == [2]
    assert quiet.ledger.window("p", at(8)).state is WindowState.FROZEN


def test_loaded_again_they_get_the_next_attempt(quiet: World) -> None:
    loaded_together(quiet)
    assert hours(loaded_together(quiet)) == list(EMPTY)
    assert {window.loaded_attempt for window in windows(quiet)} == {2}


def test_an_attempt_that_began_before_is_superseded_and_cannot_commit(quiet: World) -> None:
    older = Loading.of(quiet, 3).begin().create()
    assert hours(loaded_together(quiet, 3)) == [3]
    with pytest.raises(AttemptSuperseded):
        older.commit()
    assert quiet.ledger.window("p", at(3)).loaded_attempt == 2
    left = quiet.one("select count(*) from pg_tables where schemaname = 'logbus_staging'")
    assert left == 0


MINE = "pipeline = 'p' and starts_at = '2015-05-17T04:00:00Z'"
ID = f'(select id from logbus."window" where {MINE})'
STRANGE_ROW = """
    insert into t (_topic, _partition, _offset, _window_start, _fingerprint) values ('t', 0, 1, '2015-05-17T04:00:00Z', 1)
"""


def with_a_strange_row(world: World) -> None:
    Loading.of(world, 4).load()  # gives the hour a leaf
    execute(world, STRANGE_ROW)


def with_a_record_of_its_hour_elsewhere(world: World) -> None:
    Loading.of(world, 1).load()
    execute(world, "update logbus.window_hour set hour = '2015-05-17T04:00:00Z'")


UNUSUAL: dict[str, Callable[[World], None]] = {
    "a loss": lambda world: execute(world, f'update logbus."window" set head_unknown = true where {MINE}'),
    "a loss that was accepted": lambda world: execute(
        world, f"""update logbus."window" set loss_accepted = '{{"by": "me"}}' where {MINE}"""
    ),
    "lost offsets": lambda world: execute(world, f"update logbus.window_range set lost = 1 where window_id = {ID}"),
    "a dead letter": lambda world: execute(
        world,
        'insert into logbus.dead_letter (topic, "partition", "offset", window_id, error_class, error, attempt, fingerprint) '
        f"values ('t', 0, 1, {ID}, 'e', 'e', 1, 1)",
    ),
    "rows in the target": with_a_strange_row,
    "records of its hour in another window": with_a_record_of_its_hour_elsewhere,
}


@pytest.mark.parametrize("what", list(UNUSUAL))
def test_what_is_unusual_is_left_to_a_load_of_its_own(quiet: World, what: str) -> None:
    UNUSUAL[what](quiet)
    before = quiet.ledger.window("p", at(4))
    assert 4 not in hours(loaded_together(quiet))
    assert quiet.ledger.window("p", at(4)) == before
    assert quiet.ledger.window("p", at(5)).state is WindowState.AUDITED


def test_nothing_is_loaded_from_another_log(quiet: World) -> None:
    """The log was restored from before hour 1's record and has grown past it."""
    for partition in (0, 1):
        quiet.log.cut("t", 0, partition)
        quiet.log.append("t", *stamps(1.3, 8.2), partition=partition)
    assert loaded_together(quiet) == []
    assert {window.state for window in windows(quiet)} == {WindowState.FROZEN}


def test_what_changes_between_commit_and_audit_is_not_called_exact(quiet: World) -> None:
    """Rows inserted by hand: the audit counts again and does not rely on the commit's counts."""
    Loading.of(quiet, 4).load()

    def add_a_row(question: str) -> None:
        if quiet.ledger.window("p", at(4)).loaded_attempt == 2:
            quiet.log.interrupt = lambda question: None
            execute(quiet, STRANGE_ROW)

    quiet.log.interrupt = add_a_row
    assert 4 not in hours(loaded_together(quiet))
    assert quiet.ledger.window("p", at(4)).state is WindowState.LOADED
    assert "accounted for: 1 (+1)" in audit_window(quiet.ledger.engine, quiet.log, "p", at(4), NOW, sink_for).verdict


def test_what_is_loaded_again_before_the_audit_is_for_that_load_to_audit(quiet: World) -> None:
    def load_again(question: str) -> None:
        if quiet.ledger.window("p", at(4)).loaded_attempt == 1:
            quiet.log.interrupt = lambda question: None
            Loading.of(quiet, 4).load()

    quiet.log.interrupt = load_again
    assert hours(loaded_together(quiet)) == [number for number in EMPTY if number != 4]
    assert quiet.ledger.window("p", at(4)).audited_at is None


@pytest.mark.parametrize("sink", ["parquet"])
def test_another_sinks_windows_are_loaded_one_by_one(world: World, tmp_path: Any, sink: str) -> None:
    """Each carries its ledger entry, from which a lost ledger is rebuilt."""
    world.fill(1.2, 8.2, settings={"sink": sink, "directory": str(tmp_path)})
    for number in (1, 2, 8):
        world.freeze(number)
    assert loaded_together(world, 2) == []


def test_a_checkup_reads_those_windows_alone_that_it_may_have_to_speak_of(quiet: World) -> None:
    """Not those of ten quiet years."""
    loaded_together(quiet, *range(2, 7))
    Loading.of(quiet, 1).load()
    assert [window.interval.start.hour for window in quiet.ledger.remarkable_windows("p")] == [1, 7, 8]
