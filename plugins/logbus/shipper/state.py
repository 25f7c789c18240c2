"""How far each file was sent, on disk: one JSON file, replaced as a whole, locked by the run that uses it.

Kept per topic id, so a topic that was deleted and created again starts from nothing. The state is written before the first
line is sent and then only after everything sent so far is acknowledged (a checkpoint). So a crash leaves a state that may lag
behind the topic, but is never ahead of it: `clean` is false, and `next_offsets` holds the offsets from which to look for lines
sent since that checkpoint.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from logbus.atomic_write import replace_atomically
from logbus.errors import StateInUse, StateUnusable
from logbus.shipper.sources import Fingerprint, Source

FORMAT_VERSION = 1
ANOTHER_STATE = "Without it, or with another one (--state), every line is sent again"
SOURCES_REMEMBERED = 10_000  # years of hourly rotation; the least recently used are forgotten first


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedTopic:
    """What is known about one topic: its files, and the offsets at which lines sent after the last checkpoint would begin."""

    topic: str
    clean: bool = True
    next_offsets: Mapping[int, int] = field(default_factory=dict)
    sources: Mapping[str, Source] = field(default_factory=dict)


class ShipState:
    """The state file while this run holds its lock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._topics: dict[str, Any] = self._load()

    def topic(self, topic_id: str, name: str) -> ShippedTopic:
        """The state of a topic; an empty one if nothing was ever sent to it."""
        stored = self._topics.get(topic_id)
        if stored is None:
            return ShippedTopic(topic=name)
        return ShippedTopic(
            topic=name,
            clean=stored["clean"],
            next_offsets={int(partition): offset for partition, offset in stored["next_offsets"].items()},
            sources={source["source_id"]: _read_source(source) for source in stored["sources"]},
        )

    def save(self, topic_id: str, state: ShippedTopic) -> None:
        """Replace the file; after a crash it holds either the old state or this one."""
        latest = list(state.sources.values())[-SOURCES_REMEMBERED:]
        self._topics[topic_id] = {
            "topic": state.topic,
            "clean": state.clean,
            "next_offsets": dict(state.next_offsets),
            "sources": [asdict(source) for source in latest],
        }
        try:
            content = json.dumps({"version": FORMAT_VERSION, "topics": self._topics}, indent=1)
            replace_atomically(self._path, content.encode())
        except OSError as error:
            raise StateUnusable(
                f"cannot write the state file {self._path}: {error.strerror}. Give it space, or change its owner. {ANOTHER_STATE}"
            ) from error

    def _load(self) -> dict[str, Any]:
        try:
            stored = json.loads(self._path.read_text())
            if stored["version"] != FORMAT_VERSION:
                raise StateUnusable(
                    f"the state file {self._path} has format {stored['version']}, this program writes {FORMAT_VERSION}: use the "
                    f"program that wrote it. {ANOTHER_STATE}"
                )
            topics: dict[str, Any] = stored["topics"]
            return topics
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateUnusable(
                f"cannot read the state file {self._path}: {error}. Restore it from a backup if there is one. {ANOTHER_STATE}"
            ) from error


@contextmanager
def open_state(path: Path) -> Iterator[ShipState]:
    """The state under its lock; StateInUse if another run holds the lock."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(path.name + ".lock").open("w")
    except OSError as error:
        raise StateUnusable(f"cannot store the state in {path}: {error.strerror}. --state names another file") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StateInUse(
                f"another run is using the state file {path}: wait for it. Only files that no other run sends may have a state "
                "of their own (--state)"
            ) from None
        yield ShipState(path)


def _read_source(stored: dict[str, Any]) -> Source:
    fingerprints = {name: Fingerprint(**stored[name]) for name in ("head", "last_line")}
    return Source(**{**stored, **fingerprints, "ahead": tuple(stored["ahead"])})
