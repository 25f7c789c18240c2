"""Freezing: an interval becomes a window whose offsets never change again.

All broker requests are made before the transaction begins, in the order that makes them safe whatever is appended in the
meantime: topic id, end offsets, first records, start offsets, topic id again; then the records that will be the witnesses of the
new boundaries. The last check is that the log is still the one on which the last boundaries were frozen: if it is, all earlier
answers came from that log too. The transaction then locks the pipeline's row, clamps between neighbours that were frozen first,
and inserts what is missing. A crash leaves either nothing or whole windows.

Adjacent hours are frozen together if nothing is unusual about any of them: requests that are the same for all are made once.
Otherwise they are frozen one by one, so that a refusal concerns exactly one hour and everything before it is frozen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from sqlalchemy import Connection, Engine, insert, select

from logbus import errors, model
from logbus.kafka import client, topics
from logbus.windows import boundaries, handover, log_changes, rows, schema
from logbus.windows.boundaries import Neighbours, Scanned
from logbus.windows.chain import Chain, ChainEnd
from logbus.windows.log_changes import how_to_accept, refuse_if_recreated

# Partitions are rarely added: if a third observation is outdated too, the broker's metadata has not settled.
OBSERVATIONS_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What the broker returned for an interval, or for adjacent ones. `first_stamped` are the first records with any timestamp;
    `scanned` are the boundaries that had to be found by reading the log."""

    facts: topics.TopicFacts
    written_offsets: Mapping[int, int]  # high watermarks just before the end offsets: open transactions count as well
    end_offsets: Mapping[int, int]
    first: Mapping[datetime, Mapping[int, topics.OffsetAndTimestamp]]
    first_stamped: Mapping[int, topics.OffsetAndTimestamp]
    start_offsets: Mapping[int, int]
    scanned: Mapping[tuple[int, datetime], Scanned] = field(default_factory=dict)
    witnesses: Mapping[tuple[int, int], model.Witness] = field(default_factory=dict)  # by partition and offset, the record before

    def candidate(self, partition: int, at: datetime, around: Neighbours) -> int:
        """B(at) before clamping."""
        scanned = self.boundary(partition, at)
        return boundaries.with_the_head(scanned.offset, scanned.first_stamped, around)

    def boundary(self, partition: int, at: datetime) -> Scanned:
        """B(at) as the log alone determines it."""
        return self.scanned.get((partition, at)) or Scanned(
            offset=boundaries.decide(self.first[at].get(partition), self.end_offsets[partition]),
            first_stamped=self.first_stamped.get(partition),
        )

    def leader_epoch(self, partition: int, at: datetime) -> int | None:
        first = self.first[at].get(partition)
        return first.leader_epoch if first else None


def freeze_or_get(
    engine: Engine,
    pipeline_name: str,
    interval: model.Interval,
    log: topics.OffsetLog,
    now: datetime,
    *,
    accepts_loss: bool = False,
) -> model.FrozenWindow:
    """The interval's window, frozen now if it is not yet. Raises the subclasses of `logbus.errors.WindowError`.

    `accepts_loss`: freeze it even if records of it are gone, or may be.
    """
    with engine.connect() as connection:
        pipeline = rows.to_pipeline(rows.pipeline_row(connection, pipeline_name))
        existing = find_window(connection, pipeline_name, interval)
    if existing is not None:
        return log_changes.loadable(engine, existing, log, now)
    refuse_if_open(pipeline, interval, now)
    for _ in range(OBSERVATIONS_MAX):
        windows = freeze_as_seen(engine, pipeline, [interval], log, now, accepts_loss=accepts_loss)
        if windows is not None:
            return windows[0]
    raise errors.BrokerUnavailable(
        f"the broker shows fewer partitions of {pipeline.topic} than windows of {pipeline_name} have: "
        "check that it is the same cluster, and that its metadata has settled"
    )


def freeze_together(
    engine: Engine, pipeline: model.Pipeline, intervals: Sequence[model.Interval], log: topics.OffsetLog, now: datetime
) -> list[model.FrozenWindow] | None:
    """The windows of adjacent intervals, in order, in one transaction. None if that is not possible: something has to be
    refused, some are frozen already, or a timestamp in the future hides a boundary. The caller then freezes them one by one."""
    try:
        for interval in intervals:
            refuse_if_open(pipeline, interval, now)
        return freeze_as_seen(engine, pipeline, intervals, log, now, accepts_loss=False)
    except errors.WindowError:
        return None


