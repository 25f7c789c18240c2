"""Whether the lines of a log that is not yet described are cut into fields: logfmt, CSV, and logs with header lines that name the
fields (W3C's extended format, Zeek). Prose is not: it has an `=` or a comma here and there."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from logbus.collector.clocks import DIRECTIVE, FIELDS_DIRECTIVE
from logbus.collector.stamped_lines import StampedLine, TimeOf
from logbus.parsing.columns import column_names

SHARE_MIN = 0.9  # of the records must be as a parser expects them
PAIRS_MIN = 0.75  # of the words of logfmt: a word alone is a flag, several are a sentence
DELIMITERS = ",;\t|"
FIELDS_MIN = 3  # of a line of CSV: fewer commas are in many sentences
QUOTED = re.compile(rb'"(?:[^"\\]|\\.)*"')
NO_VALUE = b"-"  # in logs with directives


def are_logfmt(texts: Sequence[bytes]) -> bool:
    return sum(map(is_logfmt, texts)) >= SHARE_MIN * len(texts)


def is_logfmt(text: bytes) -> bool:
    """Whether nearly all words are pairs, at least two, and none has the name of another: one of two values would be missed."""
    words = QUOTED.sub(b'""', text).split()
    names = [word.partition(b"=")[0] for word in words if b"=" in word[1:]]
    return len(names) >= 2 and len(names) >= PAIRS_MIN * len(words) and len({*names}) == len(names)


def csv_settings(lines: Sequence[StampedLine]) -> Mapping[str, Any] | None:
    """Settings of the parser csv for these records, if nearly all of them have the same number of fields."""
    return named_by_directive([line.text for line in lines if line.text]) or delimited(lines)


def named_by_directive(texts: Sequence[bytes]) -> Mapping[str, Any] | None:
    """The fields are those of the line `#Fields: date time ...`. Zeek writes tabs between names and values, IIS blanks, and
    Amazon's CloudFront blanks between the names and tabs between the values."""
    named = next(filter(None, map(FIELDS_DIRECTIVE.match, texts)), None)
    if named is None:
        return None
    names = column_names(named[1].decode(errors="replace").split())
    records = [text for text in texts if not text.startswith(DIRECTIVE)]
    for delimiter in "\t ":
        if records and sum(len(csv_fields(text, delimiter)) == len(names) for text in records) >= SHARE_MIN * len(records):
            return {"fields": names, "delimiter": delimiter, "comment": DIRECTIVE.decode(), "null_value": NO_VALUE.decode()}
    return None


def delimited(lines: Sequence[StampedLine]) -> Mapping[str, Any] | None:
    """Lines with the same number of delimiters; the fields' names are from the first line, if it is a header. A delimiter of the
    header counts more than another one: `time;price;tax` is not cut at the commas of its numbers."""
    texts = [line.text for line in lines if line.text]
    without_header: Mapping[str, Any] | None = None
    for delimiter in DELIMITERS:
        counts = Counter(len(csv_fields(text, delimiter)) for text in texts)
        count, often = counts.most_common(1)[0] if counts else (0, 0)
        if count < FIELDS_MIN or often < SHARE_MIN * len(texts):
            continue
        more = {} if delimiter == "," else {"delimiter": delimiter}
        header = header_of(lines, delimiter)
        if len(header) == count:
            return {"fields": column_names(header), **more}
        if without_header is None and not is_prose(texts, delimiter):
            without_header = {"fields": [f"field_{number}" for number in range(1, count + 1)], **more}
    return without_header


def header_of(lines: Sequence[StampedLine], delimiter: str) -> Sequence[str]:
    """The words of the first line if it is a header: it has no time, as the records have, and a letter in each of its words."""
    first = lines[0]
    words = [] if first.time_of is TimeOf.LINE else csv_fields(first.text or b"", delimiter)
    is_header = any(words) and all(any(map(str.isalpha, word)) for word in words if word)
    return words if is_header else ()


def is_prose(texts: Sequence[bytes], delimiter: str) -> bool:
    """Whether blanks follow the delimiters, as they follow commas in a sentence and the semicolons in a browser's name."""
    mark = delimiter.encode()
    return 2 * sum(text.count(mark + b" ") for text in texts) >= sum(text.count(mark) for text in texts)


def csv_fields(text: bytes, delimiter: str) -> list[str]:
    """As the parser would take it apart; none if it is not one record of CSV."""
    try:
        (row,) = csv.reader([text.decode(errors="replace").strip("\r\n")], delimiter=delimiter, strict=True)
    except (csv.Error, ValueError):
        return []
    return row
