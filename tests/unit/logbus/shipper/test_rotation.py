"""Rotation between two runs: which files next to the named one hold unsent lines."""

from __future__ import annotations

import gzip
import lzma
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest
from logbus.errors import LogGone
from logbus.shipper.merged_lines import LineReading
from logbus.shipper.shipment import Shipment
from logbus.shipper.sources import Fingerprint, Source, beside, identify, never_sent, unsent


def write(path: Path, number: int, lines: int = 60, *, written: int) -> Path:
    """Writes about 2 KB, different for each `number`."""
    path.write_text("".join(f"2015-05-17T10:00:00Z {number} line {line:03d} ..........\n" for line in range(lines)))
    os.utime(path, (written, written))
    return path


def sent(path: Path, lines: int | None = None) -> Source:
    """The file's state after a run that sent `lines` of its lines, or all of them."""
    (source,) = identify([path], [], new_id=lambda: path.name)
    text = path.read_bytes()
    each = len(text.splitlines(keepends=True)[0])
    position = len(text) if lines is None else each * lines
    last = Fingerprint.of(text[position - each : position - 1], position=position - each)
    return replace(source, position=position, last_line=last, timestamp_ms=500_000)


def names(paths: Sequence[Path]) -> list[str]:
    return [path.name for path in paths]


