"""A stream's driver is submitted and stopped. A shell script stands in for spark-submit, a child of it for the driver."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from logbus import spark_submit
from logbus.errors import LoadFailed
from logbus.streams.run import StreamSubmission, arguments

GRACEFUL = "trap 'echo committed; exit 0' TERM; echo LOGBUS_DRIVER $$; echo ready; while true; do sleep 0.05; done"


class Script(StreamSubmission):
    """Submits a script instead. `told`: the lines that whoever runs it is told."""

    def __init__(self, script: str) -> None:
        self.script = script
        self.lines: list[str] = []
        super().__init__(warehouse_url="postgresql://u:secret@h/d", client_config={}, say=self.note)

    def command(self, stream_name: str, *, once: bool) -> Sequence[str]:
        return ["bash", "-c", self.script]

    def note(self, line: str) -> None:
        self.lines.append(line)
        if line == "ready":
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_lets_the_driver_commit_the_epoch_that_it_is_at() -> None:
    submission = Script(GRACEFUL)
    submission.run("s")
    assert submission.lines == ["ready", "stopping after this epoch; once more ends it at once", "committed"]


def test_a_second_signal_ends_everything_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_submit, "STOP_SECONDS_MAX", 0.2)
    submission = Script("trap 'echo ready' TERM; echo LOGBUS_DRIVER $$; echo ready; while true; do sleep 0.05; done")
    with pytest.raises(KeyboardInterrupt):
        submission.run("s")


def test_the_drivers_own_error_is_the_reason() -> None:
    with pytest.raises(LoadFailed, match="the driver of stream s has failed: records are gone"):
        Script("echo starting; echo 'error: records are gone' >&2; exit 1").once("s")
    with pytest.raises(LoadFailed, match="it ended with code 7; its output above says why"):
        Script("exit 7").once("s")


def test_the_command_has_no_secret() -> None:
    submission = StreamSubmission(warehouse_url="postgresql://u:hush@h/d", client_config={"sasl.password": "quiet"}, say=print)
    command = submission.command("s", once=True)
    assert [Path(word).name for word in command if word.endswith("stream.py")] == ["stream.py"]
    assert command[-5:] == ["--stream", "s", "--once", "--run-id", "command line"]
    assert not any("hush" in word or "quiet" in word for word in command)
    assert arguments("s", "r", once=False) == ["--stream", "s", "--run-id", "r"]
