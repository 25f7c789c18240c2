"""Settings of Kafka that mean nothing here: accepted, shown and ignored.

Connect, Streams and Kafka's own tools set them, and would fail if they were refused. Values are checked as in Kafka.
docs/protocol-support.md says for each why it means nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from broker.config.fields import INT32_MAX, INT64_MAX, between, boolean, one_of, setting

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
    """Each with Kafka's default; those without a name for topics exist for brokers only."""

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
