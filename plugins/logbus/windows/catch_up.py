"""Which windows a load takes, and how they are frozen: what is missing, and for a load of everything what else can be read.

Empty hours in between are included: an empty window is a valid window, and its boundaries prove that it held nothing. After the
last record there is nothing to prove yet; those hours are frozen when the schedule reaches them, or when a load names their span.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby, islice
from typing import Any

from sqlalchemy import Connection, Engine, bindparam, false, select, text
from sqlalchemy.dialects.postgresql import JSONB

from logbus import errors, model
from logbus.kafka.topics import OffsetLog
from logbus.windows import freezing, handover, log_changes, missing, pipeline_chains, rows, schema
from logbus.windows.chain import Chain
from logbus.windows.table_names import SCHEMA

# More need confirmation: one timestamp of 1970 makes half a million unwanted hours.
WINDOWS_UNCONFIRMED_MAX = 1_000

BULK_FROM = 4  # windows in an empty gap: with this many, all between its first and its last are frozen at once

WINDOWS_TOGETHER = 24  # frozen by one transaction, which holds the lock on the pipeline's row

WINDOWS_PER_TRANSACTION = 5_000  # of empty windows: a transaction locks the pipeline's row, and progress is reported after each

PROGRESS_EVERY = 500  # windows of a long freeze; hour by hour that is half a minute

# Called with the number of windows just frozen.
Progress = Callable[[int], None]

Step = missing.Gap | model.FrozenWindow


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """What a load takes, by time: gaps, and loaded windows that are loaded again."""

    pipeline: model.Pipeline
    steps: tuple[Step, ...]

    @property
    def count(self) -> int:
        return sum(_count(step) for step in self.steps)

    @property
    def to_load(self) -> int:
        """All but those that are frozen and proven empty: they are listed, and nothing is done for them."""
        return sum(_count(step) for step in self.steps if isinstance(step, missing.Gap) or step.needs_load)

    @property
    def empty(self) -> int:
        """How many of the windows hold no record, as far as that is known before they are frozen."""
        return sum(step.count for step in self.steps if isinstance(step, missing.Gap) and step.is_empty)

    def refuse_more_than(self, windows_max: int, advice: str) -> None:
        """`TooManyWindows`, with their number and the command to use instead."""
        if self.to_load > windows_max:
            first = model.instant_text(self.steps[0].interval.start)
            raise errors.TooManyWindows(
                f"{self.to_load} windows of {self.pipeline.name} from {first} on are not loaded, {self.empty} of them without "
                f"any record; refusing to start more than {windows_max} without confirmation: {advice}"
            )


def _count(step: Step) -> int:
    return step.count if isinstance(step, missing.Gap) else 1


def parts_of(step: Step, pipeline: model.Pipeline) -> Iterator[model.Interval]:
    """The intervals of a plan's step."""
    return step.parts(pipeline.grid) if isinstance(step, missing.Gap) else iter((step.interval,))


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
    steps: list[Step] = [*missing.pipeline_gaps(engine, pipeline_name, log, now, since, until, questions_max=None)]
    with engine.connect() as connection:
        row = rows.pipeline_row(connection, pipeline_name)
        pipeline = rows.to_pipeline(row)
        chain = None if only_missing else pipeline_chains.load_chain(connection, row, row["topic_id"], false())
    steps += [] if chain is None else _readable(chain.windows, log, since, until)
    steps.sort(key=lambda step: step.interval)
    return LoadPlan(pipeline=pipeline, steps=tuple(steps if limit is None else _limited(steps, limit, pipeline)))


def _readable(
    windows: Sequence[model.FrozenWindow], log: OffsetLog, since: datetime | None, until: datetime | None
) -> list[model.FrozenWindow]:
    """The loaded windows of the span that the log still holds; where the span is open, from the first that has a record to the
    last, loaded or not."""
    loaded = [window for window in windows if window.loaded_attempt is not None]
    partitions = sorted({part.partition for window in loaded for part in window.ranges})
    if not loaded:
        return []
    starts = log.start_offsets(loaded[0].topic, partitions)
    filled = [window.interval for window in windows if window.record_count and not log_changes.lost_ranges(window, starts)]
    first = since or min((interval.start for interval in filled), default=None)
    last = until or max((interval.end for interval in filled), default=None)
    kept = [window for window in loaded if window.interval.ends_between(first, last)] if filled or (since and until) else []
    return [window for window in kept if not log_changes.lost_ranges(window, starts)]


