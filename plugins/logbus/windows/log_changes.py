"""Is it still the log on which a window was frozen? It may have been recreated, replaced, or cut by retention.

Offsets are trusted because a log only ever grows at its end. That does not hold after a restore from a backup, after an unclean
election, or if a topic was recreated on a cluster without topic ids: then the log ends before frozen offsets, or holds other
records there. The log end offset shows the first. A boundary's witness, the last record before it, shows the second: if anything
before a boundary was truncated and written anew, that record has changed, since the log grew over it. So one record per
partition vouches for all before it.

A missing witness proves nothing if retention deleted it, or compaction that the pipeline has declared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, select, update

from logbus import errors, fingerprint, model
from logbus.errors import AnotherCluster, LogChanged, TopicMissing, TopicRecreated, WindowError
from logbus.kafka.client import LATEST
from logbus.kafka.topics import OffsetLog, TopicFacts
from logbus.model import FrozenWindow, Pipeline, Witness
from logbus.windows import chain, rows, schema
from logbus.windows.rows import Row, among, to_witness

# How far back to look for a record if the offsets just before a boundary hold none: transaction markers, gaps left by
# compaction. A boundary after more of them than that has no witness.
OFFSETS_SEARCHED = 1_000

# A position in a topic: partition and offset.
Position = tuple[int, int]

# Between a topic's id and the time its log was given up for another one: no broker uses such an id.
SET_ASIDE = " until "


def refuse_if_recreated(topic: str, expected_id: str, present_id: str) -> None:
    """Old offsets can be read from a recreated topic without any error: only the id differs."""
    if expected_id.startswith(f"{present_id}{SET_ASIDE}"):
        raise errors.TopicRecreated(
            f"the log of topic {topic} this window was frozen on was replaced at {expected_id.rpartition(SET_ASIDE)[2]}, when "
            "`logbus pipeline rebase` continued with another one: its offsets are other records"
        )
    if expected_id != present_id:
        raise errors.TopicRecreated(
            f"topic {topic} was deleted and recreated (id {expected_id} is now {present_id}): its offsets are other records. "
            "`logbus pipeline rebase` begins a new chain of windows on the new topic; what is loaded stays"
        )


def refuse_if_cut(window: model.FrozenWindow, log: OffsetLog) -> None:
    """A loaded window may have lost its records since; one that is not loaded is refused before a load tries to read them."""
    if window.loaded_attempt is not None:
        return
    refuse_if_recreated(window.topic, window.topic_id, log.topic(window.topic).topic_id)
    lost = lost_ranges(window, log.start_offsets(window.topic, [part.partition for part in window.ranges]))
    if lost:
        raise errors.RecordsLost(
            f"retention has deleted {', '.join(lost)} of window {window.interval} before it was loaded. "
            f"{how_to_accept(window.pipeline, window.interval)}",
            lost=lost,
        )


def how_to_accept(pipeline_name: str, interval: model.Interval) -> str:
    """What to do about records that are gone."""
    return (
        "To load what is left and keep the loss on record, accept it by name: "
        f"`logbus window accept-loss --pipeline {pipeline_name} {model.instant_text(interval.start)} --reason TEXT`"
    )


def lost_ranges(window: model.FrozenWindow, start_offsets: Mapping[int, int]) -> list[str]:
    """The parts of the window that the broker no longer holds, as `topic-partition [start, end)`."""
    return [
        f"{part.topic}-{part.partition} [{part.readable_from}, {min(start_offsets[part.partition], part.end_offset)})"
        for part in window.ranges
        if part.count and start_offsets[part.partition] > part.readable_from
    ]


def log_changed(pipeline_name: str, differences: Iterable[str]) -> errors.LogChanged:
    """The error for a log that is not the one in the ledger: what it held, what it holds now, and what may have happened."""
    return errors.LogChanged(
        f"the log is not the one in the ledger: {'; '.join(differences)}. The broker's data was restored from a backup, a "
        "replica without these records became the leader (unclean.leader.election), or the topic was recreated. Nothing is "
        "loaded from it. If this is the wrong broker, name the right one; if those records are gone for good, "
        f"`logbus pipeline rebase {pipeline_name}` continues with what the log holds now, and lists what may be lost"
    )


def record_changed(topic: str, partition: int, expected: model.Witness, present: model.Witness | None) -> str:
    """How the log differs at one offset."""
    now = (
        f"one {_shown(present)}"
        if present
        else 'none (if compaction removed it, register the pipeline with {"offset_gaps": true})'
    )
    return f"{topic}-{partition} held at offset {expected.offset} a record {_shown(expected)}, and now {now}"


def _shown(witness: model.Witness) -> str:
    epoch = "" if witness.leader_epoch is None else f"epoch {witness.leader_epoch}, "
    return f"stamped {_timestamp_text(witness.timestamp_ms)} ({epoch}hash {fingerprint.as_text(witness.hash)})"


def _timestamp_text(timestamp_ms: int) -> str:
    return model.timestamp_text(timestamp_ms) or ("not at all" if timestamp_ms < 0 else f"{timestamp_ms} ms")


def refuse_another_log(engine: Engine, pipeline: Pipeline, topic_id: str, log: OffsetLog) -> None:
    """`LogChanged` if the log is not the one on which the last boundaries were frozen; for callers that only read."""
    with engine.connect() as connection:
        reached = chain.Chain(connection, pipeline.name, topic_id).ends()
    present = {part: end for part, end in reached.items() if part in log.topic(pipeline.topic).partitions}
    ends = log.end_offsets(pipeline.topic, list(present), pipeline.isolation_level)
    refuse_if_shorter(pipeline, {part: end.offset for part, end in present.items()}, ends)
    refuse_if_changed(pipeline, log, present)


def refuse_if_shorter(pipeline: Pipeline, reached: Mapping[int, int], end_offsets: Mapping[int, int]) -> None:
    """`reached`: by partition, an offset that the log once reached. `end_offsets` must be read after these were frozen."""
    short = [
        f"{pipeline.topic}-{partition} ends at offset {end_offsets[partition]}, and windows are frozen up to {offset}"
        for partition, offset in sorted(reached.items())
        if partition in end_offsets and end_offsets[partition] < offset
    ]
    if short:
        raise log_changed(pipeline.name, short)


def refuse_if_changed(pipeline: Pipeline, log: OffsetLog, ends: Mapping[int, chain.ChainEnd]) -> None:
    """Checks the last frozen boundary of each partition: its witness vouches for everything before it."""
    expected = {partition: end.witness for partition, end in ends.items() if end.witness is not None}
    different = differences(pipeline, log, expected)
    if different:
        raise log_changed(pipeline.name, different.values())


def differences(pipeline: Pipeline, log: OffsetLog, expected: Mapping[int, Witness]) -> dict[int, str]:
    """By partition, how the log differs at the witness's offset. A missing record is not a difference if retention, or
    compaction that the pipeline has declared, may have deleted it."""
    topic, missing, present = pipeline.topic, dict(expected), dict[int, Witness]()
    for is_second_look in (False, True):
        present |= log.last_records(topic, {part: (witness.offset, witness.offset + 1) for part, witness in missing.items()})
        missing = {part: witness for part, witness in missing.items() if part not in present}
        # The log start offset is read afterwards, since it only increases.
        starts = {} if pipeline.options.offset_gaps else log.start_offsets(topic, missing)
        missing = {part: witness for part, witness in missing.items() if part in starts and starts[part] <= witness.offset}
        if not missing or is_second_look:
            break
        # A newly elected leader may briefly expose less. A request for its end offset is answered only once it has caught up
        # with what was exposed before its election.
        log.end_offsets(topic, missing, LATEST)
    return {
        part: record_changed(topic, part, witness, present.get(part))
        for part, witness in sorted(expected.items())
        if (present[part].hash != witness.hash if part in present else part in missing)
    }


def last_before(
    log: OffsetLog, topic: str, offsets: Mapping[int, int], start_offsets: Mapping[int, int]
) -> dict[tuple[int, int], Witness]:
    """By partition and offset, the last record before that offset, which is nearly always the one just before."""
    searched = {part: offset for part, offset in offsets.items() if offset > start_offsets[part]}
    witnesses = log.last_records(topic, {part: (offset - 1, offset) for part, offset in searched.items()})
    holes = {part: offset for part, offset in searched.items() if part not in witnesses}
    spans = {part: (max(start_offsets[part], offset - OFFSETS_SEARCHED), offset - 1) for part, offset in holes.items()}
    witnesses |= log.last_records(topic, {part: (start, end) for part, (start, end) in spans.items() if start < end})
    return {(part, offsets[part]): witness for part, witness in witnesses.items()}


# Whose topic is it? A wrong broker may have a topic of the same name with another id: that topic was not recreated. The cluster
# id is stored with the pipeline when it first freezes, and again by a rebase. It is only requested if something does not match,
# so a cluster whose id has changed (a new controller's disk) stops nothing.


def refuse_another_cluster(row: Row, log: OffsetLog) -> None:
    """`row`: the pipeline's. Nothing is raised if either of the two ids is unknown."""
    expected = row["cluster_id"]
    answering = log.cluster_id() if expected else None
    if answering is not None and answering != expected:
        raise AnotherCluster(
            f"this is another cluster: pipeline {row['name']} is on topic {row['topic']} of cluster {expected}, and the broker "
            f"belongs to {answering}. Name the right one by --bootstrap-server (or LOGBUS_BOOTSTRAP_SERVER, or the connection). "
            f"If the topic has moved for good, `logbus pipeline rebase {row['name']} --other-cluster` begins again on it"
        )


