"""`python -m logbus_broker`: its command line, and the errors for a wrong one."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from logbus_broker.cli import main


@pytest.mark.parametrize("argv", [[], ["sreve"], ["serve", "--log-level", "LOUD"], ["dump-log"]])
def test_what_is_typed_wrong_is_answered_with_how_to_type_it(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert "usage: python -m logbus_broker" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["serve", "--override", "nonsense"], "error: .*nonsense"),
        (["verify", "nowhere"], "error: nowhere is not a directory"),
        (["dump-log", "nowhere.log"], "error: .*nowhere.log"),
    ],
)
def test_what_cannot_be_done_is_one_line(argv: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=message):
        main(argv)


def test_a_reader_that_has_enough_ends_the_output_without_a_traceback() -> None:
    settings = subprocess.Popen(
        [sys.executable, "-m", "logbus_broker", "settings"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert settings.stdout is not None
    settings.stdout.close()  # before a line is written: the interpreter takes longer to start
    _, complaints = settings.communicate()
    assert (settings.returncode, complaints) == (128 + signal.SIGPIPE, "")