def freeze_as_seen(
    engine: Engine,
    pipeline: model.Pipeline,
    intervals: Sequence[model.Interval],
    log: topics.OffsetLog,
    now: datetime,
    *,
    accepts_loss: bool,
) -> list[model.FrozenWindow] | None:
    """Asks the broker, then freezes. None if the answer is outdated: since then another process has frozen a later hour with
    partitions that were added after we asked, and their records of this hour would be in no window."""
    # 1. The ledger, before the broker. A boundary frozen after this read may be beyond the end offsets that the broker is about
    #    to return, which would look like a log that lost its end. One frozen before cannot: the broker had those records then.
    with engine.connect() as connection:
        row = rows.pipeline_row(connection, pipeline.name)
        topic_id = row["topic_id"]
        reached = Chain(connection, pipeline.name, topic_id).ends()
    # 2. The broker: everything the decision needs, in the order that `observe` explains.
    cluster_id = row["cluster_id"] or log.cluster_id()
    observation = observe_there(log, pipeline, intervals, row)
    ends = {part: end for part, end in reached.items() if part in observation.facts.partitions}
    log_changes.refuse_if_shorter(pipeline, {part: end.offset for part, end in ends.items()}, observation.end_offsets)
    if len(intervals) > 1 and hides_a_boundary(pipeline, observation, now):
        return None
    with engine.connect() as connection:
        observation = scan_past_the_future(Chain(connection, pipeline.name, topic_id), pipeline, observation, log, now)
    observation = read_witnesses(log, pipeline, reached, observation)
    # 3. Last, whether this is still the log on which the last boundaries were frozen. Checked first, the log could be replaced
    #    between this answer and the others; checked last, all of them came from a log that still held the witnesses afterwards.
    #    If not, `LogChanged`: new boundaries would be clamped to those of another log, and the records in between would be in no
    #    window, or in a window that belongs to other records.
    log_changes.refuse_if_changed(pipeline, log, ends)
    for interval in intervals:
        refuse_undecided(pipeline, interval, observation)
    # 4. The decision, under a lock on the pipeline's row: one process freezes at a time and sees what the one before it froze.
    #    No broker request is made from here on, so a slow broker never keeps the row locked. What was read may be outdated by
    #    now; what matters of it is checked again: the topic id, the window itself, and the partitions that other processes have
    #    anchored.
    with engine.begin() as connection:
        present_id = rows.pipeline_row(connection, pipeline.name, lock=True)["topic_id"]
        if row["cluster_id"] is None:
            log_changes.remember_cluster(connection, row, cluster_id)
        if len(intervals) == 1:
            already = find_window(connection, pipeline.name, intervals[0])
            if already is not None:
                return [already]
        elif windows_in(connection, pipeline.name, intervals[0].start, intervals[-1].end):
            return None
        anchored = Chain(connection, pipeline.name, present_id).partitions_before(intervals[-1].end)
        if present_id != topic_id or not anchored <= set(observation.facts.partitions):
            return None
        return [
            Freeze(
                connection=connection,
                pipeline=pipeline,
                interval=interval,
                observation=observation,
                now=now,
                accepts_loss=accepts_loss,
            ).window()
            for interval in intervals
        ]


def find_window(connection: Connection, pipeline_name: str, interval: model.Interval) -> model.FrozenWindow | None:
    """The window with exactly these limits; `WindowOverlap` if one with other limits overlaps it."""
    for window in windows_in(connection, pipeline_name, interval.start, interval.end):
        if window.interval == interval:
            return window
        raise errors.WindowOverlap(
            f"{interval} of {pipeline_name} overlaps the frozen window {window.interval}: ask for that one instead"
        )
    return None


def windows_in(connection: Connection, pipeline_name: str, start: datetime, end: datetime) -> list[model.FrozenWindow]:
    """The frozen windows that overlap the span, in order of time."""
    window = schema.window
    overlapping = (window.c.pipeline == pipeline_name, window.c.starts_at < end, window.c.ends_at > start)
    return rows.load_windows(connection, select(window).where(*overlapping).order_by(window.c.starts_at))


