"""What tasks read: counted once, chunk by chunk in a worker, and from then on only added up. Pure, with few imports.

The same value is passed from the worker to the driver and into the commit: a partition read by two tasks, and a window of many
partitions, are sums of it. The equation compares it with the rows that were staged (tally.py).

HOURS with which records are stamped are a histogram, a `Counter`: start of the stamped interval in milliseconds -> records. Two
keys are not instants: NO_HOUR has the records without a usable timestamp; FAR_HOURS those of all hours but the HOURS_MAX nearest
to the window's own. What is made of it is in completeness.py.

NUMBERS are given by a producer that wants to be checked: it adds the header `logbus-sent: <stream>:<number>` to every record. A
STREAM is what one producer sends to one partition, in order; its numbers are 1, 2, 3 and so on. The set of numbers that arrived
is kept as runs [first, last], usually one. Sets can be joined in any order (tasks, partitions, windows), so the result is exact
whichever task read what; compared with the number of records it shows how many arrived twice (completeness.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from logbus.fingerprint import MODULUS
from logbus.model import uncovered

NO_HOUR = -1  # Kafka's own "no timestamp"; also for timestamps beyond any calendar
FAR_HOURS = -2

# Bounds what a task keeps in memory and what a commit writes. A window with more hours than that holds six weeks of logs.
HOURS_MAX = 1000


def nearest_hours(histogram: Counter[int], near_ms: int) -> Counter[int]:
    """The HOURS_MAX hours nearest to `near_ms`, the others lumped together.

    Parts may be bounded before they are joined: an hour that a part leaves out has HOURS_MAX nearer hours in that part
    alone, so the sum leaves it out too.
    """
    hours = [hour for hour in histogram if hour >= 0]
    if len(hours) <= HOURS_MAX:
        return histogram
    hours.sort(key=lambda hour: (abs(hour - near_ms), hour))
    kept = {hour: count for hour, count in histogram.items() if hour < 0}
    kept |= {hour: histogram[hour] for hour in hours[:HOURS_MAX]}
    return Counter(kept) + Counter({FAR_HOURS: sum(histogram[hour] for hour in hours[HOURS_MAX:])})


SENT_HEADER = "logbus-sent"

# A stream that arrives in no order at all makes a run of every number; beyond this only its count is kept.
RUNS_MAX = 10_000

# Streams per partition of a window; a producer that makes a stream of every record misuses them.
STREAMS_MAX = 10_000
OTHER_STREAMS = ""

# A stream's name is part of a key in the ledger, and PostgreSQL's index takes keys of at most 2,704 bytes: a longer name would
# fail its whole window. A byte that is not UTF-8 is stored as four characters; a name of this size fits even then.
STREAM_BYTES_MAX = 500

NUMBER_DIGITS_MAX = 18  # so that it fits into a bigint

Run = tuple[int, int]


@dataclass(slots=True)
class Numbers:
    """How many records of a stream arrived, and their numbers. `is_vague`: too many runs, only the first and last are known."""

    count: int = 0
    runs: list[Run] = field(default_factory=list)
    is_vague: bool = False

    def add(self, number: int) -> None:
        """Adds one record. Usually its number is the next one."""
        self.count += 1
        if self.runs and number == self.runs[-1][1] + 1:
            self.runs[-1] = (self.runs[-1][0], number)
        else:
            self._keep([*self.runs, (number, number)])

    def join(self, other: Numbers) -> Numbers:
        """The union of both."""
        both = Numbers(count=self.count + other.count, is_vague=self.is_vague or other.is_vague)
        both._keep([*self.runs, *other.runs])
        return both

    def _keep(self, runs: list[Run]) -> None:
        self.runs = joined_runs(runs)
        self.is_vague = self.is_vague or len(self.runs) > RUNS_MAX
        if self.is_vague and self.runs:
            self.runs = [(self.runs[0][0], self.runs[-1][1])]


def joined_runs(runs: Iterable[Run]) -> list[Run]:
    """The same numbers in ascending runs that neither overlap nor adjoin."""
    ascending: list[Run] = []
    for first, last in sorted(runs):
        if ascending and first <= ascending[-1][1] + 1:
            ascending[-1] = (ascending[-1][0], max(ascending[-1][1], last))
        else:
            ascending.append((first, last))
    return ascending


def size(runs: Iterable[Run]) -> int:
    """How many numbers there are in runs that do not overlap."""
    return sum(last - first + 1 for first, last in runs)


def holes(runs: Iterable[Run], first: int, last: int) -> Iterator[Run]:
    """The parts of [first, last] that are in none of the runs."""
    return ((start, end - 1) for start, end in uncovered(first, last + 1, ((low, high + 1) for low, high in runs)))


def sent_number(content: bytes | None) -> tuple[bytes, int] | None:
    """Stream and number from a header's content; None for a malformed one, which is not counted."""
    stream, _, number = (content or b"").rpartition(b":")
    if not 0 < len(stream) <= STREAM_BYTES_MAX or not number.isdigit() or len(number) > NUMBER_DIGITS_MAX:
        return None
    return stream, int(number)