@contextmanager
def on_its_cluster(row: Row, log: OffsetLog) -> Iterator[None]:
    """Wraps requests about a pipeline's topic. If it is missing or another one, the broker may be the wrong one: then that is the
    error to raise, because the advice in the other two would abandon the chain of windows."""
    try:
        yield
    except (TopicMissing, TopicRecreated):
        refuse_another_cluster(row, log)
        raise


def topic_on_its_cluster(row: Row, log: OffsetLog) -> TopicFacts:
    """The pipeline's topic as it is now, recreated or not; `AnotherCluster` if it is one on another cluster that merely has
    the same name."""
    with on_its_cluster(row, log):
        facts = log.topic(row["topic"])
    if facts.topic_id != row["topic_id"]:
        refuse_another_cluster(row, log)
    return facts


def remember_cluster(connection: Connection, row: Row, cluster_id: str | None) -> None:
    """Stores the cluster id of a pipeline that has none yet."""
    without_cluster = (schema.pipeline.c.name == row["name"], schema.pipeline.c.cluster_id.is_(None))
    connection.execute(update(schema.pipeline).where(*without_cluster).values(cluster_id=cluster_id))


# Before a load: are the records before its windows' boundaries still there?
#
# Most of them are in the windows being loaded, each as the last record of one; the tasks encounter them while reading, and
# compare them then (`WitnessSet.inside`). The others, usually one per partition, are read beforehand (`WitnessSet.outside`).


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessSet:
    """The witnesses of some windows, each once. `needed_by`: the windows for whose boundaries the record is the witness."""

    inside: Mapping[int, Mapping[Position, Witness]] = field(default_factory=dict)  # by window
    outside: Mapping[Position, Witness] = field(default_factory=dict)
    needed_by: Mapping[Position, Sequence[int]] = field(default_factory=dict)


