from __future__ import annotations

from typing import Any

import pytest
from logbus.formatting import shown_value
from logbus.loads.commit_checks import overrun
from logbus.pipeline_settings import PipelineSettings


def budget(**settings: Any) -> PipelineSettings:
    return PipelineSettings(settings)


@pytest.mark.parametrize(("read", "errors", "is_over"), [(1000, 100, False), (1000, 101, True), (20, 10, False), (20, 11, True)])
def test_without_settings_a_tenth_may_fail_to_parse_and_ten_records_of_a_small_window(
    read: int, errors: int, is_over: bool
) -> None:
    limit = overrun(budget(), read=read, failed=errors)
    assert (limit is not None) == is_over


@pytest.mark.parametrize("settings", [{}, {"max_errors": 1000}, {"max_error_rate": 0.99}])
@pytest.mark.parametrize("read", [1, 5, 1000])
def test_a_window_of_nothing_but_dead_letters_is_never_a_success(settings: dict[str, Any], read: int) -> None:
    assert overrun(budget(**settings), read=read, failed=read) is not None


@pytest.mark.parametrize("read", [0, 1, 1000])
def test_who_wants_windows_of_dead_letters_says_so(read: int) -> None:
    assert overrun(budget(max_error_rate=1), read=read, failed=read) is None
    assert overrun(budget(), read=0, failed=0) is None


@pytest.mark.parametrize(
    ("options", "read", "errors", "limit"),
    [
        (budget(max_errors=3), 100, 3, None),
        (budget(max_errors=3), 100, 4, "max_errors 3"),
        (budget(max_errors=0), 100, 1, "max_errors 0"),
        (budget(max_error_rate=0.05), 100, 5, None),
        (budget(max_error_rate=0.05), 100, 6, "max_error_rate 0.05"),
        (budget(max_error_rate=0.0), 100, 0, None),
        (budget(max_error_rate=1.0), 100, 100, None),
        (budget(max_error_rate=0.5), 0, 0, None),
        (budget(max_errors=10, max_error_rate=0.01), 100, 5, "max_error_rate 0.01"),
    ],
)
def test_a_budget_allows_its_limit_and_nothing_above(
    options: PipelineSettings, read: int, errors: int, limit: str | None
) -> None:
    assert overrun(options, read=read, failed=errors) == limit


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, {"value": None}),
        (b"caf\xc3\xa9", {"value": "café"}),
        (b"\xff", {"value_base64": "/w=="}),
        (b"a\0", {"value_base64": "YQA="}),
    ],
)
def test_a_value_is_shown_as_text_where_the_ledger_can_hold_it(value: bytes | None, shown: dict[str, Any]) -> None:
    assert shown_value(value) == shown
