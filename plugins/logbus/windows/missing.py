"""What is missing from a pipeline: closed intervals that are not loaded. The one answer that lag, the pages, `load`, `window ls`,
`doctor`, retention and the DAGs all use.

A pipeline's windows form a chain, so the unfrozen time falls into pieces: before the first window, between two windows, after the
last. An interval is closed by the clock, not by data. But after the last record there is nothing to load yet, so nothing is
missing there: a pipeline over a log of 2015 is not ten years behind. There are three kinds:

    not loaded           frozen, and no load has committed
    not frozen           it holds records, or may have held some before retention or a new topic removed them: it waits
    not frozen, empty    it cannot hold a record: it begins and ends at the same offset in every partition

Only the first two are "behind", and of the frozen ones only those with records. An empty interval still has to be frozen and
loaded, which proves that it was empty, but many of them are no alarm: from a log of 2015 to one of today there are 100,000 hours.

How the empty ones are found: the first record at or after an instant gives the boundary at that instant, and shows that the
boundary stays there up to the record's own timestamp. Pieces whose two boundaries differ are divided, all in one round of
requests, until each is one interval. A limit keeps callers that look at many pipelines from asking too much; what has not been
divided by then counts as waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Engine

from logbus import model
from logbus.kafka.topics import OffsetAndTimestamp, OffsetLog, TopicFacts
from logbus.windows import boundaries, log_changes, pipeline_chains, rows

# Per pipeline and call: enough for ten days of hours that all hold records, resolved to the hour, and what is around them.
QUESTIONS_MAX = 500

PROBED_FROM = 3  # intervals: for a piece of this length or more, the first request is where its first record is


class Missing(StrEnum):
    """How far a gap has progressed."""

    NOT_FROZEN = "not frozen"
    NOT_LOADED = "not loaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Closed intervals that are not loaded: `count` consecutive ones that are not frozen, or one frozen window.

    `is_empty`: none of them can hold a record.
    """

    interval: model.Interval
    missing: Missing
    is_empty: bool = False
    count: int = 1

    @property
    def is_frozen(self) -> bool:
        return self.missing is Missing.NOT_LOADED

    def parts(self, grid: model.Grid) -> Iterator[model.Interval]:
        """Its intervals, of the pipeline's grid; a frozen window is one, however long."""
        return iter((self.interval,)) if self.is_frozen else grid.windows(self.interval.start, self.interval.end)

    def summary(self) -> dict[str, Any]:
        """As JSON-ready values."""
        start, end = model.instant_text(self.interval.start), model.instant_text(self.interval.end)
        return {"start": start, "end": end, "missing": str(self.missing), "empty": self.is_empty, "windows": self.count}


def behind(gaps: Iterable[Gap]) -> int:
    """How many intervals are waiting for their records to be loaded."""
    return sum(gap.count for gap in gaps if not gap.is_empty)


def empty(gaps: Iterable[Gap]) -> int:
    """How many are not loaded and hold no record."""
    return sum(gap.count for gap in gaps if gap.is_empty)


def oldest(gaps: Iterable[Gap]) -> datetime | None:
    """The start of the first interval that is behind."""
    return min((gap.interval.start for gap in gaps if not gap.is_empty), default=None)


def find_gaps(
    log: OffsetLog,
    pipeline: model.Pipeline,
    chain: pipeline_chains.PipelineChain,
    snapshot: boundaries.LogSnapshot,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    questions_max: int | None = QUESTIONS_MAX,
) -> tuple[Gap, ...]:
    """All gaps by time, or those in a span: then also the empty intervals before the first record and after the last."""
    pieces = list(unfrozen_pieces(log, pipeline, chain, snapshot, since))
    gaps = joined(_decided(log, pipeline, snapshot, pieces, questions_max), pipeline.grid)
    if until is None:
        last = last_record_until(chain, gaps)
        gaps = [gap for gap in gaps if not gap.is_empty or (last is not None and gap.interval.start < last)]
    gaps += [unloaded(window) for window in (*chain.former, *chain.windows) if window.loaded_attempt is None]
    return tuple(within(sorted(gaps, key=lambda gap: gap.interval), pipeline.grid, since, until))


