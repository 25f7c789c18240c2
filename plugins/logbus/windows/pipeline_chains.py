"""Loads the window chains of many pipelines from the ledger in a handful of statements, leaving out the years that are done.

What matters is what is missing among the windows, so all of them would have to be examined: 8,760 a year. But while windows are
adjacent and each is done, nothing is missing among them; that prefix is found by one query over the windows' times and replaced
by the boundary where it ends. The prefix is kept if records before the first window were never frozen.

A chain belongs to one topic, by its id. A pipeline whose topic was recreated has windows of the former one too: the caller passes
the id that is meant, and the windows of the other that are not loaded are returned as `former`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import ARRAY, ColumnElement, Connection, DateTime, FromClause, Text, and_, exists, func, literal, or_, select

from logbus.model import FrozenWindow, Grid, Interval, OffsetRange, instant_text
from logbus.windows import schema
from logbus.windows.rows import ATTEMPT_RUNNING, Row, among, load_windows

WINDOW, RANGE, ANCHOR = schema.window, schema.window_range, schema.anchor
ALL_TIME = datetime(1, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Begin:
    """Where the loaded part of a pipeline's chain begins: at the first window not done; `previous_id` is the one before it."""

    pipeline: str
    first_id: int
    first_start: datetime
    previous_id: int | None


@dataclass(frozen=True, slots=True)
class Edge:
    """Where a window starts and ends in a partition; `end` is an anchor for what follows it."""

    start: int
    end: Anchor


def load_chain(connection: Connection, row: Row, topic_id: str, done: ColumnElement[bool]) -> PipelineChain:
    """A pipeline's windows on the topic with that id, from the first one that is not `done`; at least the last one."""
    return load_chains(connection, [row], done, {row["name"]: topic_id})[row["name"]]


def load_chains(
    connection: Connection, rows: Sequence[Row], done: ColumnElement[bool], topic_ids: Mapping[str, str] | None = None
) -> dict[str, PipelineChain]:
    """By name, the chains of these pipelines from the first window that is not `done`; at least the last one. On the topics of
    `topic_ids`; by default on those for which the pipelines are registered."""
    if not rows:
        return {}
    topics = topic_ids or {row["name"]: row["topic_id"] for row in rows}
    pairs = among_topics(topics)
    anchors = anchors_of(connection, pairs)
    begins = begins_of(connection, pairs, done)
    edges = ranges_of(
        connection, {number for begin in begins for number in (begin.first_id, begin.previous_id) if number is not None}
    )
    former = former_windows(connection, pairs)
    chains = {
        row["name"]: bare_chain(row, topics[row["name"]], anchors.get(row["name"], {}), former.get(row["name"], ()))
        for row in rows
    }
    since = dict.fromkeys(chains, ALL_TIME)
    for begin in begins:
        chain = chains[begin.pipeline]
        if begin.previous_id is not None and not has_unfrozen_head(edges[begin.first_id], chain.anchors):
            before = {part: edge.end for part, edge in edges[begin.previous_id].items()}
            end = max((anchor.at for anchor in before.values() if anchor.at), default=begin.first_start)
            left_out = Interval(begin.first_start, end) if before else None
            chains[begin.pipeline] = replace(chain, anchors={**chain.anchors, **before}, left_out=left_out)
            since[begin.pipeline] = end if before else ALL_TIME
    return with_windows(connection, chains, topics, since)


def among_topics(topics: Mapping[str, str]) -> FromClause:
    """Pipelines with their topics' ids as a table to join with. Two parameters and the same SQL text, however many pipelines:
    each statement is compiled once."""
    arrays = literal(list(topics), ARRAY(Text)), literal(list(topics.values()), ARRAY(Text))
    return func.unnest(*arrays).table_valued("name", "topic_id", name="wanted").render_derived()


def is_of(table: Any, pairs: FromClause) -> ColumnElement[bool]:
    return and_(pairs.c.name == table.c.pipeline, pairs.c.topic_id == table.c.topic_id)


