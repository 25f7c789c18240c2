"""The error for a log that is not the one in the ledger: what it held, what it holds now, and what may have happened.

Spark workers raise it too, so this module needs no database.
"""

from __future__ import annotations

from collections.abc import Iterable

from logbus.errors import LogChanged
from logbus.fingerprint import as_text
from logbus.model import Witness, instant, instant_text

WHAT_HAPPENED = (
    "The broker's data was restored from a backup, a replica without these records became the leader (unclean.leader.election), "
    "or the topic was made again"
)
WHAT_TO_DO = (
    "Nothing is loaded from it. If this is the wrong broker, name the right one; if those records are gone for good, "
    "`logbus pipeline rebase {pipeline}` goes on with what the log holds now, and says what may be lost"
)


def another_log(pipeline_name: str, differences: Iterable[str]) -> LogChanged:
    return LogChanged(
        f"the log is not what the ledger remembers: {'; '.join(differences)}. {WHAT_HAPPENED}. "
        f"{WHAT_TO_DO.format(pipeline=pipeline_name)}"
    )


def record_changed(topic: str, partition: int, expected: Witness, found: Witness | None) -> str:
    now = f"one {look(found)}" if found else 'none (if compaction took it, register the pipeline with {"offset_gaps": true})'
    return f"{topic}-{partition} held at offset {expected.offset} a record {look(expected)}, and now {now}"


def look(witness: Witness) -> str:
    epoch = "" if witness.leader_epoch is None else f"epoch {witness.leader_epoch}, "
    return f"stamped {stamp_text(witness.timestamp_ms)} ({epoch}hash {as_text(witness.hash)})"


def stamp_text(timestamp_ms: int) -> str:
    """A timestamp may be any number of milliseconds; -1 means none."""
    try:
        return instant_text(instant(timestamp_ms)) if timestamp_ms >= 0 else "not at all"
    except OverflowError:
        return f"{timestamp_ms} ms"
