"""Sinks whose rows are files: table and ledger commit separately, and a crash in between loses and duplicates nothing."""

from __future__ import annotations

import itertools
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from logbus.errors import AttemptSuperseded, LoadFailed, OtherRecords, UserError
from logbus.loads.directory import Directory
from logbus.loads.engine import libpq_uri
from logbus.loads.sinks import iceberg
from logbus.loads.sinks.iceberg import IcebergSink
from logbus.loads.sinks.snapshot_entry import LedgerEntry, entry_of, from_json
from logbus.loads.tally import Published
from logbus.model import FrozenWindow, WindowState
from logbus_spark.load_task import load
from pyiceberg.table import Table
from sqlalchemy import event

from tests.support.ledgers import NOW, at
from tests.support.loads import Loading
from tests.support.sinks import HOUR_TEN, Bench, audit, files_of, maintain

pytestmark = pytest.mark.parametrize("bench", ["iceberg"], indirect=True)


class Killed(BaseException):
    """No cleanup code catches it, as with kill -9."""


def die_after_publishing(monkeypatch: pytest.MonkeyPatch, sink: IcebergSink) -> None:
    publish = type(sink).publish

    def publish_and_die(*arguments: Any) -> None:
        publish(*arguments)
        raise Killed

    monkeypatch.setattr(type(sink), "publish", publish_and_die)


def crash_between_the_commits(bench: Bench, monkeypatch: pytest.MonkeyPatch, loading: Loading) -> None:
    with monkeypatch.context() as patch:
        die_after_publishing(patch, loading.file_sink)
        with pytest.raises(Killed):
            loading.commit()