def bare_chain(row: Row, topic_id: str, anchors: Mapping[int, Anchor], former: tuple[FrozenWindow, ...]) -> PipelineChain:
    return PipelineChain(
        pipeline=row["name"],
        grid=Grid(row["interval"], row["timezone"]),
        anchors=anchors,
        windows=(),
        is_other_topic=row["topic_id"] != topic_id,
        begins_at=begins_at(anchors.values()),
        former=former,
    )


def is_loaded() -> ColumnElement[bool]:
    """Done, for lag."""
    return WINDOW.c.loaded_attempt.is_not(None)


def is_settled_and_gone(starts: Mapping[int, int]) -> ColumnElement[bool]:
    """Done, for retention: loaded, audited if it can be, no attempt running, and entirely below the log start offset."""
    is_retained = or_(*[and_(RANGE.c.partition == part, RANGE.c.end_offset > start) for part, start in starts.items()])
    attempt = schema.attempt
    running = exists().where(attempt.c.window_id == WINDOW.c.id, attempt.c.state == ATTEMPT_RUNNING)
    return and_(
        is_loaded(),
        or_(WINDOW.c.audited_at.is_not(None), WINDOW.c.head_unknown),
        ~exists().where(RANGE.c.window_id == WINDOW.c.id, is_retained),
        ~running,
    )


def former_windows(connection: Connection, pairs: FromClause) -> dict[str, tuple[FrozenWindow, ...]]:
    """By pipeline, the windows of other topics that are not loaded."""
    elsewhere = and_(pairs.c.name == WINDOW.c.pipeline, pairs.c.topic_id != WINDOW.c.topic_id)
    query = select(WINDOW).join(pairs, elsewhere).where(WINDOW.c.loaded_attempt.is_(None))
    return by_pipeline(load_windows(connection, query.order_by(WINDOW.c.pipeline, WINDOW.c.starts_at)))


def by_pipeline(windows: Iterable[FrozenWindow]) -> dict[str, tuple[FrozenWindow, ...]]:
    """`windows` are ordered by pipeline."""
    return {name: tuple(group) for name, group in groupby(windows, key=attrgetter("pipeline"))}


def begins_of(connection: Connection, pairs: FromClause, done: ColumnElement[bool]) -> list[Begin]:
    """One for each pipeline that has windows on its topic, found in one pass over the windows' times."""
    ordered: dict[str, Any] = {"partition_by": WINDOW.c.pipeline, "order_by": WINDOW.c.starts_at}
    windows = (
        select(
            WINDOW.c.pipeline,
            WINDOW.c.starts_at,
            done.label("done"),
            func.lag(WINDOW.c.ends_at).over(**ordered).label("reached"),
            func.lag(WINDOW.c.id).over(**ordered).label("previous_id"),
            func.first_value(WINDOW.c.id).over(**ordered).label("first_id"),
            func.first_value(WINDOW.c.starts_at).over(**ordered).label("first_start"),
            func.lead(WINDOW.c.id).over(**ordered).is_(None).label("is_last"),
        )
        .join(pairs, is_of(WINDOW, pairs))
        .subquery()
    )
    is_wanted = or_(~windows.c.done, windows.c.reached != windows.c.starts_at, windows.c.is_last)
    nth = func.row_number().over(partition_by=windows.c.pipeline, order_by=windows.c.starts_at).label("nth")
    first = (
        select(windows.c.pipeline, windows.c.first_id, windows.c.first_start, windows.c.previous_id, nth)
        .where(is_wanted)
        .subquery()
    )
    rows = connection.execute(select(first).where(first.c.nth == 1)).mappings()
    return [Begin(**{name: row[name] for name in Begin.__dataclass_fields__}) for row in rows]


