from __future__ import annotations

from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logbus.loads import read_tally


def numbers(*found: int) -> read_tally.Numbers:
    made = read_tally.Numbers()
    for number in found:
        made.add(number)
    return made


def test_numbers_in_order_are_one_run() -> None:
    assert numbers(5, 6, 7) == read_tally.Numbers(count=3, runs=[(5, 7)])


def test_a_record_that_comes_twice_is_counted_and_its_number_is_not_new() -> None:
    found = numbers(1, 2, 3, 2, 3, 4)
    assert (found.count, read_tally.size(found.runs)) == (6, 4)


def test_a_hole_that_is_filled_later_is_none() -> None:
    assert numbers(1, 2, 4, 5, 3).runs == [(1, 5)]


@given(st.lists(st.lists(st.integers(1, 40), max_size=30), min_size=1, max_size=5))
def test_however_a_stream_is_split_the_sum_is_that_of_all_its_records(parts: list[list[int]]) -> None:
    whole = [number for part in parts for number in part]
    found = reduce(read_tally.Numbers.join, (numbers(*part) for part in parts))
    assert found == numbers(*whole)
    assert found.count == len(whole)
    assert {number for first, last in found.runs for number in range(first, last + 1)} == set(whole)


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 5)), max_size=10), st.integers(1, 30), st.integers(0, 20))
def test_holes_and_runs_make_up_the_span(starts: list[tuple[int, int]], first: int, length: int) -> None:
    runs, last = read_tally.joined_runs((start, start + more) for start, more in starts), first + length
    inside = {number for start, end in runs for number in range(start, end + 1)} & set(range(first, last + 1))
    outside = {number for start, end in read_tally.holes(runs, first, last) for number in range(start, end + 1)}
    assert inside | outside == set(range(first, last + 1))
    assert not inside & outside


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"web-1:7", (b"web-1", 7)),
        (b"a:b:12", (b"a:b", 12)),
        (b"f" * 500 + b":1", (b"f" * 500, 1)),
        (b"f" * 501 + b":1", None),
        *((wrong, None) for wrong in (None, b"", b":7", b"web-1", b"web-1:", b"web-1:-1", b"web-1:1e3", b"web-1:" + b"9" * 19)),
    ],
)
def test_a_header_is_a_stream_and_a_number_or_is_not_counted(content: bytes | None, found: tuple[bytes, int] | None) -> None:
    assert read_tally.sent_number(content) == found


def test_headers_are_counted_by_stream_wherever_they_stand() -> None:
    sent: dict[str, read_tally.Numbers] = {}
    sent_by = lambda stream, number: ("logbus-sent", b"%b:%d" % (stream, number))  # noqa: E731
    host = ("host", b"web-1")
    read_tally.count_sent(
        sent, [[host, sent_by(b"a", 1)], [sent_by(b"b", 1), host], [host], [], [host, sent_by(b"a", 2)], [sent_by(b"b", 9)]]
    )
    read_tally.count_sent(sent, [[sent_by(b"a", 3)]])
    assert sent == {"a": read_tally.Numbers(count=3, runs=[(1, 3)]), "b": read_tally.Numbers(count=2, runs=[(1, 1), (9, 9)])}


def test_a_stream_in_no_order_keeps_its_count_and_its_ends() -> None:
    last = 2 * read_tally.RUNS_MAX + 1
    found = read_tally.Numbers(count=read_tally.RUNS_MAX, runs=[(number, number) for number in range(1, last, 2)])
    assert found.join(read_tally.Numbers()).is_vague is False
    found.add(last)
    assert (found.count, found.runs, found.is_vague) == (read_tally.RUNS_MAX + 1, [(1, last)], True)
    assert numbers(1).join(found).is_vague


def test_a_stream_for_every_record_does_not_fill_the_memory() -> None:
    sent: dict[str, read_tally.Numbers] = {}
    read_tally.count_sent(sent, [[("logbus-sent", b"%d:1" % number)] for number in range(read_tally.STREAMS_MAX + 3)])
    assert sent.keys() == {read_tally.OTHER_STREAMS, *(str(number) for number in range(read_tally.STREAMS_MAX))}
    assert (sent[read_tally.OTHER_STREAMS].count, sent[read_tally.OTHER_STREAMS].is_vague) == (3, True)


def test_what_two_partitions_counted_is_joined_by_stream() -> None:
    first, second = {"a": numbers(1), "b": numbers(1)}, {"b": numbers(2), "c": numbers(5)}
    assert (read_tally.ReadTally(sent=first) + read_tally.ReadTally(sent=second)).sent == {
        **{"a": numbers(1), "b": numbers(1, 2)},
        "c": numbers(5),
    }
    assert first["b"] == numbers(1)
