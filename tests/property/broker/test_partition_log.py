"""The partition log against a list of batches, through rolls, flushes, full disks, clean stops and crashes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from logbus_broker.errors import StorageError
from logbus_broker.log.partition_log import PartitionLog
from logbus_broker.protocol.batch import read_header
from logbus_broker.protocol.records import Record, build_batch, read_records

from tests.support.batches import records_at
from tests.support.examples import examples
from tests.support.logs import FailingDisk, append, files_with, flush, located_bytes, open_log

SETTINGS = {"segment_bytes": 600, "index_interval_bytes": 150}
TIMESTAMPS = st.lists(st.integers(-1, 60), min_size=1, max_size=5)
BATCH = st.builds(lambda timestamps, codec: build_batch(records_at(timestamps), codec=codec), TIMESTAMPS, st.integers(0, 4))
APPEND = st.lists(BATCH, min_size=1, max_size=3)
thorough = settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@contextmanager
def scratch() -> Iterator[Path]:
    """A separate directory per example: hypothesis runs many in one test, and tmp_path would mix them."""
    with tempfile.TemporaryDirectory(prefix="logbus-") as name:
        yield Path(name)


def records_of(batches: list[bytes]) -> list[Record]:
    return [record for batch in batches for record in read_records(batch)]


def appended(log: PartitionLog, batches: list[bytearray], stored: list[bytes]) -> None:
    copies = [bytearray(batch) for batch in batches]
    append(log, *copies)
    stored += map(bytes, copies)


def check_against(log: PartitionLog, stored: list[bytes]) -> None:
    """Every offset and every timestamp lookup agrees with a walk over all batches."""
    headers = [read_header(batch) for batch in stored]
    boundaries = [header.base_offset for header in headers] + [log.end_offset]
    assert [*log.batches_from(0)] == stored
    for upto in {boundaries[0], boundaries[len(boundaries) // 2], log.flushed_offset, log.end_offset}:
        for offset in range(log.end_offset + 1):
            data = located_bytes(log, offset, 200, upto_offset=upto)
            following = b"".join(
                batch
                for batch, header in zip(stored, headers, strict=True)
                if header.last_offset >= offset and header.base_offset < upto
            )
            assert following.startswith(data)
            assert bool(data) == (offset < upto)
            if data:
                assert len(data) >= read_header(data).size
                assert len(data) <= max(200, read_header(data).size)
        for timestamp in range(-1, 62, 3):
            matching = (r for r in records_of(stored) if r.timestamp >= timestamp and r.offset < upto)
            expected = next(((record.offset, record.timestamp) for record in matching), None)
            assert log.search_by_time(timestamp, upto_offset=upto).run() == expected


@thorough
@given(st.lists(APPEND, min_size=1, max_size=12), st.data())
def test_every_offset_and_instant_is_found_through_rolls_flushes_and_restarts(
    appends: list[list[bytearray]], data: st.DataObject
) -> None:
    with scratch() as directory:
        log, stored = open_log(directory, **SETTINGS), list[bytes]()
        for batches in appends:
            appended(log, batches, stored)
            action = data.draw(st.sampled_from(["nothing", "flush", "clean", "crash"]))
            if action == "flush":
                flush(log)
            elif action == "clean":
                log.close()
                log = open_log(directory, clean=True, recovery_point=log.flushed_offset, **SETTINGS)
                assert log.recovery.was_clean
            elif action == "crash":
                log = open_log(directory, recovery_point=data.draw(st.sampled_from([0, log.flushed_offset])), **SETTINGS)
                assert log.recovery.truncated_bytes == 0
        check_against(log, stored)


@thorough
@given(st.lists(st.tuples(APPEND, st.booleans()), min_size=1, max_size=10), st.data())
def test_a_crash_keeps_all_that_was_flushed_and_a_prefix_of_the_rest(
    appends: list[tuple[list[bytearray], bool]], data: st.DataObject
) -> None:
    """The bytes after the flushed ones are cut, zeroed or overwritten at random, file by file."""
    with scratch() as directory:
        log, stored = open_log(directory / "log", **SETTINGS), list[bytes]()
        flushed_sizes: dict[str, int] = {}
        for batches, flushes in appends:
            appended(log, batches, stored)
            if flushes:
                flush(log)
                flushed_sizes = {path.name: path.stat().st_size for path in files_with(directory / "log", ".log")}
        flushed = log.flushed_offset
        shutil.copytree(directory / "log", directory / "crashed")
        for path in files_with(directory / "crashed", ".log"):
            safe = flushed_sizes.get(path.name, 0)
            content = path.read_bytes()
            place = data.draw(st.integers(safe, len(content)), label=f"torn place in {path.name}")
            tail = data.draw(st.sampled_from([b"", bytes(80), b"\xa5" * 80, bytes(len(content))]))
            path.write_bytes((content[:place] + tail)[: len(content)])
        recovered = open_log(
            directory / "crashed",
            recovery_point=data.draw(st.integers(0, flushed).map(lambda at: boundary(stored, at))),
            **SETTINGS,
        )
        assert recovered.offline_reason == ""
        assert flushed <= recovered.end_offset == recovered.flushed_offset <= log.end_offset
        kept = [batch for batch in stored if read_header(batch).base_offset < recovered.end_offset]
        check_against(recovered, kept)
        extra = [bytearray(batch) for batch in stored[:2]]
        appended(recovered, extra, kept)
        check_against(recovered, kept)


def boundary(stored: list[bytes], offset: int) -> int:
    """The start of the batch that holds `offset`: flushed offsets are always batch boundaries."""
    return max((header.base_offset for header in map(read_header, stored) if header.base_offset <= offset), default=0)


@thorough
@given(st.lists(st.tuples(APPEND, st.none() | st.integers(0, 400), st.none() | st.integers(1, 90)), min_size=1, max_size=12))
def test_a_disk_that_fills_and_writes_in_pieces_keeps_exactly_what_was_accepted(
    appends: list[tuple[list[bytearray], int | None, int | None]],
) -> None:
    with scratch() as directory:
        disk = FailingDisk()
        log, stored = open_log(directory, filesystem=disk, **SETTINGS), list[bytes]()
        for batches, room, piece in appends:
            disk.writable_bytes, disk.bytes_per_write = room, piece
            size = sum(map(len, batches))
            if room is not None and room < size:
                with pytest.raises(StorageError, match="No space left"):
                    appended(log, batches, stored)
            else:
                appended(log, batches, stored)
        disk.writable_bytes = disk.bytes_per_write = None
        check_against(log, stored)
        check_against(open_log(directory, **SETTINGS), stored)
