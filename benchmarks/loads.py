"""The ways of producing that are measured, and the target of each against Apache Kafka.

Records have 200 bytes, as in the paper. Its figure 4 sends batches of 1 and of 50; the others are what clients do today: the
default batch (16 KiB), the defaults as a whole (idempotent, acks=all), acks=all that waits for the disk, and a topic of twelve
partitions, whose batches share requests, from one producer and from twelve.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.figures import Target
from benchmarks.machine import SETTLED_BYTES, settle

RECORD_BYTES = 200
_BATCH_OF_50 = 61 + 50 * 210  # a v2 batch's header, and fifty records of 200 bytes with at most ten bytes of overhead each


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One way of producing; `properties` are the Java producer's settings."""

    name: str
    records: int
    properties: tuple[str, ...] = ()
    partitions: int = 1
    producers: int = 1  # each a separate process, with its share of the records
    rate: Target | None = None
    cpu: Target | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is measured: everything, or a little of everything to see that it runs."""

    rounds: int
    share: float
    steady_seconds: float = 120.0  # how long a steady load lasts: an hour where memory is watched (--hour)

    def records(self, full: int) -> int:
        return max(100, int(full * self.share))

    def settle(self) -> None:
        """Called before each run, for as much memory as it will write."""
        settle(int(SETTLED_BYTES * self.share))


FULL = Scale(rounds=3, share=1.0)
QUICK = Scale(rounds=1, share=0.03, steady_seconds=10.0)

BATCH_1 = Load(
    name="producer, batch 1, acks=1",
    records=100_000,
    properties=("acks=1", "batch.size=0", "linger.ms=0"),
    rate=Target(ratio_min=1.5),
    cpu=Target(ratio_max=0.5),
)
BATCH_1_UNACKNOWLEDGED = Load(
    name="producer, batch 1, acks=0",
    records=100_000,
    properties=("acks=0", "batch.size=0", "linger.ms=0"),
    rate=Target(ratio_min=1.5),
    cpu=Target(ratio_max=0.5),
)
BATCH_50 = Load(
    name="producer, batch 50, acks=1",
    records=2_000_000,
    properties=("acks=1", f"batch.size={_BATCH_OF_50}", "linger.ms=5"),
    rate=Target(ratio_min=1.2),
    cpu=Target(ratio_max=0.5),
)
DEFAULT_BATCH = Load(
    name="producer, default batch, acks=1",
    records=2_000_000,
    properties=("acks=1",),
    rate=Target(ratio_min=1.2),
    cpu=Target(ratio_max=0.5),
)
CLIENT_DEFAULTS = Load(
    name="producer, defaults (idempotent, acks=all)",
    records=2_000_000,
    rate=Target(ratio_min=1.2),
    cpu=Target(ratio_max=0.5),
)
MANY_PARTITIONS = Load(
    name="producer, default batch, acks=1, 12 partitions",
    records=2_000_000,
    properties=("acks=1",),
    partitions=12,
    rate=Target(ratio_min=1.2),
    cpu=Target(ratio_max=0.5),
)
MANY_PRODUCERS = Load(
    name="12 producers, default batch, acks=1, 12 partitions",
    records=2_400_000,
    properties=("acks=1",),
    partitions=12,
    producers=12,
    rate=Target(ratio_min=1.2),
    cpu=Target(ratio_max=0.5),
)
LOADS = (BATCH_1, BATCH_1_UNACKNOWLEDGED, BATCH_50, DEFAULT_BATCH, CLIENT_DEFAULTS, MANY_PARTITIONS, MANY_PRODUCERS)

FLUSHED = Load(
    name="producer, acks=all on disk, default batch",
    records=200_000,
    properties=("acks=all",),
    rate=Target(ratio_min=2.0),
    cpu=Target(ratio_max=0.4),
)
FLUSHED_BATCH_1 = Load(
    name="producer, acks=all on disk, batch 1",
    records=8_000,
    properties=("acks=all", "batch.size=0", "linger.ms=0"),
    rate=Target(ratio_min=2.0),
    cpu=Target(ratio_max=0.4),
)
FLUSHED_LOADS = (FLUSHED, FLUSHED_BATCH_1)
