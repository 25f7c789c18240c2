"""`logbus window` and `logbus pipeline` with a real ledger; the broker does not answer, unless a test provides one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from click.testing import Result
from logbus.cli import options
from logbus.errors import BrokerUnavailable, ErrorBudgetExceeded, ExitCode
from logbus.kafka import topics
from logbus.model import Pipeline, TaskKey, instant_text
from logbus.waiting import PATIENCE_SECONDS, wait_until
from sqlalchemy import make_url, text

from tests.support.commands import Run
from tests.support.ledgers import NOW, World, at, stamps
from tests.support.loads import Loading

END_OF_WAITING = text(
    "select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
)
LINES = Pipeline(name="p", topic="t", table="t", parse="lines")
TEN, TWELVE = "2015-05-17T10:00:00Z", "2015-05-17T12:00:00Z"


@pytest.fixture(autouse=True)
def log_in_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "Topics", lambda *arguments, **options: world.log)
    monkeypatch.setattr(options, "clock", lambda: NOW)


@pytest.fixture
def loaded(world: World) -> World:
    """Hours 10 to 13 have records; 10 is loaded with one dead letter, 12 is frozen."""
    world.fill(10, 10.2, 10.4, 11, 12, 13, settings={"max_errors": 1})
    Loading.of(world, 10, bad_offsets=frozenset({1})).load()
    world.freeze(12)
    return world


def reload(world: World, *, mended: bool = False) -> None:
    Loading.of(world, 10, bad_offsets=frozenset({1}), mended=mended).load()


def shown(result: Result) -> Any:
    return json.loads(result.stdout)


@pytest.fixture
def reader_url(world: World) -> Iterator[str]:
    """The ledger's URL for a user who may read it and no more."""
    url = make_url(world.url)
    reader = f"{url.database}_reader"
    world.execute(
        f'create role "{reader}" login',
        f'grant usage on schema logbus to "{reader}"',
        f'grant select on all tables in schema logbus to "{reader}"',
    )
    yield url.set(username=reader).render_as_string(hide_password=False)
    world.execute(f'drop owned by "{reader}"', f'drop role "{reader}"')


def test_a_user_who_may_only_read_is_told_what_the_server_refused(loaded: World, run: Run, reader_url: str) -> None:
    assert run("window", "ls", "--pipeline", "p", "--warehouse", reader_url).exit_code == 0
    result = run("window", "accept-loss", "--pipeline", "p", "--reason", "a test", "--warehouse", reader_url, TWELVE)
    assert (result.exit_code, result.stdout) == (ExitCode.FAILED, "")
    assert result.stderr == "error: the database does not allow this: permission denied for table window\n"


def test_a_server_that_ends_the_connection_is_one_line(loaded: World, run: Run) -> None:
    engine = loaded.ledger.engine

    def ended() -> bool:
        with engine.connect() as connection:
            return bool(connection.execute(END_OF_WAITING).all())

    with ThreadPoolExecutor(1) as beside, engine.begin() as holder:
        holder.execute(text("lock table logbus.window in access exclusive mode"))
        asked = beside.submit(run, "window", "ls", "--pipeline", "p")
        wait_until(ended, what="the statement that waits")
        result = asked.result(PATIENCE_SECONDS)
    assert (result.exit_code, result.stdout) == (ExitCode.UNREACHABLE, "")
    assert result.stderr.startswith("error: the database did not carry out a statement: terminating connection")


def test_closed_hours_that_are_not_frozen_or_not_loaded_are_listed_beside_the_windows(loaded: World, run: Run) -> None:
    found = shown(run("window", "ls", "--pipeline", "p", "--json"))
    assert [window["start"][11:13] for window in found["windows"]] == ["10", "12"]
    assert [(gap["start"][11:13], gap["missing"]) for gap in found["gaps"]] == [
        *(("11", "not frozen"), ("12", "not loaded"), ("13", "not frozen")),
    ]
    assert (found["behind"], found["note"]) == (3, None)
    table = run("window", "ls", "--pipeline", "p").output
    assert "p is 3 hours behind, the oldest 2015-05-17T11:00:00Z (2 not frozen, 1 frozen and not loaded)" in table


def test_without_the_topic_the_ledgers_own_gaps_are_listed_and_how_far_behind_is_not_known(loaded: World, run: Run) -> None:
    loaded.log.topics.clear()
    found = shown(run("window", "ls", "--pipeline", "p", "--json"))
    assert [gap["start"][11:13] for gap in found["gaps"]] == ["11", "12"]
    assert "not frozen yet" in found["note"]
    assert (found["behind"], found["empty"]) == (None, None)
    listed = run("pipeline", "ls")
    assert listed.exit_code == 0
    assert listed.stdout.splitlines()[1].endswith("?")
    assert "note: p: hours that are not frozen yet are not counted" in listed.stderr


