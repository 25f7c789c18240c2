from __future__ import annotations

import gzip
import lzma
import os
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from logbus.errors import LogGone, UnreadableLog
from logbus.shipper.sources import Fingerprint, Source, check_readable, identify

LINES = [b"2015-05-17T10:%02d:%02dZ line\n" % (minute, second) for minute in range(4) for second in range(60)]
TEXT = b"".join(LINES)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "access.log"
    path.write_bytes(TEXT)
    return path


def sent(path: Path, *, lines: int = len(LINES)) -> Source:
    """The source of a file after `lines` of its lines were sent."""
    (source,) = identify([path], [])
    end = sum(map(len, LINES[:lines]))
    position = end - len(LINES[lines - 1])
    return replace(source, position=end, last_line=Fingerprint.of(LINES[lines - 1].rstrip(), position=position))


def only(paths: Sequence[Path], sent_before: Sequence[Source]) -> Source:
    (source,) = identify(paths, sent_before)
    return source


def test_a_file_never_seen_starts_at_its_beginning(log: Path) -> None:
    source = only([log], [])
    assert (source.position, source.path) == (0, str(log))


def test_a_grown_file_goes_on_where_it_was(log: Path) -> None:
    sent_before = sent(log)
    with log.open("ab") as file:
        file.write(b"2015-05-17T11:00:00Z more\n")
    assert only([log], [sent_before]).position == len(TEXT)


def test_a_file_first_seen_short_is_known_again_when_it_has_grown(tmp_path: Path) -> None:
    path = tmp_path / "short.log"
    path.write_bytes(LINES[0])
    sent_before = sent(path, lines=1)
    path.write_bytes(TEXT)
    assert only([path], [sent_before]).source_id == sent_before.source_id


def test_a_renamed_file_is_the_same(log: Path) -> None:
    sent_before = sent(log)
    renamed = log.rename(log.with_name("access.log.1"))
    assert only([renamed], [sent_before]) == replace(sent_before, path=str(renamed))


@pytest.mark.parametrize("name", ["copy.log", "access.log.2.gz", "access.log.2.xz"])
def test_a_copy_goes_on_where_the_file_was_that_is_gone(name: str, log: Path) -> None:
    sent_before = sent(log)
    copy = log.with_name(name)
    packed = {".gz": gzip.compress(TEXT), ".xz": lzma.compress(TEXT)}
    copy.write_bytes(packed.get(copy.suffix, TEXT))
    log.unlink()
    source = only([copy], [sent_before])
    assert (source.source_id, source.position) == (sent_before.source_id, len(TEXT))


MORE = b"2015-05-17T11:00:00Z more\n"


@pytest.mark.parametrize(
    ("name", "of_log", "of_copy", "position"),
    [
        ("copy.log", b"", b"", len(TEXT)),
        ("copy.log", b"", MORE, len(TEXT)),  # a machine that was cloned
        ("copy.log", MORE, MORE + MORE, len(TEXT + MORE)),  # what both have is sent of the first
        ("copy.log", MORE + b"2015-05-17T11:00:01Z o", MORE + b"2015-05-17T11:00:01Z other\n", len(TEXT + MORE)),
        ("copy.log", MORE, b"", None),  # it may still be being copied
        ("access.log.1", b"", b"", None),  # copytruncate has not truncated yet
        ("access.log.1", MORE, b"", None),
    ],
)
def test_a_copy_beside_the_file_itself_is_a_source_of_what_it_has_of_its_own(
    name: str, of_log: bytes, of_copy: bytes, position: int | None, log: Path
) -> None:
    sent_before = sent(log)
    copy = Path(shutil.copy(log, log.with_name(name)))
    for path, more in ((log, of_log), (copy, of_copy)):
        with path.open("ab") as file:
            file.write(more)
    sent_before = replace(sent_before, written_ns=log.stat().st_mtime_ns)
    by_path = {source.path: source for source in identify([copy, log], [sent_before])}
    assert by_path.pop(str(log)) == sent_before
    assert [source.position for source in by_path.values()] == ([] if position is None else [position])
    assert [replace(source, source_id="") for source in identify([copy], [sent_before])] == [
        replace(source, source_id="") for source in by_path.values()
    ], "whether the first is named or not"
    with log.open("ab") as file:
        file.write(b"2015-05-17T12:00:00Z of the first\n")
    assert identify([copy], [sent_before, *by_path.values()]) == list(by_path.values())


def test_a_copy_of_which_little_was_sent_is_another_file(log: Path) -> None:
    sent_before = sent(log, lines=2)
    copy = Path(shutil.copy(log, log.with_name("copy.log")))
    assert only([copy], [sent_before]).position == 0


@pytest.mark.parametrize("text", [b"", TEXT[:100], TEXT.replace(b"2015", b"2016"), TEXT.replace(b"10:03", b"12:03")])
def test_a_file_truncated_or_written_anew_in_place_starts_over(log: Path, text: bytes) -> None:
    sent_before = sent(log)
    log.write_bytes(text)
    source = only([log], [sent_before])
    assert (source.position, source.source_id != sent_before.source_id) == (0, True)


def test_the_same_file_named_twice_is_read_once(log: Path) -> None:
    link = log.with_name("link.log")
    link.symlink_to(log)
    assert len(identify([log, link, log], [])) == 1


def test_different_files_keep_the_order_they_were_named_in(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("b.log", "a.log", "c.log")]
    for path in paths:
        path.write_bytes(path.name.encode() + b"\n")
    assert [source.path for source in identify(paths, [])] == [str(path) for path in paths]