def witnesses_of(engine: Engine, windows: Sequence[FrozenWindow]) -> WitnessSet:
    """The witnesses at the starts and ends of windows of one pipeline."""
    witnesses = boundaries_of(engine, windows)
    inside: dict[int, dict[Position, Witness]] = {window.id: {} for window in windows}
    every: dict[Position, Witness] = {}
    needed_by: dict[Position, list[int]] = {}
    for window in windows:
        for part in window.ranges:
            for at in (window.interval.start, window.interval.end):
                witness = witnesses.get((window.topic_id, part.partition, at))
                if witness is None:
                    continue
                position = (part.partition, witness.offset)
                every[position] = witness
                needed_by.setdefault(position, []).append(window.id)
                if part.readable_from <= witness.offset < part.end_offset:
                    inside[window.id][position] = witness
    met = {position for places in inside.values() for position in places}
    outside = {position: witness for position, witness in every.items() if position not in met}
    return WitnessSet(inside=inside, outside=outside, needed_by=needed_by)


def last_witnesses(engine: Engine, windows: Sequence[FrozenWindow]) -> dict[int, Witness]:
    """By partition, the last record before any boundary of windows of one topic: it vouches for everything before it."""
    last: dict[int, Witness] = {}
    for (_, partition, _), witness in boundaries_of(engine, windows).items():
        if partition not in last or last[partition].offset < witness.offset:
            last[partition] = witness
    return dict(sorted(last.items()))


def boundaries_of(engine: Engine, windows: Sequence[FrozenWindow]) -> dict[tuple[str, int, datetime], Witness]:
    """The boundaries' witnesses by topic id, partition and instant."""
    row_of = schema.boundary
    instants = {at for window in windows for at in (window.interval.start, window.interval.end)}
    names, topics = {window.pipeline for window in windows}, {window.topic_id for window in windows}
    boundaries = (row_of.c.pipeline.in_(names), row_of.c.topic_id.in_(topics), among(row_of.c.at, instants))
    with engine.connect() as connection:
        rows = connection.execute(select(row_of).where(*boundaries)).mappings().all()
    witnesses = {(row["topic_id"], row["partition"], row["at"]): to_witness(row) for row in rows}
    return {key: witness for key, witness in witnesses.items() if witness is not None}


