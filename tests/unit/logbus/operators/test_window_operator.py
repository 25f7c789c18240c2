from __future__ import annotations

from datetime import UTC, datetime

import pytest
from logbus.errors import UserError
from logbus.operators.window_operator import window_starts

TEN, ELEVEN = datetime(2015, 5, 17, 10, tzinfo=UTC), datetime(2015, 5, 17, 11, tzinfo=UTC)


@pytest.mark.parametrize(
    "windows",
    [
        ["2015-05-17T11:00:00Z", "2015-05-17T10:00:00Z"],
        "2015-05-17T10:00:00Z, 2015-05-17T11:00:00Z",
        ["2015-05-17T10:00:00Z", "2015-05-17T12:00:00+01:00", "2015-05-17T10:00:00"],
    ],
)
def test_windows_come_in_order_and_once(windows: list[str] | str) -> None:
    assert window_starts(windows) == [TEN, ELEVEN]


def test_what_is_no_instant_is_shown_what_one_looks_like() -> None:
    with pytest.raises(UserError, match="2015-05-17T10:00:00Z"):
        window_starts(["last tuesday"])
