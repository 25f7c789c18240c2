"""One run of sending: from merged lines to records, with a checkpoint every so many lines.

The hot loop of the collector: about six microseconds a line on one core of 2020, half of which goes to recognising its time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from os import fsencode
from pathlib import Path

from logbus.collector.compressed import text_bytes
from logbus.collector.delivery import settle
from logbus.collector.numbering import Numbering
from logbus.collector.sources import FilePart, Fingerprint, Source
from logbus.collector.stamped_lines import LineReading, StampedLine, TimeOf, day_text, merged, months_away
from logbus.collector.topic_client import position_header
from logbus.errors import UnreadableLog
from logbus.kafka.producing import CLIENTS_CHOICE, Delivery

PROGRESS_EVERY_LINES = 10_000

Progress = Callable[[int, int, int], None]  # bytes of the files done, bytes in all (on disk), lines sent
Checkpoint = Callable[[Sequence[Source], bool], None]


@dataclass(slots=True, kw_only=True)
class Sent:
    """Counts of one run so far."""

    lines: int = 0
    bytes: int = 0
    skipped: int = 0
    undated: int = 0
    undated_before_any: int = 0
    undated_by_file: int = 0
    ahead: int = 0
    zoneless: int = 0
    recovered: int = 0
    unfinished: int = 0
    waiting: int = 0
    months_away: int = 0
    months_away_day: str | None = None
    holes: tuple[FilePart, ...] = ()
    carriage_returns: tuple[str, ...] = ()


class Shipment:
    """Sends the lines of some sources; calls `checkpoint(sources, clean)` once everything before their positions is acknowledged.

    `stop` is called after each line: a stopped run ends like one that has sent everything, only earlier.
    """

    def __init__(
        self,
        *,
        sources: Sequence[Source],
        delivery: Delivery,
        checkpoint: Checkpoint,
        server_name: str,
        progress: Progress,
        checkpoint_lines: int,
        numbering: Numbering | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._sources = {source.source_id: source for source in sources}
        self._delivery = delivery
        self._checkpoint = checkpoint
        self._server_name = server_name.encode()
        self._progress = progress
        self._checkpoint_lines = checkpoint_lines
        self._numbering = numbering
        self._stop = stop
        self._headers = {name: self._fixed_headers(source) for name, source in self._sources.items()}
        self._ahead = {name: set(source.ahead) for name, source in self._sources.items()}
        self._group: dict[str, set[int]] = {name: set() for name in self._sources}  # sent, but the file cannot go on after them
        self._last: dict[str, StampedLine] = {}
        self._dated = {name for name, source in self._sources.items() if source.timestamp_ms is not None}
        self._sent = Sent()

    def run(self, reading: LineReading) -> Sent:
        """Send everything, or what precedes the stop; return once all of it is acknowledged and recorded. Then raise
        UnreadableLog if a file is damaged: what precedes the damage is sent, and the other files."""
        damaged: list[UnreadableLog] = []
        days: dict[str, dict[int, list[int]]] = {}
        unfinished, waiting = dict[str, bool](), set[str]()
        holes: dict[str, dict[int, int]] = {}
        try:
            self._send_all(reading._replace(damaged=damaged, days=days, unfinished=unfinished, waiting=waiting, holes=holes))
        except BaseException:
            self._delivery.finish()
            raise
        self._settle(clean=True)
        self._sent.unfinished, self._sent.waiting = len(unfinished), len(waiting)
        self._sent.carriage_returns = tuple(self._sources[name].path for name, has_them in unfinished.items() if has_them)
        by_day = [{day: count for day, (count,) in of_source.items()} for of_source in days.values()]
        few = [one for counts in by_day for one in months_away(counts).items()]
        if few:
            self._sent.months_away, self._sent.months_away_day = sum(count for _, count in few), day_text(min(few)[0])
        self._sent.holes = tuple(
            FilePart(path=self._sources[name].path, position=min(runs), pieces=len(runs), bytes=sum(runs.values()))
            for name, runs in holes.items()
            if runs
        )
        if damaged:
            raise damaged[0]
        return self._sent

    def _send_all(self, reading: LineReading) -> None:
        bytes_in_all = sum(max(0, text_bytes(Path(source.path)) - source.position) for source in self._sources.values())
        bytes_done = 0
        for number, line in enumerate(merged(self._sources.values(), reading), 1):
            self._take(line)
            bytes_done += line.end - line.position
            if number % PROGRESS_EVERY_LINES == 0:
                self._progress(bytes_done, bytes_in_all, self._sent.lines)
            if number % self._checkpoint_lines == 0:
                self._settle(clean=False)
            if self._stop() or self._delivery.failure is not None:
                break
        self._progress(bytes_done, bytes_in_all, self._sent.lines)

    def _take(self, line: StampedLine) -> None:
        sent, name = self._sent, line.source_id
        if line.time_of is TimeOf.LINE:
            self._dated.add(name)
        if line.position in self._ahead[name]:
            self._ahead[name].discard(line.position)
            sent.recovered += 1
        elif line.text is None:
            sent.skipped += 1
        else:
            self._send(line, line.text)
            sent.lines += 1
            sent.bytes += len(line.text)
            sent.zoneless += line.is_zoneless
            if line.time_of is not TimeOf.LINE:
                sent.undated += 1
                sent.undated_before_any += line.time_of is TimeOf.LINE_AFTER
                sent.undated_by_file += line.time_of is TimeOf.FILE
                sent.ahead += line.is_ahead
        if line.is_followed:
            self._group[name].add(line.position)
        else:
            self._group[name].clear()
            self._last[name] = line

    def _send(self, line: StampedLine, text: bytes) -> None:
        key, partition = line.host or self._server_name, CLIENTS_CHOICE
        headers = [*self._headers[line.source_id], position_header(line.source_id.encode(), line.position)]
        if self._numbering is not None:
            partition, number = self._numbering.next(key)
            headers.append(number)
        self._delivery.send(text, key, partition, timestamp=line.timestamp_ms, headers=headers)

    def _settle(self, *, clean: bool) -> None:
        settle(self._delivery)
        self._checkpoint([self._position(source) for source in self._sources.values()], clean)

    def _position(self, source: Source) -> Source:
        """The source at its current position."""
        line = self._last.get(source.source_id)
        ahead = tuple(sorted(self._ahead[source.source_id] | self._group[source.source_id]))
        if line is None:
            return replace(source, ahead=ahead)
        text = line.first_text or line.text
        last_line = Fingerprint.of(text, position=line.position) if text else source.last_line
        timestamp_ms = line.timestamp_ms if source.source_id in self._dated else None
        return replace(source, position=line.end, last_line=last_line, timestamp_ms=timestamp_ms, ahead=ahead)

    def _fixed_headers(self, source: Source) -> list[tuple[str, bytes]]:
        return [("server", self._server_name), ("file", fsencode(source.path))]
