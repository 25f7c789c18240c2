from __future__ import annotations

from logbus.errors import RecordsLost

from spark_jobs.application import cause


def test_our_own_error_is_found_in_a_workers_trace() -> None:
    trace = (
        "An error occurred while calling o64.collectToPython.\n: org.apache.spark.SparkException: Job aborted\n"
        'Traceback (most recent call last):\n  File "exact_reader.py", line 1\n'
        "logbus.errors.RecordsLost: t-0 [0, 5) cannot be read\n\n\tat org.apache.spark.api.python.BasePythonRunner"
    )
    assert cause(Exception(trace)) == "t-0 [0, 5) cannot be read"


def test_anothers_error_is_told_by_the_line_that_names_it() -> None:
    assert cause(Exception("Traceback:\n  File x\nMemoryError: no room\n\tat java.lang.Thread")) == "MemoryError: no room"


def test_an_error_without_text_is_told_by_its_kind() -> None:
    assert cause(RecordsLost("")) == "RecordsLost('')"
