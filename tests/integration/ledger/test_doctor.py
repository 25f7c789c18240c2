"""`logbus doctor` with a real ledger and an in-memory log."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner, Result
from logbus.cli import main, monitoring, options
from logbus.errors import BrokerUnavailable
from logbus.loads import attempts
from logbus.status import ledger_checks
from logbus.windows.rows import HEARTBEAT_EXPIRY
from sqlalchemy import text

from tests.support.ledgers import NOW, World, stamps
from tests.support.loads import Loading, load_hours


@pytest.fixture
def healthy(world: World) -> World:
    """Hours 10 and 11 are loaded and audited; there are no other hours."""
    world.fill(10, 10.5, 11)
    load_hours(world, 10, 11)
    for number in (10, 11):
        world.audit(number)
    return world


def findings(world: World, later: timedelta = timedelta()) -> list[tuple[str, str]]:
    """Severity and message of each finding."""
    found = ledger_checks.check_all(world.ledger, world.log, world.ledger.pipelines(), NOW + later)
    return [(str(finding.severity), finding.message) for finding in found]


def test_a_healthy_pipeline_gives_no_finding(healthy: World) -> None:
    assert findings(healthy) == []


def test_closed_hours_that_are_not_loaded_are_counted(healthy: World) -> None:
    healthy.log.append("t", *stamps(12, 13))
    assert findings(healthy) == [
        ("warning", "2 closed windows are not loaded: 2015-05-17T12:00:00Z, 2015-05-17T13:00:00Z"),
    ]


def test_hours_without_records_that_are_not_loaded_are_a_note(healthy: World) -> None:
    healthy.freeze(12)
    assert findings(healthy) == []
    healthy.log.append("t", *stamps(15.5))
    assert findings(healthy) == [
        ("warning", "1 closed window is not loaded: 2015-05-17T15:00:00Z"),
        ("note", "2 closed windows are not loaded; they hold no record"),
    ]


def test_an_attempt_without_a_sign_of_life_is_named_until_it_is_cleaned_away(healthy: World) -> None:
    Loading.of(healthy, 10).begin().create()
    later = HEARTBEAT_EXPIRY + timedelta(seconds=1)
    assert findings(healthy) == []
    assert [severity for severity, message in findings(healthy, later) if "last heartbeat" in message] == ["warning"]
    done = ledger_checks.clean(healthy.ledger, NOW + later)
    assert done.ended == ("p 2015-05-17T10:00:00Z=2",)
    assert findings(healthy, later) == []


def test_staging_tables_that_nobody_owns_are_named_and_dropped_and_others_are_left(healthy: World) -> None:
    alive = Loading.of(healthy, 10).begin().create()
    healthy.execute("create table logbus_staging.w77_a3_dead_sealed (x int)")
    healthy.execute("create table logbus_staging.somebody_elses (x int)")
    assert findings(healthy) == [("note", "staging tables left by finished attempts: w77_a3_dead_sealed")]
    assert ledger_checks.clean(healthy.ledger, NOW).dropped == ("w77_a3_dead_sealed",)
    listed = healthy.rows("select tablename from pg_tables where schemaname = 'logbus_staging'")
    assert {name for (name,) in listed} == {"somebody_elses", alive.attempt.staging_table, alive.attempt.dead_letter_table}


def test_a_staging_table_that_somebody_holds_is_left_for_the_next_time(healthy: World) -> None:
    healthy.execute("create table logbus_staging.w77_a3 (x int)")
    with healthy.ledger.engine.begin() as holder:
        holder.execute(text("lock table logbus_staging.w77_a3 in access share mode"))
        assert attempts.drop_ownerless(healthy.ledger.engine) == []
    assert attempts.drop_ownerless(healthy.ledger.engine) == ["w77_a3"]


def test_a_failed_window_says_why_and_where_to_look(healthy: World) -> None:
    healthy.log.append("t", *stamps(12))
    healthy.freeze(12)
    healthy.ledger.fail_attempts(healthy.begin(12), "Java was not found\nat line 1", NOW)
    assert ("error", "attempt 1 at 2015-05-17T12:00:00Z failed: Java was not found") in findings(healthy)


def test_a_window_that_nobody_tries_to_load_hints_at_the_missing_pool(healthy: World) -> None:
    healthy.log.append("t", *stamps(12))
    healthy.freeze(12)
    late = ledger_checks.UNTRIED_AFTER + timedelta(seconds=1)
    assert not any("no load has tried" in message for _, message in findings(healthy))
    found = ledger_checks.check_all(healthy.ledger, healthy.log, healthy.ledger.pipelines(), NOW + late)
    assert [finding.advice[:36] for finding in found if "no load has tried" in finding.message] == [
        "airflow pools set logbus_load 1 'Spa"
    ]


def test_records_that_retention_took_before_they_were_loaded_are_an_error(healthy: World) -> None:
    healthy.log.append("t", *stamps(12, 12.5))
    healthy.freeze(12)
    healthy.log.delete_records("t", before_offset=4)
    assert [message for severity, message in findings(healthy) if severity == "error"] == [
        "retention deleted t-0 [3, 4) before [2015-05-17T12:00:00Z, 2015-05-17T13:00:00Z) was loaded"
    ]


@pytest.mark.parametrize("grown_again", [False, True])
def test_a_log_that_is_another_one_is_an_error_with_the_way_out(healthy: World, grown_again: bool) -> None:
    healthy.log.cut("t", 0)
    if grown_again:
        healthy.log.append("t", *stamps(10, 10.1, 10.2, 10.3, 11))
    found = next(one for one in ledger_checks.check_all(healthy.ledger, healthy.log, healthy.ledger.pipelines(), NOW))
    assert (found.severity, found.advice) == ("error", "logbus pipeline rebase p")
    assert "the log is not the one in the ledger: t-0" in found.message


def test_a_topic_that_is_missing_on_another_cluster_is_not_to_be_created_there(healthy: World) -> None:
    healthy.log.topics.clear()
    healthy.log.cluster = "the wrong one"
    (told,) = [message for severity, message in findings(healthy) if severity == "error"]
    assert told.startswith("this is another cluster")


def test_another_cluster_is_an_error_that_does_not_say_rebase(healthy: World) -> None:
    healthy.log.create("t")
    healthy.log.cluster = "the wrong one"
    (found,) = ledger_checks.check_all(healthy.ledger, healthy.log, healthy.ledger.pipelines(), NOW)
    assert (found.severity, found.advice) == ("error", "name the right broker")


def test_a_window_that_an_audit_found_wrong_is_an_error_and_one_not_audited_a_warning(healthy: World) -> None:
    healthy.execute("delete from t where _offset = 0")
    healthy.audit()
    healthy.execute("update logbus.window set audited_at = null where starts_at = '2015-05-17T11:00:00Z'")
    (wrong, unaudited) = findings(healthy)
    assert wrong[0] == "error"
    assert wrong[1].startswith("the audit of 2015-05-17T10:00:00Z found: ")
    assert unaudited == ("warning", "loaded but not audited: 2015-05-17T11:00:00Z")


def test_dead_letters_are_good_to_know(healthy: World) -> None:
    worse = Loading.of(healthy, 10, bad_offsets=frozenset({1}))
    worse.accept_other_records = True
    worse.load()
    healthy.audit()
    assert ("note", "did not parse, kept as dead letters: 1 record") in findings(healthy)


def test_an_hour_that_was_loaded_again_from_other_records_stays_known(healthy: World) -> None:
    other = Loading.of(healthy, 10, bad_offsets=frozenset({1}))
    other.accept_other_records = True
    other.load()
    message = "a reload replaced the records with others, which its run was told to accept: 2015-05-17T10:00:00Z"
    assert ("note", message) in findings(healthy)


def test_a_producer_whose_clock_moves_records_into_other_hours_is_noted(world: World) -> None:
    world.fill(10, 11.9, *(10 + minute / 60 for minute in range(20)), 11)
    load_hours(world, 10, 11)
    for number in (10, 11):
        world.audit(number)
    told = "20 of the 23 records in its newest windows are stamped with other hours than their window's"
    assert [severity for severity, message in findings(world) if message.startswith(told)] == ["note"]


def test_a_topic_that_is_gone_is_its_own_pipelines_finding_and_hides_no_other(healthy: World) -> None:
    healthy.log.create("u")
    healthy.log.append("u", *stamps(10))
    healthy.log.append("t", *stamps(12.5))
    healthy.register(name="q", topic="u", table="u")
    healthy.freeze(12)
    del healthy.log.topics["t"]
    found = list(ledger_checks.check_all(healthy.ledger, healthy.log, healthy.ledger.pipelines(), NOW))
    assert {finding.subject for finding in found} == {"pipeline p", "pipeline q"}
    gone = next(finding for finding in found if "has no topic 't'" in finding.message)
    assert "logbus pipeline rebase p" in gone.advice
    assert [finding.message for finding in found if finding.subject == "pipeline q"] == [
        "1 closed window is not loaded: 2015-05-17T10:00:00Z"
    ]


def test_a_broker_that_does_not_answer_is_one_finding_and_the_ledger_is_looked_at_all_the_same(healthy: World) -> None:
    healthy.log.append("t", *stamps(12.5))
    healthy.freeze(12)

    def refuse(question: str) -> None:
        raise BrokerUnavailable("no answer within 5 s")

    healthy.log.interrupt = refuse
    assert findings(healthy) == [
        ("error", "no answer within 5 s"),
        ("warning", "1 closed window is not loaded: 2015-05-17T12:00:00Z"),
    ]


@pytest.fixture
def run(warehouse_url: str, world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setattr(monitoring, "Topics", lambda *arguments, **settings: world.log)
    monkeypatch.setattr(options, "clock", lambda: NOW)

    def call(*arguments: str, url: str = warehouse_url) -> Result:
        words = ["doctor", "--only", "pipelines", "--warehouse", url, *arguments]
        return CliRunner().invoke(main, words, catch_exceptions=False)

    return call


def test_the_command_ends_well_where_nothing_is_wrong(healthy: World, run: Any) -> None:
    assert (run().exit_code, run().output) == (0, "no problem found\n")


def test_the_command_names_the_error_and_what_to_type_and_fails(healthy: World, run: Any) -> None:
    healthy.log.create("t")
    result = run()
    assert result.exit_code == 5
    assert result.output == "error: pipeline p: topic t was deleted and recreated\n    logbus pipeline rebase p\n"
    (found,) = json.loads(run("--json", "--pipeline", "p").output)
    assert found["severity"] == "error"


def test_a_ledger_that_is_not_there_yet_is_not_made_by_looking(run: Any, empty_warehouse_url: str) -> None:
    assert "logbus ledger upgrade" in run(url=empty_warehouse_url).output
    assert "is at version none" in run(url=empty_warehouse_url).output
    assert "no pipeline is registered" in run("--clean", url=empty_warehouse_url).output


def test_a_warehouse_that_does_not_answer_is_an_error(run: Any) -> None:
    result = run("--json", url="postgresql://nobody@127.0.0.1:1/none")
    assert result.exit_code == 5
    assert [found["subject"] for found in json.loads(result.output)] == ["warehouse"]


def test_rights_that_the_user_lacks_are_named_with_what_they_are_for(healthy: World) -> None:
    healthy.log.denied = {"Read", "DescribeConfigs", "Delete"}
    assert findings(healthy) == [
        ("error", "topic t: no record of it can be loaded or audited"),
        ("note", "topic t: when the broker deletes records that are not loaded is unknown"),
    ]