Headers = Sequence[tuple[str, bytes | None]]


def count_sent(sent: dict[str, Numbers], headers: Iterable[Headers]) -> None:
    """Adds the records with these headers to the counts of their streams."""
    header_index, stream_before, numbers = 0, b"", Numbers()
    for pairs in headers:
        if header_index >= len(pairs) or pairs[header_index][0] != SENT_HEADER:
            header_index = next((at for at, (name, _) in enumerate(pairs) if name == SENT_HEADER), -1)
            if header_index < 0:
                header_index = 0
                continue
        sent_with = sent_number(pairs[header_index][1])
        if sent_with is None:
            continue
        stream, number = sent_with
        if stream != stream_before:
            stream_before, numbers = stream, numbers_of(sent, stream)
        numbers.add(number)


def numbers_of(sent: dict[str, Numbers], stream: bytes) -> Numbers:
    name = stream.decode(errors="backslashreplace").replace("\0", "\\0")
    if name not in sent and len(sent) >= STREAMS_MAX:
        return sent.setdefault(OTHER_STREAMS, Numbers(is_vague=True))
    return sent.setdefault(name, Numbers())


Prefix = bytes  # that names a value's schema: logbus.parsing.decoders


@dataclass(slots=True, kw_only=True)
class ReadTally:
    """The records read: how many, how many of them were filtered out, and how many are stamped before (`late`) or after
    (`early`) their window; bytes of keys and values. Fingerprints are sums modulo 2^64; `staged_fingerprint` excludes filtered
    records. `hours`: the hours with which they are stamped. `sent`: by stream, for producers that number their records.
    `schemas`: by the prefix that names their schema.
    """

    read: int = 0
    filtered: int = 0
    late: int = 0
    early: int = 0
    bytes: int = 0
    fingerprint: int = 0
    staged_fingerprint: int = 0
    hours: Counter[int] = field(default_factory=Counter)
    sent: dict[str, Numbers] = field(default_factory=dict)
    schemas: Counter[Prefix] = field(default_factory=Counter)

    def __add__(self, other: ReadTally) -> ReadTally:
        both = {stream: self.sent[stream].join(other.sent[stream]) for stream in self.sent.keys() & other.sent.keys()}
        return ReadTally(
            read=self.read + other.read,
            filtered=self.filtered + other.filtered,
            late=self.late + other.late,
            early=self.early + other.early,
            bytes=self.bytes + other.bytes,
            fingerprint=(self.fingerprint + other.fingerprint) % MODULUS,
            staged_fingerprint=(self.staged_fingerprint + other.staged_fingerprint) % MODULUS,
            hours=self.hours + other.hours,
            sent={**self.sent, **other.sent, **both},
            schemas=self.schemas + other.schemas,
        )
