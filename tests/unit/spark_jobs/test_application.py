from __future__ import annotations

from logbus.errors import RecordsLost
from logbus_spark.application import LoadState, WindowOutcome, cause, outcome_line, telling

from tests.support.fake_ledger import attempt_at
from tests.support.ledgers import at

ATTEMPT = attempt_at(at(10))
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


def test_our_own_error_is_found_in_a_workers_trace() -> None:
    trace = (
        "An error occurred while calling o64.collectToPython.\n: org.apache.spark.SparkException: Job aborted\n"
        'Traceback (most recent call last):\n  File "exact_reader.py", line 1\n'
        "logbus.errors.RecordsLost: t-0 [0, 5) cannot be read\n\n\tat org.apache.spark.api.python.BasePythonRunner"
    )
    assert cause(Exception(trace)) == "t-0 [0, 5) cannot be read"


def test_anothers_error_is_told_by_the_line_that_names_it() -> None:
    assert cause(Exception("Traceback:\n  File x\nMemoryError: no room\n\tat java.lang.Thread")) == "MemoryError: no room"


def test_workers_without_our_modules_are_told_what_to_install() -> None:
    trace = "File pyspark/serializers.py\nModuleNotFoundError: No module named 'logbus_spark'\n\tat org.apache.spark"
    assert cause(Exception(trace)).startswith("no module logbus_spark where Spark runs its tasks: install logbus there")


def test_an_error_without_text_is_told_by_its_kind() -> None:
    assert cause(RecordsLost("")) == "RecordsLost('')"
