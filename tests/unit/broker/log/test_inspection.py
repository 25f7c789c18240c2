from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from logbus_broker.cli import main
from logbus_broker.filesystem import FileSystem
from logbus_broker.log.inspection import Verification
from logbus_broker.log.log_directory import LogDirectory
from logbus_broker.log.partition import Partition
from logbus_broker.protocol.batch import BatchHeader
from logbus_broker.protocol.records import NewRecord, build_batch

from tests.support.batches import NOW_MS, stamped, validated
from tests.support.logs import append, compact, files_with, flush, open_log, truncate

BATCHES = 60


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory after a clean shutdown: one partition with several segments."""
    return stopped(tmp_path / "data")


def stopped(root: Path, **config: object) -> Path:
    directory = LogDirectory.open(root, broker_id=0, filesystem=FileSystem(), new_id=uuid4)
    log = open_log(directory.make_partition("t", 0, UUID(int=1)), segment_bytes=2_000, index_interval_bytes=200, **config)  # type: ignore[arg-type]
    partition = Partition("t", 0, UUID(int=1), log)
    for number in range(BATCHES):
        rows = [NewRecord(timestamp=NOW_MS + number * 7 % 100 + n, key=b"key-%d" % n, value=b"v" * 20) for n in range(2)]
        partition.stage(validated(build_batch(rows, producer_id=5, producer_epoch=0, base_sequence=number * 2)))
        partition.write_staged()
    flush(log)
    if log.config.is_compacted:
        directory.checkpoints.note_cleaned_offset("t", 0, compact(log))
        directory.checkpoints.cleaned_offsets_job()()
    partition.close()
    directory.checkpoint_job({("t", 0): log})()
    directory.close(clean=True)
    return root


def test_a_replica_that_was_cut_and_has_gaps_where_it_is_written_has_no_fault(tmp_path: Path) -> None:
    directory = LogDirectory.open(tmp_path, broker_id=0, filesystem=FileSystem(), new_id=uuid4, in_cluster=True)
    path = directory.make_partition("t", 0, UUID(int=1))
    log = open_log(path, is_replica=True)
    for base_offset in (0, 20, 50):
        log.append_replica(*with_header(build_batch([NewRecord(timestamp=NOW_MS, key=b"k", value=b"v")]), base_offset))
    flush(log)
    directory.checkpoint_job({("t", 0): log})()
    truncate(log, 50)
    directory.close(clean=False)
    assert log.end_offset == 21
    assert faults(tmp_path) == []


def with_header(batch: bytearray, base_offset: int) -> tuple[memoryview, list[BatchHeader]]:
    view, header = stamped(batch, base_offset)
    return view, [header]


def faults(path: Path) -> list[str]:
    return [f"{fault.path.name}:{fault.position} {fault.text}" for fault in Verification(path, FileSystem()).faults()]


def state(root: Path) -> dict[str, tuple[bytes, int]]:
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in root.rglob("*") if path.is_file()}


def test_a_good_directory_has_no_fault_and_is_not_changed(data: Path) -> None:
    segments = len(files_with(data / "t-0", ".log"))
    for foreign in ("old-00/x", "t-0/²0.log", "t-0/7.log", "t-0/notes.log.swap"):
        (data / foreign).parent.mkdir(exist_ok=True)
        (data / foreign).write_bytes(b"x")
    before = state(data)
    run = Verification(data, FileSystem())
    assert list(run.faults()) == []
    assert (run.partitions, run.batches) == (1, BATCHES)
    assert run.segments == segments > 3
    assert state(data) == before
    assert faults(data / "t-0") == [], "one partition alone, too"


def test_a_compacted_directory_has_gaps_and_no_fault(tmp_path: Path) -> None:
    assert faults(stopped(tmp_path, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)) == []


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def first(data: Path, suffix: str) -> Path:
    return files_with(data / "t-0", suffix)[0]


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a byte of a record in a sealed segment": (
        lambda data: flip(first(data, ".log"), 100),
        r"00000000000000000000.log:0 the checksum of the batch at offset 0 does not match",
    ),
    "an offset": (lambda data: flip(first(data, ".log"), 7), r"00000000000000000000.log:0 offset 16 where 0 was expected"),
    "the end of a sealed segment": (
        lambda data: os.truncate(first(data, ".log"), first(data, ".log").stat().st_size - 1),
        r"00000000000000000000.log:\d+ no whole batch in the last \d+ bytes",
    ),
    "the end of the log": (
        lambda data: os.truncate(files_with(data / "t-0", ".log")[-1], 0),
        r".log:0 the log ends at offset \d+, but was flushed up to 120",
    ),
    "a segment": (
        lambda data: files_with(data / "t-0", ".log")[1].unlink(),
        r".log:0 begins at offset \d+, but the previous segment ends at \d+",
    ),
    "an index": (lambda data: flip(first(data, ".index"), 3), r".index:0 does not match its checksum"),
    "a time index": (lambda data: flip(first(data, ".timeindex"), 3), r".timeindex:0 does not match its checksum"),
    "a note": (lambda data: flip(first(data, ".indexnote"), 3), r".indexnote:0 cannot be read"),
    "a snapshot": (lambda data: flip(first(data, ".snapshot"), 9), r".snapshot:0 does not match its checksum"),
    "the epochs": (lambda data: flip(data / "t-0" / "leader-epoch-checkpoint", 0), r"leader-epoch-checkpoint:0 cannot be read"),
    "a checkpoint": (
        lambda data: (data / "recovery-point-offset-checkpoint").write_bytes(b"x"),
        r"recovery-point-offset-checkpoint:0 .*cannot read",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_damage_is_named_with_its_file_and_position(data: Path, damage: str) -> None:
    harm, says = DAMAGES[damage]
    harm(data)
    import re

    reported = faults(data)
    assert any(re.search(says, fault) for fault in reported), reported


def test_the_unfinished_end_of_a_log_in_use_is_no_fault(data: Path) -> None:
    with open(files_with(data / "t-0", ".log")[-1], "ab") as file:
        file.write(b"half a batch")
    assert len(faults(data)) == 1
    lock = FileSystem().lock(data / ".lock")
    assert faults(data) == []
    del lock


def test_the_command_says_what_it_found_and_its_status(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["verify", str(data)])
    assert capsys.readouterr().out.startswith("no faults in 1 partitions")
    flip(first(data, ".log"), 100)
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(data)])
    assert ended.value.code == 1
    bad = capsys.readouterr().out
    assert f"{first(data, '.log')}: position 0: the checksum" in bad
    assert "1 fault in " in bad


def test_the_dump_commands_lines_are_safe_to_print_and_wrong_files_are_refused(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = open_log(tmp_path / "hostile")
    append(log, build_batch([NewRecord(key=b"\x1b[2J", value="\u202e\n\x00".encode(), headers=(("a\nb", b""),))]))
    main(["dump-log", "--records", str(first(data, ".log")), str(files_with(tmp_path / "hostile", ".log")[0])])
    shown = capsys.readouterr().out
    assert all(line.isprintable() for line in shown.splitlines())
    assert "baseOffset: 0 lastOffset: 1 count: 2" in shown
    assert "key: key-1 payload: vvvv" in shown
    main(["dump-log", str(files_with(data / "t-0", ".snapshot")[-1])])
    assert "producerId: 5 producerEpoch: 0 batches: 110-111 at 110" in capsys.readouterr().out
    main(["dump-log", str(files_with(tmp_path / "hostile", ".log")[0].with_suffix(".index"))])
    assert "does not exist yet: the broker has it in memory" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="the name of meta.properties is not"):
        main(["dump-log", str(data / "meta.properties")])
