"""The numbers that producers give their records: which arrived, kept as runs instead of one by one. Pure, with few imports.

A producer that wants to be checked adds the header `logbus-sent: <stream>:<number>` to every record. A STREAM is what one
producer sends to one partition, in order; its numbers are 1, 2, 3 and so on. The set of numbers that arrived is kept as runs
[first, last], usually one. Sets can be joined in any order (tasks, partitions, windows), so the result is exact whichever task
read what; compared with the number of records it shows how many arrived twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from logbus.model import uncovered

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
        self.runs = joined(runs)
        self.is_vague = self.is_vague or len(self.runs) > RUNS_MAX
        if self.is_vague and self.runs:
            self.runs = [(self.runs[0][0], self.runs[-1][1])]


def joined(runs: Iterable[Run]) -> list[Run]:
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


def join_streams(left: Mapping[str, Numbers], right: Mapping[str, Numbers]) -> dict[str, Numbers]:
    """The combined counts of two tasks, or of two partitions."""
    both = {name: left[name].join(right[name]) for name in left.keys() & right.keys()}
    return {**left, **right, **both}
