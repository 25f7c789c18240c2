from __future__ import annotations

from typing import Any

import pytest
from logbus.errors import UserError
from logbus.parsing import Unparsable, parser_for

PATTERN = r"(?P<level>[A-Z]+) (?:\[(?P<took>\d+)ms\] )?(?P<message>.*)"
PARSER = parser_for("regex", {"pattern": PATTERN, "columns": {"took": "integer"}})


def test_named_groups_are_the_columns_in_their_order() -> None:
    assert PARSER.columns == {"level": "text", "took": "integer", "message": "text"}
    assert PARSER.parse(b"WARN [12ms] slow\n") == ["WARN", 12, "slow"]


def test_a_group_that_took_no_part_is_null() -> None:
    assert PARSER.parse(b"INFO fine") == ["INFO", None, "fine"]


@pytest.mark.parametrize(
    ("line", "kind"), [(b"warn low", "NoMatch"), (b"INFO one\ntwo", "NoMatch"), (b"WARN [99999999999ms] x", "WrongType")]
)
def test_a_line_that_does_not_match_as_a_whole_is_a_dead_letter(line: bytes, kind: str) -> None:
    with pytest.raises(Unparsable) as caught:
        PARSER.parse(line)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "needs settings.pattern"),
        ({"pattern": "("}, "not a regular expression"),
        ({"pattern": "(.*)"}, "no named groups"),
        ({"pattern": "(?P<a>.*)", "columns": {"b": "text"}}, "b is not a named group"),
        ({"pattern": "(?P<_offset>.*)"}, "a leading _"),
    ],
)
def test_settings_that_make_no_parser_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        parser_for("regex", settings)
