"""A consumer group as a mirror of what is loaded: committed offsets for dashboards and kafka-consumer-groups.

The ledger decides what is loaded; the group's offsets are written after it and never read by logbus. They only move
forward: an older run that ends late, or is cleared, leaves them alone. Kafka has no compare-and-set for offsets, so runs
take turns by a lock in the ledger's database. An offset beyond the log's end comes from a topic that was deleted and
recreated: it is replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, text

from logbus.errors import UserError, WindowNotLoaded
from logbus.kafka.client import LATEST
from logbus.kafka.groups import GroupOffsets
from logbus.kafka.topics import OffsetLog
from logbus.ledger.retained import refuse_if_recreated
from logbus.model import FrozenWindow, instant_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """By partition the offsets that were committed, and those of the group that were ahead already."""

    group: str
    topic: str
    committed: dict[int, int]
    ahead: dict[int, int]

    def summary(self) -> dict[str, Any]:
        """The checkpoint as JSON-ready values."""
        committed, ahead = ({str(part): offset for part, offset in found.items()} for found in (self.committed, self.ahead))
        return {"group": self.group, "topic": self.topic, "committed": committed, "ahead": ahead}


def commit_ends(engine: Engine, groups: GroupOffsets, log: OffsetLog, group: str, windows: Sequence[FrozenWindow]) -> Checkpoint:
    """Commits where the last of a pipeline's loaded windows ends in each partition; never moves the group back.

    Raises `WindowNotLoaded`, `TopicRecreated`, and `GroupActive` if the group has members.
    """
    if not windows:
        raise UserError("no window is named: nothing to commit")
    topic, wanted = windows[0].topic, end_offsets(windows)
    refuse_unloaded(windows)
    refuse_if_recreated(topic, windows[0].topic_id, log.topic(topic).topic_id)
    with engine.begin() as connection:
        take_turn(connection, group)
        before = {part: offset for (name, part), offset in groups.committed(group).items() if name == topic}
        log_ends = log.end_offsets(topic, wanted, LATEST)
        ahead = {part: at for part, at in before.items() if part in wanted and wanted[part] < at <= log_ends[part]}
        committed = {part: offset for part, offset in wanted.items() if part not in ahead}
        note = f"logbus {windows[0].pipeline} {instant_text(max(window.interval.end for window in windows))}"
        groups.commit(group, {(topic, part): offset for part, offset in committed.items()}, note)
    return Checkpoint(group=group, topic=topic, committed=committed, ahead=ahead)


def take_turn(connection: Connection, group: str) -> None:
    """Waits for any other run that moves this group; until the transaction ends, no other run does."""
    connection.execute(text("select pg_advisory_xact_lock(hashtextextended(:name, 0))"), {"name": f"logbus group {group}"})


def end_offsets(windows: Sequence[FrozenWindow]) -> dict[int, int]:
    """By partition the end of the last window: the next offset to read, which is what Kafka commits."""
    ends: dict[int, int] = {}
    for part in (part for window in windows for part in window.ranges):
        ends[part.partition] = max(ends.get(part.partition, 0), part.end_offset)
    return ends


def refuse_unloaded(windows: Sequence[FrozenWindow]) -> None:
    missing = [instant_text(window.interval.start) for window in windows if window.loaded_attempt is None]
    if missing:
        raise WindowNotLoaded(f"nothing is committed for windows that are not loaded: {', '.join(missing)}; load them first")
