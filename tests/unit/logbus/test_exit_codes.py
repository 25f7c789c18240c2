from __future__ import annotations

import re
from pathlib import Path

import pytest
from logbus import errors
from logbus.errors import ExitCode, exit_code_of

PAGE = Path(__file__).parents[3] / "docs" / "cli.md"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        *((kind, ExitCode.FAILED) for kind in (errors.LogbusError, errors.UserError, errors.GroupActive)),
        *((kind, ExitCode.NOT_FOUND) for kind in (errors.TopicMissing, errors.WindowUnknown)),
        *((kind, ExitCode.CHECK_FAILED) for kind in (errors.Behind, errors.RetentionOverdue)),
        (errors.BrokerUnavailable, ExitCode.UNREACHABLE),
    ],
)
def test_an_error_has_its_own_status_or_that_of_its_nearest_ancestor(error: type[Exception], code: ExitCode) -> None:
    assert exit_code_of(error("said")) is code


def test_the_page_has_a_meaning_for_every_status() -> None:
    rows = dict(re.findall(r"^\| (\d+) \| (.+?) \|$", PAGE.read_text(), re.MULTILINE))
    assert set(rows) == {str(int(code)) for code in ExitCode}
