"""A stream's driver without Spark: it reads the log in memory, adds up in Python, and commits to the ledger."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import groupby
from typing import Any, Self

import pyarrow as pa
from logbus.fingerprint import combine, record_hash
from logbus.model import Grid, instant, parse_instant
from logbus.streams import epoch_commit, stream_ledger
from logbus.streams.epoch_commit import Epoch
from logbus.streams.epochs import EpochPart, FrozenHour
from logbus.streams.stream_ledger import Ownership

from tests.support.event_lines import EventLines
from tests.support.fake_log import KEY
from tests.support.ledgers import NOW

MINUTE = timedelta(minutes=1)
HEADERS = [("host", b"web-1")]  # as `Loading` has them
Span = tuple[int, int, int, datetime]  # partition, start, end, hour of arrival


@dataclass
class StreamDriver:
    """Of a stream of `event_lines.MEASURES` by minute and status. `shift` moves the hours that it foresees."""

    lines: EventLines
    ownership: Ownership
    shift: timedelta = timedelta(0)

    @classmethod
    def begin(cls, lines: EventLines, name: str = "live", **how: Any) -> Self:
        return cls(lines=lines, ownership=stream_ledger.begin(lines.world.ledger.engine, name, "run", NOW), **how)

    def read(self, offsets_max: int = 10_000, until: int = 10**9, partitions: Iterable[int] | None = None) -> int:
        """Commits the next epoch; gives how many records it read."""
        epoch = self.epoch(self.plan(offsets_max, until, partitions))
        if epoch.parts:
            self.commit(epoch)
        return epoch.read

    def read_all(self, offsets_max: int = 10_000, until: int = 10**9) -> Self:
        while self.read(offsets_max, until):
            pass
        return self

    def commit(self, epoch: Epoch) -> None:
        self.ownership = epoch_commit.commit_epoch(self.lines.world.ledger.engine, self.ownership, epoch, NOW)

    def repair(self) -> bool:
        engine = self.lines.world.ledger.engine
        repair = epoch_commit.find_repair(engine, self.ownership.stream)
        if repair is not None:
            ranges = repair.ranges.items()
            spans = [span for partition, (start, end) in ranges for span in self.spans(partition, start, end, repair.frozen)]
            self.ownership = epoch_commit.replace_hours(engine, self.ownership, repair, self.epoch(spans), NOW)
        return repair is not None

    def plan(self, offsets_max: int, until: int, partitions: Iterable[int] | None = None) -> list[Span]:
        log = self.lines.world.log.topics["t"]
        frozen = epoch_commit.frozen_hours(self.lines.world.ledger.engine, self.ownership.stream)
        spans = []
        for partition, start in self.ownership.positions.items():
            end = min(len(log[partition].stamps_ms), start + offsets_max, until)
            if partitions is None or partition in partitions:
                spans += self.spans(partition, start, end, frozen)
        return spans

    def spans(self, partition: int, start: int, end: int, frozen: Sequence[FrozenHour]) -> list[Span]:
        hours = [(self.hour_of(partition, offset, frozen), offset) for offset in range(start, end)]
        grouped = [(hour, [offset for _, offset in group]) for hour, group in groupby(hours, key=lambda pair: pair[0])]
        return [(partition, offsets[0], offsets[-1] + 1, hour) for hour, offsets in grouped]

    def hour_of(self, partition: int, offset: int, frozen: Sequence[FrozenHour]) -> datetime:
        """As it is frozen; after that of the newest record so far, which is where freezing finds the boundary."""
        for window in frozen:
            expected = window.ranges.get(partition)
            if expected is not None and expected.start_offset <= offset < expected.end_offset:
                return window.interval.start
        stamps = [stamp for stamp in self.lines.world.log.topics["t"][partition].stamps_ms[: offset + 1] if stamp is not None]
        foreseen = Grid().floor(instant(max(stamps)) + self.shift)
        return max([foreseen, *(window.interval.end for window in frozen)])

    def epoch(self, spans: Iterable[Span], *, counts: bool = True) -> Epoch:
        number, parts, groups = self.ownership.epoch + 1, [], dict[tuple[Any, ...], list[Mapping[str, Any]]]()
        newest = None
        for partition, start, end, hour in spans:
            log = self.lines.world.log.topics["t"][partition]
            untimed, hashes = 0, []
            for offset in range(start, end):
                stamp, value = log.stamps_ms[offset], log.values[offset]
                assert stamp is not None
                newest = max(newest or instant(stamp), instant(stamp))
                hashes.append(record_hash(partition, offset, stamp, KEY, value, HEADERS))
                line = json.loads(value) if counts else {"time": None}
                if line["time"] is None:
                    untimed += 1
                else:
                    minute = Grid(MINUTE).floor(parse_instant(line["time"]))
                    groups.setdefault((hour, minute, line["status"]), []).append(line)
            parts.append(
                EpochPart(
                    partition=partition,
                    start_offset=start,
                    end_offset=end,
                    epoch=number,
                    hour=hour,
                    read=len(hashes),
                    fingerprint=combine(hashes),
                    untimed=untimed,
                )
            )
        deltas = [delta(*key, lines) for key, lines in groups.items()]
        return Epoch(number=number, parts=parts, deltas=pa.Table.from_pylist(deltas), newest_timestamp=newest)


def delta(hour: datetime, minute: datetime, status: int, lines: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The stored columns of a group."""
    sizes, seconds, hosts = ([line[name] for line in lines if line[name] is not None] for name in ("bytes", "seconds", "host"))
    return {
        "arrived_hour": hour,
        "window_start": minute,
        "status": status,
        "requests": len(lines),
        "bytes": str(sum(sizes)) if sizes else None,
        "first_host": min(hosts, key=str.encode) if hosts else None,
        "last": max(parse_instant(line["time"]) for line in lines),
        "slowness_sum": str(sum(Decimal(f"{second:.15g}") for second in seconds)) if seconds else None,
        "slowness_count": len(seconds),
    }
