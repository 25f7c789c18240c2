"""Several schedulers and workers on one ledger in a real PostgreSQL, each with its own connections."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from threading import Barrier
from typing import Any

import pytest
from logbus.errors import AttemptSuperseded
from logbus.loads import attempts as attempts_of
from logbus.loads.attempts import heartbeats
from logbus.loads.engine import connect
from logbus.loads.ledger import Ledger
from logbus.model import WindowState
from logbus.waiting import PATIENCE_SECONDS
from logbus.windows.rows import HEARTBEAT_EXPIRY

from tests.support.ledgers import NOW, World, at, hour
from tests.support.loads import Loading

WORKERS = 4
HOURS = range(8, 14)


@pytest.fixture
def ledgers(world: World, warehouse_url: str) -> Iterator[list[Ledger]]:
    """One per worker, as if each ran on its own machine."""
    world.fill(*(8 + number / 10 for number in range(70)))
    with ExitStack() as stack:
        yield [stack.enter_context(opened(warehouse_url)) for _ in range(WORKERS)]


@contextmanager
def opened(url: str) -> Iterator[Ledger]:
    ledger = Ledger(connect(url))
    yield ledger
    ledger.engine.dispose()


def all_at_once(ledgers: list[Ledger], work: Callable[[int, Ledger], Any]) -> list[Any]:
    """The results of all workers, which start together."""
    barrier = Barrier(len(ledgers))

    def run(number: int) -> Any:
        barrier.wait(PATIENCE_SECONDS)
        return work(number, ledgers[number])

    with ThreadPoolExecutor(len(ledgers)) as pool:
        return list(pool.map(run, range(len(ledgers))))


def states(world: World) -> dict[tuple[int, int], str]:
    query = "select extract(hour from starts_at at time zone 'UTC')::int, number, state from logbus.attempt join logbus.window on id = window_id"
    return {(hour, number): state for hour, number, state in world.rows(query)}


def test_schedulers_that_freeze_the_same_hours_in_any_order_agree(world: World, ledgers: list[Ledger]) -> None:
    def freeze(number: int, ledger: Ledger) -> dict[int, tuple[int, Any]]:
        order = random.Random(number).sample(HOURS, len(HOURS))
        windows = {hour_number: ledger.freeze_or_get("p", hour(hour_number), world.log, NOW) for hour_number in order}
        return {hour_number: (window.id, window.ranges) for hour_number, window in windows.items()}

    found = all_at_once(ledgers, freeze)
    assert found == [found[0]] * WORKERS
    assert len(world.ledger.windows("p")) == len(HOURS)
    ends = [found[0][hour_number][1][0].end_offset for hour_number in HOURS]
    assert [found[0][hour_number][1][0].start_offset for hour_number in HOURS] == [0, *ends[:-1]]


def test_workers_that_take_attempts_at_the_same_windows_in_any_order_get_numbers_of_their_own(
    world: World, ledgers: list[Ledger]
) -> None:
    for number in HOURS:
        world.freeze(number)

    def begin(number: int, ledger: Ledger) -> list[tuple[int, int]]:
        order = [at(hour_number) for hour_number in random.Random(number).sample(HOURS, len(HOURS))]
        taken = [found for _ in range(3) for found in ledger.begin_attempts("p", order, f"run {number}", 1, NOW)]
        return [(found.window_id, found.number) for found in taken]

    taken = [pair for pairs in all_at_once(ledgers, begin) for pair in pairs]
    assert len(taken) == len(set(taken)) == 3 * WORKERS * len(HOURS)
    running = [key for key, state in states(world).items() if state == "running"]
    assert sorted(running) == [(number, 3 * WORKERS) for number in HOURS]


def test_signs_of_life_and_new_attempts_at_the_same_windows_do_not_wait_for_each_other_in_a_circle(
    world: World, ledgers: list[Ledger]
) -> None:
    for number in HOURS:
        world.freeze(number)
    first = world.begin(*HOURS)

    def work(number: int, ledger: Ledger) -> None:
        order = random.Random(number)
        for _ in range(6):
            if number % 2:
                ledger.heartbeat(order.sample(first, len(first)), NOW)
            else:
                ledger.begin_attempts("p", [at(hour) for hour in order.sample(HOURS, len(HOURS))], "run", 1, NOW)

    all_at_once(ledgers, work)
    assert sum(state == "running" for state in states(world).values()) == len(HOURS)


def test_whoever_commits_and_whoever_takes_over_agree_on_who_was_first(world: World, ledgers: list[Ledger]) -> None:
    hours = HOURS[:3]
    loadings = [Loading.of(world, number) for number in hours]
    for loading in loadings:
        loading.begin().create().run_task(1)

    def commit_or_take_over(number: int, ledger: Ledger) -> list[str]:
        if number:
            ledger.begin_attempts("p", [at(hour_number) for hour_number in hours], "other", 1, NOW)
            return []
        return [committed_or_refused(loading) for loading in loadings]

    outcomes = all_at_once(ledgers, commit_or_take_over)[0]
    first = {number: states(world)[number, 1] for number in hours}
    assert list(first.values()) == outcomes
    for number in hours:
        assert (world.ledger.window("p", at(number)).loaded_attempt == 1) is (first[number] == "committed")


def committed_or_refused(loading: Loading) -> str:
    try:
        loading.commit()
    except AttemptSuperseded:
        return "superseded"
    return "committed"


def test_an_attempt_that_is_declared_failed_while_it_commits_stays_committed(world: World, ledgers: list[Ledger]) -> None:
    loading = Loading.of(world, 9).begin().create().run_task(1)

    def commit_or_fail(number: int, ledger: Ledger) -> None:
        if number == 0:
            committed_or_refused(loading)
        else:
            ledger.fail_attempts([loading.attempt], "the task was killed", NOW)

    all_at_once(ledgers, commit_or_fail)
    window = world.ledger.window("p", at(9))
    if states(world)[9, 1] == "committed":
        assert (window.state, window.loaded_attempt) == (WindowState.LOADED, 1)
    else:
        assert window.loaded_attempt is None


def test_an_attempt_without_a_sign_of_life_is_ended_and_its_tables_dropped(world: World, ledgers: list[Ledger]) -> None:
    silent = Loading.of(world, 9).begin().create().run_task(1)
    alive = Loading.of(world, 10).begin().create()
    later = NOW + HEARTBEAT_EXPIRY + timedelta(seconds=1)
    world.ledger.heartbeat([alive.attempt], later)
    ended = all_at_once(ledgers, lambda number, ledger: attempts_of.end_expired(ledger.engine, later))
    assert [found for part in ended for found in part] == [silent.attempt]
    assert states(world) == {(9, 1): "failed", (10, 1): "running"}
    left = world.rows("select tablename from pg_tables where schemaname = 'logbus_staging'")
    assert sorted(left) == sorted([(alive.attempt.staging_table,), (alive.attempt.dead_letter_table,)])
    with pytest.raises(AttemptSuperseded, match="is failed"):
        silent.commit()


def test_a_driver_that_beats_is_not_taken_for_dead(world: World, ledgers: list[Ledger]) -> None:
    world.freeze(9)
    running = world.begin(9)
    later = NOW + 2 * HEARTBEAT_EXPIRY
    with heartbeats(lambda: world.ledger.heartbeat(running, later)):
        pass
    assert attempts_of.end_expired(world.ledger.engine, later) == []