def _limited(steps: Sequence[Step], limit: int, pipeline: model.Pipeline) -> Iterator[Step]:
    left = limit
    for step in steps:
        if left <= 0:
            return
        if isinstance(step, missing.Gap) and step.count > left:
            end = pipeline.grid.after(step.interval.start, left)
            step = replace(step, interval=model.Interval(step.interval.start, end), count=left)
        yield step
        left -= _count(step)


def freeze_plan(
    engine: Engine, plan: LoadPlan, log: OffsetLog, now: datetime, progress: Progress = lambda count: None
) -> list[model.FrozenWindow]:
    """The plan's windows, all frozen."""
    frozen: list[model.FrozenWindow] = []
    # In order of time, whatever the kind of step: if this is interrupted, the beginning of the span is frozen and the rest is
    # not, which is what the next load and a reader of `window ls` expect. Hence `groupby` without sorting by kind.
    for is_by_the_hour, steps in groupby(plan.steps, key=_is_frozen_by_the_hour):
        freeze = _freeze_hours if is_by_the_hour else _freeze_steps
        for windows in freeze(engine, plan.pipeline, steps, log, now):
            frozen += windows
            progress(len(windows))
    return frozen


def progress_to(say: Callable[[str], None], total: int) -> Progress:
    """Reports the progress of a long freeze."""
    done = 0

    def progress(count: int) -> None:
        nonlocal done
        before, done = done // PROGRESS_EVERY, done + count
        if done // PROGRESS_EVERY > before and done < total:
            say(f"{done} of {total} windows are frozen")

    return progress


def _is_frozen_by_the_hour(step: Step) -> bool:
    return isinstance(step, missing.Gap) and not step.is_frozen and not (step.is_empty and step.count >= BULK_FROM)


def _freeze_hours(
    engine: Engine, pipeline: model.Pipeline, steps: Iterable[Step], log: OffsetLog, now: datetime
) -> Iterator[Sequence[model.FrozenWindow]]:
    for adjacent in runs(interval for step in steps for interval in parts_of(step, pipeline)):
        together = freezing.freeze_together(engine, pipeline, adjacent, log, now)
        # Together takes one transaction and one round of broker requests for up to a day of hours. It returns None, having
        # changed nothing, if another run has frozen some of them or something is wrong with one of them: then the hours are
        # frozen one by one, so that the error names the hour.
        yield together or [freezing.freeze_or_get(engine, pipeline.name, hour, log, now) for hour in adjacent]


def _freeze_steps(
    engine: Engine, pipeline: model.Pipeline, steps: Iterable[Step], log: OffsetLog, now: datetime
) -> Iterator[Sequence[model.FrozenWindow]]:
    for step in steps:
        if isinstance(step, model.FrozenWindow):
            yield [step]
        elif step.is_frozen:
            yield [freezing.freeze_or_get(engine, pipeline.name, step.interval, log, now)]
        else:
            yield from _freeze_empty(engine, pipeline, step, log, now)


def runs(hours: Iterable[model.Interval]) -> Iterator[list[model.Interval]]:
    """The hours in runs without a gap, of at most `WINDOWS_TOGETHER` each."""
    run: list[model.Interval] = []
    for hour in hours:
        if run and (len(run) == WINDOWS_TOGETHER or run[-1].end != hour.start):
            yield run
            run = []
        run.append(hour)
    if run:
        yield run


def _freeze_empty(
    engine: Engine, pipeline: model.Pipeline, gap: missing.Gap, log: OffsetLog, now: datetime
) -> Iterator[Sequence[model.FrozenWindow]]:
    """The first window and the last as always; those in between in bulk, if their boundaries prove them empty."""
    grid, span = pipeline.grid, gap.interval
    with engine.connect() as connection:
        already = _windows_within(connection, pipeline.name, span)
    if len(already) == gap.count:
        yield already
        return

    def freeze(interval: model.Interval) -> model.FrozenWindow:
        return freezing.freeze_or_get(engine, pipeline.name, interval, log, now)

    # If the boundaries before and after a span are the same offsets, so is every boundary between them: offsets never decrease
    # from hour to hour. So the two ends prove a decade empty that, hour by hour, would take 87,600 requests to the broker.
    first, last = freeze(grid.window(span.start)), freeze(grid.window(grid.after(span.end, -1)))
    yield [first]
    reached = first.interval.end
    for frozen in freeze_between(engine, pipeline, first, last, now):
        with engine.connect() as connection:
            yield _windows_within(connection, pipeline.name, frozen)
        reached = frozen.end
    for interval in grid.windows(reached, last.interval.start):
        yield [freeze(interval)]
    yield [last]


def _windows_within(connection: Connection, pipeline_name: str, span: model.Interval) -> list[model.FrozenWindow]:
    window = schema.window
    within = (window.c.pipeline == pipeline_name, window.c.starts_at >= span.start, window.c.ends_at <= span.end)
    return rows.load_windows(connection, select(window).where(*within).order_by(window.c.starts_at))