def last_record_until(chain: pipeline_chains.PipelineChain, unfrozen: Iterable[Gap]) -> datetime | None:
    """The end of the last interval that may hold a record: after it there is nothing to load yet, whatever is frozen there."""
    ends = [gap.interval.end for gap in unfrozen if not gap.is_empty]
    ends += [window.interval.end for window in chain.windows if holds_records(window)]
    return max(ends, default=None if chain.left_out is None else chain.left_out.end)


def holds_records(window: model.FrozenWindow) -> bool:
    """Whether it holds records, or may have held some."""
    return window.head_unknown or any(part.start_offset < part.end_offset for part in window.ranges)


def ledger_gaps(
    pipeline: model.Pipeline, chain: pipeline_chains.PipelineChain, since: datetime | None = None, until: datetime | None = None
) -> tuple[Gap, ...]:
    """What the ledger shows without the log: windows that are not loaded, and holes between windows, which may or may not be
    empty."""
    frozen = [*([chain.left_out] if chain.left_out else []), *(window.interval for window in chain.windows)]
    starts = [chain.begins_at or pipeline.starts_at, *(interval.start for interval in frozen)]
    begin, end = next(filter(None, starts), None), max((interval.end for interval in frozen), default=None)
    holes = model.uncovered(begin, end, ((part.start, part.end) for part in frozen)) if begin and end else ()
    whole_holes = [pipeline.grid.whole(*hole) for hole in holes]
    gaps = joined([(hole, False) for hole in whole_holes if hole is not None], pipeline.grid)
    gaps += [unloaded(window) for window in (*chain.former, *chain.windows) if window.loaded_attempt is None]
    return tuple(within(sorted(gaps, key=lambda gap: gap.interval), pipeline.grid, since, until))


def unloaded(window: model.FrozenWindow) -> Gap:
    return Gap(interval=window.interval, missing=Missing.NOT_LOADED, is_empty=not holds_records(window))


def joined(spans: Iterable[tuple[model.Interval, bool]], grid: model.Grid) -> list[Gap]:
    """Unfrozen gaps from intervals and whether each is empty: adjacent ones of the same kind are joined."""
    runs: list[tuple[model.Interval, bool]] = []
    for interval, is_empty in sorted(spans):
        if runs and runs[-1][1] == is_empty and runs[-1][0].end == interval.start:
            interval = model.Interval(runs.pop()[0].start, interval.end)
        runs.append((interval, is_empty))
    return [
        Gap(interval=interval, missing=Missing.NOT_FROZEN, is_empty=is_empty, count=grid.count(interval))
        for interval, is_empty in runs
    ]


def within(gaps: Iterable[Gap], grid: model.Grid, since: datetime | None, until: datetime | None) -> Iterator[Gap]:
    """The parts of the gaps that begin in the interval that holds `since` or later, and end at or before `until`."""
    begin = None if since is None else grid.floor(since)
    for gap in gaps:
        start, end = gap.interval.start, gap.interval.end
        if not gap.is_frozen:
            start = start if begin is None else max(start, begin)
            end = end if until is None else min(end, grid.floor(until))
            if start < end:
                span = model.Interval(start, end)
                yield replace(gap, interval=span, count=grid.count(span))
        elif (begin is None or start >= begin) and (until is None or end <= until):
            yield gap


def pipeline_gaps(
    engine: Engine,
    pipeline_name: str,
    log: OffsetLog | None,
    now: datetime,
    since: datetime | None = None,
    until: datetime | None = None,
    questions_max: int | None = QUESTIONS_MAX,
) -> tuple[Gap, ...]:
    """The gaps of a registered pipeline; without a log only what the ledger itself shows."""
    with engine.connect() as connection:
        row = rows.pipeline_row(connection, pipeline_name)
        facts = None if log is None else facts_of(row, log)
        pipeline, chain = (
            rows.to_pipeline(row),
            pipeline_chains.load_chain(connection, row, row["topic_id"], pipeline_chains.is_loaded()),
        )
    if log is None or facts is None:
        return ledger_gaps(pipeline, chain, since, until)
    snapshot = boundaries.take_snapshot(
        log, pipeline, {part: pipeline_chains.tail_of(chain, part) for part in facts.partitions}, now
    )
    return find_gaps(log, pipeline, chain, snapshot, since=since, until=until, questions_max=questions_max)


