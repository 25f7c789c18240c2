"""Every limit and interval of the broker, under Kafka's own configuration names; the unit is in the attribute's name.

A setting is one dataclass field: its Kafka name, how its text is read, its default and the reason for the default stand together.
`BrokerConfig` is the whole broker; `LogConfig` is the part that a topic may override (`retention.ms` for `log.retention.ms`).
`config_file.py` reads both from a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from broker.errors import InvalidConfig

INT64_MAX = (1 << 63) - 1
INT32_MAX = (1 << 31) - 1
DAY_MS = 86_400_000
MIB = 1 << 20

Parser = Callable[[str], Any]


def _between(low: int, high: int) -> Parser:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError("must be a whole number") from None
        if not low <= value <= high:
            raise ValueError(f"must be between {low} and {high}")
        return value

    parse.__name__ = f"a whole number from {low} to {high}"
    return parse


def _boolean(text: str) -> bool:
    try:
        return {"true": True, "false": False}[text.strip().lower()]
    except KeyError:
        raise ValueError("must be true or false") from None


def _one_of(*choices: str) -> Parser:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"must be {' or '.join(choices)}")
        return text

    return parse


def _directory(text: str) -> Path:
    if "," in text:
        raise ValueError("takes one directory: several log directories are not offered")
    return Path(text).expanduser()


def _ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("must be a number from 0 to 1") from None
    if not 0 <= value <= 1:
        raise ValueError("must be a number from 0 to 1")
    return value


def _cleanup_policy(text: str) -> str:
    policies = [part.strip() for part in text.split(",")]
    if not set(policies) <= {"compact", "delete"} or len(set(policies)) != len(policies):
        raise ValueError("must be delete, compact, or compact,delete")
    return ",".join(sorted(policies))


def _text(text: str) -> str:
    return text


def setting(name: str, default: Any, parse: Parser, *, topic: str | None = None) -> Any:
    """A dataclass field for the Kafka setting `name`; `topic` is its name as a topic's override, where it may be one."""
    return field(default=default, metadata={"name": name, "parse": parse, "topic": topic})


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Where clients reach the broker: `PLAINTEXT://host:port`. An empty host means every interface."""

    host: str
    port: int
    protocol: str = "PLAINTEXT"

    def __str__(self) -> str:
        return f"{self.protocol}://{self.host}:{self.port}"


def parse_listener(text: str, offered: str = "PLAINTEXT", example: str = "PLAINTEXT://127.0.0.1:9092") -> Listener:
    """Read one listener URL; a port of 0 lets the system choose."""
    protocol, separator, address = text.strip().partition("://")
    host, colon, port = address.rpartition(":")
    if not separator or not colon or not port.isdigit() or int(port) > 65535 or "," in text:
        raise ValueError(f"must look like {example} (one listener)")
    if protocol.upper() != offered:
        raise ValueError(f"protocol {protocol} is not offered, only {offered}")
    return Listener(host=host.strip("[]"), port=int(port), protocol=offered)


def parse_metrics_listener(text: str) -> Listener | None:
    """Where metrics are served, or None for nowhere."""
    return parse_listener(text, "HTTP", "http://127.0.0.1:9404") if text else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """What a partition's log needs to know; every field may be overridden for one topic."""

    segment_bytes: int = setting(
        "log.segment.bytes", 1 << 30, _between(14, INT32_MAX), topic="segment.bytes"
    )  # the paper: about 1 GB
    roll_ms: int = setting("log.roll.ms", 7 * DAY_MS, _between(1, INT64_MAX), topic="segment.ms")
    index_interval_bytes: int = setting("log.index.interval.bytes", 4096, _between(0, INT32_MAX), topic="index.interval.bytes")
    retention_ms: int = setting(
        "log.retention.ms", 7 * DAY_MS, _between(-1, INT64_MAX), topic="retention.ms"
    )  # the paper: 7 days
    retention_bytes: int = setting("log.retention.bytes", -1, _between(-1, INT64_MAX), topic="retention.bytes")
    message_bytes_max: int = setting("message.max.bytes", MIB + 12, _between(0, INT32_MAX), topic="max.message.bytes")
    # The loop flushes at once when somebody waits for what is not on disk; these two bound how much and how long it may stay
    # unflushed while nobody does. A fast producer sends a hundred thousand records in less than the second that an operator
    # forgives; a flush for every ten thousand was measured to cost a fifth of the CPU.
    flush_interval_messages: int = setting("log.flush.interval.messages", 100_000, _between(1, INT64_MAX), topic="flush.messages")
    flush_interval_ms: int = setting("log.flush.interval.ms", 1_000, _between(0, INT64_MAX), topic="flush.ms")
    # Kafka 4's defaults: any past, one hour of future. One record stamped 2099 must not move every later boundary.
    timestamp_before_ms_max: int = setting(
        "log.message.timestamp.before.max.ms", INT64_MAX, _between(0, INT64_MAX), topic="message.timestamp.before.max.ms"
    )
    timestamp_after_ms_max: int = setting(
        "log.message.timestamp.after.max.ms", 3_600_000, _between(0, INT64_MAX), topic="message.timestamp.after.max.ms"
    )
    timestamp_type: str = setting(
        "log.message.timestamp.type", "CreateTime", _one_of("CreateTime", "LogAppendTime"), topic="message.timestamp.type"
    )
    cleanup_policy: str = setting("log.cleanup.policy", "delete", _cleanup_policy, topic="cleanup.policy")
    # Kafka's defaults of compaction: a log is cleaned when half of it is dirty, and who reads it from the start has a day to see
    # a tombstone.
    min_cleanable_dirty_ratio: float = setting("log.cleaner.min.cleanable.ratio", 0.5, _ratio, topic="min.cleanable.dirty.ratio")
    delete_retention_ms: int = setting(
        "log.cleaner.delete.retention.ms", DAY_MS, _between(0, INT64_MAX), topic="delete.retention.ms"
    )
    compaction_lag_ms_min: int = setting(
        "log.cleaner.min.compaction.lag.ms", 0, _between(0, INT64_MAX), topic="min.compaction.lag.ms"
    )
    compaction_lag_ms_max: int = setting(
        "log.cleaner.max.compaction.lag.ms", INT64_MAX, _between(1, INT64_MAX), topic="max.compaction.lag.ms"
    )
    compression_type: str = setting("compression.type", "producer", _one_of("producer"), topic="compression.type")
    # acks=all answers after the write, as in Kafka, where other replicas hold the record as well. Here there are none: true makes
    # it wait for the disk, so that a power cut loses nothing that was acknowledged. `logbus up`, the demo and the containers set
    # it; the default stays Kafka's, so that the same settings mean the same.
    acks_all_waits_for_flush: bool = setting(
        "logbus.acks.all.waits.for.flush", False, _boolean, topic="logbus.acks.all.waits.for.flush"
    )
    min_insync_replicas: int = setting("min.insync.replicas", 1, _between(1, 1), topic="min.insync.replicas")

    @property
    def is_compacted(self) -> bool:
        """Whether only the last record of each key has to be kept."""
        return "compact" in self.cleanup_policy

    @property
    def is_trimmed(self) -> bool:
        """Whether old records are deleted by time and size."""
        return "delete" in self.cleanup_policy

    def with_topic_overrides(self, overrides: Mapping[str, str]) -> LogConfig:
        """This configuration with a topic's own settings over it; InvalidConfig names the one that cannot be used."""
        return self._with(overrides, {item.metadata["topic"]: item for item in fields(LogConfig)}, "topic")

    def with_broker_overrides(self, overrides: Mapping[str, str]) -> LogConfig:
        """The same under the broker's names, for what is changed while it runs."""
        return self._with(overrides, {item.metadata["name"]: item for item in fields(LogConfig)}, "dynamic broker")

    def _with(self, overrides: Mapping[str, str], known: Mapping[str, Any], kind: str) -> LogConfig:
        changes: dict[str, Any] = {}
        for name, text in overrides.items():
            if name not in known:
                raise InvalidConfig(f"unknown {kind} configuration {name!r}; known: {', '.join(sorted(known))}")
            try:
                changes[known[name].name] = known[name].metadata["parse"](text)
            except ValueError as error:
                raise InvalidConfig(f"invalid value {text!r} for {kind} configuration {name}: {error}") from None
        return replace(self, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The whole broker. Built by `config_file.load_config`; tests build it directly."""

    broker_id: int = setting("broker.id", 0, _between(0, INT32_MAX))
    cluster_id: str = setting("cluster.id", "", _text)  # empty: made at the first start and kept in meta.properties
    listeners: Listener = setting(
        "listeners", Listener(host="127.0.0.1", port=9092), parse_listener
    )  # loopback: there is no authentication
    advertised_listeners: Listener | None = setting("advertised.listeners", None, parse_listener)
    # Off unless asked for: two brokers on one machine would want the same port. There is no authentication, so loopback is meant.
    metrics_listener: Listener | None = setting("logbus.metrics.listener", None, parse_metrics_listener)
    log_dirs: Path = setting("log.dirs", Path("logbus-data"), _directory)
    num_partitions: int = setting("num.partitions", 1, _between(1, 10_000))
    default_replication_factor: int = setting("default.replication.factor", 1, _between(1, 1))
    auto_create_topics_enable: bool = setting("auto.create.topics.enable", True, _boolean)
    delete_topic_enable: bool = setting("delete.topic.enable", True, _boolean)
    partitions_max: int = setting("logbus.partitions.max", 10_000, _between(1, INT32_MAX))  # each holds an open file
    retention_check_interval_ms: int = setting("log.retention.check.interval.ms", 300_000, _between(1, INT64_MAX))
    checkpoint_interval_ms: int = setting("log.flush.offset.checkpoint.interval.ms", 60_000, _between(1, INT32_MAX))
    flush_in_kernel: bool = setting("logbus.flush.in.kernel", True, _boolean)  # a thread that waits costs a third more CPU
    flush_threads: int = setting("logbus.flush.threads", 4, _between(1, 64))  # 100 dirty files: 55 ms with one, 14 ms with four
    # Searches by time, removing files. Kafka's 10 would be ten threads that want the one interpreter lock.
    background_threads: int = setting("background.threads", 2, _between(1, 64))
    frame_bytes_max: int = setting("socket.request.max.bytes", 100 * MIB, _between(1024, INT32_MAX))
    # A megabyte names more topics than a broker may hold; decoded, it takes many times that and a share of the loop's time.
    control_frame_bytes_max: int = setting("logbus.control.request.max.bytes", MIB, _between(65_536, INT32_MAX))
    # Each costs a descriptor and a small buffer. A newcomer beyond the limit may take the place of a connection that has never
    # asked for anything, or of an idle one of an address that has many more (broker/network/crowd.py).
    connections_max: int = setting("max.connections", 4_096, _between(1, INT32_MAX))
    # Unlimited, as in Kafka: behind loopback or one gateway, every client has the same address.
    connections_per_ip_max: int = setting("max.connections.per.ip", INT32_MAX, _between(1, INT32_MAX))
    # Partial requests and untaken answers of all connections together: beyond it whoever stalls longest is closed, so many slow
    # senders cannot hold more than a few large requests' worth; one that holds less than its share (by max.connections) is
    # spared. Kafka's default is no limit; memory is what we sell.
    held_bytes_max: int = setting("queued.max.request.bytes", 256 * MIB, _between(MIB, INT64_MAX))
    # Every Kafka client asks for the API versions as soon as it is connected. A connection that says nothing for so long belongs
    # to no client, and takes a place that others need.
    first_request_ms_max: int = setting("logbus.first.request.max.ms", 10_000, _between(1, INT64_MAX))
    connections_idle_ms_max: int = setting("connections.max.idle.ms", 600_000, _between(1, INT64_MAX))
    frame_read_ms_max: int = setting(
        "logbus.frame.read.max.ms", 30_000, _between(1, INT64_MAX)
    )  # a begun frame must end: slow senders hold memory
    output_bytes_max: int = setting(
        "logbus.output.queue.max.bytes", 8 * MIB, _between(1024, INT32_MAX)
    )  # reading stops beyond it
    pipelined_requests_max: int = setting("logbus.pipelined.requests.max", 256, _between(1, 100_000))
    fetch_bytes_max: int = setting("fetch.max.bytes", 55 * MIB, _between(1024, INT32_MAX))
    send_bytes_per_turn_max: int = setting(
        "logbus.send.max.bytes.per.turn", MIB, _between(4096, INT32_MAX)
    )  # one reader never holds the loop
    # Kafka's: the first members of an empty group wait for others, so that ten consumers started together make one rebalance.
    group_initial_rebalance_delay_ms: int = setting("group.initial.rebalance.delay.ms", 3_000, _between(0, INT32_MAX))
    group_session_ms_min: int = setting("group.min.session.timeout.ms", 6_000, _between(0, INT32_MAX))
    group_session_ms_max: int = setting("group.max.session.timeout.ms", 1_800_000, _between(0, INT32_MAX))
    group_size_max: int = setting("group.max.size", 1_000, _between(1, INT32_MAX))  # the leader is sent all of them at once
    groups_max: int = setting("logbus.groups.max", 10_000, _between(1, INT32_MAX))  # any client can make one, by its name alone
    groups_bytes_max: int = setting(
        "logbus.groups.max.bytes", 64 * MIB, _between(1024, INT64_MAX)
    )  # what members say about themselves is kept: 2 kB each, more for those who read thousands of partitions
    offsets_retention_minutes: int = setting("offsets.retention.minutes", 10_080, _between(1, INT32_MAX))  # Kafka's 7 days
    offsets_retention_check_ms: int = setting("offsets.retention.check.interval.ms", 600_000, _between(1, INT32_MAX))
    # Kafka's is 100 MiB. What is not compacted is read record by record at a start: 40,000 commits in this, under a second.
    offsets_segment_bytes: int = setting("offsets.topic.segment.bytes", 4 * MIB, _between(1024, INT32_MAX))
    offset_metadata_bytes_max: int = setting("offset.metadata.max.bytes", 4_096, _between(0, 32_767))  # what its record can hold
    producer_ids_max: int = setting("logbus.producer.ids.max", 100_000, _between(1, INT32_MAX))  # remembered per partition
    log_format: str = setting("logbus.log.format", "keyvalue", _one_of("keyvalue", "json"))
    producer_expiration_ms: int = setting("producer.id.expiration.ms", DAY_MS, _between(1, INT32_MAX))
    producer_expiration_check_ms: int = setting("producer.id.expiration.check.interval.ms", 600_000, _between(1, INT32_MAX))
    cleaner_enable: bool = setting("log.cleaner.enable", True, _boolean)
    # Bounds the map of keys while a log is compacted: 160,000 different keys at a time. Kafka's 128 MiB would be four times all
    # that this broker takes otherwise.
    cleaner_dedupe_bytes_max: int = setting("log.cleaner.dedupe.buffer.size", 32 * MIB, _between(MIB, INT64_MAX))
    cleaner_backoff_ms: int = setting("log.cleaner.backoff.ms", 15_000, _between(1, INT64_MAX))
    log: LogConfig = field(default_factory=LogConfig)

    @property
    def advertised(self) -> Listener:
        """What Metadata tells clients; where the listener is every interface it must be said explicitly."""
        return self.advertised_listeners or self.listeners
