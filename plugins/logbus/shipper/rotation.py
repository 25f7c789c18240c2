"""Rotated files of a log, found from its name alone: a rotation between two runs of a cron job loses nothing that is beside it.

logrotate and similar tools rename `access.log` to `access.log.1` or `access.log-20260522`, perhaps compress it, and a new
`access.log` begins. A run that is given only `access.log` would miss what was written between the last run and the rotation. So
it also looks at files with such names in the same directory:

- a file whose content was sent before (sources.py) and that has more: its rest is sent;
- a file never seen before, if the named file is a new one and this one was written after the newest known file, as the last run
  saw it: it was begun and rotated between two runs. The same if all that was seen of the named file is that it was empty.

A log whose file is neither under its name nor beside it, though lines of it were sent, has gone where this does not look
(another directory, an archive), or was truncated. That is reported.

Files older than the first run are not lost lines: they are only mentioned, and sent if they are named.

Symbolic links are left out: whoever may write in the log's directory could have a shipper with more rights send any file by one.
A file that is named may be a link, as the logs of Kubernetes are.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from logbus.errors import LogGone
from logbus.shipper.line_reader import holds_more
from logbus.shipper.sources import RENAMED, Source, check_readable, is_beginning_of, is_rotated, known_source, unpacked_name


def beside(path: Path) -> list[Path]:
    """Files that look like rotated ones of this log, the least recently written first."""
    logs = [path, path.resolve()] if path.is_symlink() else [path]  # Kubernetes' logs are rotated where their links lead
    try:
        named = {file for log in logs for file in log.parent.iterdir() if is_rotated(file.name, log.name)}
        files = [file for file in named if file.is_file() and not file.is_symlink() and not _is_being_compressed(file)]
        return sorted(files, key=lambda file: file.stat().st_mtime)
    except OSError:
        return []


def _is_being_compressed(path: Path) -> bool:
    """gzip and its like remove a file once its compressed copy is complete: until then the file itself is the one to read."""
    name = unpacked_name(path.name)
    return name != path.name and path.with_name(name).exists()


def unsent(paths: Sequence[Path], sent_before: Sequence[Source]) -> tuple[list[Path], list[Source]]:
    """Rotated files of these logs that hold lines not yet sent; and the sources that were last known under these names and are
    neither there nor beside them: whether they got more lines is unknown. LogGone if a rotation is under way."""
    looks = [_look_at(path, sent_before) for path in paths]
    files = [file for with_more, _ in looks for file in with_more if file not in paths]
    return files, [source for _, gone in looks for source in gone]


def never_sent(paths: Sequence[Path], sent_before: Sequence[Source]) -> list[Path]:
    """Rotated files of logs that are sent for the first time: they are left alone, and only mentioned."""
    return [file for path in paths if not _sources_of(path, sent_before) for file in beside(path) if file not in paths]


def _sources_of(path: Path, sent_before: Sequence[Source]) -> list[Source]:
    names = {str(path), *map(str, beside(path))}
    return [source for source in sent_before if source.path in names]


def _look_at(path: Path, sent_before: Sequence[Source]) -> tuple[list[Path], list[Source]]:
    ours = _sources_of(path, sent_before)
    if not ours:
        return [], []
    with_more: list[Path] = []
    strangers: list[Path] = []
    by_source: dict[str, Path] = {}
    is_renamed = False
    for file in beside(path):
        # A file that is renamed at this moment is found by the next run, under its new name.
        try:
            check_readable(file)
            source = known_source(file, sent_before)
            if source is None:
                strangers.append(file)
                continue
            by_source[source.source_id] = file
            if holds_more(file, source.position):
                with_more.append(file)
        except (LogGone, FileNotFoundError):
            is_renamed = True
    current = known_source(path, sent_before) if path.exists() else None
    visible = {*by_source, current.source_id if current is not None else None}
    last = next((source for source in reversed(ours) if source.path == str(path)), None)
    if last is not None and last.is_blank and any(file.stat().st_ino == last.inode for file in beside(path)):
        visible.add(last.source_id)  # nothing but its inode is known of it
    gone = [last] if last is not None and last.source_id not in visible else []
    if gone and is_renamed:
        raise LogGone(f"{path} {RENAMED}")
    if current is not None and not any(source.is_blank for source in sent_before if source.source_id == current.source_id):
        return with_more, gone  # it has not been rotated since: strangers are older than the first run
    newest_known_ns = max(source.written_ns for source in ([last] if last is not None else ours))
    newer = [file for file in strangers if file.stat().st_mtime_ns > newest_known_ns]
    return with_more + [file for file in newer if not (path.exists() and is_beginning_of(file, path))], gone
