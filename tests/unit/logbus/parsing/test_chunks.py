"""Parsed in bulk or one by one, halved or not: the same rows, the same refusals, each value once."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from logbus.parsing import Filtered, Parser, Unparsable
from logbus.parsing.chunks import parse_chunk

SCHEMA = pa.schema([("text", pa.string())])
looked_at: list[bytes] = []


def parse(value: bytes) -> Sequence[str]:
    """`bad` does not parse, `drop` is filtered, everything else is a row."""
    looked_at.append(value)
    if value == b"bad":
        raise Unparsable("Bad", "it is bad")
    if value == b"drop":
        raise Filtered
    return (value.decode(),)


def quick(values: Sequence[bytes]) -> Sequence[pa.Array] | None:
    return None if {b"bad", b"drop"} & set(values) else [pa.array([value.decode() for value in values])]


ALONE = Parser(columns={"text": "text"}, parse=parse)
QUICK = Parser(columns={"text": "text"}, parse=parse, quick=quick)


@given(st.lists(st.sampled_from([b"good", b"fine", b"bad", b"drop", None]), max_size=400))
def test_both_ways_give_the_same_and_account_for_every_value(values: list[bytes | None]) -> None:
    alone, fast = (parse_chunk(parser, SCHEMA, values) for parser in (ALONE, QUICK))
    assert fast.rows == alone.rows
    assert list(fast.places) == list(alone.places)
    assert fast.filtered == alone.filtered
    kinds = [[(place, error.kind) for place, error in parsed.refused] for parsed in (alone, fast)]
    assert kinds[0] == kinds[1]
    assert sorted([*fast.places, *fast.filtered, *(place for place, _ in fast.refused)]) == list(range(len(values)))
    assert [values[place] for place in fast.places] == [text.encode() for text in fast.rows["text"].to_pylist()]


def test_one_bad_value_among_many_costs_few_single_looks() -> None:
    looked_at.clear()
    parsed = parse_chunk(QUICK, SCHEMA, [b"good"] * 5_000 + [b"bad"] + [b"good"] * 5_000)
    assert parsed.rows.num_rows == 10_000
    assert [place for place, _ in parsed.refused] == [5_000]
    assert len(looked_at) <= 64


def test_a_record_without_value_is_refused_whatever_the_parser() -> None:
    (refused,) = parse_chunk(QUICK, SCHEMA, [None]).refused
    assert (refused[0], refused[1].kind) == (0, "NoValue")