def facts_of(row: rows.Row, log: OffsetLog) -> TopicFacts:
    """The pipeline's topic, verified to be the one for which it is registered."""
    with log_changes.on_its_cluster(row, log):
        facts = log.topic(row["topic"])
        log_changes.refuse_if_recreated(row["topic"], row["topic_id"], facts.topic_id)
        return facts


Offsets = Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Whole intervals that are not frozen, and the boundaries where they begin and end.

    `is_unsure`: unknown records may be gone, so nothing before the first one that remains counts as empty.
    `is_decided`: the boundary where it begins is known; otherwise `lower` is below it. `read`: timestamps in the partitions for
    which the time index cannot be used.
    """

    span: model.Interval
    lower: Offsets
    upper: Offsets
    read: Mapping[int, Sequence[OffsetAndTimestamp]] = field(default_factory=dict)
    is_tail: bool = False
    is_unsure: bool = False
    is_decided: bool = True
    is_probed: bool = False
    is_waiting: bool = False

    @property
    def is_equal(self) -> bool:
        return all(self.upper[part] <= offset for part, offset in self.lower.items())

    def is_empty(self, grid: model.Grid) -> bool | None:
        """None if that is not known yet."""
        is_one = grid.count(self.span) == 1
        if self.is_waiting or (self.is_unsure and is_one):
            return False
        if self.is_unsure:
            return None
        return True if self.is_equal else False if is_one and self.is_decided else None

    def asked_at(self, grid: model.Grid) -> datetime:
        """The instant whose boundary divides it: its start, once, then its middle."""
        count = grid.count(self.span)
        at_start = self.is_unsure or not self.is_decided or (not self.is_probed and count >= PROBED_FROM)
        return self.span.start if at_start else grid.after(self.span.start, count // 2)

    def divided(self, at: datetime, by_partition: Mapping[int, OffsetAndTimestamp], grid: model.Grid) -> Iterator[Piece]:
        """Smaller pieces, by the first records at or after `at`."""
        first = {**by_partition, **self.first_read(at)}
        middle = {part: self.clamped(part, first.get(part)) for part in self.lower}
        hours = (
            grid.floor(model.instant(record.timestamp_ms))
            for part, record in first.items()
            if record.offset < self.upper.get(part, 0)
        )
        filled = max(at, min(hours, default=self.span.end))  # from `at` to here all boundaries are `middle`
        # Three cases. In all of them the boundaries from `at` to `filled` are the same offsets (`middle`), since no record has a
        # timestamp in between: those intervals are empty, and one answer from the broker has decided all of them at once. That
        # keeps the number of requests to the number of places where records begin again, however many years of empty hours are
        # in between.
        if self.is_unsure:
            yield from self.divided_at_loss(filled, middle, grid)
        elif at == self.span.start and self.is_decided and middle != self.lower:
            # The piece holds records with timestamps before it: they go with its first interval.
            following = grid.after(at)
            yield from self.part(at, following, self.lower, middle, is_waiting=True)
            yield from self.part(following, filled, middle, middle)
            rest = max(filled, following)
            yield from self.part(rest, self.span.end, middle, self.upper, is_decided=filled >= rest)
        else:
            yield from self.part(self.span.start, at, self.lower, middle)
            yield from self.part(at, filled, middle, middle)
            yield from self.part(filled, self.span.end, middle, self.upper)

    def divided_at_loss(self, filled: datetime, middle: Offsets, grid: model.Grid) -> Iterator[Piece]:
        """Everything up to the first record that remains may have held records. After the last window, if none remain, only the
        next interval is marked so."""
        none_left = filled >= self.span.end
        lost_until = grid.after(self.span.start) if none_left and self.is_tail else min(grid.after(filled), self.span.end)
        yield from self.part(self.span.start, lost_until, self.lower, middle, is_waiting=True)
        yield from self.part(lost_until, self.span.end, middle, self.upper, is_decided=False)

    def part(
        self, start: datetime, end: datetime, lower: Offsets, upper: Offsets, *, is_decided: bool = True, is_waiting: bool = False
    ) -> Iterator[Piece]:
        if start < (end := min(end, self.span.end)):
            yield replace(
                self,
                span=model.Interval(start, end),
                lower=lower,
                upper=upper,
                is_unsure=False,
                is_probed=True,
                is_decided=is_decided,
                is_waiting=is_waiting,
            )

    def clamped(self, part: int, record: OffsetAndTimestamp | None) -> int:
        return self.upper[part] if record is None else min(max(record.offset, self.lower[part]), self.upper[part])

    def first_read(self, at: datetime) -> dict[int, OffsetAndTimestamp]:
        at_ms = model.milliseconds(at)
        first = {
            part: next((stamp for stamp in stamps if stamp.timestamp_ms >= at_ms), None) for part, stamps in self.read.items()
        }
        return {part: record for part, record in first.items() if record is not None}


def _decided(
    log: OffsetLog, pipeline: model.Pipeline, snapshot: boundaries.LogSnapshot, pieces: Sequence[Piece], questions_max: int | None
) -> list[tuple[model.Interval, bool]]:
    """Intervals, and whether they are empty."""
    # By halves, all pieces of a round in one request: log2(hours) rounds at worst, whatever the number of pieces. Once the
    # budget of questions is used up, the remaining pieces are reported as not empty: that may overstate the work to be done, but
    # never understates it.
    decided: list[tuple[model.Interval, bool]] = []
    plain = [part for part in snapshot.partitions if part not in snapshot.read]
    left, waiting = questions_max, list(pieces)
    while waiting:
        emptiness = [(piece, piece.is_empty(pipeline.grid)) for piece in waiting]
        decided += [(piece.span, is_empty) for piece, is_empty in emptiness if is_empty is not None]
        waiting = [piece for piece, is_empty in emptiness if is_empty is None]
        instants = [piece.asked_at(pipeline.grid) for piece in waiting]
        # A round is asked as a whole or not at all: with half a round the result would depend on the order of the pieces.
        if left is not None and len(instants) > left:
            return decided + [(piece.span, False) for piece in waiting]
        left = None if left is None else left - len(instants)
        instants_ms = [model.milliseconds(at) for at in instants]
        first = log.first_at_or_after_each(pipeline.topic, plain, instants_ms) if instants_ms else {}
        waiting = [
            smaller
            for piece, at, at_ms in zip(waiting, instants, instants_ms, strict=True)
            for smaller in piece.divided(at, first[at_ms], pipeline.grid)
        ]
    return decided


def unfrozen_pieces(
    log: OffsetLog,
    pipeline: model.Pipeline,
    chain: pipeline_chains.PipelineChain,
    snapshot: boundaries.LogSnapshot,
    since: datetime | None,
) -> Iterator[Piece]:
    """What is not frozen, by time: before the first window, between two windows, after the last."""
    reached = first_start(log, pipeline, chain, snapshot, since)
    if reached is None:
        return
    offsets = {part: pipeline_chains.anchor_of(chain, part).offset for part in snapshot.partitions}
    is_unsure = chain.begins_at is not None and chain.begins_at != pipeline.starts_at  # where a former topic ended
    if chain.left_out is not None:
        yield from piece(log, pipeline, snapshot, (reached, chain.left_out.start), offsets, offsets, is_unsure=is_unsure)
        reached, is_unsure = chain.left_out.end, False
    for window in chain.windows:
        parts = {part.partition: part for part in window.ranges if part.partition in offsets}
        upper = {**offsets, **{number: max(offsets[number], part.start_offset) for number, part in parts.items()}}
        yield from piece(log, pipeline, snapshot, (reached, window.interval.start), offsets, upper, is_unsure=is_unsure)
        offsets = {**upper, **{number: max(upper[number], part.end_offset) for number, part in parts.items()}}
        reached, is_unsure = max(reached, window.interval.end), False
    upper = {part: max(offset, snapshot.closed[part]) for part, offset in offsets.items()}
    yield from piece(log, pipeline, snapshot, (reached, snapshot.until), offsets, upper, is_unsure=is_unsure, is_tail=True)


def piece(
    log: OffsetLog,
    pipeline: model.Pipeline,
    snapshot: boundaries.LogSnapshot,
    span: tuple[datetime, datetime],
    lower: Offsets,
    upper: Offsets,
    *,
    is_unsure: bool,
    is_tail: bool = False,
) -> Iterator[Piece]:
    """The whole intervals of the span, if it has any."""
    intervals_of_span = pipeline.grid.whole(*span)
    if intervals_of_span is None:
        return
    with_records = [part for part in lower if lower[part] < upper[part]]
    if is_tail:
        read = snapshot.read
    else:
        hidden = [part for part in snapshot.read if part in with_records]
        read = {
            part: boundaries.rising(log.records(pipeline.topic, part, lower[part], upper[part]), snapshot.horizon)
            for part in hidden
        }
    # Retention has cut into it: the timestamps of the deleted records are unknown, so nothing before the first record that
    # remains may be called empty.
    is_cut = any(snapshot.starts[part] > lower[part] for part in with_records)
    yield Piece(span=intervals_of_span, lower=lower, upper=upper, read=read, is_tail=is_tail, is_unsure=is_unsure or is_cut)


def first_start(
    log: OffsetLog,
    pipeline: model.Pipeline,
    chain: pipeline_chains.PipelineChain,
    snapshot: boundaries.LogSnapshot,
    since: datetime | None,
) -> datetime | None:
    """Where the pipeline's intervals begin: at its start, its first window, or the interval of the first record before that.
    None if it has neither a start nor windows nor records."""
    begins_at = chain.begins_at or pipeline.starts_at
    if begins_at is not None:
        return pipeline.grid.floor(begins_at)
    starts = [first_window_start(chain), *first_hours(log, pipeline, chain, snapshot)]
    first = min((start for start in starts if start is not None), default=None)
    if first is None and any(
        snapshot.closed[part] > pipeline_chains.anchor_of(chain, part).offset for part in snapshot.partitions
    ):
        # Records without a usable timestamp: the next window takes them, whichever it is.
        first = pipeline.grid.after(snapshot.until, -1)
    return first if since is None or first is None else min(first, pipeline.grid.floor(since))


def first_window_start(chain: pipeline_chains.PipelineChain) -> datetime | None:
    if chain.left_out is not None:
        return chain.left_out.start
    return chain.windows[0].interval.start if chain.windows else None


def first_hours(
    log: OffsetLog, pipeline: model.Pipeline, chain: pipeline_chains.PipelineChain, snapshot: boundaries.LogSnapshot
) -> Iterator[datetime]:
    """The intervals of the first records with a usable timestamp that come before every window."""
    if chain.left_out is not None:
        return
    first = chain.windows[0].ranges if chain.windows else ()
    ends = {part.partition: part.start_offset for part in first} or snapshot.closed
    begins = {part: max(pipeline_chains.anchor_of(chain, part).offset, snapshot.starts[part]) for part in snapshot.partitions}
    heads = [part for part, begin in begins.items() if begin < ends.get(part, 0)]
    records = log.first_at_or_after(pipeline.topic, heads, 0) if heads else {}
    if not chain.windows:
        records = {**records, **{part: stamps[0] for part, stamps in snapshot.read.items() if stamps}}
    for part in heads:
        if part in records and records[part].timestamp_ms <= snapshot.horizon:
            yield pipeline.grid.floor(model.instant(records[part].timestamp_ms))
