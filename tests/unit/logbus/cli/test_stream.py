from __future__ import annotations

import pytest
from logbus.cli.stream import measure_of
from logbus.errors import UserError
from logbus.expressions import count, max_of, sum_of


@pytest.mark.parametrize(
    ("text", "measure"),
    [
        ("views=count()", ("views", count())),
        ("visitors = count( visitor )", ("visitors", count("visitor"))),
        ("bytes=sum(bytes)", ("bytes", sum_of("bytes"))),
        ("last=max(Last Seen)", ("last", max_of("Last Seen"))),
    ],
)
def test_a_measure_is_written_as_the_listing_writes_it(text: str, measure: tuple[str, object]) -> None:
    assert measure_of(text) == measure


@pytest.mark.parametrize("text", ["views", "views=count", "views=median(x)", "=count()", "bytes=sum()"])
def test_what_is_no_measure_is_refused_with_one_that_is(text: str) -> None:
    with pytest.raises(UserError, match=r"'bytes=sum\(bytes\)'"):
        measure_of(text)