def test_after_a_crash_between_the_commits_the_table_is_whole_and_the_ledger_is_brought_up_by_the_next_attempt(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading = bench.start(10).begin().create().run_task(1)
    crash_between_the_commits(bench, monkeypatch, loading)
    assert bench.rows() == HOUR_TEN
    assert bench.world.ledger.window("p", at(10)).state is not WindowState.LOADED
    bench.start(10).begin().create()  # and no further
    window = bench.world.ledger.window("p", at(10))
    assert (window.loaded_attempt, window.counts and window.counts.read) == (1, 5)
    assert audit(bench).ok


def test_an_attempt_that_comes_after_a_newer_one_is_superseded_and_not_told_that_the_ledger_is_lost(bench: Bench) -> None:
    older = bench.start(10).begin()
    bench.start(10).load()
    assert older.sink.create_staging([older.attempt]) == ([], [older.attempt])


def test_an_attempt_that_is_overtaken_after_it_looked_at_the_table_leaves_the_ledger_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.start(10).load()
    older = bench.start(10).begin()
    look, newer = iceberg.newest_entries, iter([bench.start(10)])

    def look_and_be_overtaken(table: Table) -> dict[datetime, LedgerEntry]:
        entries = look(table)
        for loading in newer:
            loading.load()
        return entries

    monkeypatch.setattr(iceberg, "newest_entries", look_and_be_overtaken)
    assert older.sink.create_staging([older.attempt]) == ([], [older.attempt])
    assert bench.world.ledger.window("p", at(10)).loaded_attempt == 3
    assert audit(bench).ok


def test_after_a_crash_between_the_commits_a_rerun_replaces_the_rows(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    crash_between_the_commits(bench, monkeypatch, bench.start(10).begin().create().run_task(1))
    bench.start(10).load()
    assert bench.rows() == HOUR_TEN
    assert bench.world.ledger.window("p", at(10)).loaded_attempt == 2
    assert audit(bench).ok


def test_a_load_whose_dead_letters_went_with_a_crash_does_not_count_as_loaded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash_between_the_commits(bench, monkeypatch, bench.start(10, bad=[1]).begin().create().run_task(1))
    bench.start(10).begin().create()
    assert bench.world.ledger.window("p", at(10)).loaded_attempt is None
    bench.start(10, bad=[1]).load()
    assert audit(bench).ok


def test_a_reload_that_crashed_between_the_commits_is_found_whole(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.start(10).load()
    crash_between_the_commits(bench, monkeypatch, bench.start(10).begin().create().run_task(1))
    assert bench.rows() == HOUR_TEN
    assert bench.world.ledger.window("p", at(10)).loaded_attempt == 1
    bench.start(10).begin().create()
    assert bench.world.ledger.window("p", at(10)).loaded_attempt == 2


@pytest.mark.parametrize("nth", [1, 2], ids=["first", "second"])  # Iceberg's own catalog commits first
def test_a_database_whose_connection_dies_at_a_commit_is_written_again(bench: Bench, nth: int) -> None:
    loading = bench.start(10, bad=[1]).begin().create().run_task(1)
    sealed = loading.seal()
    commits = itertools.count(1)

    @event.listens_for(bench.world.ledger.engine, "commit")
    def kill_the_backend(connection: Any) -> None:
        if next(commits) != nth:
            return
        pid = connection.connection.dbapi_connection.info.backend_pid
        with psycopg.connect(libpq_uri(bench.url), autocommit=True) as other:
            other.execute("select pg_terminate_backend(%s, 5000)", [pid])

    assert loading.sink.commit(sealed, NOW).loaded == 3
    event.remove(bench.world.ledger.engine, "commit", kill_the_backend)
    assert bench.world.ledger.window("p", at(10)).loaded_attempt == 1
    assert audit(bench).ok


def test_the_tables_own_fence_refuses_an_attempt_that_lost_the_ledgers(bench: Bench) -> None:
    """Its connection died, a newer attempt has since loaded the window, and it goes on to publish."""
    slow = bench.start(10).begin().create().run_task(1)
    entry = entry_of(slow.seal(), NOW, Published())
    bench.start(10).load()
    with pytest.raises(AttemptSuperseded):
        slow.file_sink.publish(entry, slow.reads.files[slow.window.id], None)
    assert bench.world.ledger.window("p", at(10)).loaded_attempt == 2
    assert audit(bench).ok


def test_publishing_again_changes_nothing(bench: Bench) -> None:
    loading = bench.start(10).begin().create().run_task(1)
    entry = entry_of(loading.seal(), NOW, Published())
    for _ in range(2):
        loading.file_sink.publish(entry, loading.reads.files[loading.window.id], None)
    assert bench.rows() == HOUR_TEN


def test_a_table_that_knows_more_attempts_than_the_ledger_refuses_a_load_and_names_the_way_out(bench: Bench) -> None:
    for _ in range(3):
        bench.start(10).load()
    restore_the_ledger_to_the_first_load(bench)
    with pytest.raises(UserError, match="logbus ledger rebuild --pipeline p"):
        bench.start(10).begin().create()
    assert bench.rows() == HOUR_TEN


def restore_the_ledger_to_the_first_load(bench: Bench) -> None:
    """As from yesterday's backup."""
    bench.world.execute(
        "update logbus.window set last_attempt = 1, loaded_attempt = 1", "delete from logbus.attempt where number > 1"
    )


@pytest.mark.parametrize("bad", [[], [1]], ids=["rows", "dead letters"])
def test_an_entry_of_the_same_number_from_before_a_restore_is_not_taken_for_the_new_attempt(bench: Bench, bad: list[int]) -> None:
    bench.start(10, bad=bad).load()
    bench.start(10, bad=bad).load()
    restore_the_ledger_to_the_first_load(bench)
    again = bench.start(10, bad=bad)
    again.load()
    entry = again.file_sink.public_entry(at(10))
    assert entry is not None
    assert (entry.attempt, entry.key) == (2, again.attempt.key)
    assert bench.world.ledger.window("p", at(10)).loaded_attempt == 2
    assert audit(bench).ok


def test_files_that_a_restored_ledger_knows_nothing_of_are_not_called_exact(bench: Bench) -> None:
    bench.start(10).load()
    bench.start(10).load()
    other = "jsonb_set(values_hash, '{files}', jsonb_build_object('w1_a1', '1'))"  # of the first load
    bench.world.execute(f"update logbus.window set values_hash = {other}")
    restore_the_ledger_to_the_first_load(bench)
    assert "does not name w1_a1 any more" in audit(bench).problems[0]


def test_other_records_do_not_replace_those_of_a_load_that_only_the_table_knows(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver died between the commits, and its dead letters with it, so the ledger does not take the load over."""
    crash_between_the_commits(bench, monkeypatch, bench.start(10, bad=[1]).begin().create().run_task(1))
    with pytest.raises(OtherRecords, match="attempt 1 loaded"):
        bench.start(10).load()
    assert [row[:2] for row in bench.rows()] == [(0, 0), (0, 2), (1, 0)]
    bench.start(10, bad=[1]).load()
    assert audit(bench).ok


def test_a_file_that_is_gone_or_was_changed_is_named_by_the_audit(bench: Bench) -> None:
    bench.start(10).load()
    bench.start(11).load()
    (changed, removed) = (Path(file.path) for file in files_of(bench))
    content = bytearray(changed.read_bytes())
    content[-9] ^= 1  # in the footer's length: no column reader would get that far
    changed.write_bytes(content)
    removed.unlink()
    assert f"{changed.name} does not hold what was loaded" in " ".join(bench.sink.compare_values(window(bench, 10)).problems)
    problems = audit(bench, 11).problems
    assert any(f"{removed.name} is gone" in problem for problem in problems)
    bench.start(11).load()
    assert audit(bench, 11).ok


def window(bench: Bench, hour: int) -> FrozenWindow:
    return bench.world.ledger.window("p", at(hour))


def test_files_of_a_task_that_fails_are_removed(bench: Bench) -> None:
    loading = bench.start(10).begin().create()

    def broken() -> Any:
        yield from loading.chunks([(0, 0), (0, 1)])
        raise LoadFailed("the broker went away")

    with pytest.raises(LoadFailed, match="went away"):
        load(broken(), loading.job(), 1)
    assert files_of(bench) == []


def test_files_of_attempts_that_never_published_go_with_the_next_commit(bench: Bench) -> None:
    bench.start(10).begin().create().run_task(1)
    bench.start(10).begin().create().run_task(1).seal()
    assert len(files_of(bench)) == 2
    bench.start(10).load()
    assert [file.number for file in files_of(bench)] == [3]
    assert bench.rows() == HOUR_TEN


def test_a_leftover_that_cannot_be_removed_fails_no_load(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(directory: Directory, path: str) -> None:
        raise PermissionError(path)

    bench.start(10).begin().create().run_task(1)
    monkeypatch.setattr(Directory, "remove", refuse)
    assert bench.start(10).load().loaded == 5
    assert bench.world.ledger.window("p", at(10)).loaded_attempt == 2
    with pytest.raises(LoadFailed, match="does not add up"):
        bench.start(10).begin().create().run_task(1, [(0, 0)]).commit()
    assert bench.rows() == HOUR_TEN


def test_files_of_a_load_that_does_not_add_up_are_removed(bench: Bench) -> None:
    with pytest.raises(LoadFailed, match="does not add up"):
        bench.start(10).begin().create().run_task(1, [(0, 0)]).commit()
    assert files_of(bench) == []


def test_upkeep_removes_old_files_that_nobody_needs_and_no_others(bench: Bench) -> None:
    bench.start(10).load()
    bench.start(10).load()
    bench.start(11).begin().create().run_task(1)
    bench.start(11).begin().create().run_task(1)
    assert maintain(bench, hours=23) == []
    done = maintain(bench, hours=25)
    kept = sorted((file.start.hour, file.number) for file in files_of(bench))
    # An older snapshot can still be read.
    assert (kept, done) == ([(10, 1), (10, 2), (11, 2)], ["1 files removed that are not public (any more)"])
    assert bench.rows() == HOUR_TEN


def test_an_entry_is_read_as_it_was_written(bench: Bench) -> None:
    loading = bench.start(10, bad=[0]).begin().create().run_task(1)
    entry = entry_of(loading.seal(), NOW, Published())
    assert from_json(entry.to_json()) == entry


def test_a_directory_that_cannot_be_made_is_named(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    place = f"{tmp_path}/taken/below"
    bench.register(warehouse=f"file://{place}")
    with pytest.raises(UserError, match="taken"):
        bench.start(10).load()
