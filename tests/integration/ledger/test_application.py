"""The Spark driver's decisions that need no Spark: which windows are loaded, which fail, which are superseded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from logbus.errors import WindowUnknown
from logbus.kafka.client import Client
from logbus.model import WindowState
from logbus.parsing import Parser
from logbus.windows import recovery
from logbus_spark.application import Application, LoadState, WindowOutcome, outcome_line, result

from tests.support.in_process import TASKS, Tasks, driver, replace_spark
from tests.support.ledgers import NOW, World, at, hour


@pytest.fixture
def application(world: World) -> Application:
    """Hours 9 and 12 are empty, 10 and 11 are not."""
    world.fill(10, 11)
    return driver(world.ledger, world.log, {})


def tokens(world: World, *hours: int) -> list[str]:
    for number in hours:
        world.freeze(number)
    return [attempt.token for attempt in world.begin(*hours)]


def by_hour(outcomes: list[WindowOutcome]) -> dict[int, LoadState]:
    return {outcome.attempt.interval.start.hour: outcome.state for outcome in outcomes}


def test_empty_windows_are_committed_without_a_spark_session(world: World, application: Application) -> None:
    outcomes = application.load("p", tokens(world, 12, 9))
    assert by_hour(outcomes) == {9: LoadState.COMMITTED, 12: LoadState.COMMITTED}
    assert [outcome.attempt.interval.start.hour for outcome in outcomes] == [9, 12]
    assert world.ledger.window("p", at(9)).state is WindowState.LOADED


def test_a_superseded_window_does_not_stop_the_others(world: World, application: Application) -> None:
    old = tokens(world, 9, 12)
    tokens(world, 9)
    assert by_hour(application.load("p", old)) == {9: LoadState.SUPERSEDED, 12: LoadState.COMMITTED}


def test_a_window_that_is_overtaken_within_the_job_does_not_fail_the_others(
    world: World, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newer attempt drops the older one's tables, so the whole job fails: the other windows are read again."""
    replace_spark(monkeypatch)
    world.register(settings={"max_error_rate": 1})
    both = tokens(world, 10, 11)
    overtaking = iter([10])

    def overtake(where: str) -> None:
        for number in overtaking:
            driver(world.ledger, world.log).load("p", tokens(world, number))

    application.client = Client({TASKS: Tasks(log=world.log, pause=overtake)})
    assert by_hour(application.load("p", both)) == {10: LoadState.SUPERSEDED, 11: LoadState.COMMITTED}
    assert [world.ledger.window("p", at(number)).state for number in (10, 11)] == [WindowState.LOADED] * 2


def test_a_window_whose_records_are_gone_fails_with_the_lost_range_and_the_others_go_on(
    world: World, application: Application
) -> None:
    mixed = tokens(world, 9, 10)
    world.log.delete_records("t", before_offset=1)
    outcomes = application.load("p", mixed)
    assert by_hour(outcomes) == {9: LoadState.COMMITTED, 10: LoadState.FAILED}
    failed = next(outcome for outcome in outcomes if outcome.state is LoadState.FAILED)
    assert "t-0 [0, 1)" in str(failed.error)
    assert "t-0 [0, 1)" in world.one("select error from logbus.attempt where state = 'failed'")


def test_windows_of_a_topic_that_was_made_again_all_fail(world: World, application: Application) -> None:
    both = tokens(world, 9, 10)
    world.log.create("t")
    outcomes = application.load("p", both)
    assert by_hour(outcomes) == {9: LoadState.FAILED, 10: LoadState.FAILED}
    assert "recreated" in outcome_line(outcomes[0])


def test_a_window_of_the_former_topic_fails_alone_after_a_rebase(world: World, application: Application) -> None:
    former = tokens(world, 12)
    world.log.create("t")
    recovery.rebase(world.ledger.engine, "p", world.log, NOW)
    recovery.accept_loss(world.ledger.engine, "p", hour(13), world.log, NOW, by="mary", reason="known")
    outcomes = application.load("p", [*former, *tokens(world, 13)])
    assert by_hour(outcomes) == {12: LoadState.FAILED, 13: LoadState.COMMITTED}


def test_attempts_that_were_begun_with_other_definitions_are_each_loaded_by_their_own(
    world: World, application: Application
) -> None:
    first = tokens(world, 9)
    world.register(parse="json", settings={"columns": {"url": "text"}})
    outcomes = application.load("p", [*first, *tokens(world, 12)])
    assert by_hour(outcomes) == {9: LoadState.COMMITTED, 12: LoadState.COMMITTED}
    assert {"line", "url"} <= set(world.columns())


def very_wide(settings: Mapping[str, Any]) -> Parser:
    return Parser(columns={f"c{number}": "bigint" for number in range(1_700)}, parse=lambda value: [None] * 1_700)


def test_a_table_that_cannot_have_the_columns_fails_each_attempt_with_the_reason(world: World, application: Application) -> None:
    begun = tokens(world, 9)
    world.execute("create table t (_topic text)")
    world.register(parse="tests.integration.ledger.test_application:very_wide")
    failed = [*application.load("p", begun), *application.load("p", tokens(world, 12))]
    assert by_hour(failed) == {9: LoadState.FAILED, 12: LoadState.FAILED}
    assert "it is yours, so add them" in str(failed[0].error)
    world.execute("drop table t")
    (failed_again,) = application.load("p", tokens(world, 12))
    assert failed_again.state is LoadState.FAILED
    assert "1600 columns" in str(failed_again.error)
    states = world.rows("select state, error is not null from logbus.attempt where state <> 'superseded'")
    assert set(states) == {("failed", True)}


def test_the_names_of_inferred_columns_are_escaped_and_one_that_differs_only_in_case_is_left_out(
    world: World, application: Application
) -> None:
    pipeline = world.register(parse="json", settings={"infer": True})
    world.ledger.add_inferred(pipeline, {":method": "text", "a\\:b": "bigint", ":METHOD": "text"}, NOW)
    world.ledger.add_inferred(pipeline, {"A\\:b": "bigint"}, NOW)  # by another load, which began before
    assert by_hour(application.load("p", tokens(world, 12))) == {12: LoadState.COMMITTED}
    assert world.columns()[-3:] == [":method", "a\\:b", "_rest"]


def test_an_attempt_that_was_never_taken_is_refused(world: World, application: Application) -> None:
    world.freeze(9)
    with pytest.raises(WindowUnknown, match="2015-05-17T09:00:00Z=5"):
        application.load("p", ["2015-05-17T09:00:00Z=5"])


def test_an_unknown_pipeline_is_refused(application: Application) -> None:
    with pytest.raises(WindowUnknown):
        application.load("q", ["2015-05-17T09:00:00Z=1"])


def test_the_result_counts_windows_by_their_end(world: World, application: Application) -> None:
    done = result(application.load("p", tokens(world, 9)))
    assert (done["committed"], done["superseded"], done["failed"]) == (1, 0, 0)
    assert done["windows"][0]["counts"]["read"] == 0
