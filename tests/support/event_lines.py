"""Lines with a time of their own, which arrive in order or late, as a pipeline's records; and what they add up to, counted from the
lines themselves.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from logbus.expressions import avg_of, count, max_of, min_of, sum_of
from logbus.model import instant_text, milliseconds
from logbus.parsing import Parser, parser_for

from tests.support.ledgers import World, at
from tests.support.loads import Loading

COLUMNS = {"time": "timestamptz", "status": "integer", "bytes": "bigint", "seconds": "double precision", "host": "text"}
MEASURES = {
    "requests": count(),
    "bytes": sum_of("bytes"),
    "first_host": min_of("host"),
    "last": max_of("time"),
    "slowness": avg_of("seconds"),
}


@dataclass(frozen=True, kw_only=True)
class Line:
    """`arrived` decides the window, `time` the event hour; without one it is in no hour."""

    arrived: datetime
    time: datetime | None
    status: int = 200
    size: int | None = 1
    seconds: float | None = 0.1
    host: str | None = "a"

    def value(self) -> bytes:
        fields = {"status": self.status, "bytes": self.size, "seconds": self.seconds, "host": self.host}
        return json.dumps({"time": self.time and instant_text(self.time), **fields}).encode()


def random_lines(source: random.Random, hours: int, per_hour: int, late: float) -> list[Line]:
    """In the order in which they arrive; a part of them up to so many hours after their time."""
    lines = []
    for number in range(hours * per_hour):
        time = at(number / per_hour)
        arrived = (
            at(source.uniform(number // per_hour + 1, hours))
            if number // per_hour < hours - 1 and source.random() < late
            else time
        )
        lines.append(
            Line(
                arrived=arrived,
                time=None if source.random() < 0.01 else time,
                status=source.choice([200, 200, 404, 500]),
                size=source.choice([None, 0, 7, 2**40]),
                seconds=source.choice([None, 0.1, 0.2, 1e-9, 1e9]),
                host=source.choice([None, "a", "B", "\u00e4", "z"]),
            )
        )
    return sorted(lines, key=lambda line: line.arrived)


@dataclass(kw_only=True)
class EventLines:
    """A pipeline `p` of such lines in `world`."""

    world: World
    lines: list[Line] = field(default_factory=list)

    def register(self, **settings: Any) -> None:
        self.world.register(parse="json", settings={"columns": COLUMNS, **settings})

    def arrive(self, lines: Sequence[Line], partition: int = 0) -> None:
        self.lines += lines
        self.world.log.append_values("t", [(milliseconds(line.arrived), line.value()) for line in lines], partition)

    def load(self, *hours: int) -> None:
        for number in hours:
            LineLoading.of(self.world, number).load()


class LineLoading(Loading):
    def value(self, partition: int, offset: int) -> bytes:
        return self.world.log.topics[self.window.topic][partition].values[offset]


def counted(lines: Iterable[Line], window: timedelta) -> Counter[tuple[datetime, int]]:
    """Lines by window of their own time and by status."""
    return Counter((at(0) + (line.time - at(0)) // window * window, line.status) for line in lines if line.time is not None)


def added_up(lines: Sequence[Line], window: timedelta) -> dict[tuple[datetime, int], Mapping[str, Any]]:
    """`MEASURES` of each group."""
    groups: dict[tuple[datetime, int], list[Line]] = {key: [] for key in counted(lines, window)}
    for line in lines:
        if line.time is not None:
            groups[at(0) + (line.time - at(0)) // window * window, line.status].append(line)
    return {key: measured(group) for key, group in groups.items()}


def measured(lines: Sequence[Line]) -> Mapping[str, Any]:
    sizes, hosts = ([value for line in lines if (value := getattr(line, name)) is not None] for name in ("size", "host"))
    seconds = [line.seconds for line in lines if line.seconds is not None]
    return {
        "requests": len(lines),
        "bytes": sum(sizes) if sizes else None,
        "first_host": min(hosts, key=str.encode) if hosts else None,
        "last": max(line.time for line in lines if line.time is not None),
        "slowness": sum(seconds) / len(seconds) if seconds else None,
    }


def lenient(settings: Mapping[str, Any]) -> Parser:
    """Parses the lines as a pipeline does, and a status that is no number as -1."""
    strict = parser_for("json", settings)

    def parse(value: bytes) -> Sequence[Any]:
        fields = json.loads(value)
        return strict.parse(
            json.dumps({**fields, "status": fields["status"] if isinstance(fields["status"], int) else -1}).encode()
        )

    return Parser(columns=strict.columns, parse=parse)