# Many empty windows at once. There is no record between two frozen windows if the boundary after the first and the one before the
# second are the same offset in every partition: boundaries between them are clamped, so they can be nothing else. That takes no
# broker request, and the windows are created by a few statements. Where it does not hold, the caller freezes hour by hour.

EMPTY = [*rows.proven_empty_values(model.EPOCH)]  # the columns of an empty window

TAKEN = text(f"""
    select exists (select from {SCHEMA}."window" where pipeline = :pipeline and starts_at < :end and ends_at > :start)
""")
# Copies of the boundary after them, including its witness, the record before it. None for a partition that is anchored there:
# boundaries before an anchor are already decided.
COPIED = ", ".join(f'"{column.name}"' for column in schema.boundary.columns if column.name not in ("at", "frozen_at"))
BOUNDARIES = text(f"""
    insert into {SCHEMA}.boundary (at, frozen_at, {COPIED})
    select inner_at, :now, {COPIED}
    from {SCHEMA}.boundary, unnest(cast(:ends as timestamptz[])) inner_at
    where pipeline = :pipeline and topic_id = :topic_id and at = :decided_at
    on conflict do nothing
""")
WINDOWS = text(f"""
    with frozen as (
        insert into {SCHEMA}."window" (pipeline, topic_id, starts_at, ends_at, frozen_at, {", ".join(EMPTY)})
        select :pipeline, :topic_id, starts_at, ends_at, :now, {", ".join(f":{name}" for name in EMPTY)}
        from unnest(cast(:starts as timestamptz[]), cast(:ends as timestamptz[])) hours (starts_at, ends_at)
        returning id
    )
    insert into {SCHEMA}.window_range (window_id, partition, start_offset, end_offset)
    select id, number, part_offset, part_offset
    from frozen, unnest(cast(:partitions as integer[]), cast(:offsets as bigint[])) parts (number, part_offset)
""").bindparams(bindparam("audit_problems", type_=JSONB))


def freeze_between(
    engine: Engine, pipeline: model.Pipeline, first: model.FrozenWindow, last: model.FrozenWindow, now: datetime
) -> Iterator[model.Interval]:
    """Freezes the windows between two others, if no record can be there. Yields each span once its transaction has committed;
    stops where there may be a record, or already is a window."""
    between = pipeline.grid.windows(first.interval.end, last.interval.start)
    while windows := list(islice(between, WINDOWS_PER_TRANSACTION)):
        if not _freeze_empty_span(engine, pipeline, first, last, windows, now):
            return
        yield model.Interval(windows[0].start, windows[-1].end)


def _freeze_empty_span(
    engine: Engine,
    pipeline: model.Pipeline,
    first: model.FrozenWindow,
    last: model.FrozenWindow,
    windows: Sequence[model.Interval],
    now: datetime,
) -> bool:
    """Whether the adjacent windows were created."""
    values: dict[str, Any] = {"pipeline": pipeline.name, "start": windows[0].start, "end": windows[-1].end}
    with engine.begin() as connection:
        topic_id = rows.pipeline_row(connection, pipeline.name, lock=True)["topic_id"]
        chain = Chain(connection, pipeline.name, topic_id)
        offsets = None if {first.topic_id, last.topic_id} != {topic_id} else _offsets_between(chain, first, last)
        gone_until = chain.lost_until()
        if gone_until is not None and windows[0].start < gone_until:  # empty now; what they held in the former log is unknown
            return False
        if offsets is None or connection.execute(TAKEN, values).scalar_one():
            return False
        values |= {"topic_id": topic_id, "now": now, "decided_at": last.interval.start}
        values |= {"starts": [window.start for window in windows], "ends": [window.end for window in windows]}
        connection.execute(BOUNDARIES, values)
        ranges = {"partitions": list(offsets), "offsets": list(offsets.values())}
        connection.execute(WINDOWS, {**values, **ranges, **rows.proven_empty_values(now)})
        connection.execute(handover.NOTIFY, {"name": pipeline.name})
    return True


def _offsets_between(chain: Chain, first: model.FrozenWindow, last: model.FrozenWindow) -> dict[int, int] | None:
    """By partition, the offset of all boundaries between the windows; None if two of them may differ."""
    offsets: dict[int, int] = {}
    for partition in sorted({part.partition for window in (first, last) for part in window.ranges}):
        lower, upper = chain.boundary(partition, first.interval.end), chain.boundary(partition, last.interval.start)
        if lower is None or lower != upper:
            return None
        offsets[partition] = lower
    return offsets
