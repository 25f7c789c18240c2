"""What clients asked for and what was answered: plain values, so that the simulation and runs of real processes write the same,
as JSON lines.

Each event has `at` (microseconds; any clock, the same for all), `event` and, if it belongs to a client, `client`:

    invoke   client, op, topic, partition, values          a send was given to a producer; `values` are unique in a history
    ok       op, offset                                    acknowledged: the values are at offset, offset + 1, ..
    fail     op, error                                     refused: none of it was stored
    unknown  op, error                                     the outcome is unknown
    poll     client, topic, partition, position, records, next    records: (offset, value) as received; `next` is asked for next
    seek     client, topic, partition, position            moved there on purpose, or since the position was out of range
    corrupt  client, topic, partition, position            the answer was not whole batches
    ends     client, topic, partition, latest              the log's end as a client received it
    drained  client, topic, partition, start, end          at the very end a client has read everything from start to end
    fault    kind                                          records may be gone after it: see `checker.LOST_BY`

`invoke` holds what was promised (`promise`: none, written, replicated or flushed). The event that ends an operation holds whether
the broker had to store it exactly once (`exactly_once`) and in which run of numbered batches it was sent (`session`, null where a
retry may have changed the order).
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
