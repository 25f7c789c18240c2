"""`python -m broker`: its command line, and the errors for a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.cli import main
from broker.config.properties import build_config, parse_properties
from broker.config.settings import BrokerConfig


def test_the_listed_settings_are_a_file_that_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    main(["settings"])
    listed = capsys.readouterr().out
    assert build_config(parse_properties(listed, source="settings")) == BrokerConfig()


@pytest.mark.parametrize("argv", [[], ["sreve"], ["serve", "--log-level", "LOUD"], ["dump-log"]])
def test_what_is_typed_wrong_is_answered_with_how_to_type_it(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert "usage: python -m broker" in capsys.readouterr().err


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