@pytest.mark.parametrize(
    ("name", "is_rotated"),
    [
        *(("access.log.1", True), ("access.log.12.gz", True), ("access.log-20260522", True), ("access.log-20260522.gz", True)),
        *(("access.log.2026-05-22", True), ("access.log.2026-05-22_10", True), ("access.log-20260522-1747900801", True)),
        *((f"access.log.3.{ending}", True) for ending in ("bz2", "xz", "zst", "lz4")),
        *(("access-20260522.log", True), ("access.2026-05-22.0.log.gz", True), ("access_2026-05-22_10.log", True)),
        *(("access-1.log", False), ("access-2026.log", False), ("access-20260522.txt", False)),
        *(("access.log.bak", False), ("access.log.gz", False), ("access.log2", False), ("error.log.1", False)),
    ],
)
def test_names_that_rotation_gives_are_known(name: str, is_rotated: bool, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    assert names(beside(tmp_path / "access.log")) == ([name] if is_rotated else [])


def test_a_link_beside_a_log_is_not_followed(tmp_path: Path) -> None:
    """Its owner may not read the file that it leads to, and the shipper may."""
    (tmp_path / "logs").mkdir()
    log = write(tmp_path / "logs" / "a.log", 1, written=1_000)
    sent_before = [sent(log)]
    private = write(tmp_path / "auth.log", 2, written=2_000)
    (tmp_path / "logs" / "a.log.1").symlink_to(private)
    log.unlink()
    assert names(beside(log)) == names(never_sent([log], [])) == names(unsent([log], sent_before)[0]) == []


def test_a_log_that_is_a_link_is_rotated_where_the_link_leads(tmp_path: Path) -> None:
    """As Kubernetes' are: containers/NAME.log leads to pods/NAME/0.log."""
    log, link = tmp_path / "pods" / "0.log", tmp_path / "app.log"
    log.parent.mkdir()
    write(log, 1, written=1_000)
    link.symlink_to(log)
    sent_before = [sent(link, lines=7)]
    log.rename(log.with_name("0.log.20261120-100503"))
    write(log, 2, written=2_000)
    files, gone = unsent([link], sent_before)
    assert (names(files), gone) == (["0.log.20261120-100503"], [])


def test_at_the_first_run_older_files_are_mentioned_and_left_alone(tmp_path: Path) -> None:
    log = write(tmp_path / "a.log", 2, written=2_000)
    write(tmp_path / "a.log.1", 1, written=1_000)
    assert (names(unsent([log], [])[0]), names(never_sent([log], []))) == ([], ["a.log.1"])
    assert never_sent([log, tmp_path / "a.log.1"], []) == []  # named on the command line


@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize(("lines", "sent_lines"), [(60, 40), (60, None), (3, None)])
def test_the_rest_of_a_rotated_file_is_found_and_what_was_sent_wholly_is_not_sent_again(
    lines: int, sent_lines: int | None, is_compressed: bool, tmp_path: Path
) -> None:
    log = write(tmp_path / "a.log", 1, lines=lines, written=1_000)
    sent_before = [sent(log, sent_lines)]
    older = log.rename(tmp_path / "a.log.1")
    if is_compressed:
        older.write_bytes(gzip.compress(older.read_bytes()))
        os.utime(older, (1_000, 1_000))
        older = older.rename(tmp_path / "a.log.1.gz")
    write(log, 2, written=2_000)
    assert unsent([log], sent_before)[0] == ([older] if sent_lines else [])
    assert never_sent([log], sent_before) == []


def into(directory: Path, log: Path) -> Path:
    directory.mkdir()
    return log.rename(directory / f"{log.name}.1")


@pytest.mark.parametrize(
    ("rotate", "is_gone"),
    [
        (lambda log: into(log.with_name("old"), log), True),  # olddir
        (lambda log: log.with_name("a.log.tar.xz").write_bytes(lzma.compress(log.read_bytes())), True),
        (lambda log: log.unlink(), True),
        (lambda log: log.write_bytes(b""), True),
        (lambda log: log.rename(log.with_name("a.log.1")), False),
        (lambda log: log.with_name("a.log.1.xz").write_bytes(lzma.compress(log.read_bytes())), False),
    ],
    ids=["moved", "archived", "deleted", "truncated", "renamed", "compressed"],
)
def test_a_log_that_went_out_of_sight_is_named_until_a_run_has_said_so(
    rotate: Callable[[Path], object], is_gone: bool, tmp_path: Path
) -> None:
    log = write(tmp_path / "a.log", 1, lines=10, written=1_000)
    sent_before = sent(log, lines=7)
    rotate(log)
    log.unlink(missing_ok=True)
    write(log, 2, written=2_000)
    files, gone = unsent([log], [sent_before])
    assert gone == ([sent_before] if is_gone else [])
    assert names(files) == ([] if is_gone else [path.name for path in tmp_path.iterdir() if path != log])
    (fresh,) = identify([log], [sent_before], new_id=lambda: "fresh")
    assert unsent([log], [sent_before, fresh])[1] == []


def test_a_log_out_of_sight_is_known_again_where_it_was_moved_to(tmp_path: Path) -> None:
    """Compressed as well, though all that was sent would be too little to know a copy by."""
    log = write(tmp_path / "a.log", 1, lines=10, written=1_000)
    sent_before = sent(log, lines=7)
    moved = into(tmp_path / "old", log)
    packed = moved.with_name("a.log.1.gz")
    packed.write_bytes(gzip.compress(moved.read_bytes()))
    for path in (moved, packed):
        assert [source.position for source in identify([path], [sent_before], new_id=lambda: "new")] == [sent_before.position]


def test_a_file_that_is_renamed_while_the_last_one_is_sought_is_no_reason_to_give_it_up(tmp_path: Path) -> None:
    class Renamed(type(tmp_path)):  # type: ignore[misc]
        def iterdir(self) -> Iterator[Path]:
            files = list(super().iterdir())
            return iter([path for path in files if path.name != "a.log"])

        def open(self, *how: object, **more: object) -> IO[bytes]:
            raise FileNotFoundError(2, "renamed", str(self))

    log = write(tmp_path / "a.log", 1, written=1_000)
    sent_before = sent(log)
    log.rename(tmp_path / "a.log.1")
    with pytest.raises(LogGone, match="run again"):
        unsent([Renamed(log)], [sent_before])


def test_files_that_came_and_went_between_two_runs_are_found_and_older_ones_are_not(tmp_path: Path) -> None:
    write(tmp_path / "a.log.3", 0, written=900)  # from before the first run
    log = write(tmp_path / "a.log", 1, written=1_000)
    sent_before = [sent(log)]
    log.rename(tmp_path / "a.log.2")
    write(tmp_path / "a.log.1", 2, written=2_000)
    write(log, 3, written=3_000)
    assert names(unsent([log], sent_before)[0]) == ["a.log.1"]


def test_a_log_that_was_not_rotated_has_nothing_beside_it_to_send(tmp_path: Path) -> None:
    write(tmp_path / "a.log.1", 0, written=5_000)  # modified later by hand
    log = write(tmp_path / "a.log", 1, written=1_000)
    assert unsent([log], [sent(log, lines=10)])[0] == []


def test_a_file_that_is_being_compressed_is_read_where_it_is_whole(tmp_path: Path) -> None:
    """gzip writes a.log.1.gz next to a.log.1, and removes the latter when it is done."""
    log = write(tmp_path / "a.log", 1, written=1_000)
    sent_before = [sent(log, lines=40)]
    log.rename(tmp_path / "a.log.1")
    (tmp_path / "a.log.1.gz").write_bytes(gzip.compress((tmp_path / "a.log.1").read_bytes())[:20])
    write(log, 2, written=2_000)
    assert names(unsent([log], sent_before)[0]) == ["a.log.1"]


def test_the_rest_of_a_copied_and_truncated_file_is_found_however_little_was_sent(tmp_path: Path) -> None:
    log = write(tmp_path / "a.log", 1, lines=3, written=1_000)
    sent_before = [sent(log, lines=2)]
    shutil.copy(log, tmp_path / "a.log.1")
    os.utime(tmp_path / "a.log.1", (1_000, 1_000))
    with log.open("r+b") as file:
        file.truncate()
    assert names(unsent([log], sent_before)[0]) == ["a.log.1"]
    of_copy, fresh = identify([tmp_path / "a.log.1", log], sent_before, new_id=lambda: "new")
    assert (of_copy.position, fresh.position) == (sent_before[0].position, 0)


class Story:
    """A log, logrotate and a cron job in a random order; `sent` is what the topic got, without a broker."""

    failure = None

    def __init__(self, directory: Path, chance: random.Random, *, appends: bool) -> None:
        self.log, self.chance, self.appends = directory / "app.log", chance, appends
        self.lines: list[str] = []
        self.sent: list[str] = []
        self.out_of_sight: set[str] = set()
        self.state: dict[str, Source] = {}
        self.offset, self.is_new = 0, True
        (directory / "old").mkdir()

    def write(self, count: int = 0) -> None:
        with self.log.open("r+" if self.log.exists() else "w") as file:
            file.seek(0, os.SEEK_END)
            if not self.appends and not self.is_new:
                file.seek(self.offset)  # leaves a hole if it was truncated
            self.is_new = False
            for number in range(len(self.lines), len(self.lines) + (count or self.chance.randint(1, 60))):
                self.lines.append(f"2015-05-17T10:{number // 60 % 60:02d}:{number % 60:02d}Z line {number:06d}")
                file.write(f"{self.lines[-1]}\n")
            self.offset = file.tell()

    def ship(self) -> None:
        sent_before = list(self.state.values())
        files, gone = unsent([self.log], sent_before)
        assert not gone or any((self.log.parent / "old").iterdir())
        sources = identify([self.log, *files], sent_before, new_id=lambda: str(self.chance.random()))
        now_ms = time.time_ns() // 1_000_000
        shipment = Shipment(
            sources={source.source_id: source for source in sources},
            delivery=self,  # type: ignore[arg-type]
            checkpoint=lambda sources, clean: self.state.update((source.source_id, source) for source in sources),
            server_name=b"",
            progress=lambda *counts: None,
            checkpoint_lines=7,
        )
        shipment.run(LineReading(now_ms=now_ms, line_bytes_max=1000, include_partial_line=False))

    def send(self, text: bytes, *how: object, **more: object) -> None:
        self.sent.append(text.decode())

    def settle(self) -> None: ...

    def finish(self) -> None: ...

    def make_room(self) -> Path:
        for number in range(20, 0, -1):
            for ending in ("", ".gz", ".xz"):
                if (older := self.log.with_name(f"app.log.{number}{ending}")).exists():
                    older.rename(older.with_name(f"app.log.{number + 1}{ending}"))
        return self.log.with_name("app.log.1")

    def rename(self, target: Path | None = None) -> None:
        self.log.rename(target or self.make_room())
        self.is_new = True
        self.write(1)

    def move_out_of_sight(self) -> None:
        self.out_of_sight |= set(self.lines) - set(self.sent)
        self.rename(self.log.parent / "old" / str(len(self.lines)))

    def copy(self, path: Path, copy: Path, content: bytes) -> None:
        """In two steps, with perhaps a run behind each of them."""
        for part in (content[: len(content) // 2], content):
            copy.write_bytes(part)
            shutil.copystat(path, copy)
            if self.chance.random() < 0.5:
                self.ship()

    def copy_and_truncate(self) -> None:
        self.copy(self.log, self.make_room(), self.log.read_bytes())
        os.truncate(self.log, 0)

    def compress(self) -> None:
        if plain := [path for path in self.log.parent.glob("app.log.*") if path.suffix not in (".gz", ".xz")]:
            path = self.chance.choice(plain)
            ending, pack = self.chance.choice([("gz", gzip.compress), ("xz", lzma.compress)])
            self.copy(path, path.with_name(f"{path.name}.{ending}"), pack(path.read_bytes()))
            path.unlink()


@pytest.mark.parametrize("appends", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_each_line_is_sent_once_whatever_a_rotation_does_between_two_runs(seed: int, appends: bool, tmp_path: Path) -> None:
    story = Story(tmp_path, random.Random(seed), appends=appends)
    story.write()
    story.ship()
    rotations = (story.rename, story.copy_and_truncate, story.compress, story.move_out_of_sight)
    for _ in range(10):
        story.chance.choice((story.write, story.ship, story.ship, *rotations))()
    story.ship()
    assert len(story.sent) == len(set(story.sent))
    assert set(story.lines) - set(story.sent) <= story.out_of_sight
