"""Where a consumer group should continue, and committing that: the targets of `kafka-consumer-groups --reset-offsets`, a window,
and the end of what is loaded.

A target is a function from what log and group hold now (`Ground`) to an offset for each partition; its result is
clamped to what the log still holds, as Kafka's tool does. Planning changes nothing; `execute` commits the plan, and
only if the group has no members. Windows are never touched: a group reads, the ledger decides.

`commit_ends` makes a group a mirror of what is loaded, for dashboards and kafka-consumer-groups; logbus never reads it. It only
moves forward: an older run that ends late, or is cleared, leaves it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, text

from logbus import errors, model
from logbus.kafka import client, topics
from logbus.kafka.groups import GroupOffsets
from logbus.windows.log_changes import refuse_if_recreated


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChoice:
    """A topic, and which of its partitions; None means all."""

    topic: str
    partitions: tuple[int, ...] | None = None

    @classmethod
    def parse(cls, text: str) -> TopicChoice:
        """`topic` or `topic:0,1`, as kafka-consumer-groups takes it."""
        topic, colon, numbers = text.partition(":")
        try:
            chosen = tuple(sorted({int(number) for number in numbers.split(",")})) if colon else None
        except ValueError:
            raise errors.UserError(f"{text!r} is not a choice of partitions; write it like {topic}:0,1") from None
        return cls(topic=topic, partitions=chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What log and group hold of the chosen partitions of one topic. `starts` and `ends` have all of them."""

    log: topics.OffsetLog
    topic: str
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    committed: Mapping[int, int]


