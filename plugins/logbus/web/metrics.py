"""Every metric of the exporter, and the samples that readings give them: everything a scrape asks the broker is one Metadata
request, two ListOffsets over all partitions, and the groups.

There is no request per partition. A partition that cannot be read now (no leader, a damaged log) has no offsets in the reading
and does not affect the others; a group that cannot be read is left out.

A broker finds the offset for a time, not the time of an offset, and reading a record of each partition at each scrape would
cost more than everything else. So each scrape leaves a note (`Arrivals`), and a group's lag in seconds is the age of the first
note past the offset that it reads next: only what was seen here, with no guess between two notes. Records older than the first
note have no known age.

One table of metrics serves the scrape and the test of docs/metrics.md. Names beginning with kafka_ are those of kafka_exporter
and kafka-lag-exporter, with their labels, so dashboards made for either work unchanged; names beginning with logbus_ have no
counterpart there. Counters are kept in the ledger: a restart of the exporter does not reset them.

The functions are pure. A missing reading gives no samples, nor does an unknown value. A sample is a metric, its label values in
the order of the metric's label names, and a number.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from confluent_kafka.admin import OffsetSpec

from logbus.errors import LogbusError, UserError
from logbus.kafka.client import INTERNAL_PREFIX, Client, PartitionId
from logbus.kafka.groups import GroupMember, GroupReading, Groups, lag_at
from logbus.status import fleet, ledger_facts
from logbus.streams import aggregate_listing as aggregates
from logbus.streams import listing as streams
from logbus.web.reading import OK, TIMEOUT, Outcome

NO_LEADER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReading:
    """A partition as it is now. An offset that could not be read is None."""

    topic: str
    partition: int
    leader: int | None
    replicas: int
    in_sync: int
    start_offset: int | None = None
    end_offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaReading:
    """The cluster at one moment. `waiting` is how long each group's next record has been in the log, where that is known."""

    cluster_id: str
    brokers: Mapping[int, str]
    partitions: tuple[PartitionReading, ...]
    groups: tuple[GroupReading, ...]
    waiting: Mapping[tuple[str, PartitionId], float] = field(default_factory=dict)

    @property
    def ends(self) -> dict[PartitionId, int]:
        return {(part.topic, part.partition): part.end_offset for part in self.partitions if part.end_offset is not None}


class KafkaReader:
    """Asks a real broker. `topic_filter` and `group_filter` are regular expressions that must match the whole name."""

    def __init__(self, client: Client, *, topic_filter: str = ".*", group_filter: str = ".*") -> None:
        self.client = client
        self._topics, self._groups = pattern(topic_filter), pattern(group_filter)

    def read(self) -> KafkaReading:
        """The whole reading; `BrokerUnavailable` where the broker does not answer."""
        metadata, reader = self.client.metadata(), Groups(self.client)
        partitions = [
            part for name, topic in metadata.topics.items() if self._is_wanted(name) for part in partitions_of(name, topic)
        ]
        starts, ends = self._bounds(partitions, OffsetSpec.earliest()), self._bounds(partitions, OffsetSpec.latest())
        groups = reader.read([name for name in reader.states() if self._groups.fullmatch(name)])
        return KafkaReading(
            cluster_id=metadata.cluster_id or "",
            brokers={broker.id: f"{broker.host}:{broker.port}" for broker in metadata.brokers.values()},
            partitions=tuple(_with_offsets(part, starts, ends) for part in partitions),
            groups=tuple(group for group in groups if group.error is None),
        )

    def _is_wanted(self, topic: str) -> bool:
        return not topic.startswith(INTERNAL_PREFIX) and self._topics.fullmatch(topic) is not None

    def _bounds(self, partitions: Sequence[PartitionReading], spec: OffsetSpec) -> dict[PartitionId, int]:
        specs = {(part.topic, part.partition): spec for part in partitions if part.leader is not None}
        outcomes = {
            partition_id: self.client.outcome(future, partition_id[0])
            for partition_id, future in self.client.ask_offsets(specs).items()
        }
        refusals = [outcome for outcome in outcomes.values() if isinstance(outcome, LogbusError)]
        if refusals and len(refusals) == len(outcomes):
            raise refusals[0]
        return {
            partition_id: info.offset
            for partition_id, info in outcomes.items()
            if not isinstance(info, LogbusError) and info.offset >= 0
        }


def pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise UserError(f"{text!r} is not a pattern of names: {error}") from None


