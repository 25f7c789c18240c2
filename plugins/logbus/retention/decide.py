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
from datetime import datetime, timedelta

from logbus.kafka.own_limits import CLEANUP_POLICY, deletes, limits_in_force
from logbus.ledger.stretches import OTHER_TOPIC, PipelineChain, not_settled, undone_stretches
from logbus.model import FrozenWindow
from logbus.retention.model import DELETE, Deletion, Held, Hold, Reach, RetentionPolicy, TopicPlan, TopicState, hours_text
from logbus.wording import many

# By pipeline and partition, how far it has come.
Reaches = Mapping[tuple[str, int], Reach]


def plan_topic(
    policy: RetentionPolicy, state: TopicState, chains: Sequence[PipelineChain], holds: Sequence[Hold], now: datetime
) -> TopicPlan:
    """What the policy releases of a topic at `now`."""
    places = [(chain, partition) for chain in chains for partition in sorted(state.starts)]
    reaches = {(chain.pipeline, part): reach(chain, part, state.starts[part], policy, now) for chain, part in places}
    limit = limits(policy, chains, now)
    held = [held_back(key, at, state, limit, policy, now) for key, at in reaches.items()]
    reasons = stopping(state, chains, holds)
    deletions = () if reasons else tuple(decide(policy, state, reaches, limit))
    given_up = {window.id for at in reaches.values() for window in at.given_up}
    cut = tuple(cut_windows(chains, deletions))
    return TopicPlan(
        policy=policy,
        deletions=deletions,
        held=tuple(one for one in held if one is not None),
        cut=cut,
        unreplayable=tuple(window for window in cut if is_whole(window, state.starts)),
        given_up=tuple(window for window in cut if window.id in given_up),
        alarms=(*hold_alarms(policy, [one for one in held if one]), *loss_alarms(state, chains, reaches)),
        notes=(*reasons, *own_limits(state)),
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


def own_limits(state: TopicState) -> Iterator[str]:
    """Limits that the broker itself applies, whether or not records were loaded."""
    for name, limit in limits_in_force(state.settings).items():
        yield f"its own {name}={limit} deletes too, loaded or not: `logbus retention adopt {state.topic}` takes it over"


def limits(policy: RetentionPolicy, chains: Iterable[PipelineChain], now: datetime) -> dict[int, int]:
    """By partition, the end of the last window that the policy releases."""
    found: dict[int, int] = {}
    for chain in chains:
        old = [(partition, anchor.offset) for partition, anchor in chain.anchors.items() if is_old(policy, anchor.at, now)]
        ends = [(part.partition, part.end_offset) for window in expired(policy, chain, now) for part in window.ranges]
        for partition, offset in (*old, *ends):
            found[partition] = max(found.get(partition, 0), offset)
    return found


def is_old(policy: RetentionPolicy, instant: datetime | None, now: datetime) -> bool:
    return policy.retain is not None and instant is not None and instant <= now - policy.retain


def expired(policy: RetentionPolicy, chain: PipelineChain, now: datetime) -> Iterator[FrozenWindow]:
    """Windows that are older than the policy keeps, or after which there are as many bytes as it keeps."""
    newer_bytes = 0
    for window in reversed(chain.windows):
        too_old = is_old(policy, window.interval.end, now)
        too_much = policy.retain_bytes is not None and newer_bytes >= policy.retain_bytes
        if too_old or too_much:
            yield window
        newer_bytes += window.counts.bytes if window.counts else 0


def held_back(
    key: tuple[str, int], at: Reach, state: TopicState, limit: Mapping[int, int], policy: RetentionPolicy, now: datetime
) -> Held | None:
    """What the pipeline holds back of a partition, if the policy would release any of it."""
    pipeline, partition = key
    first = max(at.offset, state.starts[partition])
    wanted = min(max(limit.get(partition, 0), state.young.get(partition, 0)), state.ends[partition])
    if wanted <= first:
        return None
    overdue = overdue_since(policy, at.ended_at, now)
    return Held(pipeline=pipeline, partition=partition, offset=first, records=wanted - first, why=at.why, overdue=overdue)


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


def cut_windows(chains: Iterable[PipelineChain], deletions: Iterable[Deletion]) -> Iterator[FrozenWindow]:
    """Windows that lose records."""
    gaps = {one.partition: one for one in deletions}
    for chain in chains:
        for window in () if chain.is_other_topic else chain.windows:
            parts = [(part, gaps[part.partition]) for part in window.ranges if part.count and part.partition in gaps]
            if any(part.readable_from < gap.end_offset and part.end_offset > gap.start_offset for part, gap in parts):
                yield window


def is_whole(window: FrozenWindow, starts: Mapping[int, int]) -> bool:
    """Whether a log that begins at `starts` holds everything of the window."""
    return all(starts.get(part.partition, 0) <= part.readable_from for part in window.ranges if part.count)


def hold_alarms(policy: RetentionPolicy, held: Sequence[Held]) -> Iterator[str]:
    """One for each pipeline that holds back longer than it may, about its worst partition."""
    late = [one for one in held if (one.overdue or timedelta(0)) > policy.max_hold]
    for pipeline in sorted({one.pipeline for one in late}):
        mine = [one for one in late if one.pipeline == pipeline]
        worst = max(mine, key=lambda one: one.overdue or timedelta(0))
        yield (
            f"topic {policy.topic}: pipeline {pipeline} has held back {many(sum(one.records for one in mine), 'record')} for "
            f"{hours_text(worst.overdue or timedelta(0))}, {hours_text(policy.max_hold)} are allowed: {worst.why} (partition "
            f"{worst.partition}). Load and audit it (`logbus load --pipeline {pipeline}`), or let it go unloaded "
            f"(`logbus retention set {policy.topic} --when-overdue delete`)"
        )


def loss_alarms(state: TopicState, chains: Iterable[PipelineChain], reaches: Reaches) -> Iterator[str]:
    """What is gone although a pipeline had not loaded it: something else deleted it, such as the broker's own retention."""
    for chain in chains:
        if chain.is_other_topic:
            yield f"topic {state.topic}: {OTHER_TOPIC.format(pipeline=chain.pipeline)}; until then nothing of it is deleted"
            continue
        for partition in sorted(state.starts):
            at = reaches[chain.pipeline, partition]
            if at.lost:
                yield (
                    f"topic {state.topic}: partition {partition} lost {many(at.lost, 'record')} that pipeline "
                    f"{chain.pipeline} had not loaded: are the topic's own retention.ms and retention.bytes -1?"
                )


def reach(chain: PipelineChain, partition: int, start: int, policy: RetentionPolicy, now: datetime) -> Reach:
    """The first records that the pipeline still needs in a log that begins at `start`.

    A stretch that is completely gone is counted as lost and skipped: holding back the rest would not bring it back.
    One that has held back for too long is given up, if the policy allows.
    """
    lost = 0
    given_up = []
    for need in undone_stretches(chain, partition, not_settled):
        if need.window is not None and gives_up(policy, need.window, now):
            given_up.append(need.window)
            continue
        lost += need.within(0, start)
        if need.end > start:
            break
    return Reach(offset=need.first, why=need.why, ended_at=need.ended_at, lost=lost, given_up=tuple(given_up))


def gives_up(policy: RetentionPolicy, window: FrozenWindow, now: datetime) -> bool:
    overdue = overdue_since(policy, window.interval.end, now)
    return policy.when_overdue == DELETE and overdue is not None and overdue > policy.max_hold


def overdue_since(policy: RetentionPolicy, ended_at: datetime | None, now: datetime) -> timedelta | None:
    """For how long the policy would have released an hour that ended then; a limit by size counts from the hour's end."""
    return None if ended_at is None else max(timedelta(0), now - ended_at - (policy.retain or timedelta(0)))
