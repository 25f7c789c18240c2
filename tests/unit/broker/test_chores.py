"""Long work in slices, and work that waits for the disk, written as generators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.chores import SLICE_SECONDS, Chores, Steps, Until
from broker.health import Health
from tests.support.engine import ManualHelpers
from tests.support.manual_clock import ManualClock

STEPS_PER_SLICE = int(SLICE_SECONDS * 1000)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def helpers() -> ManualHelpers:
    return ManualHelpers()


@pytest.fixture
def chores(clock: ManualClock, helpers: ManualHelpers) -> Chores:
    return Chores(helpers.store, clock, Health())


def unexpected() -> None:
    pytest.fail("no chore failed")


def turn(chores: Chores, helpers: ManualHelpers, clock: ManualClock) -> None:
    helpers.drain()
    if chores.due <= clock.monotonic():
        chores.work(clock.monotonic())


def count_to(count: int, done: list[int], clock: ManualClock) -> Steps:
    for number in range(count):
        done.append(number)
        clock.advance_ms(1)
        yield None


def test_a_short_chore_is_done_when_it_was_begun(chores: Chores, clock: ManualClock) -> None:
    done: list[int] = []
    chores.begin(count_to(2, done, clock), unexpected)
    assert (done, len(chores), chores.due) == ([0, 1], 0, float("inf"))


def test_all_chores_together_have_one_slice_and_each_has_its_share(
    chores: Chores, helpers: ManualHelpers, clock: ManualClock
) -> None:
    one: list[int] = []
    other: list[int] = []
    chores.begin(count_to(30, one, clock), unexpected)
    chores.begin(count_to(30, other, clock), unexpected)
    while len(chores):
        before = len(one) + len(other)
        turn(chores, helpers, clock)
        assert len(one) + len(other) <= before + STEPS_PER_SLICE + 1
        assert abs(len(one) - len(other)) <= 2 * STEPS_PER_SLICE


def test_a_job_runs_beside_the_loop_and_the_chore_goes_on_with_its_result(
    chores: Chores, helpers: ManualHelpers, clock: ManualClock
) -> None:
    seen: list[Any] = []

    def steps() -> Steps:
        seen.append((yield lambda: 7))
        try:
            yield lambda: 1 / 0
        except ZeroDivisionError as error:
            seen.append(str(error))

    chores.begin(steps(), unexpected)
    assert seen == []
    while len(chores):
        helpers.run()
        turn(chores, helpers, clock)
    assert seen == [7, "division by zero"]


def test_a_chore_waits_for_what_is_told_later(chores: Chores, helpers: ManualHelpers, clock: ManualClock) -> None:
    told: list[Callable[[Any, BaseException | None], None]] = []
    seen: list[Any] = []

    def steps() -> Steps:
        seen.append((yield Until(told.append)))

    chores.begin(steps(), unexpected)
    turn(chores, helpers, clock)
    assert seen == []
    told[0]("at last", None)
    turn(chores, helpers, clock)
    assert (seen, len(chores)) == (["at last"], 0)


def test_those_in_the_queue_run_one_after_the_other(chores: Chores, helpers: ManualHelpers, clock: ManualClock) -> None:
    order: list[str] = []

    def steps(name: str) -> Steps:
        order.append(f"{name} begins")
        yield lambda: None
        order.append(f"{name} ends")

    for name in "abc":
        chores.enqueue(steps(name), unexpected)
    chores.begin(steps("beside"), unexpected)
    while len(chores):
        helpers.run()
        turn(chores, helpers, clock)
    queued = [step for step in order if not step.startswith("beside")]
    assert queued == [f"{name} {what}" for name in "abc" for what in ("begins", "ends")]
    assert order.index("beside begins") == 1, "what changes no topic does not wait for what does"


def test_thousands_in_the_queue_that_are_done_at_once_need_no_stack(
    chores: Chores, helpers: ManualHelpers, clock: ManualClock
) -> None:
    done: list[int] = []

    def slow() -> Steps:
        yield lambda: None

    def quick(number: int) -> Steps:
        done.append(number)
        yield None

    chores.enqueue(slow(), unexpected)
    for number in range(5_000):
        chores.enqueue(quick(number), unexpected)
    helpers.run()
    while len(chores):
        turn(chores, helpers, clock)
    assert done == list(range(5_000))


def test_one_that_raises_is_told_and_the_queue_goes_on(chores: Chores, helpers: ManualHelpers, clock: ManualClock) -> None:
    failed: list[str] = []
    done: list[int] = []

    def steps() -> Steps:
        yield None
        raise ZeroDivisionError

    chores.enqueue(steps(), lambda: failed.append("first"))
    chores.enqueue(count_to(1, done, clock), unexpected)
    while len(chores):
        turn(chores, helpers, clock)
    assert (failed, done) == (["first"], [0])


def test_at_the_stop_all_come_to_their_ends_without_helpers(chores: Chores, helpers: ManualHelpers) -> None:
    done: list[str] = []

    def steps() -> Steps:
        for _ in range(3):
            done.append((yield lambda: "written"))

    chores.enqueue(steps(), unexpected)
    chores.enqueue(steps(), unexpected)
    helpers.close()
    chores.finish()
    assert (done, len(chores)) == (["written"] * 6, 0)


def test_what_cannot_be_waited_for_is_the_chores_error(chores: Chores, helpers: ManualHelpers, clock: ManualClock) -> None:
    failed: list[str] = []

    def begin(go_on: object) -> None:
        raise ZeroDivisionError

    def steps() -> Steps:
        yield Until(begin)

    chores.enqueue(steps(), lambda: failed.append("told"))
    turn(chores, helpers, clock)
    assert (failed, len(chores)) == (["told"], 0)
