"""Whatever the values and labels, a scraper accepts the text."""

from __future__ import annotations

import math
import re

from hypothesis import given
from hypothesis import strategies as st
from logbus_broker.metrics import BLOCK_BYTES, Metric, Sample, blocks, family, page

METRIC = Metric(name="some_total", kind="counter", help="Something.", labels=("topic",))
LINE = re.compile(r'[a-z_]+(\{[a-zA-Z]+="(?:[^"\\\n]|\\[\\n"])*"\})? -?[0-9][0-9.e+-]*')


@given(st.lists(st.tuples(st.floats() | st.integers(), st.text())))
def test_every_line_is_well_formed(samples: list[tuple[float, str]]) -> None:
    text = "".join(family(METRIC, [Sample(value, (("topic", label),)) for value, label in samples]))
    lines = [line for line in text.split("\n") if line and not line.startswith("#")]
    assert len(lines) == sum(math.isfinite(value) for value, _ in samples)
    assert all(LINE.fullmatch(line) for line in lines), lines


def test_a_family_without_samples_is_left_out() -> None:
    assert b"".join(page({METRIC: []})) == b""
    assert b"".join(page({METRIC: [Sample(math.nan)]})) == b""


def test_a_long_page_comes_in_blocks() -> None:
    made = list(blocks(f"line {number}\n" for number in range(10_000)))
    assert len(made) > 5
    assert max(map(len, made)) < BLOCK_BYTES + 100
    assert b"".join(made).count(b"\n") == 10_000
