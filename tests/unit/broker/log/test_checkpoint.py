from __future__ import annotations

from pathlib import Path

import pytest
from logbus_broker.errors import StartupError
from logbus_broker.filesystem import FileSystem
from logbus_broker.log.checkpoint import read_checkpoint, write_checkpoint


def test_a_checkpoint_has_the_text_that_apache_kafka_writes(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    write_checkpoint(FileSystem(), path, {("b", 1): 20, ("a.b-c", 10): 0})
    assert path.read_text() == "0\n2\na.b-c 10 0\nb 1 20\n"
    assert read_checkpoint(FileSystem(), path) == {("b", 1): 20, ("a.b-c", 10): 0}


def test_a_missing_checkpoint_has_no_entries(tmp_path: Path) -> None:
    assert read_checkpoint(FileSystem(), tmp_path / "checkpoint") == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it is empty"),
        ("\0\0", "it is empty"),
        ("0", "it ends after '0'"),
        ("1\n0\n", "version 1 with 0 of 0 entries"),
        ("0\n2\na 1 2\n", "version 0 with 1 of 2 entries"),
        ("0\n1\na 1\n", "'a 1' is not a topic, a partition and an offset"),
        ("0\n1\na x 2\n", "must be"),
        ("0\none\n", "must be"),
        ("0\n1_0\n", "must be"),
    ],
)
def test_what_is_no_checkpoint_is_refused_with_a_way_out(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "checkpoint").write_text(text)
    with pytest.raises(StartupError, match=rf"cannot read .*: {reason}.* may be removed"):
        read_checkpoint(FileSystem(), tmp_path / "checkpoint")


@pytest.mark.parametrize("entry", [f"a 0 {1 << 63}", "a 0 -1", f"a {1 << 31} 0", "a 0 1_000", "a 0 +5", "a \uff10 5"])
def test_numbers_that_no_broker_writes_are_refused(tmp_path: Path, entry: str) -> None:
    (tmp_path / "checkpoint").write_text(f"0\n1\n{entry}\n")
    with pytest.raises(StartupError, match=r"cannot read .*: must be .* may be removed"):
        read_checkpoint(FileSystem(), tmp_path / "checkpoint")


def test_the_largest_offset_is_read(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text(f"0\n1\na 0 {(1 << 63) - 1}\n")
    assert read_checkpoint(FileSystem(), tmp_path / "checkpoint") == {("a", 0): (1 << 63) - 1}


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StartupError, match="not text"):
        read_checkpoint(FileSystem(), tmp_path / "checkpoint")
