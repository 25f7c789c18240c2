from __future__ import annotations

from dataclasses import replace

from logbus.errors import RecordsLost
from logbus.proof.read_tally import ReadTally

from spark_jobs.application import cause, to_reads
from spark_jobs.job import TaskResult

TALLY = ReadTally(read=2, late=1, bytes=9, fingerprint=2**64 - 1, staged_fingerprint=2**64 - 1)
RESULT = TaskResult(task=1, window_id=1, partition=0, tally=TALLY)


def test_a_partition_read_by_two_tasks_is_added_up() -> None:
    reads = to_reads([RESULT, replace(RESULT, task=2, tally=replace(TALLY, fingerprint=3, staged_fingerprint=3))])
    tally = reads.by_window[1][0]
    assert reads.winners == {1, 2}
    assert (tally.read, tally.late, tally.bytes, tally.fingerprint, tally.staged_fingerprint) == (4, 2, 18, 2, 2)
    assert TALLY.read == 2


def test_the_files_of_all_tasks_are_a_windows_files() -> None:
    results = [replace(RESULT, files=("a",)), replace(RESULT, partition=1), replace(RESULT, task=2, files=("b", "c"))]
    assert to_reads(results).files == {1: ("a", "b", "c")}


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