def partitions_of(name: str, topic: Any) -> Iterable[PartitionReading]:
    for number, part in sorted(topic.partitions.items()):
        leader = None if part.leader == NO_LEADER else part.leader
        yield PartitionReading(topic=name, partition=number, leader=leader, replicas=len(part.replicas), in_sync=len(part.isrs))


def _with_offsets(part: PartitionReading, starts: Mapping[PartitionId, int], ends: Mapping[PartitionId, int]) -> PartitionReading:
    partition_id = (part.topic, part.partition)
    return replace(part, start_offset=starts.get(partition_id), end_offset=ends.get(partition_id))


# One note per scrape while records arrive: two hours at one scrape in 15 s, days after thinning; at most 40 KB per partition.
NOTES_MAX = 512


class Arrivals:
    """When the end offsets of all partitions were first seen. Times are seconds of any monotonic clock.

    When a partition has too many notes, the older half is thinned out, so old answers get coarser (and smaller: an age counts
    from the note that proves it), never wrong.
    """

    def __init__(self, notes_max: int = NOTES_MAX) -> None:
        self._notes_max = notes_max
        self._notes: dict[PartitionId, tuple[list[int], list[float]]] = {}

    def observe(self, ends: Mapping[PartitionId, int], now: float) -> None:
        """Notes the current end offsets. A partition no longer listed is forgotten; one whose end went back starts afresh."""
        self._notes = {partition_id: self._notes.get(partition_id, ([], [])) for partition_id in ends}
        for partition_id, end in ends.items():
            offsets, times = self._notes[partition_id]
            if offsets and end < offsets[-1]:
                offsets.clear()
                times.clear()
            if not offsets or end > offsets[-1]:
                offsets.append(end)
                times.append(now)
            if len(offsets) > self._notes_max:
                older = slice(1, len(offsets) // 2, 2)
                del offsets[older], times[older]

    def waiting_seconds(self, partition_id: PartitionId, offset: int, now: float) -> float | None:
        """How long the record at the offset has been in the log; 0 if there is none yet, None if it predates the first note."""
        offsets, times = self._notes.get(partition_id, ([], []))
        index = bisect_right(offsets, offset)
        if index == len(offsets):
            return 0.0 if offsets else None
        return None if index == 0 else now - times[index]


# Every metric of the exporter, and the samples that readings give them.


COUNTER, GAUGE = "counter", "gauge"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedMetric:
    """One metric family. `labels` are the label names of its samples."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()


def _gauge(name: str, help_: str, *labels: str) -> ExportedMetric:
    return ExportedMetric(name=name, kind=GAUGE, help=help_, labels=labels)


def _counter(name: str, help_: str, *labels: str) -> ExportedMetric:
    return ExportedMetric(name=name, kind=COUNTER, help=help_, labels=labels)


_PIPELINE = ("pipeline", "topic")
_TABLE = ("table", "topic")
_AGGREGATE = ("aggregate", "pipeline")
_STREAM = ("stream", "pipeline")
_PARTITION = ("topic", "partition")
_GROUP_PARTITION = ("consumergroup", "topic", "partition")
# The owner's labels are empty where no member is assigned the partition; to Prometheus an empty label is an absent one.
_OWNED_PARTITION = ("cluster_name", "group", "topic", "partition", "member_host", "consumer_id", "client_id")

# Whether anything could be read at all.
UP = _gauge(
    "logbus_up", "1 if it could be read, else 0 with the reason: broker, ledger, or lag, which needs both.", "target", "reason"
)
READING_SECONDS = _gauge("logbus_exporter_reading_seconds", "How long the last reading of it took.", "target")
BUILD = _gauge("logbus_build_info", "1, with the version.", "version")

# Pipelines: the ledger and the broker together.
PIPELINE_UP = _gauge("logbus_pipeline_up", "1 if its lag is known, else 0 with the reason.", *_PIPELINE, "reason")
HOURS_BEHIND = _gauge("logbus_hours_behind", "Closed windows with records that are not loaded, frozen or not.", *_PIPELINE)
HOURS_EMPTY = _gauge("logbus_hours_empty", "Closed windows that are not loaded and hold no record.", *_PIPELINE)
RECORDS_BEHIND = _gauge("logbus_records_behind", "Records in them.", *_PIPELINE)
RECORDS_OPEN = _gauge("logbus_records_open", "Records after the last closed window, which cannot be loaded yet.", *_PIPELINE)
RECORDS_LOST = _gauge("logbus_records_lost", "Records that were deleted before they were loaded.", *_PIPELINE)
OLDEST_AGE = _gauge(
    "logbus_oldest_unloaded_age_seconds",
    "Age of the oldest record of a closed window that is not loaded; 0 where none is behind.",
    *_PIPELINE,
)
UNTIL_TAKEN = _gauge(
    "logbus_retention_takes_oldest_seconds",
    "Until retention deletes that record, and by what; negative where it is due; absent where unknown.",
    *_PIPELINE,
    "expires_by",
)

# Pipelines: the ledger alone.
WINDOWS = _gauge("logbus_windows", "Frozen windows by state: frozen, loading, loaded, audited.", *_PIPELINE, "state")
WINDOWS_FAILED = _gauge("logbus_windows_failed", "Windows not loaded whose last attempt failed.", *_PIPELINE)
WINDOWS_AUDIT_FAILED = _gauge("logbus_windows_audit_failed", "Loaded windows whose last audit found a difference.", *_PIPELINE)
LOADED_UNTIL = _gauge(
    "logbus_loaded_until_timestamp_seconds", "End of the newest loaded window, seconds since the epoch.", *_PIPELINE
)
LAST_LOAD = _gauge("logbus_last_load_timestamp_seconds", "When a window was last loaded, seconds since the epoch.", *_PIPELINE)
LAST_AUDIT = _gauge(
    "logbus_last_audit_timestamp_seconds", "When a window last passed its audit, seconds since the epoch.", *_PIPELINE
)
RECORDS = _counter(
    "logbus_records_total",
    "Records of committed attempts by outcome: loaded, dead_lettered, filtered. A reload counts again.",
    *_PIPELINE,
    "outcome",
)
BYTES = _counter("logbus_record_bytes_total", "Bytes of their keys and values.", *_PIPELINE)
LATE = _counter("logbus_late_records_total", "Those of them whose timestamp lies before their window.", *_PIPELINE)
STAMPED = _gauge("logbus_hour_records", "Records with a timestamp in the 24 newest loaded windows.", *_PIPELINE)
STAMPED_ELSEWHERE = _gauge(
    "logbus_hour_records_elsewhere", "Those of them that are stamped with another hour than their window's.", *_PIPELINE
)
ATTEMPTS = _counter("logbus_attempts_total", "Attempts that ended, by state: committed, failed, superseded.", *_PIPELINE, "state")
ATTEMPTS_RUNNING = _gauge("logbus_attempts_running", "Attempts under way.", *_PIPELINE)
DEAD_LETTERS = _gauge("logbus_dead_letters", "Records of loaded windows that do not parse, as of now.", *_PIPELINE)
REDRIVEN = _counter(
    "logbus_redriven_records_total",
    "Dead letters parsed again, by outcome: loaded, dead_lettered, filtered.",
    *_PIPELINE,
    "outcome",
)

# Tables that others load, as their newest audits found them (`logbus audit-table`).
TABLE_HOURS = _gauge("logbus_table_hours", "Audited hours by verdict: exact, wrong, unknown.", *_TABLE, "verdict")
TABLE_MISSING = _gauge("logbus_table_missing_records", "Records of the topic that the table lacks in them.", *_TABLE)
TABLE_DOUBLED = _gauge("logbus_table_doubled_rows", "Rows of records that the table has already.", *_TABLE)
TABLE_FOREIGN = _gauge("logbus_table_foreign_rows", "Rows that no record of the topic can have, in the whole table.", *_TABLE)
TABLE_FOREIGN_HOURS = _gauge("logbus_table_foreign_rows_in_hours", "Foreign rows whose own time is in an audited hour.", *_TABLE)
TABLE_AUDIT = _gauge("logbus_table_last_audit_timestamp_seconds", "When it was audited, seconds since the epoch.", *_TABLE)

# What is computed from a pipeline: aggregates after its loads, streams as records arrive.
AGGREGATE_BEHIND = _gauge("logbus_aggregate_windows_behind", "Windows whose load is not in the aggregate.", *_AGGREGATE)
AGGREGATE_HOURS = _gauge("logbus_aggregate_hours", "Event hours in it.", *_AGGREGATE)
AGGREGATE_WRONG = _gauge("logbus_aggregate_hours_wrong", "Those of them that the newest audit found wrong.", *_AGGREGATE)
STREAM_STATE = _gauge("logbus_stream_state", "1, with its state: new, running, silent, stopped, failed.", *_STREAM, "state")
STREAM_HEARTBEAT = _gauge(
    "logbus_stream_heartbeat_age_seconds", "Since the last heartbeat of its driver; absent while none runs.", *_STREAM
)
STREAM_LAG = _gauge(
    "logbus_stream_lag_seconds",
    "Age of the newest record that is counted, while others wait; 0 where none does. Absent where unknown.",
    *_STREAM,
)
STREAM_LAG_RECORDS = _gauge("logbus_stream_lag_records", "Records of its topic that are not counted yet.", *_STREAM)
STREAM_EPOCHS = _counter("logbus_stream_epochs_total", "Epochs that were committed.", *_STREAM)
STREAM_EPOCH = _gauge(
    "logbus_stream_last_epoch_timestamp_seconds", "When the last one was committed, seconds since the epoch.", *_STREAM
)
STREAM_HOURS = _gauge(
    "logbus_stream_hours",
    "Loaded hours by what their proof found: proven, different (now the load's values), behind: not proven yet.",
    *_STREAM,
    "state",
)

RETENTION_RUN = _gauge("logbus_retention_last_run_timestamp_seconds", "When managed retention last ran, seconds since the epoch.")
RETENTION_ALARMS = _gauge("logbus_retention_alarms", "What the last run of managed retention complained of.")

# Topics, as kafka_exporter names them.
BROKERS = _gauge("kafka_brokers", "Brokers of the cluster.")
BROKER_INFO = _gauge("kafka_broker_info", "1, with the broker's address.", "id", "address")
PARTITIONS = _gauge("kafka_topic_partitions", "Partitions of the topic.", "topic")
CURRENT_OFFSET = _gauge("kafka_topic_partition_current_offset", "Where the next record goes.", *_PARTITION)
OLDEST_OFFSET = _gauge("kafka_topic_partition_oldest_offset", "The first offset that may be read.", *_PARTITION)
LEADER = _gauge("kafka_topic_partition_leader", "The broker that leads it; absent where none does.", *_PARTITION)
REPLICAS = _gauge("kafka_topic_partition_replicas", "Replicas of the partition.", *_PARTITION)
IN_SYNC = _gauge("kafka_topic_partition_in_sync_replica", "Those of them that are in sync.", *_PARTITION)
UNDER_REPLICATED = _gauge(
    "kafka_topic_partition_under_replicated_partition", "1 where fewer are in sync than there are, else 0.", *_PARTITION
)
# The same two offsets, as kafka-lag-exporter names them.
LATEST = _gauge("kafka_partition_latest_offset", "Where the next record goes.", "cluster_name", *_PARTITION)
EARLIEST = _gauge("kafka_partition_earliest_offset", "The first offset that may be read.", "cluster_name", *_PARTITION)

# Consumer groups, as kafka_exporter names them.
MEMBERS = _gauge("kafka_consumergroup_members", "Members of the group.", "consumergroup")
GROUP_CURRENT = _gauge("kafka_consumergroup_current_offset", "The next offset that the group reads.", *_GROUP_PARTITION)
GROUP_CURRENT_SUM = _gauge("kafka_consumergroup_current_offset_sum", "Its sum over partitions.", "consumergroup", "topic")
CONSUMER_LAG = _gauge("kafka_consumergroup_lag", "Records between that and the partition's end.", *_GROUP_PARTITION)
CONSUMER_LAG_SUM = _gauge("kafka_consumergroup_lag_sum", "Its sum over partitions.", "consumergroup", "topic")
# Consumer groups, as kafka-lag-exporter names them.
GROUP_OFFSET = _gauge("kafka_consumergroup_group_offset", "The next offset that the group reads.", *_OWNED_PARTITION)
GROUP_LAG = _gauge("kafka_consumergroup_group_lag", "Records between that and the partition's end.", *_OWNED_PARTITION)
GROUP_LAG_SECONDS = _gauge(
    "kafka_consumergroup_group_lag_seconds",
    "How long the record at that offset has been there, as the exporter saw it arrive; absent where it was there before.",
    *_OWNED_PARTITION,
)
GROUP_MAX_LAG = _gauge("kafka_consumergroup_group_max_lag", "The largest over its partitions.", "cluster_name", "group")
GROUP_MAX_LAG_SECONDS = _gauge(
    "kafka_consumergroup_group_max_lag_seconds",
    "The largest over its partitions; absent where one of them is not known.",
    "cluster_name",
    "group",
)
GROUP_SUM_LAG = _gauge("kafka_consumergroup_group_sum_lag", "The sum over its partitions.", "cluster_name", "group")
GROUP_TOPIC_SUM_LAG = _gauge(
    "kafka_consumergroup_group_topic_sum_lag", "The sum over the topic's partitions.", "cluster_name", "group", "topic"
)

CATALOG: tuple[ExportedMetric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, ExportedMetric))

Labels = tuple[str, ...]
# The collector leaves out samples whose value is None.
Sample = tuple[ExportedMetric, Labels, float | None]

NOBODY = GroupMember(member_id="", client_id="", host="")


def outcome_samples(target: str, outcome: Outcome[Any] | None) -> Iterator[Sample]:
    """Whether a target could be read; None if the reading did not end in time."""
    reason = TIMEOUT if outcome is None else outcome.reason
    yield UP, (target, reason), float(reason == OK)
    yield READING_SECONDS, (target,), None if outcome is None else outcome.seconds


def seconds(instant: datetime | None) -> float | None:
    return None if instant is None else instant.timestamp()


def ledger_samples(reading: ledger_facts.LedgerReading) -> Iterator[Sample]:
    for facts in reading.pipelines.values():
        yield from _window_samples(facts)
        yield from _work_samples(facts)
    for table in reading.tables:
        yield from _table_samples(table)
    yield RETENTION_RUN, (), seconds(reading.retention_ran_at)
    yield RETENTION_ALARMS, (), None if reading.retention_ran_at is None else reading.retention_alarms


def _window_samples(facts: ledger_facts.PipelineFacts) -> Iterator[Sample]:
    labels = (facts.name, facts.topic)
    for state, count in facts.windows.items():
        yield WINDOWS, (*labels, state), count
    yield WINDOWS_FAILED, labels, facts.windows_failed
    yield WINDOWS_AUDIT_FAILED, labels, facts.windows_audit_failed
    yield LOADED_UNTIL, labels, seconds(facts.loaded_until)
    yield LAST_LOAD, labels, seconds(facts.loaded_at)
    yield LAST_AUDIT, labels, seconds(facts.audited_at)


def _work_samples(facts: ledger_facts.PipelineFacts) -> Iterator[Sample]:
    labels = (facts.name, facts.topic)
    for outcome, count in facts.records.items():
        yield RECORDS, (*labels, outcome), count
    yield BYTES, labels, facts.bytes
    yield LATE, labels, facts.late
    yield STAMPED, labels, facts.stamped
    yield STAMPED_ELSEWHERE, labels, facts.stamped_elsewhere
    for state, count in facts.attempts.items():
        yield ATTEMPTS, (*labels, state), count
    yield ATTEMPTS_RUNNING, labels, facts.attempts_running
    yield DEAD_LETTERS, labels, facts.dead_letters
    for outcome, count in facts.redriven.items():
        yield REDRIVEN, (*labels, outcome), count


def _table_samples(facts: ledger_facts.TableFacts) -> Iterator[Sample]:
    labels = (facts.table, facts.topic)
    for verdict, count in facts.hours.items():
        yield TABLE_HOURS, (*labels, verdict), count
    yield TABLE_MISSING, labels, facts.missing
    yield TABLE_DOUBLED, labels, facts.doubled
    yield TABLE_FOREIGN, labels, facts.foreign
    if facts.foreign_in_hours is not None:
        yield TABLE_FOREIGN_HOURS, labels, facts.foreign_in_hours
    yield TABLE_AUDIT, labels, seconds(facts.audited_at)


def aggregate_samples(statuses: Iterable[aggregates.AggregateStatus]) -> Iterator[Sample]:
    for status in statuses:
        labels = (status.aggregate.name, status.aggregate.pipeline)
        yield AGGREGATE_BEHIND, labels, status.behind
        yield AGGREGATE_HOURS, labels, status.hours
        yield AGGREGATE_WRONG, labels, status.wrong


def stream_samples(statuses: Iterable[streams.StreamStatus], ends: Mapping[str, Mapping[int, int]]) -> Iterator[Sample]:
    """`ends` are those of the topics by pipeline, as far as they are known."""
    for status in statuses:
        labels, lag = (status.stream.name, status.stream.pipeline), status.lag(ends.get(status.stream.pipeline))
        yield STREAM_STATE, (*labels, status.state), 1
        yield STREAM_HEARTBEAT, labels, status.heartbeat_age
        yield STREAM_LAG, labels, lag.seconds
        yield STREAM_LAG_RECORDS, labels, lag.records
        yield STREAM_EPOCHS, labels, status.epochs
        yield STREAM_EPOCH, labels, seconds(status.committed_at)
        for state, count in ((name, getattr(status, name)) for name in streams.HOUR_STATES):
            yield STREAM_HOURS, (*labels, state), count


def lag_samples(reading: fleet.LagReading) -> Iterator[Sample]:
    for pipeline in reading.pipelines:
        labels, lag = (pipeline.pipeline.name, pipeline.pipeline.topic), pipeline.lag
        yield PIPELINE_UP, (*labels, pipeline.reason), float(lag.problem is None)
        if lag.problem is not None:
            continue
        age = lag.age(reading.at)
        yield HOURS_BEHIND, labels, lag.hours_behind
        yield HOURS_EMPTY, labels, lag.hours_empty
        yield RECORDS_BEHIND, labels, lag.records
        yield RECORDS_OPEN, labels, lag.records_open
        yield RECORDS_LOST, labels, lag.records_lost
        yield OLDEST_AGE, labels, 0.0 if age is None else age.total_seconds()
        if lag.expires_at is not None and lag.expires_by is not None:
            yield UNTIL_TAKEN, (*labels, lag.expires_by), (lag.expires_at - reading.at).total_seconds()


def kafka_samples(reading: KafkaReading, cluster_name: str) -> Iterator[Sample]:
    yield BROKERS, (), len(reading.brokers)
    for number, address in sorted(reading.brokers.items()):
        yield BROKER_INFO, (str(number), address), 1
    for topic, count in sorted(Counter(part.topic for part in reading.partitions).items()):
        yield PARTITIONS, (topic,), count
    for part in reading.partitions:
        yield from _partition_samples(part, cluster_name)
    for group in reading.groups:
        yield from _group_samples(group, reading, cluster_name)


def _partition_samples(part: PartitionReading, cluster_name: str) -> Iterator[Sample]:
    labels = (part.topic, str(part.partition))
    yield CURRENT_OFFSET, labels, part.end_offset
    yield OLDEST_OFFSET, labels, part.start_offset
    yield LATEST, (cluster_name, *labels), part.end_offset
    yield EARLIEST, (cluster_name, *labels), part.start_offset
    yield LEADER, labels, part.leader
    yield REPLICAS, labels, part.replicas
    yield IN_SYNC, labels, part.in_sync
    yield UNDER_REPLICATED, labels, float(part.in_sync < part.replicas)


def _group_samples(group: GroupReading, reading: KafkaReading, cluster_name: str) -> Iterator[Sample]:
    """Lag only where the partition's end is known: the committed offsets of a deleted topic remain for a while."""
    ends = reading.ends
    lags = {partition: lag for partition in sorted(group.committed) if (lag := lag_at(group, partition, ends)) is not None}
    waiting = {partition: reading.waiting.get((group.name, partition)) for partition in lags}
    owners = group.readers
    yield MEMBERS, (group.name,), len(group.members)
    for partition, lag in lags.items():
        where, owner = (partition[0], str(partition[1])), owners.get(partition, NOBODY)
        owned = (cluster_name, group.name, *where, owner.address, owner.member_id, owner.client_id)
        yield GROUP_CURRENT, (group.name, *where), group.committed[partition]
        yield CONSUMER_LAG, (group.name, *where), lag
        yield GROUP_OFFSET, owned, group.committed[partition]
        yield GROUP_LAG, owned, lag
        yield GROUP_LAG_SECONDS, owned, waiting[partition]
    for topic in sorted({topic for topic, _ in lags}):
        lag_sum = sum(lag for partition, lag in lags.items() if partition[0] == topic)
        yield (
            GROUP_CURRENT_SUM,
            (group.name, topic),
            sum(group.committed[partition] for partition in lags if partition[0] == topic),
        )
        yield CONSUMER_LAG_SUM, (group.name, topic), lag_sum
        yield GROUP_TOPIC_SUM_LAG, (cluster_name, group.name, topic), lag_sum
    if lags:
        yield GROUP_MAX_LAG, (cluster_name, group.name), max(lags.values())
        yield GROUP_MAX_LAG_SECONDS, (cluster_name, group.name), largest(waiting.values())
        yield GROUP_SUM_LAG, (cluster_name, group.name), sum(lags.values())


def largest(values: Iterable[float | None]) -> float | None:
    """The largest, or None where any of them is unknown."""
    numbers = list(values)
    return None if None in numbers else max(value for value in numbers if value is not None)
