"""How fast topics grow, computed from end offsets seen at two instants. Kept in memory, bounded, lost with the process.

It costs no request: code that reads end offsets for another reason records them here. One look gives no rate, so it is None until
the second. A topic that was deleted and created again is a different topic: its id is part of the key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Lock

# The time that a rate is averaged over: long enough to smooth bursts, short enough to show that a producer has stopped.
RATE_WINDOW = timedelta(minutes=5)

# Two looks closer together than this would show jitter.
LOOKS_APART_MIN = timedelta(seconds=2)

LOOKS_MAX = 64  # per topic; the oldest is dropped first
TOPICS_MAX = 10_000  # the one added first is dropped


@dataclass(frozen=True, slots=True)
class Look:
    """The sum of a topic's end offsets at an instant."""

    at: datetime
    records: int


class Rates:
    """Shared by all threads of a process."""

    def __init__(self) -> None:
        self._looks: dict[str, deque[Look]] = {}
        self._lock = Lock()

    def put_down(self, key: str, ends: Mapping[int, int], at: datetime) -> None:
        """Records the end offsets seen of the topic with this key (its id, and whatever else distinguishes it)."""
        look = Look(at, sum(ends.values()))
        with self._lock:
            if key not in self._looks and len(self._looks) >= TOPICS_MAX:
                self._looks.pop(next(iter(self._looks)))
            looks = self._looks.setdefault(key, deque(maxlen=LOOKS_MAX))
            if looks and (look.at - looks[-1].at < LOOKS_APART_MIN or look.records < looks[-1].records):
                return
            looks.append(look)
            while look.at - looks[0].at > RATE_WINDOW and len(looks) > 2:
                looks.popleft()

    def per_second(self, key: str) -> float | None:
        """Records per second between the oldest look kept and the newest."""
        with self._lock:
            looks = self._looks.get(key)
            if not looks or len(looks) < 2:
                return None
            first, last = looks[0], looks[-1]
        return (last.records - first.records) / (last.at - first.at).total_seconds()
