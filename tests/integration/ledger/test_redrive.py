"""Dead letters parsed again into the same windows, in a real PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from logbus.errors import EquationMismatch, LoadFailed, UserError, WindowUnknown
from logbus.loads import dead_letters
from logbus.loads.dead_letters import Selection
from logbus.loads.redrive import Redrive, windows_to_redrive
from logbus.parsing import Filtered, Parser, Unparsable, parser_for
from logbus.waiting import PATIENCE_SECONDS

from tests.support.commands import Run
from tests.support.ledgers import NOW, World, at, stamps
from tests.support.loads import Loading

BAD_OFFSETS = frozenset({1, 3})


class Mended:
    """The parser `lines`, fixed: bytes that are not text become text too."""

    columns: Mapping[str, str] = {"line": "text"}
    of_no_value = None
    quick = None
    decoders = None

    def parse(self, value: bytes | None) -> Sequence[Any]:
        return (repr(value),)


class Answering(Mended):
    """Its values become these, one after the other; an error is raised."""

    def __init__(self, *answers: str | Exception) -> None:
        self.answers = iter(answers)

    def parse(self, value: bytes | None) -> Sequence[Any]:
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        return (answer,)


@pytest.fixture
def loaded(world: World) -> World:
    """Hour 10: six records in two partitions, three of them dead letters."""
    world.log.fill("t", stamps(10, 10.2, 10.4, 10.5), stamps(10.1, 10.3))
    world.register()
    Loading.of(world, 10, bad_offsets=BAD_OFFSETS).load()
    return world


def parser_of(world: World) -> Parser:
    pipeline = world.ledger.pipeline("p")
    return parser_for(pipeline.parse, pipeline.settings)


def redrive(world: World, parser: Parser | Mended | None = None) -> Redrive:
    pipeline = world.ledger.pipeline("p")
    parser = parser or parser_of(world)
    return Redrive(engine=world.ledger.engine, pipeline=pipeline, parser=parser, run_id="mend", now=lambda: NOW)


def test_dead_letters_that_parse_now_become_rows_of_the_same_window_and_the_audit_balances(loaded: World) -> None:
    before = loaded.ledger.window("p", at(10))
    outcome = redrive(loaded, Mended()).run(before)
    assert (outcome.tried, outcome.loaded, outcome.dead_lettered) == (3, 3, 0)
    assert loaded.rows("select _partition, _offset, line from t where line like 'b%' order by 1, 2") == [
        *((0, 1, "b'\\xff'"), (0, 3, "b'\\xff'"), (1, 1, "b'\\xff'")),
    ]
    (row,) = loaded.rows("select _topic, _timestamp, _key, _window_start from t where _partition = 1 and _offset = 1")
    assert row == ("t", at(10.3), b"key", at(10))
    assert loaded.rows("select count(*) from logbus.dead_letter") == [(0,)]
    after = loaded.ledger.window("p", at(10))
    assert (after.counts.loaded, after.counts.dead_lettered) == (6, 0)  # type: ignore[union-attr]
    assert (after.fingerprint, after.loaded_attempt) == (before.fingerprint, before.loaded_attempt)
    assert loaded.audit().problems == ()


def test_those_that_still_do_not_parse_stay_with_the_reason_they_have_now(loaded: World) -> None:
    half = Answering("fine", Unparsable("Stubborn", "does not parse on a Tuesday"), "fine")
    outcome = redrive(loaded, half).run(loaded.ledger.window("p", at(10)))
    assert (outcome.tried, outcome.loaded, outcome.errors) == (3, 2, {"Stubborn": 1})
    kept = loaded.rows('select "partition", "offset", value, error_class, error from logbus.dead_letter')
    assert kept == [(0, 3, b"\xff", "Stubborn", "does not parse on a Tuesday")]
    assert loaded.audit().problems == ()


def test_a_value_that_the_parser_leaves_out_now_is_counted_as_filtered(loaded: World) -> None:
    redrive(loaded, Answering(*[Filtered()] * 3)).run(loaded.ledger.window("p", at(10)))
    counts = loaded.ledger.window("p", at(10)).counts
    assert counts is not None
    assert (counts.read, counts.loaded, counts.dead_lettered, counts.filtered) == (6, 3, 0, 3)
    assert loaded.audit().problems == ()


def test_a_redrive_with_the_same_parser_moves_nothing_and_leaves_the_audit_as_it_was(loaded: World) -> None:
    assert loaded.audit().problems == ()
    outcome = redrive(loaded).run(loaded.ledger.window("p", at(10)))
    assert (outcome.tried, outcome.loaded, outcome.errors) == (3, 0, {"NotUtf8": 3})
    assert loaded.ledger.window("p", at(10)).audited_at is not None


def test_a_redrive_that_moved_rows_is_on_record_asks_for_a_new_audit_and_leaves_nothing_to_do(loaded: World) -> None:
    assert loaded.audit().problems == ()
    redrive(loaded, Mended()).run(loaded.ledger.window("p", at(10)))
    assert loaded.ledger.window("p", at(10)).audited_at is None
    counts = "attempt, run_id, tried_count, loaded_count, dead_lettered_count"
    assert loaded.rows(f"select {counts} from logbus.redrive") == [(1, "mend", 3, 3, 0)]
    assert redrive(loaded, Mended()).run(loaded.ledger.window("p", at(10))).tried == 0
    assert windows_to_redrive(loaded.ledger.engine, loaded.ledger.pipeline("p")) == []
    assert loaded.audit().problems == ()


def test_a_new_column_of_the_parser_is_added_and_filled(loaded: World) -> None:
    class Wider:
        columns: Mapping[str, str] = {"line": "text", "size": "integer", "seen": "jsonb", "at": "timestamptz"}
        quick = None
        decoders = None

        def parse(self, value: bytes | None) -> Sequence[Any]:
            return (None, len(value or b""), '{"ok": true}', at(3))

    redrive(loaded, Wider()).run(loaded.ledger.window("p", at(10)))
    assert loaded.rows('select size, seen, "at" from t where size is not null group by 1, 2, 3') == [(1, {"ok": True}, at(3))]
    assert loaded.audit().problems == ()


def test_what_a_load_would_refuse_stays_a_dead_letter(loaded: World) -> None:
    outcome = redrive(loaded, Answering("fine", "a\0b", Unparsable("odd\0", "\0"))).run(loaded.ledger.window("p", at(10)))
    assert (outcome.loaded, outcome.errors) == (1, {"WrongType": 1, "odd\\0": 1})
    kept = loaded.rows('select error_class, error from logbus.dead_letter order by "partition", "offset"')
    assert [kind for kind, _ in kept] == ["WrongType", "odd\\0"]
    assert "line holds a NUL character" in kept[0][1]
    assert loaded.audit().problems == ()


NAIVE = datetime(2015, 5, 17, 10)

# By the record's value: a column's type, and what an own parser returns for that column though it is not quite of the type.
LOOSE = {
    b"naive": ("timestamptz", NAIVE),
    b"whole": ("integer", 2.0),
    b"exact": ("integer", Decimal(3)),
    b"bytes": ("text", b"x"),
}
WRONG = {
    b"truth": ("integer", True),
    b"fraction": ("integer", 1.5),
    b"epoch": ("timestamptz", 1_431_856_800),
    b"number": ("text", 5),
    b"short": ("integer", None),
}


def loose(settings: Mapping[str, Any]) -> Parser:
    """A value fills the column of its own type. With the setting `bad`, nothing parses."""

    def parse(value: bytes) -> Sequence[Any]:
        if settings.get("bad"):
            raise Unparsable("Bad", "not yet")
        kind, found = {**LOOSE, **WRONG}[value]
        row = [found if kind == column else None for column in columns.values()]
        return row[:-1] if value == b"short" else row

    columns = {"at": "timestamptz", "n": "integer", "s": "text"}
    return Parser(columns=columns, parse=parse)


class Loose(Loading):
    def value(self, partition: int, offset: int) -> bytes:
        return [*LOOSE, *WRONG][offset]


def test_a_redrive_stores_the_values_that_a_load_stores(world: World) -> None:
    world.log.append("t", *stamps(*(10 + number / 10 for number in range(len(LOOSE) + len(WRONG)))))
    parse, all_may_fail = f"{__name__}:loose", {"max_error_rate": 1}
    world.execute(f"alter database {world.ledger.engine.url.database} set timezone = 'Europe/Berlin'")
    world.ledger.engine.dispose()
    world.register(parse=parse, settings=all_may_fail)
    Loose.of(world, 10).load()
    query = 'select _offset, "at", n, s from t order by 1'
    dead = 'select "offset", error_class, error from logbus.dead_letter order by 1'
    stored = (world.rows(query), world.rows(dead))
    assert [row[1:] for row in stored[0]] == [
        *((NAIVE.replace(tzinfo=UTC), None, None), (None, 2, None), (None, 3, None), (None, None, "x"))
    ]
    assert [row[1] for row in stored[1]] == ["WrongType"] * len(WRONG)
    world.register(parse=parse, settings={**all_may_fail, "bad": True})
    Loose.of(world, 10).load()
    assert world.rows(query) == []
    redrive(world, parser_for(parse, {})).run(world.ledger.window("p", at(10)))
    assert (world.rows(query), world.rows(dead)) == stored


def test_a_value_that_the_table_refuses_takes_the_whole_redrive_back(loaded: World) -> None:
    loaded.execute("alter table t add check (line <> 'refused')")
    with pytest.raises(LoadFailed, match="run the redrive again"):
        redrive(loaded, Answering("fine", "fine", "refused")).run(loaded.ledger.window("p", at(10)))
    assert loaded.rows("select count(*) from logbus.dead_letter") == [(3,)]
    assert loaded.audit().problems == ()


def test_a_redrive_into_an_hour_whose_leaf_is_detached_says_what_to_do(world: World) -> None:
    world.fill(10, 10.2, settings={"max_error_rate": 1})
    Loading.of(world, 10, bad_offsets=frozenset({0, 1})).load()
    world.execute("alter table t detach partition logbus_leaf.t_201505171000")
    with pytest.raises(LoadFailed, match=r"logbus_leaf\.t_201505171000 is detached\. Attach it again"):
        redrive(world, Mended()).run(world.ledger.window("p", at(10)))


def test_a_window_that_is_not_exact_is_not_redriven(loaded: World) -> None:
    loaded.execute("delete from t where _partition = 0 and _offset = 0")
    with pytest.raises(EquationMismatch, match="does not add up"):
        redrive(loaded, Mended()).run(loaded.ledger.window("p", at(10)))
    assert loaded.rows("select count(*) from logbus.dead_letter") == [(3,)]


@pytest.mark.parametrize(
    "forgery",
    ["update t set line = 'forged' where _partition = 0 and _offset = 0", "update logbus.dead_letter set value = 'forged'"],
    ids=["a row", "a dead letter"],
)
def test_a_redrive_does_not_make_a_changed_value_look_like_a_loaded_one(loaded: World, forgery: str) -> None:
    loaded.execute(forgery)
    with pytest.raises(EquationMismatch, match="does not hold the values that were loaded.*Load it again"):
        redrive(loaded, Mended()).run(loaded.ledger.window("p", at(10)))
    assert loaded.rows("select count(*) from logbus.dead_letter") == [(3,)]
    assert loaded.audit().problems != ()


def test_a_row_that_is_changed_after_a_redrive_is_found(loaded: World) -> None:
    redrive(loaded, Mended()).run(loaded.ledger.window("p", at(10)))
    assert loaded.audit().problems == ()
    loaded.execute("update t set line = 'forged' where _partition = 1 and _offset = 1")  # formerly a dead letter
    assert loaded.audit().problems == ("partition 1: public.t does not hold the values that were loaded, rows were changed",)


def test_a_window_that_is_not_loaded_has_nothing_to_redrive(loaded: World) -> None:
    loaded.log.append("t", *stamps(11.5))
    with pytest.raises(WindowUnknown, match="is not loaded"):
        redrive(loaded, Mended()).run(loaded.freeze(11))


def test_a_sink_of_files_says_to_load_the_window_again(world: World, tmp_path: Path) -> None:
    world.fill(10, 10.5, settings={"sink": "iceberg", "warehouse": str(tmp_path)})
    Loading.of(world, 10, bad_offsets=frozenset({1})).load()
    with pytest.raises(UserError, match="load the windows again"):
        redrive(world, Mended()).run(world.ledger.window("p", at(10)))
    assert world.rows("select count(*) from logbus.dead_letter") == [(1,)]


def test_a_redrive_and_a_reload_at_once_leave_an_exact_window(loaded: World) -> None:
    """The second to commit works on what the first left."""
    reload = Loading.of(loaded, 10, bad_offsets=BAD_OFFSETS).begin().create().run_task(9)
    window = loaded.ledger.window("p", at(10))
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(redrive(loaded, Mended()).run, window), pool.submit(reload.commit)]:
            done.result(PATIENCE_SECONDS)
    assert loaded.rows("select count(*) from t") in ([(3,)], [(6,)])
    assert loaded.audit().problems == ()


def test_a_reload_after_a_redrive_replaces_rows_and_dead_letters_alike(loaded: World) -> None:
    redrive(loaded, Mended()).run(loaded.ledger.window("p", at(10)))
    Loading.of(loaded, 10, bad_offsets=BAD_OFFSETS).load()
    assert loaded.rows("select count(*) from t") == [(3,)]
    assert loaded.rows("select count(*) from logbus.dead_letter") == [(3,)]
    assert loaded.audit().problems == ()


def test_batches_hold_every_value_once_however_small_they_are(loaded: World) -> None:
    window = loaded.ledger.window("p", at(10))
    for records, size, longest in ((1, 10_000, 1), (1_000, 1, 1), (2, 10_000, 2), (1_000, 10_000, 3)):
        small = dead_letters.BATCH.bindparams(records=records, bytes=size)
        with pytest.MonkeyPatch.context() as patch, loaded.ledger.engine.connect() as connection:
            patch.setattr(dead_letters, "BATCH", small)
            found = list(dead_letters.batches(connection, window.id))
        assert [(value.partition, value.offset) for batch in found for value in batch] == [(0, 1), (0, 3), (1, 1)]
        assert max(map(len, found)) == longest


def test_columns_that_loads_have_inferred_are_those_of_a_redrive(world: World) -> None:
    pipeline = world.register(parse="json", settings={"infer": True})
    world.ledger.add_inferred(pipeline, {"status": "bigint"}, NOW)
    assert "status" in parser_of(world).columns


def test_the_command_changes_nothing_without_execute(loaded: World, run: Run) -> None:
    planned = run("redrive", "--pipeline", "p")
    assert "nothing was changed" in planned.stderr
    assert loaded.rows("select count(*) from logbus.redrive") == [(0,)]
    done = json.loads(run("redrive", "--pipeline", "p", "--window", "2015-05-17T10:00:00Z", "--execute", "--json").output)
    assert done["executed"]
    assert [(found["start"], found["tried"], found["errors"]) for found in done["windows"]] == [
        ("2015-05-17T10:00:00Z", 3, {"NotUtf8": 3})
    ]
    assert loaded.rows("select run_id from logbus.redrive") == [("command line",)]


def test_dead_letters_are_listed_by_class_shown_one_by_one_and_written_out_whole(loaded: World, run: Run, tmp_path: Path) -> None:
    (listed,) = json.loads(run("dead-letter", "ls", "--pipeline", "p", "--json").output)
    assert (listed["window"], listed["error_class"], listed["count"]) == ("2015-05-17T10:00:00Z", "NotUtf8", 3)
    assert "NotUtf8" in run("dead-letter", "ls", "--pipeline", "p").output
    shown = run("dead-letter", "show", "--pipeline", "p", "2015-05-17T10:00:00Z", "--limit", "1").output
    assert shown.splitlines()[0] == "t-0 offset 1, 2015-05-17T10:12:00Z, attempt 1 of run test"
    assert "value (1 bytes) b'\\xff'" in shown
    (first, *_) = json.loads(run("dead-letter", "show", "--pipeline", "p", "--json", "2015-05-17T10:00:00Z").output)
    assert (first["key"], first["value_base64"], first["headers"]) == ("key", "/w==", [["host", "web-1"]])
    output = tmp_path / "letters"
    assert run("dead-letter", "export", "--pipeline", "p", "--output", str(output)).output == f"3 dead letters in {output}\n"
    assert [json.loads(line)["offset"] for line in output.read_text().splitlines()] == [1, 3, 1]
    assert run("dead-letter", "export", "--pipeline", "p", "--format", "raw").stdout_bytes == b"\xff\n" * 3
    assert run("dead-letter", "ls", "--pipeline", "p", "--json", "--error-class", "Other").output == "[]\n"


def test_a_selection_takes_the_windows_within_its_span(loaded: World) -> None:
    count = lambda **span: len(list(dead_letters.stream(loaded.ledger.engine, Selection(pipeline="p", **span))))  # noqa: E731
    assert (count(), count(since=at(10), until=at(10)), count(since=at(11)), count(until=at(9))) == (3, 3, 0, 0)
