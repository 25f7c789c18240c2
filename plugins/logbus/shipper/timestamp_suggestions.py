"""Which options would read the times of lines that no recogniser matches: proposed in an error, never assumed.

Each of them is tried on all lines that were looked at, by the extractor that it would make. The times it reads must be between
1990 and the day after the file was last written: a customer number may have as many digits as a time. An option that leaves an
hour, a year or a zone beside its times unread is none. Of those that read most lines, one that says the year comes first, then
the one that stands earlier in the line, then one that says the offset. If another reads as many lines, as other times, both are
named.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from logbus.parsing.times import DAY, TimeContext, any_time
from logbus.shipper.line_timestamps import Recogniser, SearchingRecogniser, Stamp, by_field, by_format

EARLIEST = datetime(1990, 1, 1, tzinfo=UTC)
FIELDS_TRIED_MAX = 100  # of a line
LINES_TRIED = 20  # in which options are found; each is then tried on all lines
LINES_WITH_FIELDS_TRIED = 5
OPTIONS_TRIED_MAX = 20
DEPTH_MAX = 3

# Time formats that no recogniser takes, because they are rare or ambiguous. Of two that read the same the first is proposed.
FORMATS = (
    "%d.%m.%Y %H:%M:%S %z",
    "%d.%m.%Y %H:%M:%S",
    "%d.%m.%Y, %H:%M:%S",
    "%m/%d/%Y %I:%M:%S %p",
    "%m/%d/%Y, %I:%M:%S %p",
    "%d/%m/%Y %I:%M:%S %p",
    "%m/%d/%Y %H:%M:%S",
    "%d/%m/%Y %H:%M:%S",
    "%m/%d/%Y - %H:%M:%S",
    "%d/%m/%Y - %H:%M:%S",
    "%m/%d/%Y-%H:%M:%S.%f",
    "%d-%m-%Y %H:%M:%S %z",
    "%m-%d-%Y %H:%M:%S %z",
    "%m-%d-%Y %H:%M:%S",
    "%d-%m-%Y %H:%M:%S",
    "%Y-%m-%d %I:%M:%S %p",
    "%Y-%m-%d %H:%M:%S",
    "%a %b %d %H:%M:%S.%f %Y",
    "%a %b %d %H:%M:%S %Z %Y",
    "%a %b %d %H:%M:%S %z %Y",
    "%a %b %d %H:%M:%S %Y",
    "%a, %d %b %Y %H:%M:%S %z",
    "%a, %d %b %Y %H:%M:%S",
    "%a %d %b %Y %H:%M:%S",
    "%a %d %b %Y %I:%M:%S %p",
    "%d %b %Y %H:%M:%S.%f",
    "%d %b %Y %H:%M:%S",
    "%d-%b-%Y %H:%M:%S",
    "%b %d, %Y %I:%M:%S %p",
    "%b %d, %Y %H:%M:%S",
    "%b %d %Y %H:%M:%S",
    "%b-%d-%y %H:%M:%S",
    "%d.%m.%y %H:%M:%S",
    "%m/%d/%y %H:%M:%S",
    "%d/%m/%y %H:%M:%S",
    "%d-%m-%y %H:%M:%S",
    "%m-%d-%y %H:%M:%S",
    "%y-%m-%d %H:%M:%S",
    "date=%Y-%m-%d time=%H:%M:%S",
    "%Y.%m.%d %H:%M:%S",
    "%Y-%m-%d-%H.%M.%S",
    "%Y-%m-%d_%H:%M:%S",
    "%Y/%m/%d-%H:%M:%S",
    "%Y:%m:%d-%H:%M:%S",
    "%Y:%m:%d %H:%M:%S",
    "%y/%m/%d %H:%M:%S",
    "%Y%m%dT%H%M%S%z",
    "%Y%m%dT%H%M%S",
    "%Y%m%d %H:%M:%S",
    "%Y%m%d-%H:%M:%S",
    "%Y%m%d %H%M%S",
    "%Y%m%d%H%M%S",
    "%y%m%d %H:%M:%S",
    "%d/%b/%Y:%H:%M:%S %z",
    "%d/%b/%Y:%H:%M:%S",
    "%d/%b/%Y %H:%M:%S",
    "%d %b %H:%M:%S",
    "%Z %b %d %H:%M:%S",
    "%b %d %H:%M:%S",
    "%m-%d %H:%M:%S.%f",
    "%m-%d %H:%M:%S",
    "%Y-%m-%dT%H:%M",
    "%Y-%m-%d %H:%M",
    "%d.%m.%Y %H:%M",
    "%s",
    "%Y-%m-%d",
    "%d.%m.%Y",
)
_LOGFMT_PAIR = re.compile(rb"(?:^|[ ,])([\w.@-]+)=(?:\"([^\"]*)\"|(\S+))")
_NAMED_LIKE_A_TIME = re.compile("time|date|stamp|when|created|at$|ts", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Options that read a time, as they are typed and as they are given."""

    field: str | None = None
    format_of: str | None = None

    @property
    def text(self) -> str:
        words = [] if self.field is None else [f"--time-field {shlex.quote(self.field)}"]
        return " ".join([*words, *([] if self.format_of is None else [f"--time-format '{self.format_of}'"])])

    @property
    def recogniser(self) -> Recogniser:
        return by_format(self.format_of or "") if self.field is None else by_field(self.field, self.format_of)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimestampSuggestion:
    """Options that would read the times of `lines` lines."""

    option: Option
    lines: int
    times: frozenset[int]
    rank: tuple[float, ...]