Target = Callable[[Ground], Mapping[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One partition's move. `current` is None if nothing is committed; `target` was outside the log if it is not `new`."""

    group: str
    topic: str
    partition: int
    current: int | None
    target: int
    new: int


def earliest(ground: Ground) -> Mapping[int, int]:
    """The first record that is still there."""
    return ground.starts


def latest(ground: Ground) -> Mapping[int, int]:
    """After the last record."""
    return ground.ends


def current(ground: Ground) -> Mapping[int, int]:
    """Where the group is; after the last record if it has committed nothing."""
    return {partition: ground.committed.get(partition, end) for partition, end in ground.ends.items()}


def offset(number: int) -> Target:
    """The same offset in every partition."""
    return lambda ground: dict.fromkeys(ground.ends, number)


def instant(at: datetime) -> Target:
    """The first record at or after the instant; after the last record if there is none."""

    def target(ground: Ground) -> Mapping[int, int]:
        records = ground.log.first_at_or_after(ground.topic, list(ground.ends), model.milliseconds(at))
        return {part: records[part].offset if part in records else end for part, end in ground.ends.items()}

    return target


def shift(by: int) -> Target:
    """This many records forward from where the group is, or back."""

    def target(ground: Ground) -> Mapping[int, int]:
        unknown = [str(partition) for partition in ground.ends if partition not in ground.committed]
        if unknown:
            raise errors.UserError(f"nothing is committed for partition {', '.join(unknown)} of {ground.topic}: nothing to shift")
        return {partition: ground.committed[partition] + by for partition in ground.ends}

    return target


def listed(offsets: Mapping[client.PartitionId, int]) -> Target:
    """The offsets of a list, such as a file that `--export` wrote."""
    return lambda ground: {partition: offsets[ground.topic, partition] for partition in ground.ends}


def window(frozen: model.FrozenWindow) -> Target:
    """The window's first record; a partition that was added later begins at its own first record."""
    starts = {part.partition: part.start_offset for part in frozen.ranges}

    def target(ground: Ground) -> Mapping[int, int]:
        refuse_if_recreated(ground.topic, frozen.topic_id, ground.log.topic(ground.topic).topic_id)
        return {partition: starts.get(partition, first) for partition, first in ground.starts.items()}

    return target


def plan(groups: GroupOffsets, log: topics.OffsetLog, group: str, choices: Iterable[TopicChoice], target: Target) -> list[Move]:
    """What would change, partition by partition. Raises `GroupActive` and `TopicMissing`; changes nothing."""
    groups.validate_inactive(group)
    committed = groups.committed(group)
    return [move for choice in choices for move in plan_topic(log, group, choice, committed, target)]


def plan_topic(
    log: topics.OffsetLog, group: str, choice: TopicChoice, committed: Mapping[client.PartitionId, int], target: Target
) -> list[Move]:
    ground = _ground_of(log, choice, committed)
    return [
        Move(
            group=group,
            topic=choice.topic,
            partition=partition,
            current=ground.committed.get(partition),
            target=target_offset,
            new=min(max(target_offset, ground.starts[partition]), ground.ends[partition]),
        )
        for partition, target_offset in sorted(target(ground).items())
    ]


def _ground_of(log: topics.OffsetLog, choice: TopicChoice, committed: Mapping[client.PartitionId, int]) -> Ground:
    """The answers that every target needs. `UserError` for a partition that does not exist."""
    existing = log.topic(choice.topic).partitions
    chosen = existing if choice.partitions is None else choice.partitions
    missing = [str(partition) for partition in chosen if partition not in existing]
    if missing:
        raise errors.UserError(f"topic {choice.topic} has no partition {', '.join(missing)}; its partitions are {span(existing)}")
    return Ground(
        log=log,
        topic=choice.topic,
        starts=log.start_offsets(choice.topic, chosen),
        ends=log.end_offsets(choice.topic, chosen, client.LATEST),
        committed={part: offset for (topic, part), offset in committed.items() if topic == choice.topic and part in chosen},
    )


def span(partitions: Sequence[int]) -> str:
    return f"{partitions[0]} to {partitions[-1]}" if partitions else "none"


def execute(groups: GroupOffsets, moves: Sequence[Move], note: str = "") -> None:
    """Commits the plan; `GroupActive` if a member has joined since. Topics of one group are committed together."""
    by_group: dict[str, dict[client.PartitionId, int]] = {}
    for move in moves:
        by_group.setdefault(move.group, {})[move.topic, move.partition] = move.new
    for group, offsets in by_group.items():
        groups.commit(group, offsets, note)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """By partition the offsets that were committed, and those of the group that were ahead already."""

    group: str
    topic: str
    committed: dict[int, int]
    ahead: dict[int, int]

    def summary(self) -> dict[str, Any]:
        """The checkpoint as JSON-ready values."""
        committed, ahead = ({str(part): offset for part, offset in offsets.items()} for offsets in (self.committed, self.ahead))
        return {"group": self.group, "topic": self.topic, "committed": committed, "ahead": ahead}


def commit_ends(
    engine: Engine, groups: GroupOffsets, log: topics.OffsetLog, group: str, windows: Sequence[model.FrozenWindow]
) -> Checkpoint:
    """Commits where the last of a pipeline's loaded windows ends in each partition; never moves the group back.

    Raises `WindowNotLoaded`, `TopicRecreated`, and `GroupActive` if the group has members.
    """
    if not windows:
        raise errors.UserError("no window is named: nothing to commit")
    topic, ends = windows[0].topic, end_offsets(windows)
    _require_loaded(windows)
    refuse_if_recreated(topic, windows[0].topic_id, log.topic(topic).topic_id)
    with engine.begin() as connection:
        lock_group(connection, group)
        before = {part: offset for (name, part), offset in groups.committed(group).items() if name == topic}
        # An offset beyond the log's end is of a topic that was deleted and recreated: it is replaced.
        log_ends = log.end_offsets(topic, ends, client.LATEST)
        ahead = {part: at for part, at in before.items() if part in ends and ends[part] < at <= log_ends[part]}
        committed = {part: offset for part, offset in ends.items() if part not in ahead}
        note = f"logbus {windows[0].pipeline} {model.instant_text(max(window.interval.end for window in windows))}"
        groups.commit(group, {(topic, part): offset for part, offset in committed.items()}, note)
    return Checkpoint(group=group, topic=topic, committed=committed, ahead=ahead)


def lock_group(connection: Connection, group: str) -> None:
    """Waits for any other run that moves this group; until the transaction ends, no other run does. Kafka has no compare-and-set
    for offsets."""
    connection.execute(text("select pg_advisory_xact_lock(hashtextextended(:name, 0))"), {"name": f"logbus group {group}"})


def end_offsets(windows: Sequence[model.FrozenWindow]) -> dict[int, int]:
    """By partition the end of the last window: the next offset to read, which is what Kafka commits."""
    ends: dict[int, int] = {}
    for part in (part for window in windows for part in window.ranges):
        ends[part.partition] = max(ends.get(part.partition, 0), part.end_offset)
    return ends


def _require_loaded(windows: Sequence[model.FrozenWindow]) -> None:
    missing = [model.instant_text(window.interval.start) for window in windows if window.loaded_attempt is None]
    if missing:
        raise errors.WindowNotLoaded(
            f"nothing is committed for windows that are not loaded: {', '.join(missing)}; load them first"
        )
