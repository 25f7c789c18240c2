"""Numbers for the records sent, so that the audit can check whether all of them arrived (docs/producer-counts.md).

The numbers of a stream run within one partition, so the partition must be known before the record is sent: it is chosen here, by
the hash that the Java client and librdkafka use. A run of the collector is one stream per partition, numbered from 1; the next
run has another name. Lines that an interrupted run did not deliver either have no number yet, or get a new one under the next
run's name.
"""

from __future__ import annotations

from logbus.proof.sent_numbers import SENT_HEADER

KEYS_REMEMBERED = 100_000  # hosts, usually few; the hash of a new one takes microseconds

MASK = 0xFFFFFFFF
SEED = 0x9747B28C
MULTIPLIER = 0x5BD1E995


def murmur2(data: bytes) -> int:
    """MurmurHash2, 32 bits, with Kafka's seed."""
    found = (SEED ^ len(data)) & MASK
    whole = len(data) & ~3
    for place in range(0, whole, 4):
        word = int.from_bytes(data[place : place + 4], "little") * MULTIPLIER & MASK
        word = (word ^ word >> 24) * MULTIPLIER & MASK
        found = (found * MULTIPLIER & MASK) ^ word
    if whole < len(data):
        found = (found ^ int.from_bytes(data[whole:], "little")) * MULTIPLIER & MASK
    found = (found ^ found >> 13) * MULTIPLIER & MASK
    return found ^ found >> 15


def partition_of(key: bytes, partition_count: int) -> int:
    """The partition to which Kafka's clients send a record with this key."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class Numbering:
    """One run's streams over the partitions of a topic. `name` is unique to this run."""

    def __init__(self, name: str, partition_count: int) -> None:
        self._prefixes = [f"{name}-{partition}:".encode() for partition in range(partition_count)]
        self._sent = [0] * partition_count
        self._partitions: dict[bytes, int] = {}

    def next(self, key: bytes) -> tuple[int, tuple[str, bytes]]:
        """The partition of a record with this key, and the header with its number."""
        partition = self._partitions.get(key)
        if partition is None:
            partition = self._remember(key)
        self._sent[partition] += 1
        return partition, (SENT_HEADER, self._prefixes[partition] + b"%d" % self._sent[partition])

    def _remember(self, key: bytes) -> int:
        if len(self._partitions) >= KEYS_REMEMBERED:
            self._partitions.clear()
        self._partitions[key] = partition_of(key, len(self._sent))
        return self._partitions[key]
