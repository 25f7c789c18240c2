"""Reads a history of clients and reports what must not have happened, by Jepsen's names. It shares no code with the broker.

    lost-write            acknowledged, or seen by a consumer, and missing
    duplicate             sent by an idempotent producer, and stored twice
    inconsistent-offsets  two different values at one offset
    nonmonotonic-poll     a consumer's offsets went back without a seek
    poll-skip             a consumer passed over an offset that holds a record
    nonmonotonic-send     batches of one producer stored in another order than they were sent
    aborted-read          a record that was refused can be read
    unseen                acknowledged, but no consumer read that far: the history ends too early to say more
    corrupt-read          a consumer received something other than whole batches
    falling-end           the log's end went back from one answer to the next

Which losses a promise allows is a table: a loss after such a fault is counted, and is not an anomaly. A fault excuses only what
was sent before it. The time of sending counts, not that of the answer, which may have been on its way when the fault struck.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Event = Mapping[str, Any]
Place = tuple[str, int]  # topic and partition

# Promise of an acknowledgement -> faults that may still take the record.
LOST_BY: Mapping[str, frozenset[str]] = {
    "none": frozenset({"kill", "power cut", "election", "unclean election", "connection lost"}),
    "written": frozenset({"power cut", "election", "unclean election"}),  # the leader has it: acks=1
    "replicated": frozenset({"power cut", "unclean election"}),  # every member of the in-sync set has it
    "flushed": frozenset({"unclean election"}),  # every member of the in-sync set has it on its disk
}


DAMAGE = "damaged byte"  # from this fault on a consumer may have to read again: it checks what it is given


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One thing that must not have happened."""

    name: str
    place: Place
    detail: str

    def __str__(self) -> str:
        return f"{self.name} in {self.place[0]}-{self.place[1]}: {self.detail}"


@dataclass(slots=True)
class Verdict:
    """What a history showed."""

    anomalies: list[Anomaly] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)  # acknowledged, polled, excused losses ...

    @property
    def names(self) -> list[str]:
        """The names of the anomalies, each once."""
        return sorted({anomaly.name for anomaly in self.anomalies})


@dataclass(slots=True)
class _Send:
    """One operation of a producer."""

    client: str
    number: int
    place: Place
    values: list[str]
    promise: str
    sent_at: int
    outcome: str = "unknown"
    offset: int = -1
    exactly_once: bool = False
    session: str | None = None


@dataclass(slots=True)
class _Log:
    """What all clients together know of one partition."""

    values: dict[int, str] = field(default_factory=dict)  # by offset, as a consumer first saw it
    offsets: dict[str, list[int]] = field(default_factory=dict)  # by value
    first_seen_at: dict[int, int] = field(default_factory=dict)
    covered: list[tuple[int, int]] = field(default_factory=list)  # ranges of offsets that some consumer has read through
    drained: tuple[int, int] | None = None  # read from start to end once everything was over
    final: dict[int, str] = field(default_factory=dict)


def check(events: Iterable[Event], lost_by: Mapping[str, frozenset[str]] = LOST_BY) -> Verdict:
    """Judge a whole history."""
    return _Checker(lost_by).judge(events)


