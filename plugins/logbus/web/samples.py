"""From readings to samples. Pure: a missing reading gives no samples, nor does an unknown value.

A sample is a metric, its label values in the order of the catalog's label names, and a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from logbus.kafka.groups import GroupMember, GroupReading, lag_at
from logbus.status import fleet, kafka_reading, ledger_totals
from logbus.web import metric_catalog as names
from logbus.web.metric_catalog import ExportedMetric
from logbus.web.reading import OK, TIMEOUT, Outcome

Labels = tuple[str, ...]
# The collector leaves out samples whose value is None.
Sample = tuple[ExportedMetric, Labels, float | None]

NOBODY = GroupMember(member_id="", client_id="", host="")


def outcome_samples(target: str, outcome: Outcome[Any] | None) -> Iterator[Sample]:
    """Whether a target could be read; None if the reading did not end in time."""
    reason = TIMEOUT if outcome is None else outcome.reason
    yield names.UP, (target, reason), float(reason == OK)
    yield names.READING_SECONDS, (target,), None if outcome is None else outcome.seconds


def seconds(instant: datetime | None) -> float | None:
    return None if instant is None else instant.timestamp()


def ledger_samples(reading: ledger_totals.LedgerReading) -> Iterator[Sample]:
    for facts in reading.pipelines.values():
        yield from _window_samples(facts)
        yield from _work_samples(facts)
    yield names.RETENTION_RUN, (), seconds(reading.retention_ran_at)
    yield names.RETENTION_ALARMS, (), None if reading.retention_ran_at is None else reading.retention_alarms


def _window_samples(facts: ledger_totals.PipelineFacts) -> Iterator[Sample]:
    labels = (facts.name, facts.topic)
    for state, count in facts.windows.items():
        yield names.WINDOWS, (*labels, state), count
    yield names.WINDOWS_FAILED, labels, facts.windows_failed
    yield names.WINDOWS_AUDIT_FAILED, labels, facts.windows_audit_failed
    yield names.LOADED_UNTIL, labels, seconds(facts.loaded_until)
    yield names.LAST_LOAD, labels, seconds(facts.loaded_at)
    yield names.LAST_AUDIT, labels, seconds(facts.audited_at)


def _work_samples(facts: ledger_totals.PipelineFacts) -> Iterator[Sample]:
    labels = (facts.name, facts.topic)
    for outcome, count in facts.records.items():
        yield names.RECORDS, (*labels, outcome), count
    yield names.BYTES, labels, facts.bytes
    yield names.LATE, labels, facts.late
    yield names.STAMPED, labels, facts.stamped
    yield names.STAMPED_ELSEWHERE, labels, facts.stamped_elsewhere
    for state, count in facts.attempts.items():
        yield names.ATTEMPTS, (*labels, state), count
    yield names.ATTEMPTS_RUNNING, labels, facts.attempts_running
    yield names.DEAD_LETTERS, labels, facts.dead_letters
    for outcome, count in facts.redriven.items():
        yield names.REDRIVEN, (*labels, outcome), count


def lag_samples(reading: fleet.LagReading) -> Iterator[Sample]:
    for pipeline_lag in reading.pipelines.values():
        yield (
            names.PIPELINE_UP,
            (pipeline_lag.pipeline, pipeline_lag.topic, pipeline_lag.reason),
            float(pipeline_lag.lag is not None),
        )
        yield from _pipeline_lag_samples(pipeline_lag, reading.at)


def _pipeline_lag_samples(pipeline_lag: fleet.PipelineLag, now: datetime) -> Iterator[Sample]:
    labels, lag = (pipeline_lag.pipeline, pipeline_lag.topic), pipeline_lag.lag
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


def kafka_samples(reading: kafka_reading.KafkaReading, cluster_name: str) -> Iterator[Sample]:
    yield names.BROKERS, (), len(reading.brokers)
    for number, address in sorted(reading.brokers.items()):
        yield names.BROKER_INFO, (str(number), address), 1
    for topic, count in sorted(Counter(part.topic for part in reading.partitions).items()):
        yield names.PARTITIONS, (topic,), count
    for part in reading.partitions:
        yield from _partition_samples(part, cluster_name)
    for group in reading.groups:
        yield from _group_samples(group, reading, cluster_name)


def _partition_samples(part: kafka_reading.PartitionReading, cluster_name: str) -> Iterator[Sample]:
    labels = (part.topic, str(part.partition))
    yield names.CURRENT_OFFSET, labels, part.end_offset
    yield names.OLDEST_OFFSET, labels, part.start_offset
    yield names.LATEST, (cluster_name, *labels), part.end_offset
    yield names.EARLIEST, (cluster_name, *labels), part.start_offset
    yield names.LEADER, labels, part.leader
    yield names.REPLICAS, labels, part.replicas
    yield names.IN_SYNC, labels, part.in_sync
    yield names.UNDER_REPLICATED, labels, float(part.in_sync < part.replicas)


def _group_samples(group: GroupReading, reading: kafka_reading.KafkaReading, cluster_name: str) -> Iterator[Sample]:
    """Lag only where the partition's end is known: the committed offsets of a deleted topic remain for a while."""
    ends = reading.ends
    lags = {partition: lag for partition in sorted(group.committed) if (lag := lag_at(group, partition, ends)) is not None}
    waiting = {partition: reading.waiting.get((group.name, partition)) for partition in lags}
    owners = group.readers
    yield names.MEMBERS, (group.name,), len(group.members)
    for partition, lag in lags.items():
        where, owner = (partition[0], str(partition[1])), owners.get(partition, NOBODY)
        owned = (cluster_name, group.name, *where, owner.address, owner.member_id, owner.client_id)
        yield names.GROUP_CURRENT, (group.name, *where), group.committed[partition]
        yield names.CONSUMER_LAG, (group.name, *where), lag
        yield names.GROUP_OFFSET, owned, group.committed[partition]
        yield names.GROUP_LAG, owned, lag
        yield names.GROUP_LAG_SECONDS, owned, waiting[partition]
    for topic in sorted({topic for topic, _ in lags}):
        lag_sum = sum(lag for partition, lag in lags.items() if partition[0] == topic)
        yield (
            names.GROUP_CURRENT_SUM,
            (group.name, topic),
            sum(group.committed[partition] for partition in lags if partition[0] == topic),
        )
        yield names.CONSUMER_LAG_SUM, (group.name, topic), lag_sum
        yield names.GROUP_TOPIC_SUM_LAG, (cluster_name, group.name, topic), lag_sum
    if lags:
        yield names.GROUP_MAX_LAG, (cluster_name, group.name), max(lags.values())
        yield names.GROUP_MAX_LAG_SECONDS, (cluster_name, group.name), largest(waiting.values())
        yield names.GROUP_SUM_LAG, (cluster_name, group.name), sum(lags.values())


def largest(values: Iterable[float | None]) -> float | None:
    """The largest, or None where any of them is unknown."""
    numbers = list(values)
    return None if None in numbers else max(value for value in numbers if value is not None)
