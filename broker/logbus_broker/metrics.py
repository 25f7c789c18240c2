"""The metrics of the broker: each with its meaning, where its samples come from in the broker's state, and Prometheus' text
format 0.0.4.

Runs on the loop's thread, so what it reads is consistent; per-partition families are generators over a list taken at the start,
so topics may be created or deleted while a long page is being sent.

Written lazily: a page of a hundred thousand lines is generated block by block as it is sent. Nothing here can produce a line that
a scraper rejects: names come from the table below, label values are escaped, and values that are not finite numbers are left out.

Names beginning with kafka_ are those that the JMX exporter's Kafka rules give to Apache Kafka's own metrics (in lower case), so
dashboards made for Kafka work with this broker; names beginning with logbus_ have no counterpart there.
"""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from logbus_broker.engine import Engine
from logbus_broker.errors import StorageError
from logbus_broker.groups.rebalance import GroupState
from logbus_broker.health import Histogram, NetworkCounters, Traffic
from logbus_broker.log.partition import Partition
from logbus_broker.protocol.api import APIS, ApiKey, ErrorCode

if TYPE_CHECKING:
    from logbus_broker.cluster_engine import Cluster


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
_LISTENER_LABEL = ("listener", "networkProcessor")


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
CONNECTIONS = _gauge("kafka_server_socket_server_metrics_connection_count", "Open connections.", _LISTENER_LABEL)
CONNECTIONS_MADE = _counter(
    "kafka_server_socket_server_metrics_connection_creation_total", "Connections accepted.", _LISTENER_LABEL
)
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


# From the broker's state to samples. Runs on the loop's thread, so what it reads is consistent; per-partition families are
# generators over a list taken at the start, so topics may be created or deleted while a long page is being sent.


_BROKER_RUNNING = 3
_TROUBLES_SHOWN_MAX = 20
_LISTENER = (("listener", "PLAINTEXT"), ("networkProcessor", "0"))

Families = dict[Metric, Iterable[Sample]]


def metrics_page(engine: Engine) -> Iterator[bytes]:
    """The whole page, block by block."""
    return page(collect(engine))


def health(engine: Engine) -> tuple[bool, str]:
    """Whether everything is in order, and readable lines about what is not."""
    lines = []
    # Worst first: offline partitions affect producers now, the cluster's troubles may do so soon, and what is retried may recover
    # on its own.
    offline = [partition for partition in engine.partitions if partition.log.offline_reason]
    if offline:
        lines.append(f"{len(offline)} of {len(engine.partitions)} partitions are offline")
        reasons = {partition.name: partition.log.offline_reason for partition in offline[:_TROUBLES_SHOWN_MAX]}
        lines += [f"{name} is offline: {reason.removeprefix(f'{name}: ')}" for name, reason in reasons.items()]
    lines += engine.storage.lines()
    if engine.cluster is not None:
        lines += engine.cluster.troubles()
    if reason := engine.context.offsets.unreadable_reason:
        lines.append(f"committed offsets cannot be read: {reason}")
    lines += [f"{what} failed: {reason}" for what, reason in islice(engine.health.troubles.items(), _TROUBLES_SHOWN_MAX)]
    if (more := len(engine.health.troubles) - _TROUBLES_SHOWN_MAX) > 0:
        lines.append(f"{more} more failures like these: see the log")
    return not lines, "".join(f"{line}\n" for line in lines or ("ok",))


def collect(engine: Engine) -> Families:
    """Every family that currently has samples."""
    partitions = list(engine.partitions)
    return {
        **_traffic(engine, partitions),
        **_requests(engine),
        **_replicas(engine, partitions),
        **_logs(partitions),
        **_disk(engine),
        **_flushes(engine.counters.flushes),
        **_network(engine.counters.network, engine.context.clock.now_ms() / 1000),
        **_groups(engine),
        **_process_metrics(),
        BUILD: [Sample(1, (("version", _version()),))],
    }


def _traffic(engine: Engine, partitions: list[Partition]) -> Families:
    by_topic: dict[str, Traffic] = {}
    total = Traffic()
    # A counter must never decrease: traffic of deleted topics stays in the total, or Prometheus would take a deletion for a
    # restart and compute a wrong rate.
    total.add(engine.counters.deleted)
    for partition in partitions:
        by_topic.setdefault(partition.topic, Traffic()).add(partition.traffic)
        total.add(partition.traffic)

    def samples(read: Callable[[Traffic], int]) -> Iterator[Sample]:
        yield Sample(read(total))
        for topic, traffic in by_topic.items():
            yield Sample(read(traffic), (("topic", topic),))

    return {
        MESSAGES_IN: samples(lambda traffic: traffic.messages_in),
        BYTES_IN: samples(lambda traffic: traffic.bytes_in),
        BYTES_OUT: samples(lambda traffic: traffic.bytes_out),
    }


def _api_name(key: int) -> str:
    """Kafka's spelling: PRODUCE is Produce, API_VERSIONS is ApiVersions."""
    return ApiKey(key).name.title().replace("_", "")