def refuse_if_open(pipeline: model.Pipeline, interval: model.Interval, now: datetime) -> None:
    if pipeline.starts_at is not None and interval.start < pipeline.starts_at:
        raise errors.WindowOverlap(
            f"{interval} lies before {model.instant_text(pipeline.starts_at)}, where pipeline {pipeline.name} starts"
        )
    closes_at = interval.end + pipeline.lateness
    if now < closes_at:
        raise errors.WindowNotClosed(
            f"the window {interval} of {pipeline.name} closes at {model.instant_text(closes_at)}, which is its end and "
            f"{pipeline.lateness} for late records; it is {model.instant_text(now)} now"
        )


def observe_there(
    log: topics.OffsetLog, pipeline: model.Pipeline, intervals: Sequence[model.Interval], row: rows.Row
) -> Observation:
    with log_changes.on_its_cluster(row, log):
        return observe(log, pipeline, intervals, row["topic_id"])


def observe(log: topics.OffsetLog, pipeline: model.Pipeline, intervals: Sequence[model.Interval], topic_id: str) -> Observation:
    """End offsets before first records: read the other way round, a record could land in the hour before its own. High
    watermarks before both: records appended in between are then not mistaken for an open transaction."""
    facts = log.topic(pipeline.topic)
    refuse_if_recreated(pipeline.topic, topic_id, facts.topic_id)
    # The order is the proof. Suppose the last record of this hour is appended while we ask:
    #  - before the end offsets are read: they include it, and the first record of a later hour, if any, comes after it;
    #  - between the end offsets and the first records: if no later record is found, the boundary is the end offset, and the
    #    record falls after it, into the next hour, and is read there. That is ordinary lateness, which the pipeline allows for,
    #    and nothing is lost.
    # The other way round, "no later record" would be older than the end offset, which could then include a record of the next
    # hour in this one.
    is_committed = pipeline.isolation_level == client.READ_COMMITTED
    written = log.end_offsets(pipeline.topic, facts.partitions, client.LATEST) if is_committed else {}
    ends = log.end_offsets(pipeline.topic, facts.partitions, pipeline.isolation_level)
    instants = {at: model.milliseconds(at) for at in (intervals[0].start, *(interval.end for interval in intervals))}
    by_stamp = log.first_at_or_after_each(pipeline.topic, facts.partitions, instants.values())
    first = {at: by_stamp[stamp] for at, stamp in instants.items()}
    # Asked after them: if compaction removes the head of the log in between, this is not a record from before the first hour,
    # and that hour keeps the head and is seen to have a hole.
    first_stamped = log.first_at_or_after(pipeline.topic, facts.partitions, 0)
    # The start offsets come after all of these, so that records retention deletes in the meantime are seen to be gone. Then the
    # topic's id once more: a topic recreated in between would have answered with another log.
    starts = log.start_offsets(pipeline.topic, facts.partitions)
    refuse_if_recreated(pipeline.topic, topic_id, log.topic(pipeline.topic).topic_id)
    return Observation(
        facts=facts, written_offsets=written, end_offsets=ends, first=first, first_stamped=first_stamped, start_offsets=starts
    )


def refuse_undecided(pipeline: model.Pipeline, interval: model.Interval, observation: Observation) -> None:
    """`TransactionOpen` if records of the interval belong to a transaction that has not ended: the interval would end at the last
    stable offset instead of the first later record, and what is committed after that offset would be missing from it."""
    undecided = []
    for partition, written in observation.written_offsets.items():
        stable = observation.end_offsets[partition]
        scanned, first = observation.scanned.get((partition, interval.end)), observation.first[interval.end].get(partition)
        later = scanned.offset if scanned is not None else first.offset if first is not None else written
        reaches_to = written if scanned is not None and later >= stable else min(later, written)
        if stable < reaches_to:
            undecided.append(f"{pipeline.topic}-{partition} [{stable}, {reaches_to})")
    if undecided:
        raise errors.TransactionOpen(
            f"records of window {interval} of {pipeline.name} are of a transaction that has not ended: {', '.join(undecided)}. "
            "Try again: it ends by its producer's transaction.timeout.ms (60 s by default) at the latest; one that hangs for "
            "longer is found and aborted by `kafka-transactions.sh find-hanging` and `abort`"
        )


