"""Columns inferred from a sample of JSON objects, for pipelines that infer their schema.

Integers are bigint, integers mixed with fractions are double precision, strings are text (the user must declare instants among
them), objects, lists and members of mixed types are jsonb. Members whose names no column can have stay in `_rest`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from logbus.kafka.exact_reader import exact_consumer, read_with
from logbus.model import FrozenWindow, OffsetRange, Pipeline
from logbus.parsing import Unparsable
from logbus.parsing.json_records import parse_object
from logbus.pipeline_settings import is_column_name

# Read before a load: enough to find every common member, few enough that it takes no time compared to the load.
SAMPLED_RECORDS_MAX = 1_000
SAMPLED_RANGES_MAX = 16  # each costs a round trip or two

BIGINT_MAX = 2**63

KINDS: Mapping[type, str] = {bool: "boolean", int: "bigint", float: "double precision", str: "text", list: "jsonb", dict: "jsonb"}


def inferred_columns(values: Iterable[bytes | None]) -> dict[str, str]:
    """Name to type of the members that had a value, in the order of appearance; values that do not parse are ignored."""
    found: dict[str, str] = {}
    for value in values:
        for name, kind in kinds_of(value):
            found[name] = widened(found.get(name, kind), kind)
    return found


def kinds_of(value: bytes | None) -> Iterator[tuple[str, str]]:
    try:
        members = {} if value is None else parse_object(value)
    except Unparsable:
        return
    for name, member in members.items():
        if member is not None and is_column_name(name):
            yield name, kind_of(member)


def kind_of(member: Any) -> str:
    is_large = isinstance(member, int) and not -BIGINT_MAX <= member < BIGINT_MAX
    return "jsonb" if is_large else KINDS[type(member)]


def widened(one: str, other: str) -> str:
    """The type that holds the values of both."""
    if one == other:
        return one
    return "double precision" if {one, other} == {"bigint", "double precision"} else "jsonb"


def sampled_values(client_config: Mapping[str, Any], pipeline: Pipeline, windows: Sequence[FrozenWindow]) -> list[bytes | None]:
    """The first values of some of the windows' ranges, spread over all of them."""
    ranges = [part for window in windows for part in window.ranges if part.count]
    chosen = ranges[:: max(1, -(-len(ranges) // SAMPLED_RANGES_MAX))]
    with exact_consumer(client_config, pipeline.isolation_level) as consumer:
        return [value for part in chosen for value in first_values(consumer, part, SAMPLED_RECORDS_MAX // len(chosen))]


def first_values(consumer: Any, part: OffsetRange, count: int) -> Iterator[bytes | None]:
    end = min(part.end_offset, part.readable_from + count)
    for message in islice(read_with(consumer, part.topic, part.partition, part.readable_from, end), count):
        yield message.value()
