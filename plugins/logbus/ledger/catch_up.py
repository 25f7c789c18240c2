"""Which windows a load takes, and how they are frozen: what is missing, and for a load of everything what else can be read.

Empty hours in between are included: an empty window is a valid window and proves that it held nothing. After the last record
there is nothing to prove yet; those hours are loaded when the schedule reaches them, or when a load names their span.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby

from sqlalchemy import Connection, Engine, false, select

from logbus.errors import TooManyWindows
from logbus.kafka.topics import OffsetLog
from logbus.ledger import schema
from logbus.ledger.chain_loading import load_chain
from logbus.ledger.empty_spans import freeze_between
from logbus.ledger.freezing import freeze_or_get, freeze_together
from logbus.ledger.missing import Gap, pipeline_gaps
from logbus.ledger.retained import lost_ranges
from logbus.ledger.rows import load_windows, pipeline_row, to_pipeline
from logbus.model import FrozenWindow, Interval, Pipeline, instant_text, intervals

# More are not begun without confirmation: one timestamp of 1970 makes half a million unwanted hours.
WINDOWS_UNASKED_MAX = 1_000

BULK_FROM = 4  # windows in an empty gap: with this many, all between its first and its last are frozen at once

WINDOWS_TOGETHER = 24  # frozen by one transaction, which holds the lock on the pipeline's row

WINDOWS_BETWEEN_WORDS = 500  # between two messages of a long freeze; hour by hour that is half a minute

# Called with the number of windows just frozen.
Tell = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """What a load takes, by time: gaps, and loaded windows that are loaded again."""

    pipeline: Pipeline
    steps: tuple[Gap | FrozenWindow, ...]

    @property
    def count(self) -> int:
        return sum(count_of(step) for step in self.steps)

    @property
    def empty(self) -> int:
        """How many of the windows hold no record, as far as that is known before they are frozen."""
        return sum(step.count for step in self.steps if isinstance(step, Gap) and step.is_empty)

    def refuse_more_than(self, windows_max: int, advice: str) -> None:
        """`TooManyWindows`, with their number and the command to use instead."""
        if self.count > windows_max:
            first = instant_text(self.steps[0].interval.start)
            raise TooManyWindows(
                f"{self.count} windows of {self.pipeline.name} from {first} on are not loaded, {self.empty} of them without any "
                f"record; more than {windows_max} are not begun without a word: {advice}"
            )


def count_of(step: Gap | FrozenWindow) -> int:
    return step.count if isinstance(step, Gap) else 1


def parts_of(step: Gap | FrozenWindow, pipeline: Pipeline) -> Iterator[Interval]:
    return step.parts(pipeline.interval) if isinstance(step, Gap) else iter((step.interval,))


def plan_load(
    engine: Engine,
    pipeline_name: str,
    log: OffsetLog,
    now: datetime,
    since: datetime | None = None,
    until: datetime | None = None,
    *,
    limit: int | None = None,
    only_missing: bool = False,
) -> LoadPlan:
    """The first `limit` windows that are not loaded or, unless `only_missing`, are loaded and can still be read."""
    steps: list[Gap | FrozenWindow] = [
        *pipeline_gaps(engine, pipeline_name, log, now, since, until, questions_max=None),
    ]
    with engine.connect() as connection:
        row = pipeline_row(connection, pipeline_name)
        pipeline = to_pipeline(row)
        chain = None if only_missing else load_chain(connection, row, row["topic_id"], false())
    steps += [] if chain is None else readable(chain.windows, log, since, until)
    steps.sort(key=lambda step: step.interval)
    return LoadPlan(pipeline=pipeline, steps=tuple(steps if limit is None else limited(steps, limit, pipeline)))


def readable(
    windows: Sequence[FrozenWindow], log: OffsetLog, since: datetime | None, until: datetime | None
) -> list[FrozenWindow]:
    """The loaded windows of the span that the log still holds, from the first that has a record to the last."""
    loaded = [one for one in windows if one.loaded_attempt is not None]
    partitions = sorted({part.partition for window in loaded for part in window.ranges})
    if not loaded:
        return []
    starts = log.start_offsets(loaded[0].topic, partitions)
    held = [window for window in loaded if not lost_ranges(window, starts)]
    filled = [number for number, window in enumerate(held) if window.record_count]
    return [
        window for window in (held[filled[0] : filled[-1] + 1] if filled else ()) if window.interval.ends_between(since, until)
    ]


def limited(steps: Sequence[Gap | FrozenWindow], limit: int, pipeline: Pipeline) -> Iterator[Gap | FrozenWindow]:
    left = limit
    for step in steps:
        if left <= 0:
            return
        if isinstance(step, Gap) and step.count > left:
            end = step.interval.start + left * pipeline.interval
            step = replace(step, interval=Interval(step.interval.start, end), count=left)
        yield step
        left -= count_of(step)


def freeze_plan(
    engine: Engine, plan: LoadPlan, log: OffsetLog, now: datetime, tell: Tell = lambda count: None
) -> list[FrozenWindow]:
    """The plan's windows, all frozen."""
    found: list[FrozenWindow] = []
    # In order of time, whatever the kind of step: if this is interrupted, the beginning of the span is frozen and the rest is
    # not, which is what the next load and a reader of `window ls` expect. Hence `groupby` without sorting by kind.
    for is_known, steps in groupby(plan.steps, key=is_frozen_empty):
        for windows in known_parts(engine, plan, list(steps)) if is_known else frozen_parts(engine, plan, steps, log, now):
            found += windows
            tell(len(windows))
    return found


