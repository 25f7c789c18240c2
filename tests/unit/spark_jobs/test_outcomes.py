from __future__ import annotations

from datetime import UTC, datetime

from logbus.model import Attempt, Interval

from spark_jobs.outcomes import LoadState, WindowOutcome, outcome_line, telling

ATTEMPT = Attempt(
    window_id=1,
    pipeline="p",
    interval=Interval.hour(datetime(2015, 5, 17, 10, tzinfo=UTC)),
    number=1,
    staging_table="w1_a1",
    dead_letter_table="w1_a1_dead",
)
REASON = "300 of 300 records cannot be parsed. Its error budget is a tenth of them. Mend the parser"


def test_a_reason_is_told_in_full_once_and_then_in_its_first_sentence() -> None:
    failed = WindowOutcome(attempt=ATTEMPT, state=LoadState.FAILED, error=REASON)
    assert outcome_line(failed) == f"2015-05-17T10:00:00Z failed {REASON}"
    assert outcome_line(failed, is_brief=True) == "2015-05-17T10:00:00Z failed 300 of 300 records cannot be parsed"


def test_another_reason_is_told_in_full_whatever_failed_before() -> None:
    said: list[str] = []
    tell = telling(said.append)
    for error in (REASON, REASON, "the topic was made again. Rebase it"):
        tell(WindowOutcome(attempt=ATTEMPT, state=LoadState.FAILED, error=error))
    assert [line.partition(" failed ")[2] for line in said] == [
        REASON,
        "300 of 300 records cannot be parsed",
        "the topic was made again. Rebase it",
    ]
