"""Before a load: are the records before its windows' boundaries still there?

Most of them are in the windows being loaded, each as the last record of one; the tasks encounter them while reading, and compare
them then (`Called.inside`). The others, usually one per partition, are read beforehand (`Called.outside`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Engine, select

from logbus.errors import LogChanged, WindowError
from logbus.kafka.topics import OffsetLog
from logbus.ledger import schema
from logbus.ledger.another_log import another_log
from logbus.ledger.retained import why_unreadable
from logbus.ledger.rows import to_witness
from logbus.ledger.witnesses import differences, refuse_if_shorter
from logbus.model import FrozenWindow, Pipeline, Witness

# A place in a topic: partition and offset.
Place = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """The witnesses of some windows, each once. `needed_by`: the windows for whose boundaries the record is the witness."""

    inside: Mapping[int, Mapping[Place, Witness]] = field(default_factory=dict)  # by window
    outside: Mapping[Place, Witness] = field(default_factory=dict)
    needed_by: Mapping[Place, Sequence[int]] = field(default_factory=dict)


def call(engine: Engine, windows: Sequence[FrozenWindow]) -> Called:
    """The witnesses at the starts and ends of windows of one pipeline."""
    known = boundaries_of(engine, windows)
    inside: dict[int, dict[Place, Witness]] = {window.id: {} for window in windows}
    every: dict[Place, Witness] = {}
    needed_by: dict[Place, list[int]] = {}
    for window in windows:
        for part in window.ranges:
            for at in (window.interval.start, window.interval.end):
                witness = known.get((window.topic_id, part.partition, at))
                if witness is None:
                    continue
                place = (part.partition, witness.offset)
                every[place] = witness
                needed_by.setdefault(place, []).append(window.id)
                if part.readable_from <= witness.offset < part.end_offset:
                    inside[window.id][place] = witness
    met = {place for places in inside.values() for place in places}
    outside = {place: witness for place, witness in every.items() if place not in met}
    return Called(inside=inside, outside=outside, needed_by=needed_by)


def last_witnesses(engine: Engine, windows: Sequence[FrozenWindow]) -> dict[int, Witness]:
    """By partition, the last record before any boundary of windows of one topic: it vouches for everything before it."""
    found: dict[int, Witness] = {}
    for (_, partition, _), witness in boundaries_of(engine, windows).items():
        if partition not in found or found[partition].offset < witness.offset:
            found[partition] = witness
    return dict(sorted(found.items()))


def boundaries_of(engine: Engine, windows: Sequence[FrozenWindow]) -> dict[tuple[str, int, datetime], Witness]:
    """The boundaries' witnesses by topic id, partition and instant."""
    row_of = schema.boundary
    instants = {at for window in windows for at in (window.interval.start, window.interval.end)}
    names, topics = {window.pipeline for window in windows}, {window.topic_id for window in windows}
    mine = (row_of.c.pipeline.in_(names), row_of.c.topic_id.in_(topics), schema.among(row_of.c.at, instants))
    with engine.connect() as connection:
        rows = connection.execute(select(row_of).where(*mine)).mappings().all()
    found = {(row["topic_id"], row["partition"], row["at"]): to_witness(row) for row in rows}
    return {key: witness for key, witness in found.items() if witness is not None}


def unreadable(pipeline: Pipeline, log: OffsetLog, windows: Sequence[FrozenWindow], called: Called) -> dict[int, WindowError]:
    """By window, why its records cannot be loaded: they are gone, or are not those on which it was frozen."""
    if not windows:
        return {}
    facts = log.topic(windows[0].topic)
    starts = log.start_offsets(windows[0].topic, facts.partitions)
    reasons = {window.id: why_unreadable(window, facts, starts) for window in windows}
    gone = {window_id: reason for window_id, reason in reasons.items() if reason is not None}
    return {**gone, **another_log_under(pipeline, log, [window for window in windows if window.id not in gone], called)}


def another_log_under(
    pipeline: Pipeline, log: OffsetLog, windows: Sequence[FrozenWindow], called: Called
) -> dict[int, LogChanged]:
    """By window, why the log that would be read is not the one on which it was frozen; empty if it is."""
    if not windows:
        return {}
    partitions = sorted({part.partition for window in windows for part in window.ranges})
    ends = log.end_offsets(pipeline.topic, partitions, pipeline.isolation_level)
    found: dict[int, LogChanged] = {}
    for window in windows:
        try:
            refuse_if_shorter(pipeline, {part.partition: part.end_offset for part in window.ranges}, ends)
        except LogChanged as error:
            found[window.id] = error
    for place, sentence in changed_places(pipeline, log, called.outside).items():
        for window_id in called.needed_by[place]:
            found.setdefault(window_id, another_log(pipeline.name, [sentence]))
    return found


def changed_places(pipeline: Pipeline, log: OffsetLog, outside: Mapping[Place, Witness]) -> dict[Place, str]:
    """Checks all of them, one per partition at a time."""
    rest, changed = dict(outside), dict[Place, str]()
    while rest:
        turn = {partition: witness for (partition, _), witness in rest.items()}
        for partition, sentence in differences(pipeline, log, turn).items():
            changed[partition, turn[partition].offset] = sentence
        for partition, witness in turn.items():
            del rest[partition, witness.offset]
    return changed
