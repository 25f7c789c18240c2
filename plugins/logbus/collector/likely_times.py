"""Which options would read the time of a line that no recogniser matches: proposed in an error, never assumed.

Each of them is first tried on the line. The time it finds must be between 1990 and the day after the file was last written: a
customer number may have as many digits as a time.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from itertools import islice
from typing import Any

from logbus.collector.moments import DAY, TimeContext, any_time
from logbus.collector.timestamps import Recogniser, by_format

EARLIEST = datetime(1990, 1, 1, tzinfo=UTC)
FIELDS_TRIED_MAX = 100  # each is tried with every format
DEPTH_MAX = 3

# Time formats that no recogniser takes, because they are rare or ambiguous. A format that is part of another one comes
# after it.
FORMATS = (
    "%d.%m.%Y %H:%M:%S",
    "%m/%d/%Y %I:%M:%S %p",
    "%m/%d/%Y %H:%M:%S",
    "%d/%m/%Y %H:%M:%S",
    "%m-%d-%Y %H:%M:%S",
    "%d-%m-%Y %H:%M:%S",
    "%a %b %d %H:%M:%S %Y",
    "%a, %d %b %Y %H:%M:%S %z",
    "%b %d, %Y %I:%M:%S %p",
    "%b %d %Y %H:%M:%S",
    "%Y.%m.%d %H:%M:%S",
    "%Y-%m-%d-%H.%M.%S",
    "%Y/%m/%d-%H:%M:%S",
    "%Y%m%dT%H%M%S%z",
    "%Y%m%dT%H%M%S",
    "%Y%m%d %H:%M:%S",
    "%Y%m%d-%H:%M:%S",
    "%Y%m%d %H%M%S",
    "%Y%m%d%H%M%S",
    "%y%m%d %H:%M:%S",
    "%d/%b/%Y:%H:%M:%S %z",
    "%b %d %H:%M:%S",
    "%Y-%m-%dT%H:%M",
    "%Y-%m-%d %H:%M",
    "%d.%m.%Y %H:%M",
    "%s",
    "%Y-%m-%d",
    "%d.%m.%Y",
)
_LOGFMT_PAIR = re.compile(rb"(?:^|[ ,])([\w.@-]+)=(?:\"([^\"]*)\"|(\S+))")
_NAMED_LIKE_A_TIME = re.compile("time|date|stamp|when|created|at$|ts", re.IGNORECASE)


@cache
def recognisers() -> Mapping[str, Recogniser]:
    return {one: by_format(one) for one in FORMATS}


def likely_options(line: bytes, around: TimeContext) -> str:
    """The options as they are typed; empty if none reads the line."""
    values = sorted(named_values(line), key=lambda pair: _NAMED_LIKE_A_TIME.search(pair[0]) is None)
    for name, value in values:
        if (found := any_time(value, around.zone)) is not None and is_likely(found.timestamp_ms, around):
            return f"--time-field {shlex.quote(name)}"
    for name, value in values:
        if written := format_of(str(value).encode(errors="replace"), around):
            return f"--time-field {shlex.quote(name)} --time-format '{written}'"
    written = format_of(line, around)
    return f"--time-format '{written}'" if written else ""


def format_of(text: bytes, around: TimeContext) -> str:
    """The first format that reads a time in the text; empty if none does."""
    for written, recogniser in recognisers().items():
        found = recogniser(text, around)
        if found is not None and is_likely(found.timestamp_ms, around):
            return written
    return ""


def is_likely(timestamp_ms: int | None, around: TimeContext) -> bool:
    if timestamp_ms is None:
        return False
    return EARLIEST.timestamp() <= timestamp_ms / 1000 <= (around.written + DAY).timestamp()


def named_values(line: bytes) -> list[tuple[str, Any]]:
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
            yield from ((f"{name}.{inner}", found) for inner, found in _leaves(value, depth - 1))


def _pairs(line: bytes) -> Iterator[tuple[str, str]]:
    for name, quoted, plain in _LOGFMT_PAIR.findall(line):
        yield name.decode(errors="replace"), (quoted or plain).decode(errors="replace")
