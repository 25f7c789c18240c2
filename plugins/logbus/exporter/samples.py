"""From readings to samples. Pure: a missing reading gives no samples, nor does an unknown value.

A sample is a metric, its label values in the order of the catalogue's label names, and a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime

from logbus.exporter import catalogue as names
from logbus.exporter.catalogue import ExportedMetric
from logbus.exporter.kafka_reading import KafkaReading, PartitionReading
from logbus.exporter.lag_reading import LagReading, PipelineLag
from logbus.exporter.target_reading import OK, Outcome
from logbus.kafka.groups import GroupMember, GroupReading, lag_at
from logbus.ledger.totals import LedgerReading, PipelineFacts

Labels = tuple[str, ...]
# The collector leaves out samples whose value is None.
Sample = tuple[ExportedMetric, Labels, float | None]

NOBODY = GroupMember(member_id="", client_id="", host="")


def outcome_samples(target: str, outcome: Outcome[object]) -> Iterator[Sample]:
    """Whether a target could be read."""
    yield names.UP, (target, outcome.reason), float(outcome.reason == OK)
    yield names.READING_SECONDS, (target,), outcome.seconds


def seconds(instant: datetime | None) -> float | None:
    return None if instant is None else instant.timestamp()


def ledger_samples(reading: LedgerReading) -> Iterator[Sample]:
    for one in reading.pipelines.values():
        yield from window_samples(one)
        yield from work_samples(one)
    yield names.RETENTION_RUN, (), seconds(reading.retention_ran_at)
    yield names.RETENTION_ALARMS, (), None if reading.retention_ran_at is None else reading.retention_alarms


def window_samples(one: PipelineFacts) -> Iterator[Sample]:
    labels = (one.name, one.topic)
    for state, count in one.windows.items():
        yield names.WINDOWS, (*labels, state), count
    yield names.WINDOWS_FAILED, labels, one.windows_failed
    yield names.WINDOWS_AUDIT_FAILED, labels, one.windows_audit_failed
    yield names.LOADED_UNTIL, labels, seconds(one.loaded_until)
    yield names.LAST_LOAD, labels, seconds(one.loaded_at)
    yield names.LAST_AUDIT, labels, seconds(one.audited_at)


def work_samples(one: PipelineFacts) -> Iterator[Sample]:
    labels = (one.name, one.topic)
    for outcome, count in one.records.items():
        yield names.RECORDS, (*labels, outcome), count
    yield names.BYTES, labels, one.bytes
    yield names.LATE, labels, one.late
    yield names.STAMPED, labels, one.stamped
    yield names.STAMPED_ELSEWHERE, labels, one.stamped_elsewhere
    for state, count in one.attempts.items():
        yield names.ATTEMPTS, (*labels, state), count
    yield names.ATTEMPTS_RUNNING, labels, one.attempts_running
    yield names.DEAD_LETTERS, labels, one.dead_letters
    for outcome, count in one.redriven.items():
        yield names.REDRIVEN, (*labels, outcome), count


def lag_samples(reading: LagReading) -> Iterator[Sample]:
    for one in reading.pipelines.values():
        yield names.PIPELINE_UP, (one.pipeline, one.topic, one.reason), float(one.lag is not None)
        yield from pipeline_lag_samples(one, reading.at)


def pipeline_lag_samples(one: PipelineLag, now: datetime) -> Iterator[Sample]:
    labels, lag = (one.pipeline, one.topic), one.lag
    if lag is None:
        return
    age = lag.age(now)
    yield names.HOURS_BEHIND, labels, lag.hours_behind
    yield names.HOURS_EMPTY, labels, lag.hours_empty
    yield names.RECORDS_BEHIND, labels, lag.records
    yield names.RECORDS_OPEN, labels, lag.records_open
    yield names.RECORDS_LOST, labels, lag.records_lost
    yield names.OLDEST_AGE, labels, 0.0 if age is None else age.total_seconds()
    if lag.expires_at is not None and lag.expires_by is not None:
        yield names.UNTIL_TAKEN, (*labels, lag.expires_by), (lag.expires_at - now).total_seconds()


def kafka_samples(reading: KafkaReading, cluster_name: str) -> Iterator[Sample]:
    yield names.BROKERS, (), len(reading.brokers)
    for number, address in sorted(reading.brokers.items()):
        yield names.BROKER_INFO, (str(number), address), 1
    for topic, count in sorted(Counter(one.topic for one in reading.partitions).items()):
        yield names.PARTITIONS, (topic,), count
    for part in reading.partitions:
        yield from partition_samples(part, cluster_name)
    for group in reading.groups:
        yield from group_samples(group, reading, cluster_name)


def partition_samples(part: PartitionReading, cluster_name: str) -> Iterator[Sample]:
    labels = (part.topic, str(part.partition))
    yield names.CURRENT_OFFSET, labels, part.end_offset
    yield names.OLDEST_OFFSET, labels, part.start_offset
    yield names.LATEST, (cluster_name, *labels), part.end_offset
    yield names.EARLIEST, (cluster_name, *labels), part.start_offset
    yield names.LEADER, labels, part.leader
    yield names.REPLICAS, labels, part.replicas
    yield names.IN_SYNC, labels, part.in_sync
    yield names.UNDER_REPLICATED, labels, float(part.in_sync < part.replicas)


def group_samples(group: GroupReading, reading: KafkaReading, cluster_name: str) -> Iterator[Sample]:
    """Lag only where the partition's end is known: the committed offsets of a deleted topic remain for a while."""
    ends = reading.ends
    lags = {place: lag for place in sorted(group.committed) if (lag := lag_at(group, place, ends)) is not None}
    waiting = {place: reading.waiting.get((group.name, place)) for place in lags}
    owners = group.readers
    yield names.MEMBERS, (group.name,), len(group.members)
    for place, lag in lags.items():
        where, owner = (place[0], str(place[1])), owners.get(place, NOBODY)
        owned = (cluster_name, group.name, *where, owner.address, owner.member_id, owner.client_id)
        yield names.GROUP_CURRENT, (group.name, *where), group.committed[place]
        yield names.CONSUMER_LAG, (group.name, *where), lag
        yield names.GROUP_OFFSET, owned, group.committed[place]
        yield names.GROUP_LAG, owned, lag
        yield names.GROUP_LAG_SECONDS, owned, waiting[place]
    for topic in sorted({topic for topic, _ in lags}):
        lag_sum = sum(lag for place, lag in lags.items() if place[0] == topic)
        yield names.GROUP_CURRENT_SUM, (group.name, topic), sum(group.committed[place] for place in lags if place[0] == topic)
        yield names.CONSUMER_LAG_SUM, (group.name, topic), lag_sum
        yield names.GROUP_TOPIC_SUM_LAG, (cluster_name, group.name, topic), lag_sum
    if lags:
        yield names.GROUP_MAX_LAG, (cluster_name, group.name), max(lags.values())
        yield names.GROUP_MAX_LAG_SECONDS, (cluster_name, group.name), largest(waiting.values())
        yield names.GROUP_SUM_LAG, (cluster_name, group.name), sum(lags.values())


def largest(values: Iterable[float | None]) -> float | None:
    """The largest, or None where any of them is unknown."""
    known = list(values)
    return None if None in known else max(value for value in known if value is not None)