ON_THE_LEDGER = ["pipeline ls", "pipeline show p", "window ls --pipeline p"]


def test_a_broker_that_does_not_answer_ends_with_4_after_what_the_ledger_shows(loaded: World, run: Run) -> None:
    def away(question: str) -> None:
        raise BrokerUnavailable("the broker at b:1 did not answer")

    loaded.log.interrupt = away
    for words in ON_THE_LEDGER:
        shown_to_people, result = run(*words.split()), run(*words.split(), "--json")
        for one in (shown_to_people, result):
            assert one.exit_code == ExitCode.UNREACHABLE
            said = "hours that are not frozen yet are missing here:\nerror: the broker at b:1 did not answer\n"
            assert one.stderr.startswith(said)
            assert "127.0.0.1:9092 is the default" in one.stderr
        found = shown(result)
        assert (found[0] if isinstance(found, list) else found)["behind"] is None
        assert " behind, the oldest" not in shown_to_people.stdout


def test_a_window_is_shown_with_its_ranges_attempts_and_dead_letters(loaded: World, run: Run) -> None:
    reload(loaded)
    text = run("window", "show", "--pipeline", "p", TEN).output
    assert "window [2015-05-17T10:00:00Z, 2015-05-17T11:00:00Z) of p: loaded" in text
    assert "read 3 = loaded 2 + dead-lettered 1 + filtered 0" in text
    assert "[0, 3)" in text
    assert "dead letters: NotUtf8 1" in text
    found = shown(run("window", "show", "--pipeline", "p", "--json", TEN))
    assert [(one["number"], one["state"], one["counts"]["loaded"]) for one in found["attempts"]] == [
        *((1, "committed", 2), (2, "committed", 2)),
    ]
    assert found["attempts"][0]["partitions"]["0"]["read"] == 3
    assert found["dead_letters"] == {"NotUtf8": 1}


def test_an_attempt_of_a_task_names_its_dag(loaded: World, run: Run) -> None:
    assert "of p: frozen" in run("window", "show", "--pipeline", "p", TWELVE).output
    task = TaskKey(dag_id="ingest", task_id="load", map_index=3)
    loaded.ledger.begin_attempts("p", [at(12)], "scheduled__1", 2, NOW, task)
    assert "ingest scheduled__1" in run("window", "show", "--pipeline", "p", TWELVE).output
    (attempt,) = shown(run("window", "show", "--pipeline", "p", "--json", TWELVE))["attempts"]
    assert (attempt["dag_id"], attempt["task_id"], attempt["map_index"], attempt["try_number"]) == ("ingest", "load", 3, 2)


def test_a_window_over_its_error_budget_shows_what_did_not_parse(loaded: World, run: Run) -> None:
    over = Loading.of(loaded, 10, bad_offsets=frozenset({0, 2}))
    over.accept_other_records = True
    over.begin().create()
    with pytest.raises(ErrorBudgetExceeded) as caught:
        over.run_task(1).commit()
    loaded.ledger.fail_attempts([over.attempt], str(caught.value), NOW, caught.value.samples)
    lines = run("window", "show", "--pipeline", "p", TEN).output.splitlines()
    (failure,) = [number for number, line in enumerate(lines) if line.startswith("attempt 2 failed: ")]
    assert "2 of 3 records cannot be parsed" in lines[failure]
    assert lines[failure + 1] == "  NotUtf8: 2"
    assert lines[failure + 3].startswith("  partition 0 offset 2: NotUtf8: byte 0 is not UTF-8")


def test_two_attempts_at_a_window_read_the_same_records_and_may_differ_in_what_parsed(loaded: World, run: Run) -> None:
    reload(loaded, mended=True)
    result = run("window", "diff", "--pipeline", "p", TEN, "--attempts", "1", "2", "--json")
    found = {one["what"]: (one["left"], one["right"]) for one in shown(result)["differences"]}
    assert found == {"loaded": (2, 3), "dead-lettered": (1, 0)}
    assert result.exit_code == 5
    same = run("window", "diff", "--pipeline", "p", TEN, "--attempts", "2", "2")
    assert (same.exit_code, same.output[:19]) == (0, "the same 3 records,")