def ranges_of(connection: Connection, ids: Iterable[int]) -> dict[int, dict[int, Edge]]:
    """The edges of windows by window id and partition."""
    query = select(RANGE.c.window_id, RANGE.c.partition, RANGE.c.start_offset, RANGE.c.end_offset, WINDOW.c.ends_at)
    edges: dict[int, dict[int, Edge]] = {number: {} for number in ids}
    query = query.join(WINDOW, WINDOW.c.id == RANGE.c.window_id).where(among(RANGE.c.window_id, edges))
    for window_id, partition, start, end, ends_at in connection.execute(query).all():
        edges[window_id][partition] = Edge(start, Anchor(offset=end, at=ends_at))
    return edges


def has_unfrozen_head(first: Mapping[int, Edge], anchors: Mapping[int, Anchor]) -> bool:
    """Whether records before the first window were never frozen: then no windows are left out."""
    return any(edge.start > (anchors[part].offset if part in anchors else 0) for part, edge in first.items())


def with_windows(
    connection: Connection, chains: Mapping[str, PipelineChain], topics: Mapping[str, str], since: Mapping[str, datetime]
) -> dict[str, PipelineChain]:
    """The chains with those of their windows that start at or after the pipeline's `since`."""
    arrays = (
        literal(list(topics), ARRAY(Text)),
        literal(list(topics.values()), ARRAY(Text)),
        literal([since[name] for name in topics], ARRAY(DateTime(timezone=True))),
    )
    pairs = func.unnest(*arrays).table_valued("name", "topic_id", "since", name="wanted").render_derived()
    query = (
        select(WINDOW)
        .join(pairs, is_of(WINDOW, pairs))
        .where(WINDOW.c.starts_at >= pairs.c.since)
        .order_by(WINDOW.c.pipeline, WINDOW.c.starts_at)
    )
    frozen = load_windows(connection, query)
    windows = by_pipeline(frozen)
    attempt = schema.attempt
    of_them = among(attempt.c.window_id, [window.id for window in frozen])
    at_work = select(attempt.c.window_id).where(of_them, attempt.c.state == ATTEMPT_RUNNING)
    running = frozenset(connection.execute(at_work).scalars())
    return {name: replace(chain, windows=windows.get(name, ()), running=running) for name, chain in chains.items()}


def anchors_of(connection: Connection, pairs: FromClause) -> dict[str, dict[int, Anchor]]:
    """The anchors by pipeline and partition."""
    query = select(ANCHOR.c.pipeline, ANCHOR.c.partition, ANCHOR.c.offset, ANCHOR.c.at).join(pairs, is_of(ANCHOR, pairs))
    anchors: dict[str, dict[int, Anchor]] = {}
    for pipeline, partition, offset, at in connection.execute(query).all():
        anchors.setdefault(pipeline, {})[partition] = Anchor(offset=offset, at=at)
    return anchors


# What a pipeline has not done of a topic yet, as ranges of offsets. Pure.
#
# A pipeline's windows form a chain, so what is not done in each partition is returned in order: hours between two windows that
# are not frozen, windows that the caller considers undone (not loaded; not audited), and at the end everything after them.


OTHER_TOPIC = (
    "the topic was recreated, or this is another broker: `logbus pipeline rebase {pipeline}` tells which, and begins again on it"
)

# Greater than every possible offset.
ENDLESS = 2**63

