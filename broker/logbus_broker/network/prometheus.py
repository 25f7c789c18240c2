"""The metrics of the broker, each with its meaning, and Prometheus' text format 0.0.4.

Written lazily: a page of a hundred thousand lines is generated block by block as it is sent. Nothing here can produce a line that
a scraper rejects: names come from the table below, label values are escaped, and values that are not finite numbers are left out.

Names beginning with kafka_ are those that the JMX exporter's Kafka rules give to Apache Kafka's own metrics (in lower case), so
dashboards made for Kafka work with this broker; names beginning with logbus_ have no counterpart there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BLOCK_BYTES = 16 * 1024  # some 200 lines, about a millisecond: the loop takes turns between blocks

Labels = tuple[tuple[str, str], ...]
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": " ", "\0": " "})


class Sample(NamedTuple):
    """One line: the family's name with `suffix`, labels, value."""

    value: float
    labels: Labels = ()
    suffix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One family. `labels` are the names that its samples may carry."""

    name: str
    kind: str  # counter, gauge or histogram
    help: str
    labels: tuple[str, ...] = ()


def family(metric: Metric, samples: Iterable[Sample]) -> Iterator[str]:
    """The family's lines, each with its line end; nothing if it has no samples."""
    started = False
    for sample in samples:
        if not math.isfinite(sample.value):
            continue
        if not started:
            started = True
            yield f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.kind}\n"
        yield f"{metric.name}{sample.suffix}{_labels(sample.labels)} {_number(sample.value)}\n"


def blocks(lines: Iterable[str]) -> Iterator[bytes]:
    """The lines, joined into blocks of about BLOCK_BYTES."""
    pending: list[str] = []
    size = 0
    for line in lines:
        pending.append(line)
        size += len(line)
        if size >= BLOCK_BYTES:
            yield "".join(pending).encode()
            pending, size = [], 0
    if pending:
        yield "".join(pending).encode()


def page(families: Mapping[Metric, Iterable[Sample]]) -> Iterator[bytes]:
    """A whole scrape."""
    return blocks(line for metric, samples in families.items() for line in family(metric, samples))


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels) + "}"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.9g}"


_TOPIC = ("topic",)
_PARTITION = ("topic", "partition")
_LISTENER = ("listener", "networkProcessor")


