"""What clients asked for and were told: plain values, so that the simulation and runs of real processes write the same, as JSON lines.

Each event has `at` (microseconds; any clock, one for all), `event` and, where it belongs to a client, `client`:

    invoke   client, op, topic, partition, values          a send was given to a producer; `values` are unique in a history
    ok       op, offset                                    acknowledged: the values lie at offset, offset + 1, ..
    fail     op, error                                     refused: none of it was stored
    unknown  op, error                                     nobody knows
    poll     client, topic, partition, position, records, next    records are (offset, value) as they came; the next poll asks for `next`
    seek     client, topic, partition, position            the consumer went there on purpose, or since its place was out of range
    corrupt  client, topic, partition, position            what came was no whole batch
    ends     client, topic, partition, latest              the log's end as a client was told
    drained  client, topic, partition, start, end          at the very end somebody has read all from start to end
    fault    kind                                          one after which records may be gone: see `checker.LOST_BY`

`invoke` says what was promised (`promise`: none, written, replicated or flushed). The event that ends an operation says whether the
broker had to store it exactly once (`exactly_once`) and in which run of numbered batches it was sent (`session`, null where a retry
may have changed the order).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Event = dict[str, Any]


class History:
    """The events of one run, in the order in which they happened."""

    def __init__(self, now: Callable[[], int]) -> None:
        self.events: list[Event] = []
        self.now = now

    def add(self, event: str, **values: Any) -> None:
        self.events.append({"at": self.now(), "event": event, **values})


def write(path: Path, events: Iterable[Event]) -> None:
    """One line of JSON for each event."""
    path.write_text("".join(json.dumps(event) + "\n" for event in events))


def read(path: Path) -> list[Event]:
    """What `write` wrote."""
    return [json.loads(line) for line in path.read_text().splitlines()]