def _requests(engine: Engine) -> Families:
    counters = engine.counters
    errors = list(counters.errors.items())

    def failed(api_key: ApiKey) -> list[Sample]:
        return [Sample(sum(count for (key, _), count in errors if key == api_key))]

    return {
        REQUESTS: [Sample(counters.requests[key], (("request", _api_name(key)),)) for key in APIS],
        ERRORS: [Sample(count, (("request", _api_name(key)), ("error", ErrorCode(code).name))) for (key, code), count in errors],
        FAST_PATH: [
            Sample(counters.fast_path, (("request", "Produce"),)),
            Sample(counters.fetch_fast_path, (("request", "Fetch"),)),
        ],
        FAILED_PRODUCE: failed(ApiKey.PRODUCE),
        FAILED_FETCH: failed(ApiKey.FETCH),
        WAITING_FETCHES: [Sample(len(engine.context.purgatory), (("delayedOperation", "Fetch"),))],
    }


def _replicas(engine: Engine, partitions: list[Partition]) -> Families:
    offline = sum(1 for partition in partitions if partition.log.offline_reason)
    families: Families = {
        PARTITIONS: [Sample(len(partitions))],
        LEADERS: [Sample(len(partitions) - offline)],
        # Zeros and ones that mean little for a standalone broker: dashboards made for Kafka query these names, and a panel
        # without data looks like a broker that is down.
        UNDER_REPLICATED: [Sample(0)],
        UNDER_MIN_ISR: [Sample(0)],
        ISR_SHRINKS: [Sample(0)],
        ISR_EXPANDS: [Sample(0)],
        MAX_LAG: [_max_lag(0)],
        AWAY_SECONDS: [Sample(0)],
        OFFLINE_REPLICAS: [Sample(offline)],
        OFFLINE_PARTITIONS: [Sample(offline)],
        IMPAIRED: [Sample(len(engine.storage.impaired()))],
        DAMAGED: [Sample(engine.storage.damaged_count)],
        TROUBLES: [Sample(len(engine.health.troubles))],
        DEFECTS: [Sample(engine.health.defects)],
        ACTIVE_CONTROLLERS: [Sample(1)],
        ELECTIONS: [Sample(0)],
        UNCLEAN_ELECTIONS: [Sample(0)],
        TOPICS: [Sample(len(engine.partitions.registry))],
        ALL_PARTITIONS: [Sample(len(partitions))],
        BROKER_STATE: [Sample(_BROKER_RUNNING)],
    }
    return families if engine.cluster is None else {**families, **_clustered(engine.cluster, engine.context.clock.monotonic())}


def _clustered(cluster: Cluster, now: float) -> Families:
    """The values that differ in a cluster."""
    image, leader, away_since = cluster.member.image, cluster.leader, cluster.member.away_since
    progress = [led.progress for led in leader.led.values()]
    is_controller = cluster.controller.mandate is not None
    # Counted only by the controller, as in Kafka: the sum over all brokers is the number of partitions without a leader.
    without_leader = sum(1 for topic in image.topics.values() for state in topic.states if state.leader < 0)
    return {
        LEADERS: [Sample(len(progress))],
        UNDER_REPLICATED: [Sample(sum(1 for partition in progress if len(partition.state.isr) < len(partition.replicas)))],
        UNDER_MIN_ISR: [Sample(sum(1 for partition in progress if partition.lacks_replicas))],
        ISR_SHRINKS: [Sample(leader.isr_shrinks)],
        ISR_EXPANDS: [Sample(leader.isr_expands)],
        MAX_LAG: [_max_lag(cluster.replica_manager.lag_max)],
        OFFLINE_PARTITIONS: [Sample(without_leader if is_controller else 0)],
        ACTIVE_CONTROLLERS: [Sample(int(is_controller))],
        ELECTIONS: [Sample(cluster.controller.elections)],
        UNCLEAN_ELECTIONS: [Sample(cluster.controller.unclean_elections)],
        ALL_PARTITIONS: [Sample(sum(topic.partition_count for topic in image.topics.values()))],
        AWAY_SECONDS: [Sample(0 if away_since is None else now - away_since)],
    }


def _max_lag(records: int) -> Sample:
    return Sample(records, (("clientId", "Replica"),))


def _logs(partitions: list[Partition]) -> Families:
    def samples(read: Callable[[Partition], int]) -> Iterator[Sample]:
        for partition in partitions:
            yield Sample(read(partition), (("topic", partition.topic), ("partition", str(partition.index))))

    return {
        LOG_SIZE: samples(lambda partition: partition.log.segments.size_bytes),
        LOG_END: samples(lambda partition: partition.end_offset),
        LOG_START: samples(lambda partition: partition.log_start_offset),
        LOG_SEGMENTS: samples(lambda partition: len(partition.log.segments)),
        LOG_FLUSHED: samples(lambda partition: partition.log.flushed_offset),
    }


