"""Long work in slices, and work that waits for the disk, written as generators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from logbus_broker.health import Health
from logbus_broker.log.background_tasks import SLICE_SECONDS, BackgroundTasks, Steps, Until

from tests.support.engine import ManualThreadPool
from tests.support.manual_clock import ManualClock

STEPS_PER_SLICE = int(SLICE_SECONDS * 1000)


class Scene:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.thread_pool = ManualThreadPool()
        self.tasks = BackgroundTasks(self.thread_pool.store, self.clock, Health())

    def turn(self) -> None:
        self.thread_pool.drain()
        if self.tasks.due <= self.clock.monotonic():
            self.tasks.work(self.clock.monotonic())


@pytest.fixture
def scene() -> Scene:
    return Scene()


def unexpected() -> None:
    pytest.fail("no task failed")


def count_to(count: int, done: list[int], clock: ManualClock) -> Steps:
    for number in range(count):
        done.append(number)
        clock.advance_ms(1)
        yield None


def test_a_short_task_is_done_when_it_was_begun(scene: Scene) -> None:
    done: list[int] = []
    scene.tasks.begin(count_to(2, done, scene.clock), unexpected)
    assert (done, len(scene.tasks), scene.tasks.due) == ([0, 1], 0, float("inf"))


def test_all_tasks_together_have_one_slice_and_each_has_its_share(scene: Scene) -> None:
    first: list[int] = []
    other: list[int] = []
    scene.tasks.begin(count_to(30, first, scene.clock), unexpected)
    scene.tasks.begin(count_to(30, other, scene.clock), unexpected)
    while len(scene.tasks):
        before = len(first) + len(other)
        scene.turn()
        assert len(first) + len(other) <= before + STEPS_PER_SLICE + 1
        assert abs(len(first) - len(other)) <= 2 * STEPS_PER_SLICE


def test_a_job_runs_beside_the_loop_and_the_task_goes_on_with_its_result(scene: Scene) -> None:
    results: list[Any] = []

    def steps() -> Steps:
        results.append((yield lambda: 7))
        try:
            yield lambda: 1 / 0
        except ZeroDivisionError as error:
            results.append(str(error))

    scene.tasks.begin(steps(), unexpected)
    assert results == []
    while len(scene.tasks):
        scene.thread_pool.run()
        scene.turn()
    assert results == [7, "division by zero"]


def test_a_task_waits_for_what_is_told_later(scene: Scene) -> None:
    callbacks: list[Callable[[Any, BaseException | None], None]] = []
    results: list[Any] = []

    def steps() -> Steps:
        results.append((yield Until(callbacks.append)))

    scene.tasks.begin(steps(), unexpected)
    scene.turn()
    assert results == []
    callbacks[0]("at last", None)
    scene.turn()
    assert (results, len(scene.tasks)) == (["at last"], 0)


def test_those_in_the_queue_run_one_after_the_other(scene: Scene) -> None:
    order: list[str] = []

    def steps(name: str) -> Steps:
        order.append(f"{name} begins")
        yield lambda: None
        order.append(f"{name} ends")

    for name in "abc":
        scene.tasks.enqueue(steps(name), unexpected)
    scene.tasks.begin(steps("beside"), unexpected)
    while len(scene.tasks):
        scene.thread_pool.run()
        scene.turn()
    queued = [step for step in order if not step.startswith("beside")]
    assert queued == [f"{name} {what}" for name in "abc" for what in ("begins", "ends")]
    assert order.index("beside begins") == 1, "what changes no topic does not wait for what does"


def test_thousands_in_the_queue_that_are_done_at_once_need_no_stack(scene: Scene) -> None:
    done: list[int] = []

    def slow() -> Steps:
        yield lambda: None

    def quick(number: int) -> Steps:
        done.append(number)
        yield None

    scene.tasks.enqueue(slow(), unexpected)
    for number in range(5_000):
        scene.tasks.enqueue(quick(number), unexpected)
    scene.thread_pool.run()
    while len(scene.tasks):
        scene.turn()
    assert done == list(range(5_000))


def test_one_that_raises_is_told_and_the_queue_goes_on(scene: Scene) -> None:
    failed: list[str] = []
    done: list[int] = []

    def steps() -> Steps:
        yield None
        raise ZeroDivisionError

    scene.tasks.enqueue(steps(), lambda: failed.append("first"))
    scene.tasks.enqueue(count_to(1, done, scene.clock), unexpected)
    while len(scene.tasks):
        scene.turn()
    assert (failed, done) == (["first"], [0])


def test_at_the_stop_all_come_to_their_ends_without_threads(scene: Scene) -> None:
    done: list[str] = []

    def steps() -> Steps:
        for _ in range(3):
            done.append((yield lambda: "written"))

    scene.tasks.enqueue(steps(), unexpected)
    scene.tasks.enqueue(steps(), unexpected)
    scene.thread_pool.close()
    scene.tasks.finish()
    assert (done, len(scene.tasks)) == (["written"] * 6, 0)


def test_what_cannot_be_waited_for_is_the_tasks_error(scene: Scene) -> None:
    failed: list[str] = []

    def begin(go_on: object) -> None:
        raise ZeroDivisionError

    def steps() -> Steps:
        yield Until(begin)

    scene.tasks.enqueue(steps(), lambda: failed.append("told"))
    scene.turn()
    assert (failed, len(scene.tasks)) == (["told"], 0)
