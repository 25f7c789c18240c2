from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from logbus.cli import group as group_command
from logbus.cli import main

from tests.support.fake_groups import FakeGroups
from tests.support.fake_log import FakeLog

Seek = Callable[..., Result]


@pytest.fixture
def seek(monkeypatch: pytest.MonkeyPatch, groups: FakeGroups) -> Seek:
    """`logbus group seek --group g` on a topic `t` with one partition and ten records."""
    log = FakeLog.of("t", range(1, 11))
    monkeypatch.setattr(group_command, "Groups", lambda client: groups)
    monkeypatch.setattr(group_command, "Topics", lambda client: log)
    monkeypatch.delenv("LOGBUS_WAREHOUSE_URL", raising=False)
    return lambda *words: CliRunner().invoke(main, ["group", "seek", "--group", "g", *words])


def test_it_shows_kafkas_table_and_changes_nothing_without_execute(seek: Seek, groups: FakeGroups) -> None:
    groups.commit("g", {("t", 0): 4})
    result = seek("--topic", "t", "--shift-by", "-3")
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET", "CURRENT-OFFSET"],
        ["g", "t", "0", "1", "4"],
    ]
    assert "dry run" in result.stderr
    assert groups.committed("g") == {("t", 0): 4}


def test_as_json_it_is_the_same_for_programs(seek: Seek, groups: FakeGroups) -> None:
    groups.commit("g", {("t", 0): 4})
    where = {"group": "g", "topic": "t", "partition": 0, "current_offset": 4}
    planned = json.loads(seek("--topic", "t", "--to-offset", "99", "-o", "json").stdout)
    assert planned == {"executed": False, "moves": [{**where, "new_offset": 10, "wanted_offset": 99}]}
    done = json.loads(seek("--topic", "t", "--to-offset", "7", "--execute", "--json").stdout)
    assert done == {"executed": True, "moves": [{**where, "new_offset": 7, "wanted_offset": 7}]}


def test_execute_does_it(seek: Seek, groups: FakeGroups) -> None:
    assert "dry run" not in seek("--topic", "t:0", "--to-offset", "7", "--execute").stderr
    assert groups.committed("g") == {("t", 0): 7}


def test_an_offset_outside_the_log_is_clamped_and_said(seek: Seek) -> None:
    assert "t-0: offset 99 is outside the log, so 10 is used" in seek("--topic", "t", "--to-offset", "99").stderr


def test_an_export_is_a_backup_that_can_be_read_again(seek: Seek, groups: FakeGroups, tmp_path: Path) -> None:
    groups.commit("g", {("t", 0): 4})
    backup = tmp_path / "offsets.csv"
    backup.write_text(seek("--all-topics", "--to-current", "--export").stdout)
    assert backup.read_text() == "t,0,4\n"
    seek("--topic", "t", "--to-latest", "--execute")
    seek("--from-file", str(backup), "--execute")
    assert groups.committed("g") == {("t", 0): 4}


def test_a_file_of_several_groups_gives_each_its_own(seek: Seek, groups: FakeGroups, tmp_path: Path) -> None:
    backup = tmp_path / "offsets.csv"
    backup.write_text("g,t,0,3\nother,t,0,8\n")
    assert seek("--from-file", str(backup), "--execute").exit_code == 0
    assert groups.committed("g") == {("t", 0): 3}


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--topic", "t"], 2, "give exactly one of --to-earliest"),
        (["--topic", "t", "--to-latest", "--to-offset", "3"], 2, "give exactly one of"),
        (["--to-latest"], 2, "say which topics"),
        (["--to-latest", "--all-topics"], 1, "has committed nothing"),
        (["--topic", "t", "--to-latest", "--execute", "--dry-run"], 2, "exclude each other"),
        (["--topic", "t", "--to-latest", "--export", "-o", "json"], 2, "exclude each other"),
        (["--to-window", "p@2015-05-17T10:00:00Z"], 2, "give --warehouse"),
        (["--to-window", "p"], 2, "is PIPELINE@START"),
        (["--from-file", "/nowhere.csv"], 1, "cannot read the offsets of /nowhere.csv"),
    ],
)
def test_what_cannot_be_meant_is_told_in_a_line(seek: Seek, words: list[str], status: int, message: str) -> None:
    result = seek(*words)
    assert result.exit_code == status
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("line", ["t,0", "t,zero,3"])
def test_a_file_that_is_no_list_of_offsets_is_refused(seek: Seek, tmp_path: Path, line: str) -> None:
    backup = tmp_path / "offsets.csv"
    backup.write_text(line + "\n")
    assert "not topic,partition,offset" in seek("--from-file", str(backup)).stderr


@pytest.mark.parametrize(("text", "seconds"), [("P1D", 86_400), ("PT1H", 3600), ("P1DT1H1M1S", 90_061), ("pt30s", 30)])
def test_durations_are_those_of_iso_8601(text: str, seconds: int) -> None:
    assert group_command.Duration().convert(text, None, None).total_seconds() == seconds


@pytest.mark.parametrize("text", ["P", "PT", "1h", "P1Y", "PT1.5H"])
def test_a_duration_that_cannot_be_read_shows_how_to_write_it(seek: Seek, text: str) -> None:
    assert "write it like P1DT6H30M" in seek("--topic", "t", "--by-duration", text).stderr
