"""Every limit and interval of the broker, under Kafka's own configuration names; the unit is in the attribute's name.

A setting is one dataclass field: its Kafka name, its parser, its default and the reason for the default are in one place.
`BrokerConfig` is the whole broker; `LogConfig` is the part that a topic may override (`retention.ms` for `log.retention.ms`).
`properties.py` reads both from a file and checks which values contradict each other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from logbus_broker.errors import InvalidConfig
from logbus_broker.setting_parsers import (
    INT32_MAX,
    INT64_MAX,
    Listener,
    SecurityProtocol,
    address_of_keys,
    between,
    boolean,
    comma_separated,
    directory,
    nearest,
    one_of,
    only,
    parse_advertised,
    parse_authorizer,
    parse_listeners,
    parse_metrics_listener,
    parse_principals,
    parse_protocol_map,
    policies_of_cleanup,
    protocols_by_name,
    ratio,
    sasl_mechanisms,
    setting,
    store_type,
    tls_versions,
    zookeeper_servers,
)

_REPLICAS = re.compile(r"|\*|[0-9]{1,10}:[0-9]{1,10}(,[0-9]{1,10}:[0-9]{1,10})*")


def _replicas(text: str) -> str:
    listed = ",".join(part.strip() for part in text.split(","))
    if not _REPLICAS.fullmatch(listed):
        raise ValueError("must be PARTITION:BROKER,PARTITION:BROKER, or * for all, or empty")
    return listed


def _no_tiers(text: str) -> bool:
    if boolean(text):
        raise ValueError("must be false: there are no tiers, all records are stored locally")
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoredSettings:
    """Settings of Kafka that mean nothing here: accepted, shown and ignored; each with Kafka's default. Those without a name for
    topics exist for brokers only.

    Connect, Streams and Kafka's own tools set them, and would fail if they were rejected. Values are checked as in Kafka.
    docs/protocol-support.md says for each why it means nothing."""

    compression_type: str = setting(
        "compression.type",
        "producer",
        one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        topic="compression.type",
    )
    compression_gzip_level: int = setting("compression.gzip.level", -1, between(-1, 9), topic="compression.gzip.level")
    compression_lz4_level: int = setting("compression.lz4.level", 9, between(1, 17), topic="compression.lz4.level")
    compression_zstd_level: int = setting("compression.zstd.level", 3, between(-131_072, 22), topic="compression.zstd.level")
    delete_delay_ms: int = setting("log.segment.delete.delay.ms", 60_000, between(0, INT64_MAX), topic="file.delete.delay.ms")
    roll_jitter_ms: int = setting("log.roll.jitter.ms", 0, between(0, INT64_MAX), topic="segment.jitter.ms")
    index_bytes_max: int = setting("log.index.size.max.bytes", 10 << 20, between(4, INT32_MAX), topic="segment.index.bytes")
    preallocate: bool = setting("log.preallocate", False, boolean, topic="preallocate")
    local_retention_ms: int = setting("log.local.retention.ms", -2, between(-2, INT64_MAX), topic="local.retention.ms")
    local_retention_bytes: int = setting("log.local.retention.bytes", -2, between(-2, INT64_MAX), topic="local.retention.bytes")
    # Kafka has the following for topics only, or for brokers only.
    remote_storage_enable: bool = setting("remote.storage.enable", False, _no_tiers, topic="remote.storage.enable")
    remote_copy_disable: bool = setting("remote.log.copy.disable", False, boolean, topic="remote.log.copy.disable")
    remote_delete_on_disable: bool = setting("remote.log.delete.on.disable", False, boolean, topic="remote.log.delete.on.disable")
    leader_throttled_replicas: str = setting(
        "leader.replication.throttled.replicas", "", _replicas, topic="leader.replication.throttled.replicas"
    )
    follower_throttled_replicas: str = setting(
        "follower.replication.throttled.replicas", "", _replicas, topic="follower.replication.throttled.replicas"
    )
    leader_throttled_rate: int = setting("leader.replication.throttled.rate", INT64_MAX, between(0, INT64_MAX))
    follower_throttled_rate: int = setting("follower.replication.throttled.rate", INT64_MAX, between(0, INT64_MAX))
    log_dirs_throttled_rate: int = setting("replica.alter.log.dirs.io.max.bytes.per.second", INT64_MAX, between(0, INT64_MAX))


DAY_MS = 86_400_000
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig(IgnoredSettings):
    """What may be changed at run time, mostly the settings of a partition's log; those with a topic's name may be overridden per
    topic."""

    # The paper: about 1 GB.
    segment_bytes: int = setting("log.segment.bytes", 1 << 30, between(14, INT32_MAX), topic="segment.bytes")
    roll_ms: int = setting("log.roll.ms", 7 * DAY_MS, between(1, INT64_MAX), topic="segment.ms")
    index_interval_bytes: int = setting("log.index.interval.bytes", 4096, between(0, INT32_MAX), topic="index.interval.bytes")
    retention_ms: int = setting("log.retention.ms", 7 * DAY_MS, between(-1, INT64_MAX), topic="retention.ms")  # the paper: 7 days
    retention_bytes: int = setting("log.retention.bytes", -1, between(-1, INT64_MAX), topic="retention.bytes")
    message_bytes_max: int = setting("message.max.bytes", MIB + 12, between(0, INT32_MAX), topic="max.message.bytes")
    # The loop flushes at once when a request waits for records that are not on disk; these two limit how much, and for how long,
    # may stay unflushed while none does. A fast producer sends a hundred thousand records in less than the second of loss that an
    # operator tolerates; a flush for every ten thousand was measured to cost a fifth of the CPU.
    flush_interval_messages: int = setting("log.flush.interval.messages", 100_000, between(1, INT64_MAX), topic="flush.messages")
    flush_interval_ms: int = setting("log.flush.interval.ms", 1_000, between(0, INT64_MAX), topic="flush.ms")
    # Kafka 4's defaults: anything in the past, one hour ahead. One record dated 2099 must not move every later boundary.
    timestamp_before_ms_max: int = setting(
        "log.message.timestamp.before.max.ms", INT64_MAX, between(0, INT64_MAX), topic="message.timestamp.before.max.ms"
    )
    timestamp_after_ms_max: int = setting(
        "log.message.timestamp.after.max.ms", 3_600_000, between(0, INT64_MAX), topic="message.timestamp.after.max.ms"
    )
    timestamp_type: str = setting(
        "log.message.timestamp.type", "CreateTime", one_of("CreateTime", "LogAppendTime"), topic="message.timestamp.type"
    )
    cleanup_policy: str = setting("log.cleanup.policy", "delete", policies_of_cleanup, topic="cleanup.policy")
    # Kafka's defaults for compaction: a log is cleaned when half of it is dirty, and a reader from the start has a day to see a
    # tombstone.
    min_cleanable_dirty_ratio: float = setting("log.cleaner.min.cleanable.ratio", 0.5, ratio, topic="min.cleanable.dirty.ratio")
    delete_retention_ms: int = setting(
        "log.cleaner.delete.retention.ms", DAY_MS, between(0, INT64_MAX), topic="delete.retention.ms"
    )
    compaction_lag_ms_min: int = setting(
        "log.cleaner.min.compaction.lag.ms", 0, between(0, INT64_MAX), topic="min.compaction.lag.ms"
    )
    compaction_lag_ms_max: int = setting(
        "log.cleaner.max.compaction.lag.ms", INT64_MAX, between(1, INT64_MAX), topic="max.compaction.lag.ms"
    )
    # acks=all answers after the write, as in Kafka, where other replicas hold the record as well. A standalone broker has none:
    # true makes it wait for the disk, so that a power failure loses nothing that was acknowledged. `logbus up`, the demo and the
    # containers set it; the default stays Kafka's, so that the same settings mean the same.
    acks_all_waits_for_flush: bool = setting(
        "logbus.acks.all.waits.for.flush", False, boolean, topic="logbus.acks.all.waits.for.flush"
    )
    # Kafka's. With 2 of 3 replicas, one broker may fail and acks=all still works, and every acknowledged record is on two.
    min_insync_replicas: int = setting("min.insync.replicas", 1, between(1, INT32_MAX), topic="min.insync.replicas")
    # Off as in Kafka: a partition without a leader waits for one that has everything, rather than losing acknowledged records.
    unclean_leader_election_enable: bool = setting(
        "unclean.leader.election.enable", False, boolean, topic="unclean.leader.election.enable"
    )
    # Unlimited, as in Kafka: behind loopback or one gateway, every client has the same address. An operator lowers it while a
    # client that opens connections in a loop is at it.
    connections_per_ip_max: int = setting("max.connections.per.ip", INT32_MAX, between(1, INT32_MAX))

    @property
    def is_compacted(self) -> bool:
        """Whether only the last record of each key has to be kept."""
        return "compact" in self.cleanup_policy

    @property
    def is_trimmed(self) -> bool:
        """Whether old records are deleted by time and size."""
        return "delete" in self.cleanup_policy

    @property
    def segment_age_ms_max(self) -> int:
        """How old the active segment may become. It is not compacted, so a limit on how long a record waits for compaction limits
        the segment's age."""
        return min(self.roll_ms, self.compaction_lag_ms_max) if self.is_compacted else self.roll_ms

    def with_topic_overrides(self, overrides: Mapping[str, str]) -> LogConfig:
        """This configuration with a topic's own settings applied; InvalidConfig names the one that cannot be used."""
        return self._with(overrides, topic_fields(), "topic")

    def with_broker_overrides(self, overrides: Mapping[str, str]) -> LogConfig:
        """The same under the broker's names, for settings changed at run time."""
        return self._with(overrides, broker_fields(), "dynamic broker")

    def _with(self, overrides: Mapping[str, str], settings: Mapping[str, Any], kind: str) -> LogConfig:
        changes: dict[str, Any] = {}
        for name, text in overrides.items():
            if name not in settings:
                meant = nearest(name, settings) or f"; known: {', '.join(sorted(settings))}"
                raise InvalidConfig(f"unknown {kind} configuration {name!r}{meant}")
            try:
                changes[settings[name].name] = settings[name].metadata["parse"](text)
            except ValueError as error:
                raise InvalidConfig(f"invalid value {text!r} for {kind} configuration {name}: {error}") from None
        return replace(self, **changes)