def telling(total: int, say: Callable[[str], None]) -> Tell:
    """Reports the progress of a long freeze."""
    done = 0

    def tell(count: int) -> None:
        nonlocal done
        before, done = done // WINDOWS_BETWEEN_WORDS, done + count
        if done // WINDOWS_BETWEEN_WORDS > before and done < total:
            say(f"{done} of {total} windows are frozen")

    return tell


def is_frozen_empty(step: Gap | FrozenWindow) -> bool:
    return isinstance(step, Gap) and step.is_frozen and step.is_empty


def known_parts(engine: Engine, plan: LoadPlan, steps: Sequence[Gap | FrozenWindow]) -> Iterator[Sequence[FrozenWindow]]:
    """Empty windows that are frozen already: they have nothing to lose, so the broker need not be asked."""
    wanted = {step.interval for step in steps}
    span = Interval(steps[0].interval.start, steps[-1].interval.end)
    with engine.connect() as connection:
        yield [window for window in windows_within(connection, plan.pipeline.name, span) if window.interval in wanted]


def frozen_parts(
    engine: Engine, plan: LoadPlan, steps: Iterable[Gap | FrozenWindow], log: OffsetLog, now: datetime
) -> Iterator[Sequence[FrozenWindow]]:
    """The windows of the steps, some at a time."""
    for is_fresh, some in groupby(steps, key=is_frozen_by_the_hour):
        if is_fresh:
            hours = (interval for step in some for interval in parts_of(step, plan.pipeline))
            for touching in runs(hours):
                together = freeze_together(engine, plan.pipeline, touching, log, now)
                # Together takes one transaction and one round of broker requests for up to a day of hours. It returns None,
                # having changed nothing, if another run has frozen some of them or something is wrong with one of
                # them: then the hours are frozen one by one, so that the error names the hour.
                yield together or [freeze_or_get(engine, plan.pipeline.name, hour, log, now) for hour in touching]
            continue
        for step in some:
            if isinstance(step, FrozenWindow):
                yield [step]
            elif step.is_frozen:
                yield [freeze_or_get(engine, plan.pipeline.name, step.interval, log, now)]
            else:
                yield from frozen_empty(engine, plan.pipeline, step, log, now)


def is_frozen_by_the_hour(step: Gap | FrozenWindow) -> bool:
    return isinstance(step, Gap) and not step.is_frozen and not (step.is_empty and step.count >= BULK_FROM)


def runs(hours: Iterable[Interval]) -> Iterator[list[Interval]]:
    """The hours in runs without a gap, of at most `WINDOWS_TOGETHER` each."""
    run: list[Interval] = []
    for hour in hours:
        if run and (len(run) == WINDOWS_TOGETHER or run[-1].end != hour.start):
            yield run
            run = []
        run.append(hour)
    if run:
        yield run


def frozen_empty(engine: Engine, pipeline: Pipeline, gap: Gap, log: OffsetLog, now: datetime) -> Iterator[Sequence[FrozenWindow]]:
    """The first window and the last as always; those in between in bulk, if their boundaries prove them empty."""
    length, span = pipeline.interval, gap.interval
    with engine.connect() as connection:
        known = windows_within(connection, pipeline.name, span)
    if len(known) == gap.count:
        yield known
        return

    def frozen(interval: Interval) -> FrozenWindow:
        return freeze_or_get(engine, pipeline.name, interval, log, now)

    # If the boundaries before and after a span are the same offsets, so is every boundary between them: offsets never decrease
    # from hour to hour. So the two ends prove a decade empty that, asked hour by hour, would take 87,600 requests to the
    # broker.
    first, last = frozen(Interval(span.start, span.start + length)), frozen(Interval(span.end - length, span.end))
    yield [first]
    reached = first.interval.end
    for done in freeze_between(engine, pipeline, first, last, now):
        with engine.connect() as connection:
            yield windows_within(connection, pipeline.name, done)
        reached = done.end
    for interval in intervals(reached, last.interval.start, length):
        yield [frozen(interval)]
    yield [last]


def windows_within(connection: Connection, pipeline_name: str, span: Interval) -> list[FrozenWindow]:
    window = schema.window
    mine = (window.c.pipeline == pipeline_name, window.c.starts_at >= span.start, window.c.ends_at <= span.end)
    return load_windows(connection, select(window).where(*mine).order_by(window.c.starts_at))