def suggestions(
    lines: Sequence[bytes],
    undated: Sequence[bytes],
    around: TimeContext,
    read_by: Callable[[Option], tuple[Sequence[Stamp], str | None]],
) -> list[TimestampSuggestion]:
    """The best one, and another one that reads as many lines as other times, if there is one. `read_by`: the stamps of all lines
    that an option gives, and what it leaves unread beside their times."""
    tried = []
    spread = undated[:: max(1, len(undated) // LINES_TRIED)][:LINES_TRIED]
    for number, option in enumerate(islice(dict.fromkeys(_options_of(spread, around)), OPTIONS_TRIED_MAX)):
        stamps, unread = read_by(option)
        times = [stamp.timestamp_ms for stamp in stamps if _is_likely(stamp.timestamp_ms, around)]
        if times and unread is None:
            rank = (len(times), *_certainty(option, lines), -number)
            tried.append(TimestampSuggestion(option=option, lines=len(times), times=frozenset(filter(None, times)), rank=rank))
    tried.sort(key=lambda suggestion: suggestion.rank, reverse=True)
    best, rest = tried[:1], tried[1:]
    return best + [other for other in rest if _is_rival(other, best[0])][:1]


def _is_rival(other: TimestampSuggestion, best: TimestampSuggestion) -> bool:
    """Whether another proposal is as good, and the lines do not show which one is right."""
    return (other.lines, other.rank[1]) == (best.lines, best.rank[1]) and other.times != best.times


def _certainty(option: Option, lines: Sequence[bytes]) -> tuple[float, float, float]:
    """Whether the option reads the year, how early in the line its time stands, and whether it reads the offset."""
    recogniser = option.recogniser
    if not isinstance(recogniser, SearchingRecogniser) or recogniser.written is None:
        is_named = option.field is not None and _NAMED_LIKE_A_TIME.search(option.field) is not None
        return (2 + is_named, 0, 1)  # a field of its own, which is best
    starts = [match.start(1) for line in lines if (match := recogniser.match(line)) is not None]
    return (recogniser.written.has_year, -min(starts, default=0), recogniser.written.has_zone)


def _options_of(lines: Sequence[bytes], around: TimeContext) -> Iterator[Option]:
    """Options that read any of these lines: fields that hold a time, fields with a format, then formats."""
    pairs = [pair for line in lines[:LINES_WITH_FIELDS_TRIED] for pair in _named_values(line)]
    pairs.sort(key=lambda pair: _NAMED_LIKE_A_TIME.search(pair[0]) is None)
    for name, value in pairs:
        if (moment := any_time(value, around.zone)) is not None and _is_likely(moment.timestamp_ms, around):
            yield Option(field=name)
    for name, value in pairs:
        yield from (Option(field=name, format_of=written) for written in _formats_of(str(value).encode(errors="replace"), around))
    for line in lines:
        yield from (Option(format_of=written) for written in _formats_of(line, around))


def _formats_of(text: bytes, around: TimeContext) -> Iterator[str]:
    """The formats that read a time in the text."""
    for format_of in FORMATS:
        recogniser = by_format(format_of)
        stamp = recogniser(text, around)
        if stamp is not None and _is_likely(stamp.timestamp_ms, around) and recogniser.unread(text) is None:
            yield format_of


def _is_likely(timestamp_ms: int | None, around: TimeContext) -> bool:
    if timestamp_ms is None:
        return False
    return EARLIEST.timestamp() <= timestamp_ms / 1000 <= (around.written + DAY).timestamp()


def _named_values(line: bytes) -> list[tuple[str, Any]]:
    """The fields of a JSON object (`a.b` for a nested one) or of a logfmt line."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        fields = None
    return list(islice(_leaves(fields) if isinstance(fields, Mapping) else _pairs(line), FIELDS_TRIED_MAX))


def _leaves(fields: Mapping[str, Any], depth: int = DEPTH_MAX) -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if not isinstance(value, Mapping):
            yield name, value
        elif depth > 1:
            yield from ((f"{name}.{inner}", leaf) for inner, leaf in _leaves(value, depth - 1))


def _pairs(line: bytes) -> Iterator[tuple[str, str]]:
    for name, quoted, plain in _LOGFMT_PAIR.findall(line):
        yield name.decode(errors="replace"), (quoted or plain).decode(errors="replace")
