"""The decisions of managed retention: up to which offset a topic's records may be deleted, and which pipelines hold them back.

Pure; no I/O. A broker deletes by age and size, whether or not records were loaded. Here a record may be deleted when its frozen
window has passed the topic's limit AND every registered pipeline has loaded and audited that window: so offsets come from
boundaries, not from segments or from timestamps that a producer made up. In each partition

    limit      the end of the last window that the policy releases, of any pipeline
    reach      how far a pipeline has come: the end of its unbroken chain of settled windows
    delete to  the smallest of the limit, all reaches and the log end offset

What a pipeline holds back longer than `max_hold` raises an alarm, every time; only `when_overdue="delete"` releases it, and then
the ledger shows which windows lost what. A hold stops a topic altogether. Records deleted before they were loaded are an alarm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from logbus import errors, formatting, model
from logbus.kafka.topics import CLEANUP_POLICY, deletes, limits_in_force
from logbus.windows.pipeline_chains import OTHER_TOPIC, PipelineChain, not_settled, pending_ranges

ALARM, DELETE = "alarm", "delete"

# A weekend and a day to notice that a pipeline has stopped.
MAX_HOLD_DEFAULT = timedelta(days=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """What of a topic is kept: windows younger than `retain`, and the newest `retain_bytes` of records (keys and values)."""

    topic: str
    retain: timedelta | None = None
    retain_bytes: int | None = None
    max_hold: timedelta = MAX_HOLD_DEFAULT
    when_overdue: str = ALARM

    def __post_init__(self) -> None:
        if self.retain is None and self.retain_bytes is None:
            raise errors.UserError(f"retention of {self.topic}: give a limit by hours, by bytes, or both")
        if (self.retain or timedelta(0)) < timedelta(0) or (self.retain_bytes or 0) < 0 or self.max_hold < timedelta(0):
            raise errors.UserError(f"retention of {self.topic}: hours and bytes are not negative")
        if self.when_overdue not in (ALARM, DELETE):
            raise errors.UserError(
                f"retention of {self.topic}: when overdue it is {ALARM!r} or {DELETE!r}, not {self.when_overdue!r}"
            )

    def __str__(self) -> str:
        age = None if self.retain is None else f"{hours_text(self.retain)}"
        size = None if self.retain_bytes is None else f"{self.retain_bytes} bytes"
        return " and ".join(filter(None, (age, size)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """An order that nothing of a topic is deleted; `until` None means until it is released."""

    id: int
    topic: str
    reason: str
    made_at: datetime
    until: datetime | None = None

    def __str__(self) -> str:
        end = "it is released" if self.until is None else model.instant_text(self.until)
        return f"hold {self.id} until {end}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """The topic at the broker. `young` is the first record younger than the policy's limit, else the log end offset."""

    topic: str
    topic_id: str
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    young: Mapping[int, int] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How far a pipeline has come in a partition, why no further, and when the hour that it has not settled ended.

    `lost` counts offsets that were deleted before they were loaded, `given_up` are windows that held back for too long.
    """

    offset: int
    why: str
    ended_at: datetime | None = None
    lost: int = 0
    given_up: tuple[model.FrozenWindow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Records that the policy would release but a pipeline still needs. `overdue` is for how long."""

    pipeline: str
    partition: int
    offset: int
    records: int
    why: str
    overdue: timedelta | None

    def __str__(self) -> str:
        since = "" if self.overdue is None else f" for {hours_text(self.overdue)}"
        return f"partition {self.partition} held back at offset {self.offset}{since} by pipeline {self.pipeline}: {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """The offsets [start_offset, end_offset) of a partition, which are to be deleted."""

    topic: str
    topic_id: str
    partition: int
    start_offset: int
    end_offset: int
    reason: str

    @property
    def records(self) -> int:
        """The number of offsets, that is: how many hold no record after compaction or transactions is unknown."""
        return self.end_offset - self.start_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """What a run does to a topic.

    Of the windows that are `cut`, the `unreplayable` are still complete now, and the `given_up` were never loaded.
    """

    policy: RetentionPolicy
    deletions: tuple[Deletion, ...] = ()
    holds: tuple[Held, ...] = ()
    cut: tuple[model.FrozenWindow, ...] = ()
    unreplayable: tuple[model.FrozenWindow, ...] = ()
    given_up: tuple[model.FrozenWindow, ...] = ()
    alarms: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def records(self) -> int:
        return sum(deletion.records for deletion in self.deletions)

    @property
    def bytes(self) -> int:
        """Bytes of the windows deleted as a whole, as counted when they were loaded; pipelines share the same records."""
        ends = {deletion.partition: deletion.end_offset for deletion in self.deletions}
        sizes: dict[str, int] = {}
        for window in self.unreplayable:
            if window.counts and all(part.end_offset <= ends.get(part.partition, 0) for part in window.ranges if part.count):
                sizes[window.pipeline] = sizes.get(window.pipeline, 0) + window.counts.bytes
        return max(sizes.values(), default=0)

    def summary(self) -> dict[str, Any]:
        """The plan as JSON-ready values."""
        return {
            "topic": self.policy.topic,
            "keeps": str(self.policy),
            "records": self.records,
            "bytes": self.bytes,
            "deletions": [
                {
                    "partition": deletion.partition,
                    "from": deletion.start_offset,
                    "to": deletion.end_offset,
                    "records": deletion.records,
                    "why": deletion.reason,
                }
                for deletion in self.deletions
            ],
            "held": [
                {
                    "partition": hold.partition,
                    "pipeline": hold.pipeline,
                    "offset": hold.offset,
                    "records": hold.records,
                    "overdue_seconds": None if hold.overdue is None else hold.overdue.total_seconds(),
                    "why": hold.why,
                }
                for hold in self.holds
            ],
            "no_longer_replayable": [window_name(window) for window in self.unreplayable],
            "given_up": [window_name(window) for window in self.given_up],
            "alarms": list(self.alarms),
            "notes": list(self.notes),
        }


def window_name(window: model.FrozenWindow) -> str:
    """`pipeline@start`, as `logbus group seek --to-window` accepts it."""
    return f"{window.pipeline}@{model.instant_text(window.interval.start)}"


def hours_text(span: timedelta) -> str:
    """`168 hours`, `1.5 hours`, `1 hour`."""
    hours = f"{span / timedelta(hours=1):.1f}".removesuffix(".0")
    return f"{hours} hour" if hours == "1" else f"{hours} hours"


# By pipeline and partition, how far it has come.
Reaches = Mapping[tuple[str, int], Reach]


def plan_topic(
    policy: RetentionPolicy, state: TopicState, chains: Sequence[PipelineChain], holds: Sequence[Hold], now: datetime
) -> TopicPlan:
    """What the policy releases of a topic at `now`."""
    places = [(chain, partition) for chain in chains for partition in sorted(state.starts)]
    reaches = {(chain.pipeline, part): reach(chain, part, state.starts[part], policy, now) for chain, part in places}
    limit = limits(policy, chains, now)
    held_back_parts = [_held_back(key, at, state, limit, policy, now) for key, at in reaches.items()]
    reasons = stopping(state, chains, holds)
    deletions = () if reasons else tuple(decide(policy, state, reaches, limit))
    given_up = {window.id for at in reaches.values() for window in at.given_up}
    cut = tuple(_cut_windows(chains, deletions))
    return TopicPlan(
        policy=policy,
        deletions=deletions,
        holds=tuple(hold for hold in held_back_parts if hold is not None),
        cut=cut,
        unreplayable=tuple(window for window in cut if is_whole(window, state.starts)),
        given_up=tuple(window for window in cut if window.id in given_up),
        alarms=(*_hold_alarms(policy, [hold for hold in held_back_parts if hold]), *_loss_alarms(state, chains, reaches)),
        notes=(*reasons, *_own_limits(state)),
    )


def stopping(state: TopicState, chains: Sequence[PipelineChain], holds: Iterable[Hold]) -> list[str]:
    """Why nothing of the topic is deleted, whatever the policy."""
    reasons = [str(hold) for hold in holds]
    if not chains:
        reasons.append("no registered pipeline reads the topic, so no window says what may go: leave it to the broker")
    if not deletes(state.settings):
        cleanup = state.settings[CLEANUP_POLICY]
        reasons.append(f"cleanup.policy is {cleanup}: a compacted topic keeps the last record of each key, whatever its age")
    return reasons


def _own_limits(state: TopicState) -> Iterator[str]:
    """Limits that the broker itself applies, whether or not records were loaded."""
    for name, limit in limits_in_force(state.settings).items():
        yield f"its own {name}={limit} deletes too, loaded or not: `logbus retention adopt {state.topic}` takes it over"


def limits(policy: RetentionPolicy, chains: Iterable[PipelineChain], now: datetime) -> dict[int, int]:
    """By partition, the end of the last window that the policy releases."""
    offsets: dict[int, int] = {}
    for chain in chains:
        old = [(partition, anchor.offset) for partition, anchor in chain.anchors.items() if _is_old(policy, anchor.at, now)]
        ends = [(part.partition, part.end_offset) for window in expired(policy, chain, now) for part in window.ranges]
        for partition, offset in (*old, *ends):
            offsets[partition] = max(offsets.get(partition, 0), offset)
    return offsets


def _is_old(policy: RetentionPolicy, instant: datetime | None, now: datetime) -> bool:
    return policy.retain is not None and instant is not None and instant <= now - policy.retain


def expired(policy: RetentionPolicy, chain: PipelineChain, now: datetime) -> Iterator[model.FrozenWindow]:
    """Windows that are older than the policy keeps, or after which there are as many bytes as it keeps."""
    newer_bytes = 0
    for window in reversed(chain.windows):
        too_old = _is_old(policy, window.interval.end, now)
        too_much = policy.retain_bytes is not None and newer_bytes >= policy.retain_bytes
        if too_old or too_much:
            yield window
        newer_bytes += window.counts.bytes if window.counts else 0


def _held_back(
    key: tuple[str, int], at: Reach, state: TopicState, limit: Mapping[int, int], policy: RetentionPolicy, now: datetime
) -> Held | None:
    """What the pipeline holds back of a partition, if the policy would release any of it."""
    pipeline, partition = key
    first = max(at.offset, state.starts[partition])
    target = min(max(limit.get(partition, 0), state.young.get(partition, 0)), state.ends[partition])
    if target <= first:
        return None
    overdue = _overdue_since(policy, at.ended_at, now)
    return Held(pipeline=pipeline, partition=partition, offset=first, records=target - first, why=at.why, overdue=overdue)


def decide(policy: RetentionPolicy, state: TopicState, reaches: Reaches, limit: Mapping[int, int]) -> Iterator[Deletion]:
    for partition, start in sorted(state.starts.items()):
        reached = min(at.offset for (_, part), at in reaches.items() if part == partition)
        end = min(limit.get(partition, 0), reached, state.ends[partition])
        if end > start:
            yield Deletion(
                topic=state.topic,
                topic_id=state.topic_id,
                partition=partition,
                start_offset=start,
                end_offset=end,
                reason=f"beyond the {policy} that are kept, and loaded",
            )


def _cut_windows(chains: Iterable[PipelineChain], deletions: Iterable[Deletion]) -> Iterator[model.FrozenWindow]:
    """Windows that lose records."""
    gaps = {deletion.partition: deletion for deletion in deletions}
    for chain in chains:
        for window in () if chain.is_other_topic else chain.windows:
            parts = [(part, gaps[part.partition]) for part in window.ranges if part.count and part.partition in gaps]
            if any(part.readable_from < gap.end_offset and part.end_offset > gap.start_offset for part, gap in parts):
                yield window


def is_whole(window: model.FrozenWindow, starts: Mapping[int, int]) -> bool:
    """Whether a log that begins at `starts` holds everything of the window."""
    return all(starts.get(part.partition, 0) <= part.readable_from for part in window.ranges if part.count)


def _hold_alarms(policy: RetentionPolicy, holds: Sequence[Held]) -> Iterator[str]:
    """One for each pipeline that holds back longer than it may, about its worst partition."""
    late = [hold for hold in holds if (hold.overdue or timedelta(0)) > policy.max_hold]
    for pipeline in sorted({hold.pipeline for hold in late}):
        own_holds = [hold for hold in late if hold.pipeline == pipeline]
        worst = max(own_holds, key=lambda hold: hold.overdue or timedelta(0))
        yield (
            f"topic {policy.topic}: pipeline {pipeline} has held back "
            f"{formatting.many(sum(hold.records for hold in own_holds), 'record')} for "
            f"{hours_text(worst.overdue or timedelta(0))}, {hours_text(policy.max_hold)} are allowed: {worst.why} (partition "
            f"{worst.partition}). Load and audit it (`logbus load --pipeline {pipeline}`), or let it go unloaded "
            f"(`logbus retention set {policy.topic} --when-overdue delete`)"
        )


def _loss_alarms(state: TopicState, chains: Iterable[PipelineChain], reaches: Reaches) -> Iterator[str]:
    """What is gone although a pipeline had not loaded it: something else deleted it, such as the broker's own retention."""
    for chain in chains:
        if chain.is_other_topic:
            yield f"topic {state.topic}: {OTHER_TOPIC.format(pipeline=chain.pipeline)}; until then nothing of it is deleted"
            continue
        for partition in sorted(state.starts):
            at = reaches[chain.pipeline, partition]
            if at.lost:
                yield (
                    f"topic {state.topic}: partition {partition} lost {formatting.many(at.lost, 'record')} that pipeline "
                    f"{chain.pipeline} had not loaded: are the topic's own retention.ms and retention.bytes -1?"
                )


