"""A lost ledger is rebuilt from the table alone, and the pipeline continues as if nothing had happened."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from logbus.cli import main
from logbus.errors import OtherRecords
from logbus.loads.completeness import StampedHours, stamped_hours
from logbus.loads.maintenance import rebuild
from logbus.model import FrozenWindow, WindowState

from tests.support.ledgers import at, hour
from tests.support.sinks import HOUR_ELEVEN, HOUR_TEN, Bench, audit

pytestmark = pytest.mark.parametrize("bench", ["iceberg"], indirect=True)


def lose_the_ledger(bench: Bench) -> None:
    bench.world.execute("drop schema logbus cascade")
    bench.register()


def facts(window: FrozenWindow) -> tuple[object, ...]:
    counted = (window.loaded_attempt, window.counts, window.fingerprint, window.values_hash, window.other_records)
    return window.interval, window.ranges, window.topic_id, *counted


def test_windows_are_made_again_as_they_were_and_the_audit_is_exact(bench: Bench) -> None:
    bench.start(9).load()
    bench.start(10).load()
    bench.start(10).load()
    bench.start(11).load()
    before = [facts(window) for window in bench.world.ledger.windows("p")]
    lose_the_ledger(bench)
    done = rebuild(bench.world.ledger.engine, "p")
    assert (done.rebuilt, done.refused, done.without_dead_letters) == ([hour(9), hour(10), hour(11)], [], [])
    assert [facts(window) for window in bench.world.ledger.windows("p")] == before
    assert audit(bench).ok
    assert bench.world.ledger.window("p", at(10)).state is WindowState.AUDITED


def test_that_records_were_replaced_by_others_is_not_forgotten_with_the_ledger(bench: Bench) -> None:
    bench.start(10).load()
    bench.start(10, accept_other_records=True).load(value=b"others")
    bench.start(10).load(value=b"others")
    lose_the_ledger(bench)
    rebuild(bench.world.ledger.engine, "p")
    (note,) = bench.world.ledger.window("p", at(10)).other_records
    assert (note["attempt_before"], note["attempt"]) == (1, 2)
    assert "replaced its records by others" in audit(bench).notes[0]
    with pytest.raises(OtherRecords):
        bench.start(10).load()


def test_the_hours_that_records_are_stamped_with_ride_in_the_tables_own_commit(bench: Bench) -> None:
    for number in (10, 11):
        bench.start(number).load()
    before = [stamped(bench, window) for window in bench.world.ledger.windows("p")]
    lose_the_ledger(bench)
    rebuild(bench.world.ledger.engine, "p")
    assert [stamped(bench, window) for window in bench.world.ledger.windows("p")] == before
    assert [found.own for found in before if found] == [len(HOUR_TEN), len(HOUR_ELEVEN)]


def stamped(bench: Bench, window: FrozenWindow) -> StampedHours | None:
    with bench.world.ledger.engine.connect() as connection:
        return stamped_hours(connection, window)


def test_a_rebuilt_pipeline_goes_on_where_it_was(bench: Bench) -> None:
    bench.start(10).load()
    bench.start(10).load()
    lose_the_ledger(bench)
    rebuild(bench.world.ledger.engine, "p")
    bench.start(10).load()
    bench.start(11).load()
    assert bench.world.ledger.window("p", at(10)).loaded_attempt == 3
    assert bench.rows() == sorted(HOUR_TEN + HOUR_ELEVEN)
    assert bench.world.offsets(11) == (3, 5)


def test_windows_whose_records_retention_has_taken_since_are_made_again_too(bench: Bench) -> None:
    bench.start(10).load()
    bench.world.log.delete_records("t", before_offset=4, partition=0)
    bench.world.log.delete_records("t", before_offset=2, partition=1)
    lose_the_ledger(bench)
    assert rebuild(bench.world.ledger.engine, "p").rebuilt == [hour(10)]
    report = audit(bench)
    assert report.ok
    assert "no longer replayable" in report.notes[0]


def test_windows_that_had_dead_letters_are_named(bench: Bench) -> None:
    bench.start(10, bad=[1]).load()
    lose_the_ledger(bench)
    assert rebuild(bench.world.ledger.engine, "p").without_dead_letters == [hour(10)]
    assert "0 dead letters kept, written: 2 (-2)" in audit(bench).problems
    bench.start(10, bad=[1]).load()
    assert audit(bench).ok


def test_a_window_that_the_ledger_has_frozen_otherwise_since_is_named_and_left(bench: Bench) -> None:
    bench.start(10).load()
    lose_the_ledger(bench)
    bench.world.freeze(10)
    bench.world.execute('update logbus.window_range set end_offset = end_offset - 1 where "partition" = 0')
    done = rebuild(bench.world.ledger.engine, "p")
    assert done.rebuilt == []
    assert "load the window again" in done.refused[0]


def test_rebuilding_again_changes_nothing(bench: Bench) -> None:
    bench.start(10).load()
    lose_the_ledger(bench)
    rebuild(bench.world.ledger.engine, "p")
    done = rebuild(bench.world.ledger.engine, "p")
    assert (done.rebuilt, done.unchanged) == ([], [hour(10)])


def test_the_command_says_what_it_did(bench: Bench) -> None:
    bench.start(10, bad=[1]).load()
    lose_the_ledger(bench)
    result = CliRunner().invoke(main, ["ledger", "rebuild", "--pipeline", "p", "--warehouse", bench.url])
    assert result.exit_code == 0, result.output
    assert "1 window rebuilt, 0 in the ledger already" in result.output
    assert "2015-05-17T10:00:00Z had dead letters, which were lost with the ledger: load it again" in result.output
    again = CliRunner().invoke(main, ["ledger", "rebuild", "--pipeline", "p", "--warehouse", bench.url, "-o", "json"])
    known = {"rebuilt": [], "unchanged": ["2015-05-17T10:00:00Z"], "without_dead_letters": [], "refused": []}
    assert json.loads(again.stdout) == known
