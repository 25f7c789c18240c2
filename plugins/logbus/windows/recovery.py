"""Continuing after the log was replaced: the topic was recreated, or holds other records than windows were frozen on.

What is loaded stays. The chain of windows continues after the last of them, from the first record that no window covers any
longer. Records may be missing in between: those that were not frozen when the former log ended, and those of windows that were
frozen and never loaded. The broker cannot tell which they are; so every hour that may have lost records is marked, is refused
until the loss is accepted by name, and is never called exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Engine, select, update

from logbus import errors, model
from logbus.kafka.topics import OffsetLog, TopicFacts
from logbus.windows import boundaries, freezing, log_changes, rows, schema
from logbus.windows.chain import Chain, ChainEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebase:
    """What a rebase did. Hours that begin in [since, until) may have lost records, and so may `unloaded`, the windows that were
    frozen and not loaded. The records in `again` may be loaded a second time: they cannot be told from the lost ones."""

    pipeline: model.Pipeline
    since: datetime | None
    until: datetime
    unloaded: tuple[model.Interval, ...] = ()
    again: tuple[str, ...] = ()

    def hours(self) -> Iterator[model.Interval]:
        """The hours after the last window that may have lost records."""
        start = self.since
        while start is not None and start < self.until:
            yield (hour := self.pipeline.grid.window(start))
            start = hour.end


def rebase(engine: Engine, pipeline_name: str, log: OffsetLog, now: datetime, *, other_cluster: bool = False) -> Rebase | None:
    """Moves the pipeline to the log as it is now; None if that is the one it was on. `other_cluster`: allow another cluster."""
    with engine.begin() as connection:
        row = rows.pipeline_row(connection, pipeline_name, lock=True)
        if not other_cluster:
            log_changes.refuse_another_cluster(row, log)
        facts = log.topic(row["topic"])
        onto = onto_another_topic if facts.topic_id != row["topic_id"] else onto_what_is_left
        return onto(connection, row, facts, log, now)


def onto_another_topic(connection: Connection, row: rows.Row, facts: TopicFacts, log: OffsetLog, now: datetime) -> Rebase:
    """Continues at the topic's first record or, if the pipeline was on that topic before, where it left off."""
    pipeline, chain = rows.to_pipeline(row), Chain(connection, row["name"], facts.topic_id)
    since, ends = chain.last_window_end(), chain.ends()
    starts = log.start_offsets(pipeline.topic, facts.partitions)
    chain.anchor(since, starts.items(), now)
    if since is not None:
        chain.go_on(since, ends, now)
    until = lost_until(pipeline, log, facts, since, now)
    chain.mark_lost(until)
    is_pipeline = schema.pipeline.c.name == pipeline.name
    rows.lock_all_windows(connection, [pipeline.name])
    connection.execute(update(schema.pipeline).where(is_pipeline).values(topic_id=facts.topic_id, cluster_id=log.cluster_id()))
    unloaded = give_up_unloaded(connection, pipeline.name, facts.topic_id)
    return Rebase(pipeline=pipeline, since=since, until=until, unloaded=unloaded)


def lost_until(pipeline: model.Pipeline, log: OffsetLog, facts: TopicFacts, since: datetime | None, now: datetime) -> datetime:
    """The former topic was gone when the new one's first record was written: its records are of no hour after that, allowing for
    lateness and clocks that run ahead. If there is no such record, or older logs were sent to the new topic first, that is not
    evidence: then hours up to now may have lost records."""
    ahead = boundaries.max_ahead(pipeline)
    horizon = boundaries.horizon_ms(now, ahead)
    first = log.first_at_or_after(pipeline.topic, facts.partitions, 0).values()
    stamps = [model.instant(record.timestamp_ms) for record in first if record.timestamp_ms <= horizon]
    begun = min(stamps, default=None)
    if begun is None or (since is not None and begun < since):
        return now + ahead
    return pipeline.grid.after(pipeline.grid.floor(begun + pipeline.lateness + ahead))