def reach(chain: PipelineChain, partition: int, start: int, policy: RetentionPolicy, now: datetime) -> Reach:
    """The first records that the pipeline still needs in a log that begins at `start`.

    A range that is completely gone is counted as lost and skipped: holding back the rest would not bring it back.
    One that has held back for too long is given up, if the policy allows.
    """
    lost = 0
    given_up = []
    for need in pending_ranges(chain, partition, not_settled):
        if need.window is not None and _gives_up(policy, need.window, now):
            given_up.append(need.window)
            continue
        lost += need.within(0, start)
        if need.end > start:
            break
    return Reach(offset=need.first, why=need.why, ended_at=need.ended_at, lost=lost, given_up=tuple(given_up))


def _gives_up(policy: RetentionPolicy, window: model.FrozenWindow, now: datetime) -> bool:
    overdue = _overdue_since(policy, window.interval.end, now)
    return policy.when_overdue == DELETE and overdue is not None and overdue > policy.max_hold


def _overdue_since(policy: RetentionPolicy, ended_at: datetime | None, now: datetime) -> timedelta | None:
    """For how long the policy would have released an hour that ended then; a limit by size counts from the hour's end."""
    return None if ended_at is None else max(timedelta(0), now - ended_at - (policy.retain or timedelta(0)))
