"""Every metric of the exporter: one table, used by the scrape and by the test of docs/metrics.md.

Names beginning with kafka_ are those of kafka_exporter and kafka-lag-exporter, with their labels, so dashboards made for either
work unchanged; names beginning with logbus_ have no counterpart there. Counters are kept in the ledger: a restart of the exporter
does not reset them.
"""

from __future__ import annotations

from dataclasses import dataclass

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
