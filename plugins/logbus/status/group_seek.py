"""Where a consumer group should continue: the targets of `kafka-consumer-groups --reset-offsets`, and a window of ours.

A target is a function from what log and group hold now (`Ground`) to an offset for each partition; its result is
clamped to what the log still holds, as Kafka's tool does. Planning changes nothing; `execute` commits the plan, and
only if the group has no members. Windows are never touched: a group reads, the ledger decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from logbus.errors import UserError
from logbus.kafka.client import LATEST, Place
from logbus.kafka.groups import GroupOffsets, refuse_if_active
from logbus.kafka.topics import OffsetLog
from logbus.ledger.retained import refuse_if_recreated
from logbus.model import FrozenWindow, milliseconds


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
            raise UserError(f"{text!r} is not a choice of partitions; write it like {topic}:0,1") from None
        return cls(topic=topic, partitions=chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What log and group hold of the chosen partitions of one topic. `starts` and `ends` have all of them."""

    log: OffsetLog
    topic: str
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    committed: Mapping[int, int]


Target = Callable[[Ground], Mapping[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One partition's move. `current` is None if nothing is committed; `wanted` was outside the log if it is not `new`."""

    group: str
    topic: str
    partition: int
    current: int | None
    wanted: int
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
        found = ground.log.first_at_or_after(ground.topic, list(ground.ends), milliseconds(at))
        return {part: found[part].offset if part in found else end for part, end in ground.ends.items()}

    return target


def shift(by: int) -> Target:
    """This many records forward from where the group is, or back."""

    def target(ground: Ground) -> Mapping[int, int]:
        unknown = [str(partition) for partition in ground.ends if partition not in ground.committed]
        if unknown:
            raise UserError(f"nothing is committed for partition {', '.join(unknown)} of {ground.topic}: nothing to shift")
        return {partition: ground.committed[partition] + by for partition in ground.ends}

    return target


def listed(offsets: Mapping[Place, int]) -> Target:
    """The offsets of a list, such as a file that `--export` wrote."""
    return lambda ground: {partition: offsets[ground.topic, partition] for partition in ground.ends}


def window(frozen: FrozenWindow) -> Target:
    """The window's first record; a partition that was added later begins at its own first record."""
    starts = {part.partition: part.start_offset for part in frozen.ranges}

    def target(ground: Ground) -> Mapping[int, int]:
        refuse_if_recreated(ground.topic, frozen.topic_id, ground.log.topic(ground.topic).topic_id)
        return {partition: starts.get(partition, first) for partition, first in ground.starts.items()}

    return target


def plan(groups: GroupOffsets, log: OffsetLog, group: str, choices: Iterable[TopicChoice], target: Target) -> list[Move]:
    """What would change, partition by partition. Raises `GroupActive` and `TopicMissing`; changes nothing."""
    refuse_if_active(groups.group(group))
    committed = groups.committed(group)
    return [move for choice in choices for move in plan_topic(log, group, choice, committed, target)]


def plan_topic(log: OffsetLog, group: str, choice: TopicChoice, committed: Mapping[Place, int], target: Target) -> list[Move]:
    ground = ground_of(log, choice, committed)
    return [
        Move(
            group=group,
            topic=choice.topic,
            partition=partition,
            current=ground.committed.get(partition),
            wanted=wanted,
            new=min(max(wanted, ground.starts[partition]), ground.ends[partition]),
        )
        for partition, wanted in sorted(target(ground).items())
    ]


def ground_of(log: OffsetLog, choice: TopicChoice, committed: Mapping[Place, int]) -> Ground:
    """The answers that every target needs. `UserError` for a partition that does not exist."""
    known = log.topic(choice.topic).partitions
    chosen = known if choice.partitions is None else choice.partitions
    missing = [str(partition) for partition in chosen if partition not in known]
    if missing:
        raise UserError(f"topic {choice.topic} has no partition {', '.join(missing)}; its partitions are {span(known)}")
    return Ground(
        log=log,
        topic=choice.topic,
        starts=log.start_offsets(choice.topic, chosen),
        ends=log.end_offsets(choice.topic, chosen, LATEST),
        committed={part: found for (topic, part), found in committed.items() if topic == choice.topic and part in chosen},
    )


def span(partitions: Sequence[int]) -> str:
    return f"{partitions[0]} to {partitions[-1]}" if partitions else "none"


def execute(groups: GroupOffsets, moves: Sequence[Move], note: str = "") -> None:
    """Commits the plan; `GroupActive` if a member has joined since. Topics of one group are committed together."""
    by_group: dict[str, dict[Place, int]] = {}
    for move in moves:
        by_group.setdefault(move.group, {})[move.topic, move.partition] = move.new
    for group, offsets in by_group.items():
        groups.commit(group, offsets, note)
