"""What the files of a window hold, byte for byte: hashed before they become public, and again by every audit.

Files are written once and never changed, so a file that differs was tampered with. They are read in pieces, at some gigabytes a
second; in an object store that is one more download of each file, by the load and by the audit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import xxhash

from logbus.ledger.values import ValuesReport
from logbus.warehouse.directory import Directory

PIECE_BYTES = 4 * 1024 * 1024


def content_hashes(directory: Directory, paths: Sequence[str]) -> dict[str, str]:
    """Hashes by name relative to the directory, so that they stay valid if the table is moved with its files."""
    return {name_of(directory, path): content_hash(directory, path) for path in paths}


def name_of(directory: Directory, path: str) -> str:
    return path.removeprefix(f"{directory.path}/")


def content_hash(directory: Directory, path: str) -> str:
    digest = xxhash.xxh3_128()
    with directory.filesystem.open_input_stream(path) as stream:
        while piece := stream.read(PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def compare_files(directory: Directory, then: Mapping[str, str], paths: Sequence[str]) -> ValuesReport:
    """Whether the window's current files are those that were loaded, with the same content."""
    return ValuesReport(problems=tuple(file_problems(directory, then, {name_of(directory, path): path for path in paths})))


def file_problems(directory: Directory, then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    if missing := sorted(then.keys() - now.keys()):
        yield f"the table does not name {', '.join(missing)} any more, which was loaded: it was replaced or removed"
    if others := sorted(now.keys() - then.keys()):
        yield f"the table names {', '.join(others)}, which no load of this window wrote: rows were rewritten or added"
    for name in sorted(then.keys() & now.keys()):
        try:
            is_same = content_hash(directory, now[name]) == then[name]
        except FileNotFoundError:
            yield f"the file {name} is gone"
            continue
        if not is_same:
            yield f"the file {name} does not hold what was loaded: it was changed"