def test_two_windows_are_compared_by_name(loaded: World, run: Run) -> None:
    Loading.of(loaded, 12).load()
    result = run("window", "diff", "--pipeline", "p", TEN, "p@2015-05-17T12:00:00Z")
    assert result.exit_code == 5
    assert "partition 0 offsets" in result.output


def test_a_comparison_that_names_too_little_or_too_much_says_what_to_name(loaded: World, run: Run) -> None:
    for arguments in ([TEN], [TEN, TEN, "--against", "broker"], [TEN, TEN, TEN], [TEN, "yesterday"]):
        result = run("window", "diff", "--pipeline", "p", *arguments)
        assert (result.exit_code, result.output[:7]) == (2, "Usage: ")


def test_pipelines_are_listed_with_how_far_they_have_come(loaded: World, run: Run) -> None:
    (found,) = shown(run("pipeline", "ls", "--json"))
    assert {name: found[name] for name in ("name", "windows", "loaded", "audited", "behind", "loaded_up_to")} == {
        **{"name": "p", "windows": 2, "loaded": 1, "audited": 0, "behind": 3},
        "loaded_up_to": "2015-05-17T11:00:00Z",
    }
    assert "p " in run("pipeline", "ls").output


def test_a_pipeline_is_shown_with_its_settings_and_its_gaps(loaded: World, run: Run) -> None:
    text = run("pipeline", "show", "p").output
    assert "max_errors: 1" in text
    assert "p is 3 hours behind" in text
    assert len(shown(run("pipeline", "show", "p", "--json"))["gaps"]) == 3


def test_a_rebase_names_the_hours_that_may_have_lost_records_and_each_is_accepted_by_name(loaded: World, run: Run) -> None:
    loaded.log.fill("t", stamps(14.5, 15))
    said = run("pipeline", "rebase", "p").stdout.splitlines()
    assert said == [
        "pipeline p continues with topic t as it is now; what is loaded stays",
        "records may be missing from 3 windows: 2015-05-17T13:00:00Z, 2015-05-17T14:00:00Z, 2015-05-17T15:00:00Z",
        "records are missing from what was frozen and not loaded: 1 window: 2015-05-17T12:00:00Z",
        "these are refused until their loss is accepted by name:",
        "    logbus window accept-loss --pipeline p HOUR... --reason TEXT",
    ]
    assert "nothing to do" in run("pipeline", "rebase", "p").stdout
    hours = (TWELVE, "2015-05-17T14:00:00Z")
    accepted = run("window", "accept-loss", "--pipeline", "p", *hours, "--reason", "a test", "--by", "mary").stdout.splitlines()
    by_mary = f"loss accepted by mary at {instant_text(NOW)}: a test"
    assert accepted == [f"{hours[0]} 0 records left; {by_mary}", f"{hours[1]} 1 record left; {by_mary}"]
    assert (
        f"  the loss was accepted by mary at {instant_text(NOW)}: a test"
        in run("window", "show", "--pipeline", "p", hours[1]).stdout.splitlines()
    )
    assert shown(run("window", "show", "--pipeline", "p", hours[1], "--json"))["loss_accepted"]["by"] == "mary"


REGISTER = ("pipeline", "register", "p", "--topic", "t", "--table", "t")


def test_registering_says_whether_it_is_new_or_known(world: World, run: Run) -> None:
    assert run(*REGISTER, "--parse", "lines").stdout == "pipeline p loads topic t into table t\n"
    assert run(*REGISTER, "--parse", "lines").stdout == "pipeline p is already registered: loads topic t into table t\n"


def test_registering_otherwise_shows_the_difference_and_changes_nothing_without_being_told(world: World, run: Run) -> None:
    run(*REGISTER, "--parse", "combined")
    refused = run(*REGISTER, "--parse", "json", "--settings", '{"max_errors": 3}')
    assert refused.exit_code == ExitCode.FAILED
    assert "parse: combined -> json; max_errors: not given -> 3" in refused.stderr
    assert "--change" in refused.stderr
    assert world.ledger.pipeline("p").parse == "combined"
    changed = run(*REGISTER, "--parse", "json", "--settings", '{"max_errors": 3}', "--change")
    assert changed.stdout == (
        "pipeline p is changed: loads topic t into table t\n  parse: combined -> json\n  max_errors: not given -> 3\n"
    )
    assert (world.ledger.pipeline("p").parse, changed.stderr) == ("json", "")


