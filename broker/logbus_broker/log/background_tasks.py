"""Work on the loop that is too long for one turn: requests that name thousands of things, changes that must reach the disk.

A task is a generator. It yields None wherever other work may run; a function if something has to wait for the disk, which then
runs on the pool thread for small files; and an `Until` to wait for something else. It resumes with the result, or with the
error. So a task reads from top to bottom, although the loop never waits for it:

    def create(...):
        for topic in topics:
            check(topic)
            yield
        yield registry.write_job()

All tasks together get SLICE_SECONDS of a turn. A new task runs its first slice at once, so a request for three partitions is
answered immediately and only one for three thousand is spread over turns. Tasks that change topics are queued: one ends before
the next begins, as in the single queue of Kafka's controller, so that none ever sees another's partial changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from math import inf
from typing import Any, NamedTuple

from logbus_broker.clock import Clock
from logbus_broker.health import Health
from logbus_broker.log.thread_pool import Job, Outcome

# How much longer tasks may make a turn. A producer waiting for an answer notices; a session timeout of six seconds does not.
SLICE_SECONDS = 0.003
# After a slice of work for which no client waits (compaction, retention): the pause, in lengths of that slice.
PAUSE_PER_SLICE = 3.0


class Until(NamedTuple):
    """Something to wait for: `begin` is called on the loop's thread with a callback. When the callback is called, once, the task
    resumes with the result or the error passed to it."""

    begin: Callable[[Outcome], None]


Step = Job | Until | None
Steps = Generator[Step, Any, Any]


class _Task(NamedTuple):
    steps: Steps
    failed: Callable[[], None]
    is_queued: bool


class BackgroundTasks:
    """All methods run on the loop's thread. `failed` is called, inside the exception handler, if a task raises."""

    def __init__(self, store: Callable[[Job, Outcome], None], clock: Clock, health: Health) -> None:
        self._store = store
        self._clock = clock
        self._health = health
        self._ready: deque[tuple[_Task, Any, BaseException | None]] = deque()  # with the result or error to resume with
        self._queued: deque[_Task] = deque()
        self._queue_is_busy = False
        self._waiting = 0  # tasks waiting for a thread or an `Until`
        self.due = inf  # -inf, so in every turn, while a task is ready to resume

    def __len__(self) -> int:
        return len(self._ready) + len(self._queued) + self._waiting

    def begin(self, steps: Steps, failed: Callable[[], None]) -> None:
        """Start a task: its first slice runs now."""
        until = self._clock.monotonic() + SLICE_SECONDS
        self._run(_Task(steps, failed, is_queued=False), None, None, until)

    def enqueue(self, steps: Steps, failed: Callable[[], None]) -> None:
        """The same, but after all tasks enqueued earlier."""
        task = _Task(steps, failed, is_queued=True)
        if self._queue_is_busy:
            self._queued.append(task)
        else:
            self._queue_is_busy = True
            self._run(task, None, None, self._clock.monotonic() + SLICE_SECONDS)

    def work(self, now: float) -> None:
        """Resume ready tasks until the slice is used up."""
        until = now + SLICE_SECONDS
        while self._ready:
            self._run(*self._ready.popleft(), until)
            if self._clock.monotonic() >= until:
                break
        self._look()

    def _look(self) -> None:
        self.due = -inf if self._ready else inf

    def _run(self, task: _Task, result: Any, error: BaseException | None, until: float) -> None:
        """Resume a task until it waits for a thread, its slice is over, or it ends."""
        clock, steps = self._clock, task.steps
        try:
            step = steps.send(result) if error is None else steps.throw(error)
            while step is None:
                if clock.monotonic() >= until:
                    self._ready.append((task, None, None))
                    self._look()
                    return
                step = next(steps)
        except StopIteration:
            self._ended(task)
        except Exception:
            try:
                task.failed()
            except Exception as second:
                self._health.defect("an answer", second)
            self._ended(task)
        else:
            self._wait_for(task, step)

    def _wait_for(self, task: _Task, step: Job | Until) -> None:
        def done(result: Any, error: BaseException | None) -> None:
            self._waiting -= 1
            self._ready.append((task, result, error))
            self._look()

        self._waiting += 1
        try:
            if isinstance(step, Until):
                step.begin(done)
            else:
                self._store(step, done)
        except Exception as error:  # nothing else would ever resume the task
            done(None, error)

    def _ended(self, task: _Task) -> None:
        if task.is_queued and self._queued:
            self._ready.append((self._queued.popleft(), None, None))
            self._look()
        elif task.is_queued:
            self._queue_is_busy = False

    def finish(self) -> None:
        """Run all ready tasks to completion now: the broker is stopping, and its threads have ended."""

        def at_once(job: Job, outcome: Outcome) -> None:
            result, error = None, None
            try:
                result = job()
            except Exception as caught:
                error = caught
            outcome(result, error)

        self._store = at_once
        while self._ready:
            self._run(*self._ready.popleft(), inf)