def _disk(engine: Engine) -> Families:
    """Absent if the disk cannot be queried: a 0 would raise the wrong alarm."""
    try:
        total_bytes, usable_bytes = engine.partitions.disk_space()
    except StorageError:
        return {}
    return {DISK_TOTAL: [Sample(total_bytes)], DISK_USABLE: [Sample(usable_bytes)]}


def _flushes(flushes: Histogram) -> Families:
    samples, running = [], 0
    for bound, count in zip((*map(str, flushes.bounds), "+Inf"), flushes.counts, strict=True):
        # Prometheus' buckets are cumulative; ours count each flush once.
        running += count
        samples.append(Sample(running, (("le", bound),), "_bucket"))
    samples += [Sample(flushes.total, (), "_sum"), Sample(running, (), "_count")]
    return {FLUSH_COUNT: [Sample(running)], FLUSHES: samples}


def _network(network: NetworkCounters, now: float) -> Families:
    def by_reason(counts: dict[str, int]) -> list[Sample]:
        return [Sample(count, (("reason", reason),)) for reason, count in counts.items()]

    return {
        CONNECTIONS: [Sample(network.connections, _LISTENER)],
        CONNECTIONS_MADE: [Sample(network.accepted, _LISTENER)],
        CONNECTIONS_CLOSED: by_reason(network.closed),
        CONNECTIONS_REFUSED: by_reason(network.refused),
        LOGINS: [Sample(network.logins)],
        LOGINS_REFUSED: by_reason(network.refused_logins),
        HELD_BYTES: [Sample(network.held_bytes)],
        BUSY: [Sample(network.busy_seconds)],
        CERTIFICATE_EXPIRY: [
            Sample(expires_at - now, (("listener", name),)) for name, expires_at in network.certificates.items()
        ],
    }


def _groups(engine: Engine) -> Families:
    offsets, groups = engine.context.offsets, engine.context.groups
    states = groups.groups_by_state
    count = len({*offsets.group_ids(), *(group.group_id for group in groups)})
    busy = {
        GROUPS_PREPARING: states[GroupState.PREPARING_REBALANCE.value],
        GROUPS_COMPLETING: states[GroupState.COMPLETING_REBALANCE.value],
        GROUPS_STABLE: states[GroupState.STABLE.value],
    }
    return {
        GROUPS: [Sample(count)],
        GROUP_OFFSETS: [Sample(offsets.offset_count)],
        UNREADABLE_OFFSETS: [Sample(offsets.unreadable_records)],
        GROUPS_EMPTY: [Sample(count - sum(busy.values()))],
        **{metric: [Sample(number)] for metric, number in busy.items()},
        GROUP_MEMBERS: [Sample(groups.member_count)],
        GROUP_REBALANCES: [Sample(groups.rebalance_count)],
    }


@cache
def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # not needed at startup

    try:
        return version("logbus")
    except PackageNotFoundError:  # run from a copy that was never installed
        return "unknown"


_PROC = Path("/proc/self")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

CPU = Metric(name="process_cpu_seconds_total", kind="counter", help="User and system CPU time of the broker's process.")
RESIDENT = Metric(name="process_resident_memory_bytes", kind="gauge", help="Resident memory; the page cache is not in it.")
VIRTUAL = Metric(name="process_virtual_memory_bytes", kind="gauge", help="Virtual memory.")
STARTED = Metric(name="process_start_time_seconds", kind="gauge", help="Start of the process, seconds since the epoch.")
OPEN_FILES = Metric(name="process_open_fds", kind="gauge", help="Open file descriptors: log segments and connections.")
FILES_MAX = Metric(name="process_max_fds", kind="gauge", help="How many file descriptors the process may open.")


def _process_metrics() -> dict[Metric, list[Sample]]:
    """The process_* metrics that every Prometheus client exposes, from /proc; without it they are left out."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    samples = {FILES_MAX: [Sample(limit)]} if limit != resource.RLIM_INFINITY else {}
    try:
        fields = (_PROC / "stat").read_text().rpartition(")")[2].split()
        pages = (_PROC / "statm").read_text().split()
        samples[CPU] = [Sample((int(fields[11]) + int(fields[12])) / _TICKS)]
        samples[VIRTUAL] = [Sample(int(pages[0]) * _PAGE_BYTES)]
        samples[RESIDENT] = [Sample(int(pages[1]) * _PAGE_BYTES)]
        samples[STARTED] = [Sample(_boot_time() + int(fields[19]) / _TICKS)]
        samples[OPEN_FILES] = [Sample(_open_files())]
    except (OSError, IndexError, ValueError, StopIteration):
        pass
    return samples


def _boot_time() -> int:
    lines = Path("/proc/stat").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("btime "))


def _open_files() -> int:
    """Since Linux 6.2 the number is the directory's size; on older kernels the entries are counted."""
    directory = _PROC / "fd"
    return directory.stat().st_size or len(os.listdir(directory)) - 1  # the listing itself holds one open
