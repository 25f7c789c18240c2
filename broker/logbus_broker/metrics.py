"""From the broker's state to samples. Runs on the loop's thread, so what it reads is consistent; per-partition families are
generators over a list taken at the start, so topics may be created or deleted while a long page is being sent.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from logbus_broker.counters import Histogram, NetworkCounters, Traffic
from logbus_broker.engine import Engine
from logbus_broker.errors import StorageError
from logbus_broker.groups.rebalance import GroupState
from logbus_broker.log.partition import Partition
from logbus_broker.network import prometheus as names
from logbus_broker.network.prometheus import Metric, Sample, page
from logbus_broker.protocol.api import APIS, ApiKey, ErrorCode

if TYPE_CHECKING:
    from logbus_broker.cluster_engine import Cluster

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
        names.BUILD: [Sample(1, (("version", _version()),))],
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
        names.MESSAGES_IN: samples(lambda traffic: traffic.messages_in),
        names.BYTES_IN: samples(lambda traffic: traffic.bytes_in),
        names.BYTES_OUT: samples(lambda traffic: traffic.bytes_out),
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
        names.REQUESTS: [Sample(counters.requests[key], (("request", _api_name(key)),)) for key in APIS],
        names.ERRORS: [
            Sample(count, (("request", _api_name(key)), ("error", ErrorCode(code).name))) for (key, code), count in errors
        ],
        names.FAST_PATH: [
            Sample(counters.fast_path, (("request", "Produce"),)),
            Sample(counters.fetch_fast_path, (("request", "Fetch"),)),
        ],
        names.FAILED_PRODUCE: failed(ApiKey.PRODUCE),
        names.FAILED_FETCH: failed(ApiKey.FETCH),
        names.WAITING_FETCHES: [Sample(len(engine.context.purgatory), (("delayedOperation", "Fetch"),))],
    }


def _replicas(engine: Engine, partitions: list[Partition]) -> Families:
    offline = sum(1 for partition in partitions if partition.log.offline_reason)
    families: Families = {
        names.PARTITIONS: [Sample(len(partitions))],
        names.LEADERS: [Sample(len(partitions) - offline)],
        # Zeros and ones that mean little for a standalone broker: dashboards made for Kafka query these names, and a panel
        # without data looks like a broker that is down.
        names.UNDER_REPLICATED: [Sample(0)],
        names.UNDER_MIN_ISR: [Sample(0)],
        names.ISR_SHRINKS: [Sample(0)],
        names.ISR_EXPANDS: [Sample(0)],
        names.MAX_LAG: [_max_lag(0)],
        names.AWAY_SECONDS: [Sample(0)],
        names.OFFLINE_REPLICAS: [Sample(offline)],
        names.OFFLINE_PARTITIONS: [Sample(offline)],
        names.IMPAIRED: [Sample(len(engine.storage.impaired()))],
        names.DAMAGED: [Sample(engine.storage.damaged_count)],
        names.TROUBLES: [Sample(len(engine.health.troubles))],
        names.DEFECTS: [Sample(engine.health.defects)],
        names.ACTIVE_CONTROLLERS: [Sample(1)],
        names.ELECTIONS: [Sample(0)],
        names.UNCLEAN_ELECTIONS: [Sample(0)],
        names.TOPICS: [Sample(len(engine.partitions.registry))],
        names.ALL_PARTITIONS: [Sample(len(partitions))],
        names.BROKER_STATE: [Sample(_BROKER_RUNNING)],
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
        names.LEADERS: [Sample(len(progress))],
        names.UNDER_REPLICATED: [Sample(sum(1 for partition in progress if len(partition.state.isr) < len(partition.replicas)))],
        names.UNDER_MIN_ISR: [Sample(sum(1 for partition in progress if partition.lacks_replicas))],
        names.ISR_SHRINKS: [Sample(leader.isr_shrinks)],
        names.ISR_EXPANDS: [Sample(leader.isr_expands)],
        names.MAX_LAG: [_max_lag(cluster.replica_manager.lag_max)],
        names.OFFLINE_PARTITIONS: [Sample(without_leader if is_controller else 0)],
        names.ACTIVE_CONTROLLERS: [Sample(int(is_controller))],
        names.ELECTIONS: [Sample(cluster.controller.elections)],
        names.UNCLEAN_ELECTIONS: [Sample(cluster.controller.unclean_elections)],
        names.ALL_PARTITIONS: [Sample(sum(topic.partition_count for topic in image.topics.values()))],
        names.AWAY_SECONDS: [Sample(0 if away_since is None else now - away_since)],
    }


def _max_lag(records: int) -> Sample:
    return Sample(records, (("clientId", "Replica"),))


def _logs(partitions: list[Partition]) -> Families:
    def samples(read: Callable[[Partition], int]) -> Iterator[Sample]:
        for partition in partitions:
            yield Sample(read(partition), (("topic", partition.topic), ("partition", str(partition.index))))

    return {
        names.LOG_SIZE: samples(lambda partition: partition.log.segments.size_bytes),
        names.LOG_END: samples(lambda partition: partition.end_offset),
        names.LOG_START: samples(lambda partition: partition.log_start_offset),
        names.LOG_SEGMENTS: samples(lambda partition: len(partition.log.segments)),
        names.LOG_FLUSHED: samples(lambda partition: partition.log.flushed_offset),
    }


def _disk(engine: Engine) -> Families:
    """Absent if the disk cannot be queried: a 0 would raise the wrong alarm."""
    try:
        total_bytes, usable_bytes = engine.partitions.disk_space()
    except StorageError:
        return {}
    return {names.DISK_TOTAL: [Sample(total_bytes)], names.DISK_USABLE: [Sample(usable_bytes)]}


def _flushes(flushes: Histogram) -> Families:
    samples, running = [], 0
    for bound, count in zip((*map(str, flushes.bounds), "+Inf"), flushes.counts, strict=True):
        # Prometheus' buckets are cumulative; ours count each flush once.
        running += count
        samples.append(Sample(running, (("le", bound),), "_bucket"))
    samples += [Sample(flushes.total, (), "_sum"), Sample(running, (), "_count")]
    return {names.FLUSH_COUNT: [Sample(running)], names.FLUSHES: samples}


def _network(network: NetworkCounters, now: float) -> Families:
    def by_reason(counts: dict[str, int]) -> list[Sample]:
        return [Sample(count, (("reason", reason),)) for reason, count in counts.items()]

    return {
        names.CONNECTIONS: [Sample(network.connections, _LISTENER)],
        names.CONNECTIONS_MADE: [Sample(network.accepted, _LISTENER)],
        names.CONNECTIONS_CLOSED: by_reason(network.closed),
        names.CONNECTIONS_REFUSED: by_reason(network.refused),
        names.LOGINS: [Sample(network.logins)],
        names.LOGINS_REFUSED: by_reason(network.refused_logins),
        names.HELD_BYTES: [Sample(network.held_bytes)],
        names.BUSY: [Sample(network.busy_seconds)],
        names.CERTIFICATE_EXPIRY: [
            Sample(expires_at - now, (("listener", name),)) for name, expires_at in network.certificates.items()
        ],
    }


def _groups(engine: Engine) -> Families:
    offsets, groups = engine.context.offsets, engine.context.groups
    states = groups.groups_by_state
    count = len({*offsets.group_ids(), *(group.group_id for group in groups)})
    busy = {
        names.GROUPS_PREPARING: states[GroupState.PREPARING_REBALANCE.value],
        names.GROUPS_COMPLETING: states[GroupState.COMPLETING_REBALANCE.value],
        names.GROUPS_STABLE: states[GroupState.STABLE.value],
    }
    return {
        names.GROUPS: [Sample(count)],
        names.GROUP_OFFSETS: [Sample(offsets.offset_count)],
        names.UNREADABLE_OFFSETS: [Sample(offsets.unreadable_records)],
        names.GROUPS_EMPTY: [Sample(count - sum(busy.values()))],
        **{metric: [Sample(number)] for metric, number in busy.items()},
        names.GROUP_MEMBERS: [Sample(groups.member_count)],
        names.GROUP_REBALANCES: [Sample(groups.rebalance_count)],
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