class _Checker:
    def __init__(self, lost_by: Mapping[str, frozenset[str]]) -> None:
        self._lost_by = lost_by
        self._sends: dict[tuple[str, int], _Send] = {}
        self._logs: dict[Place, _Log] = {}
        self._positions: dict[tuple[str, Place], tuple[int, int]] = {}  # of a consumer: next position, last offset received
        self._ends: dict[tuple[str, Place], int] = {}
        self._last_fault: dict[str, int] = {}
        self._draining: dict[tuple[str, Place], dict[int, str]] = {}
        self._verdict = Verdict()

    def judge(self, events: Iterable[Event]) -> Verdict:
        skipped: list[tuple[Place, int, int, str]] = []
        for event in events:
            kind = event["event"]
            if kind == "invoke":
                self._invoke(event)
            elif kind in ("ok", "fail", "unknown"):
                self._complete(event)
            elif kind == "fault":
                self._last_fault[event["kind"]] = event["at"]
            else:
                place = (event["topic"], event["partition"])
                if kind == "poll":
                    self._poll(event, place, skipped)
                elif kind == "seek":
                    self._positions.pop((event["client"], place), None)
                elif kind == "corrupt":
                    if DAMAGE not in self._last_fault:
                        self._found("corrupt-read", place, f"{event['client']} at offset {event['position']}")
                elif kind == "ends":
                    self._end(event, place)
                elif kind == "drained":
                    log = self._log(place)
                    log.drained = event["start"], event["end"]
                    log.final = self._draining.get((event["client"], place), {})
        for send in self._sends.values():
            self._verdict.counts[f"send {send.outcome}"] += 1
            self._judge_send(send)
        self._judge_order()
        for place, log in self._logs.items():
            self._judge_log(place, log)
        self._judge_skipped(skipped)
        return self._verdict

    def _found(self, name: str, place: Place, detail: str) -> None:
        self._verdict.anomalies.append(Anomaly(name, place, detail))

    def _log(self, place: Place) -> _Log:
        return self._logs.setdefault(place, _Log())

    # Reading the history

    def _invoke(self, event: Event) -> None:
        place = (event["topic"], event["partition"])
        self._log(place)
        send = _Send(event["client"], event["op"], place, list(event["values"]), event["promise"], event["at"])
        self._sends[event["client"], event["op"]] = send

    def _complete(self, event: Event) -> None:
        send = self._sends[event["client"], event["op"]]
        send.outcome = event["event"]
        send.exactly_once = event.get("exactly_once", False)
        send.session = event.get("session")
        if send.outcome == "ok":
            send.offset = event["offset"]

    def _poll(self, event: Event, place: Place, skipped: list[tuple[Place, int, int, str]]) -> None:
        client, log = event["client"], self._log(place)
        start = event["position"]
        expected, last = self._positions.get((client, place), (start, -1))
        if start < expected:
            self._found("nonmonotonic-poll", place, f"{client} asked for {start} after {expected}")
        elif start > expected:
            skipped.append((place, expected, start, client))
        position = start
        for offset, value in event["records"]:
            if offset <= last or offset < position:
                self._found("nonmonotonic-poll", place, f"{client} got {offset} after {max(last, position - 1)}")
            elif offset > position:
                skipped.append((place, position, offset, client))
            self._see(log, place, offset, value, event["at"], client)
            last, position = offset, offset + 1
        self._verdict.counts["polled"] += len(event["records"])
        self._draining.setdefault((client, place), {}).update((offset, value) for offset, value in event["records"])
        if event["next"] > position:
            skipped.append((place, position, event["next"], client))
        self._positions[client, place] = event["next"], last
        if event["next"] > start:
            log.covered.append((start, event["next"]))

    def _see(self, log: _Log, place: Place, offset: int, value: str, at: int, client: str) -> None:
        stored_value = log.values.setdefault(offset, value)
        log.first_seen_at.setdefault(offset, at)
        if stored_value != value:
            self._found("inconsistent-offsets", place, f"{offset} was {stored_value}, and is {value} to {client}")
        offsets = log.offsets.setdefault(value, [])
        if offset not in offsets:
            offsets.append(offset)

    def _end(self, event: Event, place: Place) -> None:
        key, latest = (event["client"], place), event["latest"]
        if latest < self._ends.get(key, 0):
            self._found("falling-end", place, f"{event['client']} was told {self._ends[key]} and then {latest}")
        self._ends[key] = latest

    # Judging it

    def _is_excused(self, promise: str, since: int) -> bool:
        return any(self._last_fault.get(fault, -1) >= since for fault in self._lost_by[promise])

    def _judge_send(self, send: _Send) -> None:
        log = self._logs[send.place]
        for index, value in enumerate(send.values):
            offsets = log.offsets.get(value, [])
            if send.outcome == "fail" and offsets:
                self._found("aborted-read", send.place, f"{value} of {send.client} was refused, and is at {offsets[0]}")
            if send.exactly_once and len(offsets) > 1:
                self._found("duplicate", send.place, f"{value} of {send.client} is at {offsets}")
            if send.outcome == "ok" and send.offset >= 0:
                self._judge_acknowledged(send, log, send.offset + index, value)
            elif send.outcome == "ok" and send.promise != "none":
                self._judge_placeless(send, log, value)

    def _judge_acknowledged(self, send: _Send, log: _Log, offset: int, value: str) -> None:
        excused = self._is_excused(send.promise, send.sent_at)
        value_there = log.values.get(offset)
        if value_there is not None and value_there != value and not excused:
            self._found(
                "inconsistent-offsets", send.place, f"{offset} is {value_there}; {value} of {send.client} was acknowledged there"
            )
            return
        if log.drained is not None:
            start, _ = log.drained
            is_there = log.final.get(offset) == value or offset < start
        else:
            is_there = value_there == value
            if not is_there and not any(begin <= offset < end for begin, end in log.covered):
                if not excused:
                    self._found("unseen", send.place, f"{value} of {send.client}, acknowledged at {offset}")
                return
        if is_there:
            return
        if excused:
            self._verdict.counts["excused losses"] += 1
        else:
            self._found("lost-write", send.place, f"{value} of {send.client}, acknowledged at {offset} ({send.promise})")

    def _judge_placeless(self, send: _Send, log: _Log, value: str) -> None:
        """Acknowledged without an offset: if the log was read from its first record to the last, the value must be in it."""
        self._verdict.counts["acknowledged without offset"] += 1
        is_there = any(log.final.get(offset) == value for offset in log.offsets.get(value, []))
        if is_there or log.drained is None or log.drained[0] > 0:
            return
        if self._is_excused(send.promise, send.sent_at):
            self._verdict.counts["excused losses"] += 1
        else:
            self._found("lost-write", send.place, f"{value} of {send.client}, acknowledged without an offset ({send.promise})")

    def _judge_order(self) -> None:
        """Within one session values are in the order of their numbers, by where each was first stored."""
        runs: dict[tuple[str, str, Place], list[_Send]] = {}
        for send in self._sends.values():
            if send.session is not None and send.outcome != "fail":
                runs.setdefault((send.client, send.session, send.place), []).append(send)
        for (client, _, place), sends in runs.items():
            last, last_value = -1, ""
            for send in sorted(sends, key=lambda send: send.number):
                for value in send.values:
                    offsets = self._logs[place].offsets.get(value)
                    if not offsets:
                        continue
                    if min(offsets) < last:
                        self._found(
                            "nonmonotonic-send", place, f"{value} of {client} is at {min(offsets)}, before {last_value} at {last}"
                        )
                    last, last_value = min(offsets), value

    def _judge_log(self, place: Place, log: _Log) -> None:
        """What a consumer has seen stays, whatever happens."""
        if log.drained is None:
            return
        start, end = log.drained
        for offset, value in log.values.items():
            if offset >= start and log.final.get(offset) != value:
                excused = self._is_excused("flushed", log.first_seen_at[offset])
                if excused:
                    self._verdict.counts["excused losses"] += 1
                elif offset not in log.final:
                    self._found("lost-write", place, f"{value}, seen at {offset}; the log is {start} to {end}")

    def _judge_skipped(self, skipped: list[tuple[Place, int, int, str]]) -> None:
        """A gap is a skip only if a record is known to be in it."""
        acknowledged: dict[Place, dict[int, str]] = {}
        for send in self._sends.values():
            if send.outcome == "ok" and send.offset >= 0:
                for index, value in enumerate(send.values):
                    acknowledged.setdefault(send.place, {})[send.offset + index] = value
        for place, start, end, client in skipped:
            log, promised = self._logs[place], acknowledged.get(place, {})
            for offset in range(start, end):
                stored_value = log.final.get(offset) if log.drained else log.values.get(offset)
                if stored_value is not None or (log.drained is None and offset in promised):
                    self._found(
                        "poll-skip",
                        place,
                        f"{client} went from {start} to {end} past {stored_value or promised[offset]} at {offset}",
                    )
                    break
