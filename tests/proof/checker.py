"""Compares the product's claims with the truth. Values are parsed by a few lines of its own, table and ledger are read by plain
SQL (files directly from the disk): none of this is the product's code. A claim that does not hold raises `Violation`:

    published   a load published something other than exactly what its window held when it was frozen
    exact       an audit reports exact, and a record of the window is lost, duplicated, foreign or changed
    hole        an acknowledged record is in no window, or in the wrong one, though its hour is loaded, and nothing reports it
    alarm       a history without a fault was refused, or an audit complains about correct data
    misnamed    the right problem is reported for the wrong hour or partition
    fence       an attempt committed although a newer one had begun
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection, text

from tests.proof.truth import OUT_OF_SIGHT, Place, Record, Row, Truth, Try, Window, ms, parsed

PARSES = ("lines", "json")


class Violation(Exception):
    """The product has claimed something that is not so."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(f"{kind}: {what}")
        self.kind = kind


class Checker(Truth):
    """One pipeline's truth against the product's claims. `files` reads an hour of a table of files; None: a PostgreSQL table."""

    def __init__(
        self,
        name: str,
        length: timedelta,
        *,
        healthy: bool,
        files: Callable[[datetime], Iterable[Mapping[str, Any]]] | None = None,
    ) -> None:
        super().__init__(length)
        self.name, self.healthy, self.files = name, healthy, files
        self.counts: Counter[str] = Counter()

    # Hours and loads

    def froze(self, start: datetime, ranges: Mapping[int, tuple[int, int]], now: datetime) -> None:
        """An hour is or was frozen: its ranges follow the rule, and what they hold now is what the hour holds forever."""
        if start not in self.known.windows:
            self.known.windows[start] = window = self.new_window(start, ranges, now)
            if all(first == end for first, end in ranges.values()):
                window.rows = {}  # its boundaries alone say that it holds nothing: it counts as loaded
            if self.ends_in_the_open(window):
                raise Violation("hole", f"{start:%H} was frozen up to a transaction that is open: its records would come later")
        if dict(ranges) != self.known.windows[start].ranges:
            raise Violation("hole", f"{start:%H} was frozen as {dict(ranges)}, it is {self.known.windows[start].ranges}")

    def begun(self, start: datetime, attempt: Try, parse: str) -> None:
        window = self.known.windows[start]
        window.newest, window.parses = attempt[0], {**window.parses, attempt: parse}

    def catch_up(self, connection: Connection) -> None:
        """A driver killed after its commit reported nothing: its commit is read from the ledger."""
        query = text(
            "select w.starts_at, a.number, a.key from logbus.window w join logbus.attempt a "
            "on a.window_id = w.id and a.number = w.loaded_attempt where w.pipeline = :name"
        )
        for start, number, key in connection.execute(query, {"name": self.name}).all():
            if start in self.known.windows:
                self.committed(connection, start, (number, key))

    def committed(self, connection: Connection, start: datetime, attempt: Try) -> None:
        """A load has published: exactly the window's records, by the definition its attempt began with. An attempt which the
        ledger has forgotten used whatever definition was current then, and a later attempt may have its number."""
        window, number, is_known = self.known.windows[start], attempt[0], attempt in self.known.windows[start].parses
        if attempt in window.loaded:
            return
        if number < window.newest and is_known:
            raise Violation("fence", f"attempt {number} at {start:%H} committed, attempt {window.newest} had begun")
        window.loaded.add(attempt)
        if is_known:
            self.forgotten.discard(start)
        else:
            self.forgotten.add(start)
        gone = {(index, at) for index, part in enumerate(self.parts) for at in part.gone if window.chain == self.log}
        places = set(window.held) - gone if window.rows is None else set(window.rows)
        for parse in [window.parses[attempt]] if is_known else PARSES:
            window.rows = {place: parsed(window.held[place], parse) for place in places}
            if not (wrong := self.differences(connection, start)):
                break
        else:
            raise Violation("published", f"attempt {number} at {start:%H} published {describe(wrong)}")
        self.counts["commits"] += 1

    def redriven(self, start: datetime, parse: str) -> None:
        window = self.known.windows[start]
        rows = window.rows or {}
        window.rows = {place: parsed(window.held[place], parse) if row[0] == "dead" else row for place, row in rows.items()}

    # What a reader sees

    def differences(self, connection: Connection, start: datetime) -> dict[int, list[str]]:
        """By partition, how the table differs from what it must hold of a loaded window."""
        rows = self.known.windows[start].rows or {}
        expected = Counter(rows.items())
        actual = Counter((place, published(row, rows.get(place))) for place, row in self.public(connection, start))
        wrong: dict[int, list[str]] = {}
        for sign, surplus in (("+", actual - expected), ("-", expected - actual)):
            for (partition, offset), row in surplus.elements():
                wrong.setdefault(partition, []).append(f"{sign}{offset} {row}")
        return wrong

    def public(self, connection: Connection, start: datetime) -> Iterator[tuple[Place, Row]]:
        if self.files is None:
            found = connection.execute(text(f"select * from {self.name} where _window_start = :start"), {"start": start})
            rows: Iterable[Mapping[str, Any]] = map(dict, found.mappings())
        else:
            rows = self.files(start)
        for row in rows:
            stamp = row["_timestamp"] and ms(row["_timestamp"])
            yield (row["_partition"], row["_offset"]), ("row", stamp, row.get("line"), row.get("name"))
        query = (
            'select d.partition, d."offset", d.timestamp, d.value from logbus.dead_letter d join logbus.window w on w.id = d.window_id '
            "where w.pipeline = :name and w.starts_at = :start"
        )
        for partition, offset, stamp, value in connection.execute(text(query), {"name": self.name, "start": start}):
            yield (partition, offset), ("dead", stamp and ms(stamp), bytes(value))

    # Claims

    def audited(self, connection: Connection, start: datetime, problems: Sequence[str]) -> None:
        """Exact, or not: and if not, reported for the partitions where it is so."""
        window, said = self.known.windows[start], "; ".join(problems)
        wrong = {} if window.rows is None else self.differences(connection, start)
        doubtful = self.may_have_lost(window) or start in self.forgotten
        excused = self.shaken(window) | (set(window.ranges) if doubtful else set())
        if not problems and (wrong or window.rows is None):
            raise Violation("exact", f"{start:%H} holds {describe(wrong)}" if wrong else f"{start:%H} is not loaded")
        if problems and not wrong and not excused and not doubtful and window.rows is not None:
            raise Violation("alarm", f"{start:%H} is as it must be, and the audit says: {said}")
        if problems and (missed := miscounted(wrong) - named(said)):
            raise Violation("misnamed", f"{start:%H} is wrong in partition {missed}, the audit says: {said}")
        if accused := named(said) - set(wrong) - excused:
            raise Violation("misnamed", f"{start:%H} is right in partition {accused}, the audit says: {said}")
        if window.rows is not None:
            self.counts["named" if problems else "exact"] += 1

    def shaken(self, window: Window) -> set[int]:
        """The partitions whose log differs from when the window was frozen: an audit may report that."""
        if window.chain != self.log:
            return set(window.ranges)
        now = self.records_of(window.ranges)
        changed = {place[0] for place, was in window.held.items() if now.get(place) != was}
        return changed | {part for part, (_, end) in window.ranges.items() if len(self.parts[part].records) < end}

    def may_have_lost(self, window: Window) -> bool:
        return any(lost.when < window.frozen for lost in self.lost)

    def refused(self, what: str, start: datetime | None, error: str) -> None:
        """An operation was refused. In a healthy history that is right only if retention has deleted what was loaded before."""
        self.counts["refused"] += 1
        window = self.known.windows.get(start) if start else None
        if self.healthy and not (window and self.is_deleted(window)):
            raise Violation("alarm", f"{what} was refused: {error}")

    def is_deleted(self, window: Window) -> bool:
        return any(self.parts[part].start > start for part, (start, end) in window.ranges.items() if start < end)

    def found(self, findings: Sequence[tuple[str, str]]) -> None:
        """Everything is loaded and audited: the doctor finds nothing in a healthy pipeline that needs attention."""
        if self.healthy and (wrong := [message for severity, message in findings if severity in ("error", "warning")]):
            raise Violation("alarm", f"the doctor says: {wrong[0]}")

    def finish(self, connection: Connection) -> None:
        """No acknowledged record of an audited hour is missing; none is in two windows; windows are adjacent."""
        query = text("select starts_at from logbus.window where pipeline = :name and audited_at is not null")
        audited = set(connection.execute(query, {"name": self.name}).scalars())
        for start in audited & set(self.known.windows):
            self.check_lost(self.known.windows[start])
        windows = sorted((one for one in self.known.windows.values() if one.chain == self.log), key=lambda one: one.start)
        self.check_passed_over([one for one in windows if one.start in audited], windows)
        held = Counter(place for window in windows for place in window.held)
        if twice := [place for place, count in held.items() if count > 1]:
            raise Violation("hole", f"in two windows: {twice}")
        for earlier, later in pairwise(windows):
            for number in earlier.ranges.keys() & later.ranges.keys():
                end, start = earlier.ranges[number][1], later.ranges[number][0]
                if start < end or (start > end and later.start == earlier.end):
                    raise Violation(
                        "hole", f"partition {number}: {earlier.start:%H} ends at {end}, {later.start:%H} begins at {start}"
                    )

    def check_lost(self, window: Window) -> None:
        for lost in self.lost:
            if lost.why != OUT_OF_SIGHT and lost.may_be_of(window):
                raise Violation("hole", f"{window.start:%H} is audited; {lost.record.value!r} of that hour is lost: {lost.why}")

    def check_passed_over(self, audited: Sequence[Window], windows: Sequence[Window]) -> None:
        """Records in the log that are in no window, before the end of an hour and of those that directly follow it."""
        held = {record for window in windows for record in window.held.values()}
        for window in audited:
            reach = self.reach(window)
            for number, part in enumerate(self.parts):
                for at, record in part.readable():
                    is_missing = at < reach.get(number, 0) and record not in held and self.sent[record.value] < window.frozen
                    if is_missing and is_of(record, window):
                        raise Violation("hole", f"{window.start:%H} is audited; {number}/{at} {record.value!r} is in no window")

    def reach(self, window: Window) -> dict[int, int]:
        """By partition, where the last of the hours ends that follow this one without a gap."""
        while following := self.known.windows.get(window.end):
            window = following
        return {number: end for number, (_, end) in window.ranges.items()}


def is_of(record: Record, window: Window) -> bool:
    return window.start <= record.at < window.end


def published(row: Row, expected: Row | None) -> Row:
    """The row without the columns that its load did not fill: an earlier parser's, about which this load claims nothing."""
    if expected is None or row[0] != "row" or expected[0] != "row":
        return row
    filled = (None if wanted is None else value for value, wanted in zip(row[2:], expected[2:], strict=True))
    return (*row[:2], *filled)


def miscounted(wrong: Mapping[int, Sequence[str]]) -> set[int]:
    """The partitions that hold more or fewer rows than they must."""
    return {part for part, found in wrong.items() if sum(one[0] == "+" for one in found) != sum(one[0] == "-" for one in found)}


def named(said: str) -> set[int]:
    """The partitions that a message names: `topic-1 [0, 5)`, `partition 1`."""
    return {int(one or other) for one, other in re.findall(r"-(\d+) \[|partition (\d+)", said)}


def describe(wrong: Mapping[int, Sequence[str]]) -> str:
    return "; ".join(f"partition {partition}: {', '.join(found[:4])}" for partition, found in sorted(wrong.items()))
