"""The log is not what it was when a window was frozen: recreated, replaced, or cut by retention. The checks and their errors.

Spark workers raise these errors too, so this module needs no database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from logbus import errors, fingerprint, model
from logbus.kafka.topics import OffsetLog, TopicFacts

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


def why_unreadable(window: model.FrozenWindow, facts: TopicFacts, start_offsets: Mapping[int, int]) -> errors.WindowError | None:
    """Why the window's records can no longer be read; None if they can, or if all of them are given up."""
    if window.loss_accepted is not None and not window.record_count:
        return None
    try:
        refuse_if_recreated(window.topic, window.topic_id, facts.topic_id)
    except errors.TopicRecreated as error:
        return error
    lost = lost_ranges(window, start_offsets)
    if not lost:
        return None
    return errors.RecordsLost(f"retention has deleted {', '.join(lost)}; the window cannot be loaded again", lost=lost)


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
    """A timestamp may be any number of milliseconds; -1 means none."""
    try:
        return model.instant_text(model.instant(timestamp_ms)) if timestamp_ms >= 0 else "not at all"
    except OverflowError:
        return f"{timestamp_ms} ms"