@cache
def topic_fields() -> Mapping[str, Any]:
    """The fields of LogConfig that a topic may override, by their names there."""
    return {item.metadata["topic"]: item for item in fields(LogConfig) if item.metadata["topic"] is not None}


@cache
def broker_fields() -> Mapping[str, Any]:
    """All fields of LogConfig, by the broker's names."""
    return {item.metadata["name"]: item for item in fields(LogConfig)}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The whole broker. Built by `properties.load_config`; tests build it directly."""

    broker_id: int = setting("broker.id", 0, between(0, INT32_MAX))
    cluster_id: str = setting("cluster.id", "", str)  # empty: generated at the first start and kept in meta.properties
    rack: str = setting("broker.rack", "", str)
    # Loopback: PLAINTEXT has no authentication.
    listeners: tuple[Listener, ...] = setting("listeners", (Listener(host="127.0.0.1", port=9092),), parse_listeners)
    advertised_listeners: tuple[Listener, ...] | None = setting("advertised.listeners", None, parse_advertised)
    listener_protocols: str = setting(
        "listener.security.protocol.map",
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        parse_protocol_map,
    )
    # The words without which a listener that others can reach does not start if it does not ask who they are.
    allow_unauthenticated: bool = setting("logbus.allow.unauthenticated", False, boolean)
    # PEM and not Kafka's JKS: what every tool but Java's writes.
    ssl_keystore_type: str = setting("ssl.keystore.type", "PEM", store_type, per_listener=True)
    ssl_keystore_location: str = setting("ssl.keystore.location", "", str, per_listener=True)
    ssl_keystore_password: str = setting("ssl.keystore.password", "", str, per_listener=True, is_secret=True)
    ssl_keystore_chain: str = setting("ssl.keystore.certificate.chain", "", str, per_listener=True, is_secret=True)
    ssl_keystore_key: str = setting("ssl.keystore.key", "", str, per_listener=True, is_secret=True)
    ssl_key_password: str = setting("ssl.key.password", "", str, per_listener=True, is_secret=True)
    ssl_truststore_type: str = setting("ssl.truststore.type", "PEM", store_type, per_listener=True)
    ssl_truststore_location: str = setting("ssl.truststore.location", "", str, per_listener=True)
    ssl_truststore_password: str = setting("ssl.truststore.password", "", str, per_listener=True, is_secret=True)
    ssl_truststore_certificates: str = setting("ssl.truststore.certificates", "", str, per_listener=True, is_secret=True)
    ssl_client_auth: str = setting("ssl.client.auth", "none", one_of("none", "requested", "required"), per_listener=True)
    ssl_enabled_protocols: tuple[str, ...] = setting(
        "ssl.enabled.protocols", ("TLSv1.2", "TLSv1.3"), tls_versions, per_listener=True
    )
    ssl_principal_mapping_rules: str = setting("ssl.principal.mapping.rules", "DEFAULT", str, per_listener=True)
    # Kafka's default is Kerberos alone. These two need no more than users, and no password passes the network.
    sasl_enabled_mechanisms: tuple[str, ...] = setting(
        "sasl.enabled.mechanisms", ("SCRAM-SHA-256", "SCRAM-SHA-512"), sasl_mechanisms, per_listener=True
    )
    sasl_receive_bytes_max: int = setting("sasl.server.max.receive.size", MIB // 2, between(1024, MIB // 2))
    # The words without which a listener without TLS does not take passwords and tokens, which anybody on the way could read.
    allow_cleartext_passwords: bool = setting("logbus.allow.cleartext.passwords", False, boolean, per_listener=True)
    connections_reauth_ms_max: int = setting("connections.max.reauth.ms", 0, between(0, INT64_MAX), per_listener=True)
    failed_authentication_delay_ms: int = setting("connection.failed.authentication.delay.ms", 100, between(0, 10_000))
    users_file: str = setting("logbus.users.file", "", str)
    oauthbearer_jwks_url: str = setting("sasl.oauthbearer.jwks.endpoint.url", "", address_of_keys, per_listener=True)
    oauthbearer_issuer: str = setting("sasl.oauthbearer.expected.issuer", "", str, per_listener=True)
    oauthbearer_audiences: tuple[str, ...] = setting("sasl.oauthbearer.expected.audience", (), comma_separated, per_listener=True)
    oauthbearer_subject_claim: str = setting("sasl.oauthbearer.sub.claim.name", "sub", str, per_listener=True)
    oauthbearer_skew_seconds: int = setting("sasl.oauthbearer.clock.skew.seconds", 30, between(0, 3_600), per_listener=True)
    oauthbearer_refresh_ms: int = setting(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms", 3_600_000, between(1_000, INT64_MAX), per_listener=True
    )
    # Off by default: two brokers on one machine would want the same port. It has no authentication.
    metrics_listener: Listener | None = setting("logbus.metrics.listener", None, parse_metrics_listener)
    # The same words for this listener alone: Prometheus is usually elsewhere, and the others may ask for logins.
    metrics_allow_unauthenticated: bool = setting("logbus.metrics.allow.unauthenticated", False, boolean)
    # Empty: no ACLs, everybody may do everything. The names are those of Kafka's two authorizers; ours does what they do.
    authorizer_class_name: str = setting("authorizer.class.name", "", parse_authorizer)
    super_users: str = setting("super.users", "", parse_principals)
    allow_everyone_if_no_acl_found: bool = setting("allow.everyone.if.no.acl.found", False, boolean)
    audit_log: str = setting("logbus.audit.log", "", str)
    audit_topic_enable: bool = setting("logbus.audit.topic.enable", False, boolean)
    log_dirs: Path = setting("log.dirs", Path("logbus-data"), directory)
    num_partitions: int = setting("num.partitions", 1, between(1, 10_000))
    default_replication_factor: int = setting("default.replication.factor", 1, between(1, 32_767))
    auto_create_topics_enable: bool = setting("auto.create.topics.enable", True, boolean)
    delete_topic_enable: bool = setting("delete.topic.enable", True, boolean)
    partitions_max: int = setting("logbus.partitions.max", 10_000, between(1, INT32_MAX))  # each holds an open file
    retention_check_interval_ms: int = setting("log.retention.check.interval.ms", 300_000, between(1, INT64_MAX))
    checkpoint_interval_ms: int = setting("log.flush.offset.checkpoint.interval.ms", 60_000, between(1, INT32_MAX))
    flush_in_kernel: bool = setting("logbus.flush.in.kernel", True, boolean)  # a waiting thread costs a third more CPU
    flush_threads: int = setting("logbus.flush.threads", 4, between(1, 64))  # 100 dirty files: 55 ms with one, 14 ms with four
    # For searches by time and removing files. Kafka's 10 would be ten threads competing for the one interpreter lock.
    background_threads: int = setting("background.threads", 2, between(1, 64))
    frame_bytes_max: int = setting("socket.request.max.bytes", 100 * MIB, between(1024, INT32_MAX))
    # A megabyte can name more topics than a broker may hold; decoded, it takes many times that and a share of the loop's time.
    control_frame_bytes_max: int = setting("logbus.control.request.max.bytes", MIB, between(65_536, INT32_MAX))
    # Each costs a descriptor and a small buffer. A new connection beyond the limit may replace one that has never sent a request,
    # or an idle one of an address that has many more (broker/logbus_broker/network/acceptor.py).
    connections_max: int = setting("max.connections", 4_096, between(1, INT32_MAX))
    # Incomplete requests and unread answers of all connections together: beyond the limit, the connections that have stalled
    # longest are closed, so many slow senders cannot hold more than a few large requests' worth; one within its share (by
    # max.connections) is spared. Kafka has no limit by default; low memory use is what we sell.
    held_bytes_max: int = setting("queued.max.request.bytes", 256 * MIB, between(MIB, INT64_MAX))
    # Every Kafka client requests the API versions as soon as it is connected. A connection that is silent for this long does not
    # belong to a client, and takes a slot that others need.
    first_request_ms_max: int = setting("logbus.first.request.max.ms", 10_000, between(1, INT64_MAX))
    connections_idle_ms_max: int = setting("connections.max.idle.ms", 600_000, between(1, INT64_MAX))
    # A frame must be completed within this time: slow senders hold memory.
    frame_read_ms_max: int = setting("logbus.frame.read.max.ms", 30_000, between(1, INT64_MAX))
    # Kafka's: the rate that a client quota limits is that of the last ten seconds and the current one.
    quota_windows: int = setting("quota.window.num", 11, between(1, INT32_MAX))
    quota_window_seconds: int = setting("quota.window.size.seconds", 1, between(1, INT32_MAX))
    # Typical requests of producers and consumers are handled and answered by short pieces of code, with half the CPU time of the
    # ordinary path (docs/decisions/2026-11-23-produce-fast-path.md). Can be switched off, to rule it out as a problem's cause.
    fast_path: bool = setting("logbus.fast.path", True, boolean)
    output_bytes_max: int = setting("logbus.output.queue.max.bytes", 8 * MIB, between(1024, INT32_MAX))  # reading stops beyond it
    pipelined_requests_max: int = setting("logbus.pipelined.requests.max", 256, between(1, 100_000))
    fetch_bytes_max: int = setting("fetch.max.bytes", 55 * MIB, between(1024, INT32_MAX))
    # So that a single reader never holds up the loop. Slightly more than the mebibyte per partition that clients request by
    # default: with exactly that, the bytes around the records left a small rest of each such answer to a separate turn.
    send_bytes_per_turn_max: int = setting("logbus.send.max.bytes.per.turn", MIB + MIB // 16, between(4096, INT32_MAX))
    # Kafka's: the first members of an empty group wait for others, so that ten consumers started together cause one rebalance.
    group_initial_rebalance_delay_ms: int = setting("group.initial.rebalance.delay.ms", 3_000, between(0, INT32_MAX))
    group_session_ms_min: int = setting("group.min.session.timeout.ms", 6_000, between(0, INT32_MAX))
    group_session_ms_max: int = setting("group.max.session.timeout.ms", 1_800_000, between(0, INT32_MAX))
    group_size_max: int = setting("group.max.size", 1_000, between(1, INT32_MAX))  # the leader gets all of them in one answer
    groups_max: int = setting("logbus.groups.max", 10_000, between(1, INT32_MAX))  # any client can create one, just by naming it
    # Members' metadata and assignments are kept: 2 kB each, more for members that read thousands of partitions.
    groups_bytes_max: int = setting("logbus.groups.max.bytes", 64 * MIB, between(1024, INT64_MAX))
    offsets_retention_minutes: int = setting("offsets.retention.minutes", 10_080, between(1, INT32_MAX))  # Kafka's 7 days
    offsets_retention_check_ms: int = setting("offsets.retention.check.interval.ms", 600_000, between(1, INT32_MAX))
    # Kafka's is 100 MiB. Whatever is not compacted is read record by record at startup: 40,000 commits in this, under a second.
    offsets_segment_bytes: int = setting("offsets.topic.segment.bytes", 4 * MIB, between(1024, INT32_MAX))
    # Characters, despite its name, as in Kafka. Each takes up to four of the bytes that its record can hold.
    offset_metadata_length_max: int = setting("offset.metadata.max.bytes", 4_096, between(0, 32_767 // 4))
    producer_ids_max: int = setting("logbus.producer.ids.max", 100_000, between(1, INT32_MAX))  # remembered per partition
    log_format: str = setting("logbus.log.format", "keyvalue", one_of("keyvalue", "json"))
    producer_expiration_ms: int = setting("producer.id.expiration.ms", DAY_MS, between(1, INT32_MAX))
    producer_expiration_check_ms: int = setting("producer.id.expiration.check.interval.ms", 600_000, between(1, INT32_MAX))
    cleaner_enable: bool = setting("log.cleaner.enable", True, boolean)
    # Limits the map of keys while a log is compacted: 160,000 different keys at a time. Kafka's 128 MiB would be four times the
    # memory that this broker uses otherwise.
    cleaner_dedupe_bytes_max: int = setting("log.cleaner.dedupe.buffer.size", 32 * MIB, between(MIB, INT64_MAX))
    cleaner_backoff_ms: int = setting("log.cleaner.backoff.ms", 15_000, between(1, INT64_MAX))
    # -- a cluster: all of this is used only if zookeeper.connect is set -------------------------------------------------------
    zookeeper_connect: str = setting("zookeeper.connect", "", zookeeper_servers)
    # How long the partitions led by a vanished or frozen machine cannot be written to. Kafka's 18 s allow for the pauses of a
    # garbage collector, which we do not have. A dead process is noticed at once by its closed port.
    zookeeper_session_ms: int = setting("zookeeper.session.timeout.ms", 6_000, between(1_000, INT32_MAX))
    # Has no effect: a starting broker waits as long as it takes for a ZooKeeper that is starting too, or electing its leader.
    zookeeper_connection_ms: int = setting("zookeeper.connection.timeout.ms", 18_000, between(1, INT32_MAX))
    zookeeper_tls: bool = setting("zookeeper.ssl.client.enable", False, boolean)
    zookeeper_truststore: str = setting("zookeeper.ssl.truststore.location", "", str)
    zookeeper_keystore: str = setting("zookeeper.ssl.keystore.location", "", str)
    zookeeper_identification: str = setting("zookeeper.ssl.endpoint.identification.algorithm", "HTTPS", one_of("HTTPS", ""))
    # A file, not a setting: settings are shown by admin tools.
    zookeeper_auth_file: str = setting("logbus.zookeeper.auth.file", "", str)
    zookeeper_set_acl: bool = setting("zookeeper.set.acl", False, boolean)
    inter_broker_listener_name: str = setting("inter.broker.listener.name", "", str.upper)
    inter_broker_mechanism: str = setting(
        "sasl.mechanism.inter.broker.protocol", "SCRAM-SHA-512", one_of("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
    )
    # Who brokers are at each other; the password is in logbus.users.file.
    inter_broker_user: str = setting("logbus.inter.broker.user", "", str)
    offsets_replication_factor: int = setting("offsets.topic.replication.factor", 3, between(1, 32_767))
    offsets_partitions: int = setting("offsets.topic.num.partitions", 50, between(1, 10_000))  # fixed forever once it is created
    replica_lag_ms_max: int = setting("replica.lag.time.max.ms", 30_000, between(1, INT64_MAX))
    # A follower whose connection has closed is not slow but gone: acks=all waits this long for it, not replica.lag.time.max.ms.
    # That is enough to re-establish a lost connection.
    replica_gone_ms: int = setting("logbus.replica.gone.ms", 500, between(1, INT32_MAX))
    # A disk that does not answer is known by a flush that does not end. A slow one may take seconds for what a busy second wrote.
    replica_flush_ms_max: int = setting("logbus.replica.flush.max.ms", 10_000, between(100, INT32_MAX))
    # A leader that has not been confirmed for this long acknowledges nothing: clients of an isolated leader are not misled for
    # longer than that. `confirm_ms` is the effective value.
    leader_confirm_ms: int = setting("logbus.leader.confirm.ms", 3_000, between(100, INT32_MAX))
    replica_fetch_bytes_max: int = setting("replica.fetch.max.bytes", MIB, between(1, INT32_MAX))
    # Kafka's is 10 MiB. An answer is checked and written in one turn of the loop, while everything else waits: 1 MiB takes a
    # millisecond. With two requests in flight, this does not leave the link idle.
    replica_response_bytes_max: int = setting("replica.fetch.response.max.bytes", MIB, between(1, INT32_MAX))
    replica_fetch_wait_ms_max: int = setting("replica.fetch.wait.max.ms", 500, between(1, INT32_MAX))
    replica_fetch_backoff_ms: int = setting("replica.fetch.backoff.ms", 1_000, between(1, INT32_MAX))
    # Kafka's is 30 s. The partitions of a silent leader have another leader after a session timeout; its connection should not
    # outlive that by much, or followers still wait on a dead connection when the network is back.
    replica_socket_ms_max: int = setting("replica.socket.timeout.ms", 10_000, between(1_000, INT32_MAX))
    replica_fetchers: int = setting(
        "num.replica.fetchers", 1, only(1, "one loop reads from each leader, and a connection more would not make it faster")
    )
    controlled_shutdown_enable: bool = setting("controlled.shutdown.enable", True, boolean)
    # Kafka's three. A broker that was restarted leads nothing; without this its partitions would stay with the others. The
    # controller's values count, so all configuration files should have the same.
    leader_rebalance_enable: bool = setting("auto.leader.rebalance.enable", True, boolean)
    leader_imbalance_percentage: int = setting("leader.imbalance.per.broker.percentage", 10, between(0, 100))
    leader_imbalance_check_seconds: int = setting("leader.imbalance.check.interval.seconds", 300, between(1, INT32_MAX))
    # A broker that is asked to stop waits this long for others to take over its leaderships; then it stops anyway.
    controlled_shutdown_ms_max: int = setting("logbus.controlled.shutdown.max.ms", 30_000, between(0, INT32_MAX))
    log: LogConfig = field(default_factory=LogConfig)
    # What `listener.name.NAME.` sets: by the listener's name, attributes of this class.
    listener_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # Names in the file that are no settings here: a sentence for each.
    unknown_settings: tuple[str, ...] = ()

    def protocol_of(self, listener: str) -> SecurityProtocol:
        """That of the listener with this name; KeyError if it has none."""
        return protocols_by_name(self.listener_protocols)[listener]

    def at_listener(self, listener: str) -> BrokerConfig:
        """The settings as they are at one listener: its own before those of all."""
        return replace(self, **self.listener_settings.get(listener, {}))

    @property
    def is_clustered(self) -> bool:
        """Whether this broker is part of a cluster."""
        return bool(self.zookeeper_connect)

    @property
    def confirm_ms(self) -> int:
        """How long a confirmation of leadership is valid: at most half a session timeout. A frozen process loses its session
        after two thirds of the timeout at the earliest (it sends ZooKeeper a heartbeat every third), so when it resumes, its
        confirmation has expired before another broker can have begun to lead."""
        return min(self.leader_confirm_ms, self.zookeeper_session_ms // 2)

    def advertised_at(self, ports: Mapping[str, int]) -> dict[str, Listener]:
        """The advertised address of each listener, by name; `ports` are the ports chosen by the system. A listener on every
        interface must be advertised explicitly."""
        advertised = {listener.name: listener for listener in (*self.listeners, *(self.advertised_listeners or ()))}
        return {
            name: listener if listener.port else replace(listener, port=ports.get(name, 0))
            for name, listener in advertised.items()
        }

    @property
    def inter_broker_listener(self) -> str:
        """The listener that other brokers use: Kafka's default is the one named after the protocol."""
        names = [listener.name for listener in self.listeners]
        return self.inter_broker_listener_name or ("PLAINTEXT" if "PLAINTEXT" in names else names[0])