def read_witnesses(
    log: topics.OffsetLog, pipeline: model.Pipeline, reached: Mapping[int, ChainEnd], observation: Observation
) -> Observation:
    """Reads the records before the boundaries about to be frozen. A boundary clamped to a frozen one shares its witness."""
    witness_at = {(part, end.offset): end.witness for part, end in reached.items() if end.witness is not None}
    for at in observation.first:
        offsets = {part: observation.boundary(part, at).offset for part in observation.facts.partitions}
        missing = {part: offset for part, offset in offsets.items() if (part, offset) not in witness_at}
        witness_at |= log_changes.last_before(log, pipeline.topic, missing, observation.start_offsets)
    return replace(observation, witnesses=witness_at)


def hides_a_boundary(pipeline: model.Pipeline, observation: Observation, now: datetime) -> bool:
    """Whether a timestamp in the future hides a boundary, so that it has to be found by reading the log."""
    horizon = boundaries.horizon_ms(now, boundaries.max_ahead(pipeline))
    return any(
        boundaries.needs_scan(first, horizon) for by_partition in observation.first.values() for first in by_partition.values()
    )


def scan_past_the_future(
    chain: Chain, pipeline: model.Pipeline, observation: Observation, log: topics.OffsetLog, now: datetime
) -> Observation:
    """Finds, by reading the log, the boundaries that a timestamp in the future hides from the time index. Rarely any."""
    horizon = boundaries.horizon_ms(now, boundaries.max_ahead(pipeline))
    scanned = dict(observation.scanned)
    for at, by_partition in observation.first.items():
        for partition in (part for part, first in by_partition.items() if boundaries.needs_scan(first, horizon)):
            if at == min(observation.first) and chain.boundary(partition, at) is not None:
                continue  # the hour before is frozen, and with it our start: searching for it would read that hour again
            around, end = chain.neighbours(partition, at), observation.end_offsets[partition]
            records = log.records(pipeline.topic, partition, max(around.lower, observation.start_offsets[partition]), end)
            scanned[partition, at] = boundaries.scan(records, at_ms=model.milliseconds(at), horizon=horizon, end_offset=end)
    return replace(observation, scanned=scanned)


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze:
    """One window being frozen, in a transaction that has locked the pipeline's row."""

    connection: Connection
    pipeline: model.Pipeline
    interval: model.Interval
    observation: Observation
    now: datetime
    accepts_loss: bool

    @property
    def chain(self) -> Chain:
        return Chain(self.connection, self.pipeline.name, self.observation.facts.topic_id)

    def window(self) -> model.FrozenWindow:
        """Boundaries first, then the window over them."""
        partitions = self.observation.facts.partitions
        self.chain.anchor_new(partitions, self.now)
        unknown = [partition for partition in partitions if self.head_is_unknown(partition)]
        ranges = [self.freeze_range(partition) for partition in partitions]
        lost = [part for part in ranges if part.lost]
        gone_until = self.chain.lost_until()
        is_cut_off = gone_until is not None and self.interval.start < gone_until
        if (lost or unknown) and not self.accepts_loss:
            raise self.loss(lost, unknown)
        if is_cut_off and not self.accepts_loss:
            raise self.loss_of_what_is_gone()
        for part in {*unknown, *(part.partition for part in lost)}:  # otherwise the boundary frozen here would hide the loss
            self.chain.mark_lost(self.lost_until(part, self.interval.start), part)
        return self.insert(ranges, head_unknown=bool(lost or unknown or is_cut_off))

    def freeze_range(self, partition: int) -> model.OffsetRange:
        start, end = (self.freeze_boundary(partition, at) for at in (self.interval.start, self.interval.end))
        lost = max(0, min(self.observation.start_offsets[partition], end) - start)
        return model.OffsetRange(topic=self.pipeline.topic, partition=partition, start_offset=start, end_offset=end, lost=lost)

    def freeze_boundary(self, partition: int, at: datetime) -> int:
        """B(at): the frozen one, or the one the broker's answer gives, clamped and frozen now."""
        frozen = self.chain.boundary(partition, at)
        if frozen is not None:
            return frozen
        around = self.chain.neighbours(partition, at)
        offset = boundaries.clamp(self.observation.candidate(partition, at, around), around)
        self.chain.freeze(
            partition, at, offset, self.observation.leader_epoch(partition, at), self.now, self.witness(partition, offset)
        )
        return offset

    def witness(self, partition: int, offset: int) -> model.Witness | None:
        """The record before a new boundary: read just now, or stored with the frozen boundary that this one was clamped to."""
        if offset <= self.observation.start_offsets[partition]:
            return None
        return self.observation.witnesses.get((partition, offset)) or self.chain.witness_before(partition, offset)

    def head_is_unknown(self, partition: int) -> bool:
        """Whether deleted records may have belonged to this window: the log starts after the last frozen boundary, and the
        records that remain do not show that the deleted ones are of earlier hours."""
        at, start = self.interval.start, self.observation.start_offsets[partition]
        boundary = self.chain.boundary(partition, at)
        if boundary is not None:  # then the loss is known exactly, unless the boundary itself was set where the log had been cut
            return start >= boundary and self.chain.is_guess(partition, at, boundary)
        around = self.chain.neighbours(partition, at)
        if around.upper is not None and around.upper <= around.lower:
            return False
        return start > around.lower and at <= self.lost_until(partition, at)

    def lost_until(self, partition: int, at: datetime) -> datetime:
        """No hour after this has lost records that are in no window: they were written before the first record that remains,
        and its timestamp dates them, unless it arrived later than the pipeline's lateness or their clocks ran further ahead
        than the pipeline allows. If no remaining record has a usable timestamp, they may be as recent as now."""
        ahead = boundaries.max_ahead(self.pipeline)
        left = self.observation.boundary(partition, at).first_stamped
        if left is None or left.timestamp_ms > boundaries.horizon_ms(self.now, ahead):
            return self.now + ahead
        return model.instant(left.timestamp_ms) + self.pipeline.lateness + ahead

    def insert(self, ranges: Sequence[model.OffsetRange], *, head_unknown: bool) -> model.FrozenWindow:
        window, part = schema.window, schema.window_range
        values = {
            "pipeline": self.pipeline.name,
            "topic_id": self.observation.facts.topic_id,
            "starts_at": self.interval.start,
            "ends_at": self.interval.end,
            "head_unknown": head_unknown,
            "frozen_at": self.now,
        }
        if not head_unknown and all(part_range.start_offset == part_range.end_offset for part_range in ranges):
            values |= rows.proven_empty_values(self.now)
            self.connection.execute(handover.NOTIFY, {"name": self.pipeline.name})
        window_id = self.connection.execute(insert(window).values(values).returning(window.c.id)).scalar_one()
        if ranges:
            self.connection.execute(insert(part), [range_values(window_id, part_range) for part_range in ranges])
        return rows.load_window(self.connection, window_id)

    def loss(self, lost: Sequence[model.OffsetRange], unknown: Sequence[int]) -> errors.RecordsLost:
        names = [f"{part.topic}-{part.partition} [{part.start_offset}, {part.readable_from})" for part in lost]
        names += [f"{self.pipeline.topic}-{partition} below {self.observation.start_offsets[partition]}" for partition in unknown]
        return errors.RecordsLost(
            f"retention has deleted records that belong, or may belong, to window {self.interval} of {self.pipeline.name} "
            f"before it was frozen: {', '.join(names)}. {how_to_accept(self.pipeline.name, self.interval)}",
            lost=names,
        )

    def loss_of_what_is_gone(self) -> errors.RecordsLost:
        return errors.RecordsLost(
            f"window {self.interval} of {self.pipeline.name} may have had records that are gone from {self.pipeline.topic}: "
            "retention took what was not loaded, or the topic had another log before the pipeline was rebased. "
            f"How many is unknown. {how_to_accept(self.pipeline.name, self.interval)}",
            lost=[f"{self.pipeline.topic}, what is gone"],
        )


def range_values(window_id: int, part: model.OffsetRange) -> dict[str, int]:
    return {
        "window_id": window_id,
        "partition": part.partition,
        "start_offset": part.start_offset,
        "end_offset": part.end_offset,
        "lost": part.lost,
    }