def onto_what_is_left(connection: Connection, row: rows.Row, facts: TopicFacts, log: OffsetLog, now: datetime) -> Rebase | None:
    """The same topic with another log: everything after the last boundary that still holds is set aside, and the chain continues
    from that boundary, after the last window."""
    pipeline, chain = rows.to_pipeline(row), Chain(connection, row["name"], facts.topic_id)
    reached = {part: end for part, end in chain.ends().items() if part in facts.partitions}
    ends = log.end_offsets(pipeline.topic, list(reached), pipeline.isolation_level)
    kept = {part: last_holding(chain.boundaries_of(part), pipeline, log, part, ends[part]) for part in reached}
    kept = {part: end for part, end in kept.items() if end.offset != reached[part].offset}
    if not kept:
        return None
    since, former_id = chain.last_window_end(), f"{facts.topic_id}{log_changes.SET_ASIDE}{model.instant_text(now)}"
    # An audit of many, which needs no lock on the pipeline, may hold some of them and wait for the next.
    rows.lock_all_windows(connection, [pipeline.name])
    for part, end in kept.items():
        set_windows_aside(connection, chain, former_id, part, end.offset)
    chain.set_aside(former_id, kept)
    if since is not None:
        chain.go_on(since, kept, now)
    chain.mark_lost(until := now + boundaries.max_ahead(pipeline))
    again = [(part, end.offset, min(ends[part], reached[part].offset)) for part, end in kept.items()]
    return Rebase(
        pipeline=pipeline,
        since=since,
        until=until,
        unloaded=give_up_unloaded(connection, pipeline.name, facts.topic_id),
        again=tuple(f"{pipeline.topic}-{part} [{first}, {end})" for part, first, end in again if first < end),
    )


def last_holding(boundaries: Sequence[ChainEnd], pipeline: model.Pipeline, log: OffsetLog, partition: int, end: int) -> ChainEnd:
    """The last boundary of a partition up to which the log is unchanged; its anchor, the first of them, if none is known to be.
    A boundary without a witness cannot be checked; only the last one is trusted then, as freezing trusts it."""
    for boundary in reversed(boundaries[1:]):
        if boundary.offset <= end and not (boundary.witness is None and boundary is not boundaries[-1]):
            expected = {} if boundary.witness is None else {partition: boundary.witness}
            if not log_changes.differences(pipeline, log, expected):
                return boundary
    return ChainEnd(offset=min(end, boundaries[0].offset))


def set_windows_aside(connection: Connection, chain: Chain, former_id: str, partition: int, offset: int) -> None:
    """Moves the windows that hold offsets from `offset` on to the former topic's id: their records cannot be read again."""
    window, part = schema.window, schema.window_range
    beyond = select(part.c.window_id).where(part.c.partition == partition, part.c.end_offset > offset)
    cut_off = (window.c.pipeline == chain.pipeline_name, window.c.topic_id == chain.topic_id, window.c.id.in_(beyond))
    connection.execute(update(window).where(*cut_off).values(topic_id=former_id))


def give_up_unloaded(connection: Connection, pipeline_name: str, present_id: str) -> tuple[model.Interval, ...]:
    """Marks the unloaded windows of former topics; returns those whose loss is not accepted yet."""
    window = schema.window
    unloaded = (window.c.pipeline == pipeline_name, window.c.topic_id != present_id, window.c.loaded_attempt.is_(None))
    connection.execute(update(window).where(*unloaded).values(head_unknown=True))
    windows = rows.load_windows(connection, select(window).where(*unloaded).order_by(window.c.starts_at))
    return tuple(given_up.interval for given_up in windows if given_up.loss_accepted is None)


def accept_loss(
    engine: Engine, pipeline_name: str, interval: model.Interval, log: OffsetLog, now: datetime, *, by: str, reason: str
) -> model.FrozenWindow:
    """The interval's window, frozen now if it is not yet, whose records are gone or may be: it may be loaded from now on.

    `UserError` if none of its records is lost.
    """
    with engine.connect() as connection:
        window = freezing.find_window(connection, pipeline_name, interval)
        topic_id = rows.pipeline_row(connection, pipeline_name)["topic_id"]
    if window is None:
        window = freezing.freeze_or_get(engine, pipeline_name, interval, log, now, accepts_loss=True)
    elif window.loaded_attempt is None and window.topic_id != topic_id:
        window = log_changes.give_up_all(engine, window)
    elif window.loaded_attempt is None:
        window = log_changes.give_up(engine, window, log, now)
    if not window.head_unknown:
        raise errors.UserError(f"nothing of window {interval} of {pipeline_name} is lost: load it as any other")
    return log_changes.store_acceptance(engine, window, {"by": by, "at": model.instant_text(now), "reason": reason})