INTERVALS_REMEMBERED = 2_000  # cached as texts: more hours than are usually behind


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """Where a pipeline's windows begin in a partition; `at` None means before all time."""

    offset: int
    at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineChain:
    """A pipeline's windows on the topic as it is now, oldest first. `running` are the ids of those that an attempt is loading.

    `left_out` is the span of the windows before the first of these: they are adjacent, and all of them are done. `begins_at` is
    where the chain begins, unless that is before all time: the pipeline's start, or the end of its windows on a topic that was
    recreated since. `former` are the windows of such topics that are not loaded.
    """

    pipeline: str
    grid: Grid
    anchors: Mapping[int, Anchor]
    windows: tuple[FrozenWindow, ...]
    running: frozenset[int] = frozenset()
    is_other_topic: bool = False
    left_out: Interval | None = None
    begins_at: datetime | None = None
    former: tuple[FrozenWindow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRange:
    """The offsets [first, end) that are not done, why, and when the hour to which they belong ended.

    `window` is set if no attempt is at work on it, so that it may be given up.
    """

    first: int
    end: int
    why: str
    ended_at: datetime | None = None
    window: FrozenWindow | None = None

    def within(self, start: int, end: int) -> int:
        """How many of its offsets are in [start, end)."""
        return max(0, min(self.end, end) - max(self.first, start))


# Why a window is not done, given whether an attempt is loading it; None if it is done.
Undone = Callable[[FrozenWindow, bool], str | None]


def pending_ranges(chain: PipelineChain, partition: int, undone: Undone) -> Iterator[PendingRange]:
    """The ranges of a partition in the order of their offsets; the last is endless."""
    if chain.is_other_topic:
        yield PendingRange(first=0, end=ENDLESS, why=OTHER_TOPIC.format(pipeline=chain.pipeline))
        return
    anchor = anchor_of(chain, partition)
    offset, reached_at = anchor.offset, anchor.at
    for window in chain.windows:
        part = range_of(window, partition)
        if part is not None:
            if part.start_offset > offset:
                why = f"hours before {instant_text(window.interval.start)} are not frozen"
                ended_at = next_end(reached_at, chain) or window.interval.start
                yield PendingRange(first=offset, end=part.start_offset, why=why, ended_at=ended_at)
            is_running = window.id in chain.running
            why_not = undone(window, is_running) if part.count else None
            if why_not:
                idle, ended_at = None if is_running else window, window.interval.end
                yield PendingRange(first=part.readable_from, end=part.end_offset, why=why_not, ended_at=ended_at, window=idle)
            offset = max(offset, part.end_offset)
        reached_at = window.interval.end
    yield PendingRange(first=offset, end=ENDLESS, why="the hours after it are not frozen", ended_at=next_end(reached_at, chain))


def anchor_of(chain: PipelineChain, partition: int) -> Anchor:
    """Where its windows begin in the partition; a partition added since begins with its first record."""
    return chain.anchors.get(partition, Anchor(offset=0, at=None))


def tail_of(chain: PipelineChain, partition: int) -> int:
    """The last frozen boundary in the partition."""
    ends = (part.end_offset for window in chain.windows for part in window.ranges if part.partition == partition)
    return max(ends, default=anchor_of(chain, partition).offset)


def begins_at(anchors: Iterable[Anchor]) -> datetime | None:
    """Where a chain with these anchors begins; None for before all time."""
    instants = [anchor.at for anchor in anchors]
    finite = [at for at in instants if at is not None]
    return min(finite) if finite and len(finite) == len(instants) else None


def next_end(reached_at: datetime | None, chain: PipelineChain) -> datetime | None:
    """When the next hour ends."""
    return None if reached_at is None else chain.grid.after(reached_at)


def range_of(window: FrozenWindow, partition: int) -> OffsetRange | None:
    return next((part for part in window.ranges if part.partition == partition), None)


@lru_cache(maxsize=INTERVALS_REMEMBERED)
def text_of(interval: Interval) -> str:
    """Cached: all partitions of all pipelines have the same hours."""
    return str(interval)


def not_loaded(window: FrozenWindow, is_running: bool) -> str | None:
    return f"window {text_of(window.interval)} is not loaded" if window.loaded_attempt is None else None


def not_settled(window: FrozenWindow, is_running: bool) -> str | None:
    """Why a pipeline still needs the window's records; None if it does not. An unknown head can never be audited."""
    if is_running:
        return f"window {window.interval} is being loaded"
    if window.loaded_attempt is not None and window.audited_at is None and not window.head_unknown:
        return f"window {window.interval} is loaded, but not audited"
    return not_loaded(window, is_running)
