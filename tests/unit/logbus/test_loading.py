"""An interrupted load leaves no Spark process. A shell script stands in for spark-submit, its child for the JVM."""

from __future__ import annotations

import os
import select

import pytest
from logbus import spark_submit
from logbus.spark_submit import run_spark

SCRIPT = 'trap "" INT; sleep 1000 & echo child $!; echo ready; wait'


SECONDS_MAX = 30


def has_ended(descriptor: int) -> bool:
    """Waits for the kernel to report the exit, which may be a moment after the kill."""
    with open(descriptor, "rb", buffering=0):
        return bool(select.select([descriptor], [], [], SECONDS_MAX)[0])


@pytest.mark.parametrize("trap", ["", 'trap "" TERM; '], ids=["ends when asked", "must be forced"])
def test_an_interrupt_ends_everything_that_was_started(monkeypatch: pytest.MonkeyPatch, trap: str) -> None:
    monkeypatch.setattr(spark_submit, "STOP_SECONDS_MAX", 0.5)
    children: list[int] = []

    def say(line: str) -> None:
        if line.startswith("child"):
            children.append(os.pidfd_open(int(line.split()[1])))
        else:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_spark(["bash", "-c", trap + SCRIPT], {}, say)
    assert [has_ended(child) for child in children] == [True]


def test_output_is_passed_on_as_it_comes_and_the_result_is_kept_out_of_it() -> None:
    said: list[str] = []
    of_java = "echo 'WARNING: Using incubator modules: jdk.incubator.vector' >&2"
    script = f"echo one; echo 'LOGBUS_RESULT {{\"a\": 1}}'; {of_java}; echo two >&2; exit 3"
    assert run_spark(["bash", "-c", script], {}, said.append) == 3
    assert said == ["one", "two"]