@pytest.mark.parametrize(
    ("content", "is_text"),
    [
        (b"\0" * 100 + LINES[0], True),  # written by a program that does not append, after a truncation
        (b"\0" * 100_000 + LINES[0], True),
        (LINES[0] + b"\0" * 16, True),  # a machine lost power
        (LINES[0] * 400 + b"\0\0", True),
        (b"x" * 8190 + b"\0" * 40, True),
        ("eins\n".encode("utf-16"), False),
        (b"app.log" + b"\0" * 93 + b"0000644\0" + b"0001750\0" * 2, False),  # tar
        (b"\0" * 100 + b"\x7fELF\x02\x01\x01" + b"\0" * 9, False),
    ],
)
def test_a_run_of_zero_bytes_is_a_hole_and_fewer_are_no_text(content: bytes, is_text: bool, tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_bytes(content)
    with nullcontext() if is_text else pytest.raises(UnreadableLog, match=r"not a text file: byte \d+ is NUL. Unpack it"):
        check_readable(path)


def test_what_is_no_file_is_refused_with_what_to_do_instead(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, said in (
        (tmp_path, "is a directory: name the files in it"),
        (tmp_path / "none.log", "does not exist"),
        (pipe, f"not a regular file.* `logbus produce TOPIC < {pipe}` reads a pipe"),
    ):
        with pytest.raises(UnreadableLog, match=said):
            check_readable(path)


def test_a_file_in_a_directory_that_may_not_be_read_is_an_error_and_no_traceback(tmp_path: Path) -> None:
    class Closed(type(tmp_path)):  # type: ignore[misc]
        def stat(self, **how: object) -> None:  # chmod would not do: root may read everything
            raise PermissionError(13, "Permission denied")

    with pytest.raises(UnreadableLog, match=r"cannot read .*a\.log: Permission denied. Run as a user who may"):
        check_readable(Closed(tmp_path / "a.log"))


def test_a_file_that_is_renamed_while_it_is_identified_is_reported(log: Path) -> None:
    class Renamed(type(log)):  # type: ignore[misc]
        looks = 0

        def stat(self, **how: object) -> os.stat_result:
            status = super().stat()
            Renamed.looks += 1
            if Renamed.looks == 2:  # the first one sorts the files
                self.rename(self.with_name("access.log.1"))
                self.write_bytes(b"another\n")
            return status

    with pytest.raises(LogGone, match=r"access\.log was renamed or removed while it was being read"):
        identify([Renamed(log)], [])


@pytest.mark.parametrize(
    ("name", "is_known"),
    [("access.log.1", True), ("access.log-20260522.gz", True), ("access-20260522.log", True), ("copy.log", False)],
)
def test_a_rotated_file_is_known_however_little_was_sent_of_it(name: str, is_known: bool, log: Path) -> None:
    """copytruncate copies it and compress writes a new file: the lines of a short log would otherwise be sent again."""
    sent_before = sent(log, lines=2)
    copy = log.with_name(name)
    copy.write_bytes(gzip.compress(TEXT) if name.endswith(".gz") else TEXT)
    log.write_bytes(LINES[200])
    fresh, rotated = identify([log, copy], [sent_before])
    assert (fresh.position, rotated.position) == (0, sent_before.position if is_known else 0)


def test_a_copy_made_before_the_last_lines_were_sent_of_the_log_itself_is_no_other_file(log: Path) -> None:
    """A run came between copytruncate's copy and its truncation."""
    sent_before = sent(log)
    log.with_name("access.log.1").write_bytes(TEXT[: len(LINES[0]) * 100])
    log.with_name("other.log").write_bytes(TEXT[: len(LINES[0]) * 100])
    log.write_bytes(LINES[200])
    copy, other, fresh = identify([log.with_name("access.log.1"), log.with_name("other.log"), log], [sent_before])
    assert (copy.position, other.position, fresh.position) == (sent_before.position, 0, 0)


def test_a_rotated_file_of_another_beginning_is_not_known(log: Path) -> None:
    sent_before = sent(log, lines=2)
    older = log.with_name("access.log.1")
    older.write_bytes(TEXT.replace(b"T10:00:01", b"T09:00:01"))
    assert only([older], [sent_before]).source_id != sent_before.source_id


@pytest.mark.parametrize(
    ("content", "is_known"),
    [
        (b"\x1f\x8b" + b"not gzip at all", False),
        (gzip.compress(TEXT)[:8], False),
        (gzip.compress(TEXT)[:-40], True),
    ],
    ids=["no gzip", "its header only", "most of it"],  # gzip writes the time: every worker would name it differently
)
def test_of_a_damaged_file_what_precedes_the_damage_is_known(content: bytes, is_known: bool, tmp_path: Path) -> None:
    """Reading it reports the damage, once the other files are sent."""
    path = tmp_path / "broken.gz"
    path.write_bytes(content)
    check_readable(path)
    assert (only([path], []).head.length > 0) is is_known


def test_a_copy_that_is_damaged_before_the_last_line_sent_is_not_taken_for_another_file(tmp_path: Path) -> None:
    """All of its lines would be sent again."""
    log, packed = tmp_path / "app.log", tmp_path / "app.log.1.gz"
    text = "".join(f"line {number}\n" for number in range(9000)).encode()
    log.write_bytes(text)
    last_line = Fingerprint.of(b"line 8999", position=len(text) - 10)
    sent_before = replace(only([log], []), position=len(text), last_line=last_line)
    packed.write_bytes(gzip.compress(text)[:4000])
    log.unlink()
    assert only([packed], [sent_before]).source_id == sent_before.source_id