def test_days_of_a_time_zone_are_registered_listed_and_never_become_hours(world: World, run: Run) -> None:
    world.log.append("t", *stamps(10, 60))
    days = (*REGISTER, "--parse", "lines", "--every", "1d", "--timezone", "Europe/Berlin")
    assert run(*days).exit_code == 0
    assert "  windows of 1d in Europe/Berlin from the earliest record" in run("pipeline", "show", "p").stdout
    listed = shown(run("window", "ls", "--pipeline", "p", "--since", "2015-05-17T00:00+02:00", "--json"))
    assert {gap["start"]: gap["empty"] for gap in listed["gaps"]} == {
        "2015-05-16T22:00:00Z": False,
        "2015-05-17T22:00:00Z": True,
        "2015-05-18T22:00:00Z": False,
    }
    assert "p is 2 days behind, the oldest 2015-05-16T22:00:00Z" in run("pipeline", "show", "p").stdout
    refused = run(*REGISTER, "--parse", "lines", "--change")
    assert "timezone: Europe/Berlin against UTC" in refused.stderr
    assert "every: 1d against 1h" in refused.stderr
    assert run(*days[:-1], "Berlin").stderr.startswith("error: ")


def test_a_change_that_a_dag_will_take_back_says_so(world: World, run: Run) -> None:
    world.ledger.define(LINES, world.log, NOW, dag_id="hourly")
    changed = run(*REGISTER, "--parse", "json", "--change")
    assert "note: hourly defines p differently" in changed.stderr


def test_a_pipeline_tells_which_dags_define_it_and_which_otherwise(world: World, run: Run) -> None:
    for dag_id in ("hourly", "catchup"):
        world.ledger.define(LINES, world.log, NOW, dag_id=dag_id)
    world.ledger.define(replace(LINES, parse="raw"), world.log, NOW, dag_id="hourly")
    told = run("pipeline", "show", "p").stdout.splitlines()
    assert told[-2:] == ["  DAG catchup defined it differently: parse: raw against lines", "  DAG hourly"]
    assert shown(run("pipeline", "show", "p", "--json"))["dags"] == {"catchup": "parse: raw against lines", "hourly": None}


def test_a_dag_that_is_gone_is_forgotten_and_an_unknown_one_is_not_there(world: World, run: Run) -> None:
    world.ledger.define(LINES, world.log, NOW, dag_id="old")
    assert "forgotten: how DAG old defines pipeline p" in run("pipeline", "forget-dag", "p", "old").stdout
    unknown = run("pipeline", "forget-dag", "p", "older")
    assert (unknown.exit_code, "these have: old" in unknown.stderr) == (ExitCode.NOT_FOUND, True)


def test_a_pipeline_of_which_nothing_is_loaded_is_deleted_when_it_is_said_twice(world: World, run: Run) -> None:
    world.log.append("t", *stamps(10, 11, 12))
    world.ledger.define(LINES, world.log, NOW, dag_id="hourly")
    world.freeze(10)
    (attempt,) = world.ledger.begin_attempts("p", [at(10)], "r", 1, NOW)
    refused = run("pipeline", "delete", "p", "--execute")
    assert (refused.exit_code, "another run loads a window of p now" in refused.stderr) == (ExitCode.FAILED, True)
    world.ledger.fail_attempts([attempt], "no", NOW)
    planned = run("pipeline", "delete", "p")
    assert planned.stdout == "would be deleted: pipeline p, 1 window frozen and not loaded, 1 attempt\n"
    assert ("dry run" in planned.stderr, "hourly registers it again" in planned.stderr) == (True, True)
    assert world.ledger.pipeline("p").topic == "t"
    assert shown(run("pipeline", "delete", "p", "--execute", "--json"))["executed"]
    assert run("pipeline", "delete", "p").exit_code == ExitCode.NOT_FOUND
    assert world.register(table="elsewhere").table == "elsewhere"
    Loading.of(world, 10).load()


def test_a_pipeline_whose_rows_are_proven_by_its_windows_stays(loaded: World, run: Run) -> None:
    refused = run("pipeline", "delete", "p", "--execute")
    assert (refused.exit_code, "p has loaded 1 window" in refused.stderr) == (ExitCode.FAILED, True)
    assert loaded.ledger.window("p", at(10)).loaded_attempt == 1


def test_a_window_tells_how_its_pipeline_was_defined_when_it_was_loaded(loaded: World, run: Run) -> None:
    assert shown(run("window", "show", "--pipeline", "p", TEN, "--json"))["definition_changes"] == []
    loaded.register(parse="raw", settings={"max_errors": 1})
    assert (
        "the pipeline has been defined differently since: parse: lines -> raw"
        in run("window", "show", "--pipeline", "p", TEN).stdout
    )
