"""Long work in slices, and work that waits for the disk, written as generators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.health import Health
from broker.log.background_tasks import SLICE_SECONDS, BackgroundTasks, Steps, Until
from tests.support.engine import ManualThreadPool
from tests.support.manual_clock import ManualClock

STEPS_PER_SLICE = int(SLICE_SECONDS * 1000)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def thread_pool() -> ManualThreadPool:
    return ManualThreadPool()


@pytest.fixture
def tasks(clock: ManualClock, thread_pool: ManualThreadPool) -> BackgroundTasks:
    return BackgroundTasks(thread_pool.store, clock, Health())


def unexpected() -> None:
    pytest.fail("no task failed")


def turn(tasks: BackgroundTasks, thread_pool: ManualThreadPool, clock: ManualClock) -> None:
    thread_pool.drain()
    if tasks.due <= clock.monotonic():
        tasks.work(clock.monotonic())


def count_to(count: int, done: list[int], clock: ManualClock) -> Steps:
    for number in range(count):
        done.append(number)
        clock.advance_ms(1)
        yield None


def test_a_short_task_is_done_when_it_was_begun(tasks: BackgroundTasks, clock: ManualClock) -> None:
    done: list[int] = []
    tasks.begin(count_to(2, done, clock), unexpected)
    assert (done, len(tasks), tasks.due) == ([0, 1], 0, float("inf"))


def test_all_tasks_together_have_one_slice_and_each_has_its_share(
    tasks: BackgroundTasks, thread_pool: ManualThreadPool, clock: ManualClock
) -> None:
    first: list[int] = []
    other: list[int] = []
    tasks.begin(count_to(30, first, clock), unexpected)
    tasks.begin(count_to(30, other, clock), unexpected)
    while len(tasks):
        before = len(first) + len(other)
        turn(tasks, thread_pool, clock)
        assert len(first) + len(other) <= before + STEPS_PER_SLICE + 1
        assert abs(len(first) - len(other)) <= 2 * STEPS_PER_SLICE


def test_a_job_runs_beside_the_loop_and_the_task_goes_on_with_its_result(
    tasks: BackgroundTasks, thread_pool: ManualThreadPool, clock: ManualClock
) -> None:
    results: list[Any] = []

    def steps() -> Steps:
        results.append((yield lambda: 7))
        try:
            yield lambda: 1 / 0
        except ZeroDivisionError as error:
            results.append(str(error))

    tasks.begin(steps(), unexpected)
    assert results == []
    while len(tasks):
        thread_pool.run()
        turn(tasks, thread_pool, clock)
    assert results == [7, "division by zero"]


def test_a_task_waits_for_what_is_told_later(tasks: BackgroundTasks, thread_pool: ManualThreadPool, clock: ManualClock) -> None:
    callbacks: list[Callable[[Any, BaseException | None], None]] = []
    results: list[Any] = []

    def steps() -> Steps:
        results.append((yield Until(callbacks.append)))

    tasks.begin(steps(), unexpected)
    turn(tasks, thread_pool, clock)
    assert results == []
    callbacks[0]("at last", None)
    turn(tasks, thread_pool, clock)
    assert (results, len(tasks)) == (["at last"], 0)


def test_those_in_the_queue_run_one_after_the_other(
    tasks: BackgroundTasks, thread_pool: ManualThreadPool, clock: ManualClock
) -> None:
    order: list[str] = []

    def steps(name: str) -> Steps:
        order.append(f"{name} begins")
        yield lambda: None
        order.append(f"{name} ends")

    for name in "abc":
        tasks.enqueue(steps(name), unexpected)
    tasks.begin(steps("beside"), unexpected)
    while len(tasks):
        thread_pool.run()
        turn(tasks, thread_pool, clock)
    queued = [step for step in order if not step.startswith("beside")]
    assert queued == [f"{name} {what}" for name in "abc" for what in ("begins", "ends")]
    assert order.index("beside begins") == 1, "what changes no topic does not wait for what does"


def test_thousands_in_the_queue_that_are_done_at_once_need_no_stack(
    tasks: BackgroundTasks, thread_pool: ManualThreadPool, clock: ManualClock
) -> None:
    done: list[int] = []

    def slow() -> Steps:
        yield lambda: None

    def quick(number: int) -> Steps:
        done.append(number)
        yield None

    tasks.enqueue(slow(), unexpected)
    for number in range(5_000):
        tasks.enqueue(quick(number), unexpected)
    thread_pool.run()
    while len(tasks):
        turn(tasks, thread_pool, clock)
    assert done == list(range(5_000))


def test_one_that_raises_is_told_and_the_queue_goes_on(
    tasks: BackgroundTasks, thread_pool: ManualThreadPool, clock: ManualClock
) -> None:
    failed: list[str] = []
    done: list[int] = []

    def steps() -> Steps:
        yield None
        raise ZeroDivisionError

    tasks.enqueue(steps(), lambda: failed.append("first"))
    tasks.enqueue(count_to(1, done, clock), unexpected)
    while len(tasks):
        turn(tasks, thread_pool, clock)
    assert (failed, done) == (["first"], [0])


def test_at_the_stop_all_come_to_their_ends_without_threads(tasks: BackgroundTasks, thread_pool: ManualThreadPool) -> None:
    done: list[str] = []

    def steps() -> Steps:
        for _ in range(3):
            done.append((yield lambda: "written"))

    tasks.enqueue(steps(), unexpected)
    tasks.enqueue(steps(), unexpected)
    thread_pool.close()
    tasks.finish()
    assert (done, len(tasks)) == (["written"] * 6, 0)


def test_what_cannot_be_waited_for_is_the_tasks_error(
    tasks: BackgroundTasks, thread_pool: ManualThreadPool, clock: ManualClock
) -> None:
    failed: list[str] = []

    def begin(go_on: object) -> None:
        raise ZeroDivisionError

    def steps() -> Steps:
        yield Until(begin)

    tasks.enqueue(steps(), lambda: failed.append("told"))
    turn(tasks, thread_pool, clock)
    assert (failed, len(tasks)) == (["told"], 0)
