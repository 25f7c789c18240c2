"""What a load stores for later audits to compare values with (`window.values_hash`).

The fingerprint identifies the records of a window; as a column of the rows it proves nothing about the other columns. So every
commit stores checksums of what it made public: of the rows if the sink is a table, of each file if it writes files, and of the
dead letters; and with them, by partition, the fingerprints of what was staged, which with a filter differ from those of what was
read. A window loaded before there were checksums has None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Checksum:
    """Sums over rows of a table in the database, by the records' partition. `columns`: the covered ones, name to type, as they
    were when the checksum was taken.

    `probe` is the result of the same functions for constant values: a server whose functions return something else (a new major
    version, another machine) cannot reproduce this checksum.
    """

    sums: Mapping[str, str]
    probe: str
    columns: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        return {"sums": dict(self.sums), "probe": self.probe, "columns": dict(self.columns)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The checksums of one window. `staged`: by partition the fingerprint of rows and dead letters; `files`: name to hash."""

    staged: Mapping[int, str] = field(default_factory=dict)
    table: Checksum | None = None
    files: Mapping[str, str] | None = None
    dead_letters: Checksum | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "staged": {str(partition): fingerprint for partition, fingerprint in self.staged.items()},
            "table": self.table and self.table.to_json(),
            "files": self.files if self.files is None else dict(self.files),
            "dead_letters": self.dead_letters and self.dead_letters.to_json(),
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Published:
        """The inverse of `to_json`."""
        table, dead = (found[name] and Checksum(**found[name]) for name in ("table", "dead_letters"))
        staged = {int(partition): fingerprint for partition, fingerprint in found["staged"].items()}
        return cls(staged=staged, table=table, files=found["files"], dead_letters=dead)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuesReport:
    """What a sink found when it took the checksums again."""

    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


# For a window that was loaded before there were checksums.
NOT_WITNESSED = ValuesReport(
    notes=("loaded by a logbus that kept no checksum of the values: only counts and fingerprints are compared; load it again",)
)


def join(*reports: ValuesReport) -> ValuesReport:
    return ValuesReport(
        problems=tuple(problem for report in reports for problem in report.problems),
        notes=tuple(note for report in reports for note in report.notes),
    )
