"""Rotated files of a log, found from its name alone, so that a rotation between two runs of a cron job loses nothing.

logrotate and similar tools rename `access.log` to `access.log.1` or `access.log-20260522`, perhaps compress it, and a new
`access.log` begins. A run that is given only `access.log` would miss what was written between the last run and the rotation. So
it also looks at files with such names in the same directory:

- a file whose content was sent before (sources.py) and that has more: its rest is sent;
- a file never seen before, if the named file is a new one and this one was written after the newest known file: it was begun and
  rotated between two runs.

Files older than the first run are not lost lines: they are only mentioned, and sent if they are named.

Symbolic links are left out: whoever may write in the log's directory could have a shipper with more rights send any file by one.
A file that is named may be a link, as the logs of Kubernetes are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from logbus.collector.line_reader import text_bytes
from logbus.collector.sources import Source, check_readable, found_again, is_rotated
from logbus.errors import LogGone


def beside(path: Path) -> list[Path]:
    """Files that look like rotated ones of this log, the least recently written first."""
    try:
        found = [one for one in path.parent.iterdir() if is_rotated(one.name, path.name) and is_file_itself(one)]
        return sorted((one for one in found if not is_being_compressed(one)), key=written)
    except OSError:
        return []


def is_file_itself(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def is_being_compressed(path: Path) -> bool:
    """gzip removes a file once its compressed copy is complete: until then the file itself is the one to read."""
    return path.suffix == ".gz" and path.with_suffix("").exists()


def written(path: Path) -> float:
    return path.stat().st_mtime


def unsent(paths: Iterable[Path], known: Sequence[Source]) -> list[Path]:
    """Rotated files of these logs that hold lines not yet sent."""
    paths = list(paths)
    return [one for path in paths for one in _unsent_of(path, known) if one not in paths]


def never_sent(paths: Iterable[Path], known: Sequence[Source]) -> list[Path]:
    """Rotated files of logs that are sent for the first time: they are left alone, and only mentioned."""
    paths = list(paths)
    return [one for path in paths if not _known_of(path, known) for one in beside(path) if one not in paths]


def _known_of(path: Path, known: Sequence[Source]) -> list[Source]:
    names = {str(path), *map(str, beside(path))}
    return [source for source in known if source.path in names]


def _unsent_of(path: Path, known: Sequence[Source]) -> list[Path]:
    ours = _known_of(path, known)
    if not ours:
        return []
    found: list[Path] = []
    strangers: list[Path] = []
    newest_known = max((source.timestamp_ms or 0) / 1000 for source in ours)
    for one in beside(path):
        # A file that is renamed at this moment is found by the next run, under its new name.
        with suppress(LogGone, FileNotFoundError):
            check_readable(one)
            source = found_again(one, known)
            if source is None:
                strangers.append(one)
                continue
            newest_known = max(newest_known, written(one))
            if text_bytes(one) > source.position:
                found.append(one)
    if path.exists() and found_again(path, known) is not None:
        return found  # it has not been rotated since: strangers are older than the first run
    return found + [one for one in strangers if written(one) > newest_known]