def unreadable(pipeline: Pipeline, log: OffsetLog, windows: Sequence[FrozenWindow], called: WitnessSet) -> dict[int, WindowError]:
    """By window, why its records cannot be loaded: they are gone, or are not those on which it was frozen."""
    if not windows:
        return {}
    facts = log.topic(windows[0].topic)
    starts = log.start_offsets(windows[0].topic, facts.partitions)
    gone: dict[int, WindowError] = {}
    for window in windows:
        if window.loss_accepted is not None and not window.record_count:
            continue
        try:
            refuse_if_recreated(window.topic, window.topic_id, facts.topic_id)
        except TopicRecreated as error:
            gone[window.id] = error
        else:
            if lost := lost_ranges(window, starts):
                why = f"retention has deleted {', '.join(lost)}; the window cannot be loaded again"
                gone[window.id] = errors.RecordsLost(why, lost=lost)
    readable = [window for window in windows if window.id not in gone]
    if not readable:
        return gone
    partitions = sorted({part.partition for window in readable for part in window.ranges})
    ends = log.end_offsets(pipeline.topic, partitions, pipeline.isolation_level)
    changes: dict[int, WindowError] = {}
    for window in readable:
        try:
            refuse_if_shorter(pipeline, {part.partition: part.end_offset for part in window.ranges}, ends)
        except LogChanged as error:
            changes[window.id] = error
    unread = dict(called.outside)
    while unread:  # all of them, one per partition at a time
        turn = {partition: witness for (partition, _), witness in unread.items()}
        for partition, sentence in differences(pipeline, log, turn).items():
            for window_id in called.needed_by[partition, turn[partition].offset]:
                changes.setdefault(window_id, log_changed(pipeline.name, [sentence]))
        for partition, witness in turn.items():
            del unread[partition, witness.offset]
    return {**gone, **changes}


# -- records that were deleted before they were loaded --------------------------------------------------------------------------
#
# Refused, unless somebody accepts the loss, with a reason (`logbus.windows.recovery.accept_loss`). The window's boundaries stay
# what they are, and what is gone is stored in its ranges. It may then be loaded with the records that remain, and audited for
# those; who accepted the loss, when and why is shown forever, and no audit of it reports `exact`.


def loadable(engine: Engine, window: FrozenWindow, log: OffsetLog, now: datetime) -> FrozenWindow:
    """The frozen window, without its lost records if the loss is accepted; otherwise `RecordsLost`."""
    if window.loss_accepted is not None and not window.record_count:
        return window
    try:
        refuse_if_cut(window, log)
    except errors.RecordsLost:
        if window.loss_accepted is None:
            raise
        return give_up(engine, window, log, now)
    return window


def give_up(engine: Engine, window: FrozenWindow, log: OffsetLog, now: datetime) -> FrozenWindow:
    """Records as lost what the log no longer holds, unless the window has been loaded by now or an attempt is loading it."""
    starts = log.start_offsets(window.topic, [part.partition for part in window.ranges])
    with engine.begin() as connection:
        [row] = rows.lock_windows(connection, window.pipeline, [window.interval.start])
        alive = select(schema.attempt.c.number).where(schema.attempt.c.window_id == window.id, rows.is_alive(now))
        if row["loaded_attempt"] is None and connection.execute(alive).first() is None:
            _store_losses(connection, window, starts)
        return rows.load_window(connection, window.id)


def _store_losses(connection: Connection, window: FrozenWindow, starts: Mapping[int, int]) -> None:
    part_of = schema.window_range
    for part in window.ranges:
        # The offsets at the head of the range that the log does not hold; never fewer than were lost before.
        lost = max(part.lost, min(starts[part.partition], part.end_offset) - part.start_offset)
        of_partition = (part_of.c.window_id == window.id, part_of.c.partition == part.partition)
        connection.execute(update(part_of).where(*of_partition).values(lost=lost))
    connection.execute(update(schema.window).where(schema.window.c.id == window.id).values(head_unknown=True))


def give_up_all(engine: Engine, window: FrozenWindow) -> FrozenWindow:
    """Marks everything as lost: the window's log no longer exists, so nothing can be read."""
    part = schema.window_range
    with engine.begin() as connection:
        everything = {"lost": part.c.end_offset - part.c.start_offset}
        connection.execute(update(part).where(part.c.window_id == window.id).values(everything))
        connection.execute(update(schema.window).where(schema.window.c.id == window.id).values(head_unknown=True))
        return rows.load_window(connection, window.id)


def store_acceptance(engine: Engine, window: FrozenWindow, acceptance: Mapping[str, Any]) -> FrozenWindow:
    """The first acceptance stays: it is the one under which the window was loaded."""
    row_of = schema.window
    with engine.begin() as connection:
        first = (row_of.c.id == window.id, row_of.c.loss_accepted.is_(None))
        connection.execute(update(row_of).where(*first).values(loss_accepted=dict(acceptance)))
        return rows.load_window(connection, window.id)


def loss_text(acceptance: Mapping[str, Any]) -> str:
    """`by mary at 2026-11-22T10:00:00Z: the disk is gone`."""
    return f"by {acceptance['by']} at {acceptance['at']}: {acceptance['reason']}"
