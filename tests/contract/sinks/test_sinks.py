"""What every sink promises, run on each of them: PostgreSQL with a partitioned and a user-owned table, and Iceberg."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from logbus.errors import AttemptSuperseded, EquationMismatch, OtherRecords, PipelineConflict, UserError
from logbus.loads.maintenance import rebuild
from logbus.loads.tally import WITHOUT_CHECKSUM
from logbus.model import FrozenWindow, WindowState
from logbus.parsing import Parser, Unparsable
from logbus.waiting import PATIENCE_SECONDS
from logbus.windows.table_names import SYSTEM_COLUMNS

from tests.support.ledgers import NOW, at
from tests.support.sinks import HOUR_ELEVEN, HOUR_TEN, Bench, audit


def dead_letters(bench: Bench) -> list[tuple[int, int]]:
    return bench.world.rows('select "partition", "offset" from logbus.dead_letter order by 1, 2')


def test_a_load_puts_exactly_the_windows_records_into_the_target(bench: Bench) -> None:
    counts = bench.start(10).load()
    assert (counts.read, counts.loaded, counts.dead_lettered) == (5, 5, 0)
    assert bench.rows() == HOUR_TEN
    assert audit(bench).ok
    bench.start(11).load()
    assert bench.rows() == sorted(HOUR_TEN + HOUR_ELEVEN)


def test_others_know_the_target_by_its_place_and_its_columns(bench: Bench) -> None:
    if bench.kind != "own":
        assert bench.sink.public_table() is None
    bench.start(10).load()
    table = bench.sink.public_table()
    assert table is not None
    assert set(table.columns) == {*SYSTEM_COLUMNS, "line"}
    if bench.is_files:
        place = f"{bench.settings['warehouse'].removeprefix('file://')}/public/t"
        assert (table.namespace, table.name, table.uri) == ("file", place, f"file://{place}")
    else:
        database = bench.world.ledger.engine.url.database
        server, name = table.namespace, f"{database}.public.t"
        assert re.fullmatch(r"postgres://[^/@]+:\d+", server)
        assert (table.name, table.uri) == (name, f"{server}/{name.replace('.', '/')}")


def test_the_rows_of_one_record_are_its_own(bench: Bench) -> None:
    bench.start(10).load()
    window = bench.world.ledger.window("p", at(10))
    (row,) = bench.sink.rows_of(window, 1, 0)
    assert (row["line"], row["_offset"], row["_window_start"]) == ("line 1/0", 0, at(10))
    assert bench.sink.rows_of(window, 1, 2) == []  # of the next hour
    bench.reader.repeat_row(0)
    assert len(bench.sink.rows_of(window, 1, 0)) == 2


def test_a_reload_gives_the_same_rows_and_the_same_fingerprint(bench: Bench) -> None:
    bench.start(10).load()
    bench.start(11).load()
    before = bench.world.ledger.window("p", at(10))
    bench.start(10).load()
    after = bench.world.ledger.window("p", at(10))
    assert bench.rows() == sorted(HOUR_TEN + HOUR_ELEVEN)
    assert (after.loaded_attempt, after.counts, after.fingerprint) == (2, before.counts, before.fingerprint)
    assert audit(bench).ok


def test_several_tasks_make_one_window_and_those_that_lost_do_not_count(bench: Bench) -> None:
    loading = bench.start(10).begin().create()
    loading.run_task(1, [(0, 0), (0, 1)])
    loading.run_task(2, [(0, 2), (1, 0), (1, 1)], wins=False)
    loading.run_task(3, [(0, 2), (1, 0), (1, 1)])
    assert loading.commit().loaded == 5
    assert bench.rows() == HOUR_TEN


def test_a_superseded_attempt_is_refused_and_the_newer_one_stays(bench: Bench) -> None:
    slow = bench.start(10).begin().create().run_task(1)
    bench.start(10).load()
    with pytest.raises(AttemptSuperseded):
        slow.commit()
    assert bench.rows() == HOUR_TEN
    assert bench.world.ledger.window("p", at(10)).loaded_attempt == 2


def test_an_attempt_that_was_sealed_and_then_superseded_is_refused(bench: Bench) -> None:
    slow = bench.start(10).begin().create().run_task(1)
    sealed = slow.seal()
    bench.start(10).load()
    with pytest.raises(AttemptSuperseded):
        slow.sink.commit(sealed, NOW)
    assert bench.rows() == HOUR_TEN
    assert audit(bench).ok


def test_a_driver_that_dies_between_staging_and_commit_leaves_the_target_as_it_was(bench: Bench) -> None:
    bench.start(10).load()
    bench.start(10).begin().create().run_task(1).seal()
    assert bench.rows() == HOUR_TEN
    assert bench.start(10).load().loaded == 5
    assert bench.rows() == HOUR_TEN


@pytest.mark.parametrize(
    "staged", [[(0, 0), (0, 1), (0, 2), (1, 0)], [(0, 0), (0, 1), (0, 1), (1, 0), (1, 1)]], ids=["missing", "twice"]
)
def test_wrong_rows_never_become_public(bench: Bench, staged: list[tuple[int, int]]) -> None:
    bench.start(10).load()
    loading = bench.start(10).begin().create().run_task(1, staged)
    with pytest.raises(EquationMismatch):
        loading.commit()
    assert bench.rows() == HOUR_TEN
    assert bench.world.ledger.window("p", at(10)).loaded_attempt == 1


def test_an_empty_window_is_loaded_and_audited(bench: Bench) -> None:
    counts = bench.start(12).load()
    assert counts.read == 0
    assert bench.rows() == []
    assert audit(bench, 12).ok


def test_what_does_not_parse_is_a_dead_letter_and_the_audit_balances(bench: Bench) -> None:
    counts = bench.start(10, bad=[1]).load()
    assert (counts.loaded, counts.dead_lettered) == (3, 2)
    assert dead_letters(bench) == [(0, 1), (1, 1)]
    assert bench.rows() == [row for row in HOUR_TEN if row[1] != 1]
    assert audit(bench).ok


def test_dead_letters_are_replaced_by_a_load_that_parses_them(bench: Bench) -> None:
    bench.start(10, bad=[1]).load()
    bench.start(10, bad=[1], mended=True).load()
    assert dead_letters(bench) == []
    assert bench.rows() == [(partition, offset, r"\xff" if offset == 1 else line) for partition, offset, line in HOUR_TEN]
    assert audit(bench).ok


def test_a_reload_that_reads_other_records_is_refused_and_the_window_keeps_its_rows(bench: Bench) -> None:
    bench.start(10).load()
    before = bench.world.ledger.window("p", at(10))
    with pytest.raises(OtherRecords, match=r"partition 0: 3 records then, 3 now; partition 1: 2 records then, 2 now"):
        bench.start(10).load(value=b"what a restored log holds there")
    assert bench.rows() == HOUR_TEN
    assert facts(bench.world.ledger.window("p", at(10))) == facts(before)
    assert audit(bench).ok
    bench.start(10).load()
    assert bench.rows() == HOUR_TEN


def facts(window: FrozenWindow) -> tuple[object, ...]:
    return window.loaded_attempt, window.fingerprint, window.counts, window.other_records


def test_other_records_are_taken_where_the_run_accepts_them_and_that_stays_visible_for_ever(bench: Bench) -> None:
    bench.start(10).load()
    before = bench.world.ledger.window("p", at(10))
    bench.start(10, accept_other_records=True).load(value=b"others")
    assert bench.rows() == [(partition, offset, "others") for partition, offset, _ in HOUR_TEN]
    bench.start(10).load(value=b"others")
    after = bench.world.ledger.window("p", at(10))
    (note,) = after.other_records
    assert (note["attempt"], note["run_id"], note["read_before"]) == (2, "test", 5)
    assert (note["fingerprint_before"], note["fingerprint_after"]) == (before.fingerprint, after.fingerprint)
    report = audit(bench)
    assert report.ok
    assert "attempt 2 of run test replaced its records by others" in report.notes[0]


def test_a_run_that_accepts_other_records_and_reads_the_same_leaves_no_trace(bench: Bench) -> None:
    bench.start(10).load()
    bench.start(10, accept_other_records=True).load()
    assert bench.world.ledger.window("p", at(10)).other_records == ()
    assert audit(bench).notes == ()


def test_a_window_of_nothing_but_dead_letters_keeps_them_when_the_records_are_others(bench: Bench) -> None:
    bench.register(max_error_rate=1)
    bench.start(11, bad=[2, 3, 4]).load()
    with pytest.raises(OtherRecords):
        bench.start(11).load()
    assert dead_letters(bench) == [(0, 3), (0, 4), (1, 2)]
    assert audit(bench, 11).ok


def test_records_that_a_filter_leaves_out_are_compared_too(bench: Bench) -> None:
    bench.register(filter={"line": ["line 0/0", "line 0/1"]})
    bench.start(10).load()
    with pytest.raises(OtherRecords):
        bench.start(10, bad=[2]).load()
    assert bench.rows() == HOUR_TEN[:2]


def test_a_compacted_topic_does_not_replace_what_was_loaded_before_it_was_compacted(bench: Bench) -> None:
    bench.register(offset_gaps=True)
    bench.start(10).load()
    with pytest.raises(OtherRecords, match=r"partition 0: 3 records then, 1 now.*--accept-other-records"):
        bench.start(10).begin().create().run_task(1, [(0, 2), (1, 0), (1, 1)]).commit()
    assert bench.rows() == HOUR_TEN


def test_the_audit_finds_a_row_that_was_removed_by_hand(bench: Bench) -> None:
    bench.start(10).load()
    bench.reader.remove_row(2)
    report = audit(bench)
    assert "t-0 [0, 3) holds 3 records, accounted for: 2 (-1)" in report.problems
    bench.start(10).load()
    assert audit(bench).ok


def test_the_audit_finds_a_row_that_was_added_by_hand(bench: Bench) -> None:
    bench.start(10).load()
    bench.reader.repeat_row(2)
    problems = audit(bench).problems
    assert "t-0 [0, 3) holds 3 records, accounted for: 4 (+1)" in problems
    assert any("twice" in problem or "another record" in problem for problem in problems)
    bench.start(10).load()
    assert bench.rows() == HOUR_TEN
    assert bench.world.ledger.window("p", at(10)).state is WindowState.LOADED


def test_the_audit_finds_a_row_whose_values_were_changed_by_hand(bench: Bench) -> None:
    bench.start(10).load()
    bench.start(11).load()
    assert audit(bench).ok
    bench.reader.forge_row(2)
    assert any("forged" in row for row in bench.rows())
    report = audit(bench)
    assert not report.ok
    assert bench.is_files or report.problems == (
        "partition 0: public.t does not hold the values that were loaded, rows were changed",
    )
    bench.start(10).load()
    bench.start(11).load()
    assert audit(bench).ok
    assert audit(bench, 11).ok


def test_the_audit_finds_a_dead_letter_that_was_changed_by_hand(bench: Bench) -> None:
    bench.start(10, bad=[1]).load()
    bench.world.execute("update logbus.dead_letter set value = 'forged' where \"partition\" = 1")
    assert audit(bench).problems == (
        "partition 1: logbus.dead_letter does not hold the values that were loaded, dead letters were changed",
    )


def test_a_window_of_which_a_filter_leaves_records_out_is_witnessed_too(bench: Bench) -> None:
    """Two rows of equal count: neither the offsets nor the count show which records were chosen."""
    bench.register(filter={"line": ["line 0/0", "line 1/1"]})
    bench.start(10).load()
    assert audit(bench).ok
    if bench.is_files:
        return
    bench.world.execute("update t set _offset = 1, _fingerprint = _fingerprint + 5 where _partition = 0")
    problems = audit(bench).problems
    assert any(problem.startswith("t-0 [0, 3): the rows' fingerprint is") for problem in problems)


def test_a_window_without_a_checksum_is_noted_as_such(bench: Bench) -> None:
    bench.start(10).load()
    with bench.world.ledger.engine.begin() as connection:
        connection.exec_driver_sql("""update logbus.window set values_hash = values_hash || '{"table": null, "files": null}'""")
    report = audit(bench)
    assert report.ok
    assert report.notes == WITHOUT_CHECKSUM.notes


ALL_TYPES = {
    "line": "text",
    "small": "integer",
    "large": "bigint",
    "share": "double precision",
    "known": "boolean",
    "happened": "timestamptz",
    "more": "jsonb",
}
FULL = (
    b'{"line": "\xc3\xa9\xf0\x9f\x98\x80", "small": -2147483648, "large": 9223372036854775807, "share": 0.1, "known": true, '
    b'"happened": "2015-05-17T10:05:03.123456+02:00", "more": {"a": [1, null, "x"]}}'
)


def test_values_of_every_type_and_nulls_arrive_as_they_are(bench: Bench) -> None:
    if bench.kind == "own":
        bench.world.execute(
            "alter table t add small integer, add large bigint, add share double precision, add known boolean, "
            "add happened timestamptz, add more jsonb"
        )
    bench.register("json", columns=ALL_TYPES)
    bench.start(10).load(value=FULL)
    bench.start(11).load(value=b"{}")
    *full, more = bench.values(*ALL_TYPES)[0]
    instant = datetime(2015, 5, 17, 8, 5, 3, 123456, tzinfo=UTC)
    assert full == ["\u00e9\U0001f600", -2147483648, 9223372036854775807, 0.1, True, instant]
    assert (json.loads(more) if isinstance(more, str) else more) == {"a": [1, None, "x"]}
    assert bench.values(*ALL_TYPES)[-1] == (None,) * len(ALL_TYPES)
    assert audit(bench).ok


def test_a_pipeline_keeps_its_sink(bench: Bench) -> None:
    other: dict[str, Any] = (
        {"sink": "postgres", "warehouse": None} if bench.is_files else {"sink": "iceberg", "warehouse": "/data"}
    )
    with pytest.raises(PipelineConflict, match=f"sink: .* against {other['sink']}"):
        bench.register(**other)


def test_a_load_under_way_shows_no_reader_anything(bench: Bench) -> None:
    bench.start(11).load()
    loading = bench.start(10).begin().create().run_task(1)
    assert bench.rows() == HOUR_ELEVEN
    sealed = loading.seal()
    assert bench.rows() == HOUR_ELEVEN
    loading.sink.commit(sealed, NOW)
    assert bench.rows() == sorted(HOUR_TEN + HOUR_ELEVEN)


def test_a_reader_sees_all_of_a_window_or_nothing_while_it_is_replaced_again_and_again(bench: Bench) -> None:
    bench.start(10).load()
    readings: list[list[object]] = []
    stop = threading.Event()
    reader = threading.Thread(target=lambda: read_until(bench, stop, readings))
    reader.start()
    for _ in range(3):
        bench.start(10).load()
    stop.set()
    reader.join(PATIENCE_SECONDS)
    assert readings
    assert all(rows == HOUR_TEN for rows in readings)


def read_until(bench: Bench, stop: threading.Event, readings: list[list[object]]) -> None:
    while True:
        readings.append(list(bench.rows()))
        if stop.is_set():
            return


def test_a_column_that_the_parser_has_got_since_is_added_and_older_rows_have_none(bench: Bench) -> None:
    bench.register("json", columns={"line": "text"})
    bench.start(10).load(value=b'{"line": "a", "status": 200}')
    bench.register("json", columns={"line": "text", "status": "integer"})
    if bench.kind == "own":  # never altered by logbus
        with pytest.raises(UserError, match=r'it is yours, so add them: alter table public.t add column "status" integer'):
            bench.start(11).load(value=b'{"line": "b", "status": 404}')
        bench.world.execute("alter table t add column status integer")
    bench.start(11).load(value=b'{"line": "b", "status": 404}')
    assert bench.values("line", "status") == [("a", None)] * 5 + [("b", 404)] * 3
    bench.start(10).load(value=b'{"line": "a", "status": 200}')
    assert bench.values("line", "status") == [("a", 200)] * 5 + [("b", 404)] * 3
    assert audit(bench).ok


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"line": "bigint"}, r"column line of .* is .*: declare the column as it is, or load into another table"),
        ({"Line": "text"}, r"the columns 'line' and 'Line', which differ only in upper and lower case"),
    ],
)
def test_a_column_that_changed_its_type_or_case_is_refused_and_nothing_is_touched(
    columns: dict[str, str], why: str, bench: Bench
) -> None:
    bench.register("json", columns={"line": "text"})
    bench.start(10).load(value=b'{"line": "a"}')
    bench.register("json", columns=columns)
    with pytest.raises(UserError, match=why):
        bench.start(11).load(value=b'{"line": 1}')
    assert bench.values("line") == [("a",)] * 5


ODD_NAMES = (":method", "a :b", "a::b", "a\\:b", "http.method", 'q"x', "100%", "%(x)s", "a?b", "\u00e9 t\u00e9", "select", "XMIN")


def test_a_column_may_have_any_name_that_a_member_of_json_has(bench: Bench) -> None:
    """Declared or added later; loaded, loaded again, counted and compared."""
    row = {name: number for number, name in enumerate(ODD_NAMES)}
    bench.register("json", columns={":method": "bigint"})
    if bench.kind == "own":
        with pytest.raises(UserError, match='it is yours, so add them: alter table .* add column ":method" bigint'):
            bench.start(10).load(json.dumps(row).encode())
        return
    bench.start(10).load(json.dumps(row).encode())
    bench.register("json", columns=dict.fromkeys(ODD_NAMES, "bigint"))
    for _ in range(2):
        bench.start(11).load(json.dumps(row).encode())
    assert audit(bench, 10).ok
    assert audit(bench, 11).ok
    assert bench.values(*ODD_NAMES) == [(0, *[None] * (len(row) - 1))] * len(HOUR_TEN) + [tuple(row.values())] * len(HOUR_ELEVEN)


def careless_lines(settings: Mapping[str, Any]) -> Parser:
    """A user's parser that lets everything through, and the value itself into the reason where it does not."""

    def parse(value: bytes) -> Sequence[Any]:
        if value.endswith(b"1/1"):
            raise Unparsable("odd\0", value.decode() + "\0")
        return (value.decode() + ("\0" if value.endswith(b"0/1") else ""),)

    return Parser(columns={"line": "text"}, parse=parse)


def test_a_nul_in_a_users_own_rows_and_reasons_makes_dead_letters_in_every_sink(bench: Bench) -> None:
    bench.register("tests.contract.sinks.test_sinks:careless_lines", max_error_rate=1.0)
    counts = bench.start(10).load()
    assert (counts.loaded, counts.dead_lettered) == (3, 2)
    assert bench.rows() == [row for row in HOUR_TEN if row[1] != 1]
    assert audit(bench).ok
    wrong, odd = bench.world.rows('select error_class, error from logbus.dead_letter order by "partition"')
    assert wrong[0] == "WrongType"
    assert "line holds a NUL character" in wrong[1]
    assert odd == ("odd\\0", "line 1/1\\0")


@pytest.mark.parametrize("bench", ["partitioned"], indirect=True)
def test_a_ledger_that_lies_beside_its_rows_is_not_rebuilt(bench: Bench) -> None:
    with pytest.raises(UserError, match="one database"):
        rebuild(bench.world.ledger.engine, "p")
