"""The containers' health check reports what is wrong. Responses are faked here; tests/e2e/test_compose.py sends real requests."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

HEALTHY = runpy.run_path(str(Path(__file__).parents[3] / "docker" / "healthy.py"))
BODY = b'{"scheduler": {"status": "healthy"}, "workers": [{"state": "ALIVE"}], "count": 2}'


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ("scheduler.status=healthy", None),
        ("workers.0.state=ALIVE", None),
        ("count=2", None),
        ("scheduler.status=unhealthy", "scheduler.status is healthy, not unhealthy"),
        ("workers.1.state=ALIVE", "the answer holds no workers.1.state"),
        ("triggerer.status=healthy", "the answer holds no triggerer.status"),
        ("count.status=healthy", "the answer holds no count.status"),
    ],
)
def test_a_value_in_the_answer_is_compared(wanted: str, problem: str | None) -> None:
    assert HEALTHY["difference"](BODY, wanted) == problem


def test_an_answer_that_is_no_json_is_a_problem() -> None:
    assert HEALTHY["difference"](b"<html>", "a=b") == "the answer holds no a"


def test_nobody_there_is_status_1_and_a_wrong_call_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert HEALTHY["main"](["http://127.0.0.1:1/"]) == 1
    assert "http://127.0.0.1:1/" in capsys.readouterr().out
    assert HEALTHY["main"]([]) == 2
