"""What an interrupted load leaves of Spark: nothing. A shell script stands for spark-submit, its child for the JVM."""

from __future__ import annotations

from pathlib import Path

import pytest
from logbus import loading
from logbus.loading import run_spark

SCRIPT = 'trap "" INT; sleep 1000 & echo child $!; echo ready; wait'


def is_alive(pid: int) -> bool:
    """Whether it runs; one that has ended and was not waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("trap", ["", 'trap "" TERM; '], ids=["ends when asked", "must be forced"])
def test_an_interrupt_ends_everything_that_was_started(monkeypatch: pytest.MonkeyPatch, trap: str) -> None:
    monkeypatch.setattr(loading, "STOP_SECONDS_MAX", 0.5)
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if line == "ready":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_spark(["bash", "-c", trap + SCRIPT], {}, say)
    assert not is_alive(int(said[0].split()[1]))


def test_output_is_passed_on_as_it_comes_and_the_result_is_kept_out_of_it() -> None:
    said: list[str] = []
    script = "echo one; echo 'LOGBUS_RESULT {\"a\": 1}'; echo two >&2; exit 3"
    done = run_spark(["bash", "-c", script], {}, said.append)
    assert (said, done.returncode) == (["one", "two"], 3)
    assert 'LOGBUS_RESULT {"a": 1}' in done.stdout