def _counter(name: str, help_: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(name=name, kind="counter", help=help_, labels=labels)


def _gauge(name: str, help_: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(name=name, kind="gauge", help=help_, labels=labels)


MESSAGES_IN = _counter(
    "kafka_server_brokertopicmetrics_messagesin_total", "Records appended for producers; without a topic: all of them.", _TOPIC
)
BYTES_IN = _counter("kafka_server_brokertopicmetrics_bytesin_total", "Bytes of batches appended for producers.", _TOPIC)
BYTES_OUT = _counter("kafka_server_brokertopicmetrics_bytesout_total", "Bytes of batches in answers to fetches.", _TOPIC)
FAILED_PRODUCE = _counter(
    "kafka_server_brokertopicmetrics_failedproducerequests_total", "Partitions of produce requests answered with an error."
)
FAILED_FETCH = _counter(
    "kafka_server_brokertopicmetrics_failedfetchrequests_total", "Partitions of fetch requests answered with an error."
)
REQUESTS = _counter("kafka_network_requestmetrics_requests_total", "Requests handled, by API.", ("request",))
ERRORS = _counter(
    "kafka_network_requestmetrics_errors_total", "Errors answered to Produce and Fetch, by API and code.", ("request", "error")
)
CONNECTIONS = _gauge("kafka_server_socket_server_metrics_connection_count", "Open connections.", _LISTENER)
CONNECTIONS_MADE = _counter("kafka_server_socket_server_metrics_connection_creation_total", "Connections accepted.", _LISTENER)
PARTITIONS = _gauge("kafka_server_replicamanager_partitioncount", "Partitions of this broker, offline ones included.")
LEADERS = _gauge("kafka_server_replicamanager_leadercount", "Partitions that this broker leads: those that are online.")
UNDER_REPLICATED = _gauge(
    "kafka_server_replicamanager_underreplicatedpartitions",
    "Partitions led here of which some replica is not in sync; always 0 on one broker.",
)
UNDER_MIN_ISR = _gauge(
    "kafka_server_replicamanager_underminisrpartitioncount",
    "Partitions led here with fewer replicas in sync than min.insync.replicas: acks=all is refused.",
)
ISR_SHRINKS = _counter(
    "kafka_server_replicamanager_isrshrinks_total", "How often a replica left the in-sync set of a led partition."
)
ISR_EXPANDS = _counter(
    "kafka_server_replicamanager_isrexpands_total", "How often a replica joined the in-sync set of a led partition."
)
MAX_LAG = _gauge(
    "kafka_server_replicafetchermanager_maxlag",
    "Of the partitions followed here, the one most behind: how many records it lacks that are visible at its leader.",
    ("clientId",),
)
OFFLINE_REPLICAS = _gauge("kafka_server_replicamanager_offlinereplicacount", "Partitions whose disk failed or is damaged.")
OFFLINE_PARTITIONS = _gauge(
    "kafka_controller_kafkacontroller_offlinepartitionscount",
    "Partitions without a leader, reported by the controller; on one broker, those whose disk failed or is damaged.",
)
IMPAIRED = _gauge(
    "logbus_impaired_partitions",
    "Partitions that cannot be stored here now: the disk is full, a flush does not end, or the log is damaged. See /health.",
)
DAMAGED = _counter(
    "logbus_damaged_logs_total", "Logs led here in which a follower met a damaged batch: other brokers lead them from then on."
)
DISK_TOTAL = _gauge("logbus_disk_total_bytes", "Size of the disk that holds the logs.")
DISK_USABLE = _gauge("logbus_disk_usable_bytes", "What is left on it for the broker.")
TROUBLES = _gauge(
    "logbus_troubles", "What fails at the moment and is retried (checkpoints, retention, compaction): /health names it."
)
DEFECTS = _counter("logbus_defects_total", "Unexpected exceptions in the broker's own work; each is in its log.")
ACTIVE_CONTROLLERS = _gauge(
    "kafka_controller_kafkacontroller_activecontrollercount", "1: this broker is the controller; one that is alone always is."
)
ELECTIONS = _counter(
    "kafka_controller_controllerstats_leaderelectionrateandtimems_count", "Leaders that this broker elected as the controller."
)
UNCLEAN_ELECTIONS = _counter(
    "kafka_controller_controllerstats_uncleanleaderelections_total", "Those of them that may lack acknowledged records."
)
TOPICS = _gauge("kafka_controller_kafkacontroller_globaltopiccount", "Topics, internal ones included.")
ALL_PARTITIONS = _gauge("kafka_controller_kafkacontroller_globalpartitioncount", "Partitions of all topics.")
AWAY_SECONDS = _gauge(
    "logbus_zookeeper_away_seconds",
    "For how long there has been no connection to ZooKeeper; 0 while there is one, and on a broker that is alone.",
)
BROKER_STATE = _gauge("kafka_server_kafkaserver_brokerstate", "3 while the broker serves, as in Kafka.")
LOG_SIZE = _gauge("kafka_log_log_size", "Bytes of the partition's segments.", _PARTITION)
LOG_END = _gauge("kafka_log_log_logendoffset", "Where the next record goes.", _PARTITION)
LOG_START = _gauge("kafka_log_log_logstartoffset", "The first offset that may be read.", _PARTITION)
LOG_SEGMENTS = _gauge("kafka_log_log_numlogsegments", "Segments of the partition.", _PARTITION)
LOG_FLUSHED = _gauge("logbus_log_flushed_offset", "All below it is on disk and visible to consumers.", _PARTITION)
FLUSH_COUNT = _counter("kafka_log_logflushstats_logflushrateandtimems_count", "Flushes of a partition's log.")
FLUSHES = Metric(
    name="logbus_flush_seconds",
    kind="histogram",
    help="From the start of a partition's flush until the loop knows that it is done: how long a waiting reader waits.",
    labels=("le",),
)
WAITING_FETCHES = _gauge(
    "kafka_server_delayedoperationpurgatory_purgatorysize", "Long polls that wait for data.", ("delayedOperation",)
)
GROUPS = _gauge("kafka_coordinator_group_groupmetadatamanager_numgroups", "Groups with committed offsets or members.")
GROUP_OFFSETS = _gauge("kafka_coordinator_group_groupmetadatamanager_numoffsets", "Committed offsets, one for each partition.")
UNREADABLE_OFFSETS = _gauge(
    "logbus_offsets_unreadable_records",
    "Records of __consumer_offsets that could not be decoded at the last start and were ignored.",
)
GROUPS_EMPTY = _gauge("kafka_coordinator_group_groupmetadatamanager_numgroupsempty", "Groups without members.")
GROUPS_PREPARING = _gauge(
    "kafka_coordinator_group_groupmetadatamanager_numgroupspreparingrebalance", "Groups whose members join."
)
GROUPS_COMPLETING = _gauge(
    "kafka_coordinator_group_groupmetadatamanager_numgroupscompletingrebalance", "Groups that wait for their leader's assignment."
)
GROUPS_STABLE = _gauge("kafka_coordinator_group_groupmetadatamanager_numgroupsstable", "Groups at work.")
GROUP_MEMBERS = _gauge("logbus_group_members", "Members of all groups.")
GROUP_REBALANCES = _counter(
    "kafka_server_group_coordinator_metrics_group_completed_rebalance_count", "Rebalances that have ended."
)
CONNECTIONS_CLOSED = _counter("logbus_connections_closed_total", "Connections that ended, by reason.", ("reason",))
CONNECTIONS_REFUSED = _counter(
    "logbus_connections_refused_total", "Connections that a limit refused or that could not be accepted, by reason.", ("reason",)
)
LOGINS = _counter(
    "kafka_server_socket_server_metrics_successful_authentication_total", "Logins; a client that logs in again counts again."
)
LOGINS_REFUSED = _counter(
    "kafka_server_socket_server_metrics_failed_authentication_total", "Logins that were refused, by reason.", ("reason",)
)
HELD_BYTES = _gauge(
    "logbus_connection_memory_bytes", "Memory in large partial requests and untaken answers (limit: queued.max.request.bytes)."
)
CERTIFICATE_EXPIRY = _gauge(
    "logbus_certificate_expiry_seconds", "Until the certificate of a listener with TLS expires.", ("listener",)
)
FAST_PATH = _counter(
    "logbus_fast_path_requests_total", "Requests that were usual and took the fast path (logbus.fast.path).", ("request",)
)
BUSY = _counter("logbus_loop_busy_seconds_total", "Time the loop worked; its rate is the share of the one core that it can use.")
BUILD = _gauge("logbus_build_info", "1, with the version.", ("version",))
