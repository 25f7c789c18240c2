from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from logbus.streams.stream_ledger import Ownership
from logbus_spark import stream_driver
from logbus_spark.session import setting_of_jvm
from logbus_spark.stream_driver import overruled_checkpoint

QUERY = "7f1c0c5e-8a5d-4f6e-9d53-6f0f4f0f9e11"
METADATA = f'{{"id":"{QUERY}"}}'.encode()
BY_THE_LEDGER = "is overruled: a stream keeps no checkpoint, and by the ledger clicks is at epoch 1,204, offsets 0:17, 1:0"
OWNERSHIP = Ownership(stream="clicks", owner=3, positions={0: 17, 1: 0}, epoch=1_204)


def overruled_line(location: str) -> str:
    """Without what is the same each time."""
    before, _, after = overruled_checkpoint(location, OWNERSHIP).partition(BY_THE_LEDGER)
    assert before.startswith("spark.sql.streaming.checkpointLocation = ")
    return after


@pytest.mark.parametrize(
    ("files", "holds"),
    [
        ({"metadata": METADATA, "offsets/9": b"", "offsets/12": b"", "offsets/.12.crc": b""}, f"query {QUERY}, last batch 12"),
        ({"a/metadata": METADATA, "b/offsets/0": b"v1"}, f"a: query {QUERY}; b: last batch 0"),
        ({f"{number}/offsets/1": b"" for number in range(5)}, "0: last batch 1; 1: last batch 1; 2: last batch 1 and 2 more"),
        ({"metadata": METADATA, "offsets": b"no directory"}, f"query {QUERY}"),
        ({"metadata": METADATA, "offsets/.tmp": b"", "offsets/1.5": b""}, f"query {QUERY}"),
        ({"metadata/7": b"", "offsets/7": b""}, "last batch 7"),
        ({"metadata": rb'{"id":"a\nLOGBUS_RESULT {}"}'}, "query a"),
        ({"metadata": rb'{"id":"\u001b[2J\ud800"}'}, r"query \x1b[2J\ud800"),
    ],
    ids=["whole", "below it", "many", "a file", "no batches", "a directory", "two lines", "for terminals"],
)
def test_what_is_overruled_is_named_as_far_as_it_can_be_read(tmp_path: Path, files: Mapping[str, bytes], holds: str) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    for location in (str(tmp_path), tmp_path.as_uri(), f"file:{tmp_path}"):
        assert overruled_line(location) == f". The directory holds {holds}"


@pytest.mark.parametrize("text", [b"", b"\xff\0", b"[1]", b"{}", b"7", b"[" * 4_000, b" " * 5_000 + METADATA])
def test_metadata_that_is_none_names_nothing(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "metadata").write_bytes(text)
    assert overruled_line(str(tmp_path)) == ""


@pytest.mark.parametrize(
    "location", [".", "file:", "//[", "/nowhere", "hdfs://namenode/clicks", "\0", "clicks\nLOGBUS_RESULT {}"]
)
def test_what_cannot_be_looked_at_is_overruled_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("metadata")
    assert overruled_line(location) == ""
    assert overruled_checkpoint(location, OWNERSHIP).isprintable()


def test_only_a_program_beside_a_jvm_asks_for_its_settings() -> None:
    assert setting_of_jvm("spark.sql.streaming.checkpointLocation", {"SPARK_REMOTE": "sc://spark:15002"}) is None


def test_a_directory_that_does_not_answer_holds_no_stream_up(monkeypatch: pytest.MonkeyPatch) -> None:
    is_back = threading.Event()
    monkeypatch.setattr(Path, "iterdir", lambda path: iter([path] if is_back.wait() else []))
    monkeypatch.setattr(stream_driver, "LOOK_SECONDS", 0.01)
    assert overruled_line("/mnt/away") == ". The directory does not answer"
    is_back.set()
