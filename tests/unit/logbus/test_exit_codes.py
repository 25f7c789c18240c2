from __future__ import annotations

import re
from pathlib import Path

import pytest
from logbus import errors
from logbus.exit_codes import ExitCode, of_error

PAGE = Path(__file__).parents[3] / "docs" / "cli.md"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.LogbusError("it failed"), ExitCode.FAILED),
        (errors.UserError("mend it"), ExitCode.FAILED),
        (errors.GroupActive("it has members"), ExitCode.FAILED),
        (errors.TopicMissing("none"), ExitCode.NOT_FOUND),
        (errors.WindowUnknown("none"), ExitCode.NOT_FOUND),
        (errors.BrokerUnavailable("no answer"), ExitCode.UNREACHABLE),
        (errors.Behind("3 hours"), ExitCode.CHECK_FAILED),
        (errors.RetentionOverdue("too long"), ExitCode.CHECK_FAILED),
    ],
)
def test_an_error_has_its_own_status_or_that_of_its_nearest_ancestor(error: Exception, code: ExitCode) -> None:
    assert of_error(error) is code


def test_the_page_has_a_meaning_for_every_status() -> None:
    rows = dict(re.findall(r"^\| (\d+) \| (.+?) \|$", PAGE.read_text(), re.MULTILINE))
    assert set(rows) == {str(int(code)) for code in ExitCode}
