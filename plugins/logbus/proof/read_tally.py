"""What tasks read: counted once, chunk by chunk in a worker, and from then on only added up.

The same value is passed from the worker to the driver and into the commit: a partition read by two tasks, and a window of many
partitions, are sums of it. The equation compares it with the rows that were staged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from logbus.fingerprint import MODULUS
from logbus.ledger.stamped_hours import Histogram, joined
from logbus.proof.sent_numbers import Numbers, join_streams


@dataclass(slots=True, kw_only=True)
class ReadTally:
    """The records read: how many, how many of them were filtered out, and how many are stamped before (`late`) or after
    (`early`) their window; bytes of keys and values. Fingerprints are sums modulo 2^64; `staged_fingerprint` excludes filtered
    records. `hours`: the hours with which they are stamped. `sent`: by stream, for producers that number their records.
    """

    read: int = 0
    filtered: int = 0
    late: int = 0
    early: int = 0
    bytes: int = 0
    fingerprint: int = 0
    staged_fingerprint: int = 0
    hours: Histogram = field(default_factory=dict)
    sent: dict[str, Numbers] = field(default_factory=dict)

    def __add__(self, other: ReadTally) -> ReadTally:
        return ReadTally(
            read=self.read + other.read,
            filtered=self.filtered + other.filtered,
            late=self.late + other.late,
            early=self.early + other.early,
            bytes=self.bytes + other.bytes,
            fingerprint=(self.fingerprint + other.fingerprint) % MODULUS,
            staged_fingerprint=(self.staged_fingerprint + other.staged_fingerprint) % MODULUS,
            hours=joined([self.hours, other.hours]),
            sent=join_streams(self.sent, other.sent),
        )


def total(tallies: Iterable[ReadTally]) -> ReadTally:
    """The sum of all of them."""
    return sum(tallies, ReadTally())
