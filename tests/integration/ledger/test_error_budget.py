"""A window with too many records that do not parse, in a real PostgreSQL."""

from __future__ import annotations

from typing import Any

import pytest
from logbus.errors import ErrorBudgetExceeded, LogbusError, LogChanged, OtherRecords, ShortRead
from logbus.loads.commit_checks import samples_of

from tests.support.ledgers import NOW, World, at
from tests.support.loads import Loading


def loading(world: World, *bad_offsets: int, **settings: Any) -> Loading:
    """Hour 10: six records in one partition; those at `bad_offsets` do not parse."""
    world.fill(10, 10.1, 10.2, 10.3, 10.4, 10.5, settings=settings)
    return Loading.of(world, 10, bad_offsets=frozenset(bad_offsets))


@pytest.mark.parametrize("settings", [{"max_errors": 1}, {"max_error_rate": 0.3}])
def test_over_budget_nothing_becomes_public_and_the_error_has_examples(world: World, settings: dict[str, Any]) -> None:
    over = loading(world, 1, 4, **settings).begin().create().run_task(1)
    with pytest.raises(
        ErrorBudgetExceeded, match=r"2 of 6 records cannot be parsed.* Most frequent: NotUtf8 2.*t-0 offset 1"
    ) as caught:
        over.commit()
    world.ledger.fail_attempts([over.attempt], str(caught.value), NOW, samples_of(caught.value), "ErrorBudgetExceeded")
    assert world.one("select count(*) from t") == 0
    assert world.one("select count(*) from logbus.dead_letter") == 0
    assert world.ledger.window("p", at(10)).loaded_attempt is None
    final = world.ledger.beyond_retry([over.attempt])
    assert (type(final), str(final)) == (ErrorBudgetExceeded, str(caught.value))
    samples = world.one("select error_samples from logbus.attempt")
    assert samples["classes"] == [{"error_class": "NotUtf8", "count": 2}]
    assert [(found["offset"], found["value_base64"]) for found in samples["examples"]] == [(1, "/w=="), (4, "/w==")]
    assert world.one("select count(*) from pg_tables where schemaname = 'logbus_staging'") == 0


def test_a_reload_over_budget_leaves_the_former_load_as_it_was(world: World) -> None:
    better = loading(world, 2, max_errors=0)
    better.mended = True
    better.load()
    window = world.ledger.window("p", at(10))
    worse = Loading(world=world, url=world.url, window=window, bad_offsets=frozenset({2}))
    with pytest.raises(ErrorBudgetExceeded):
        worse.load()
    assert world.one("select count(*) from t") == 6
    assert world.ledger.window("p", at(10)).counts == window.counts


def test_an_attempt_that_failed_otherwise_may_be_retried(world: World) -> None:
    attempt = loading(world).begin().attempt
    world.ledger.fail_attempts([attempt], "the broker was away", NOW)
    assert world.ledger.beyond_retry([attempt]) is None


@pytest.mark.parametrize(("kind", "is_final"), [(LogChanged, True), (OtherRecords, True), (ShortRead, False)])
def test_what_the_driver_said_no_retry_mends_is_told_as_what_it_was(
    world: World, kind: type[LogbusError], is_final: bool
) -> None:
    attempt = loading(world).begin().attempt
    world.ledger.fail_attempts([attempt], "the reason", NOW, kind=kind.__name__)
    found = world.ledger.beyond_retry([attempt])
    assert (type(found), str(found)) == ((kind, "the reason") if is_final else (type(None), "None"))


def test_within_budget_the_window_is_loaded_with_its_dead_letters(world: World) -> None:
    counts = loading(world, 1, 4, max_errors=2, max_error_rate=0.5).load()
    assert (counts.loaded, counts.dead_lettered) == (4, 2)
    assert world.one("select distinct run_id from logbus.dead_letter") == "test"
