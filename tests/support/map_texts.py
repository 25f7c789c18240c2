"""What each place of the page Ingestion must say, by what the ledger and the broker say at an instant: the headline, the rows with what is
behind, the hours and the tip over one of them. Where these places are on the page is told in map_figures.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby

from logbus.model import HOUR

from tests.support import expected_hours
from tests.support.expected_hours import LABELS, MEANINGS, Behind, Hour, hour_of
from tests.support.platform_facts import Facts
from tests.support.shown_figures import Either, Said, Text, many, said

UNKNOWN, APART = "\u2013", " \u00b7 "
DAY, TICK = timedelta(hours=24), timedelta(hours=3)
STILL = Either((UNKNOWN, said("rate", 0)))  # nobody produces here; the first look knows no rate yet


@dataclass(frozen=True, slots=True)
class View:
    """What a day's map must show at an instant."""

    facts: Facts
    at: datetime

    @property
    def until(self) -> datetime:
        return hour_of(self.at) + HOUR

    @property
    def names(self) -> list[str]:
        return self.facts.pipelines

    def hours(self, name: str) -> list[Hour]:
        found = expected_hours.hours_of(self.facts, name, self.until - DAY, self.until, self.at)
        return self.facts.kept(f"hours {name} {self.at}", lambda: list(found))

    def all_hours(self) -> Iterator[tuple[str, Hour]]:
        for name in self.names:
            yield from ((name, hour) for hour in self.hours(name))

    def behind(self) -> dict[str, Behind]:
        def found() -> dict[str, Behind]:
            return {name: expected_hours.behind(self.facts, name, self.at) for name in self.names}

        return self.facts.kept(f"behind {hour_of(self.at)}", found)  # it changes with the hour only

    def count(self, state: str) -> int:
        return sum(hour.state == state for _, hour in self.all_hours())

    def loaded_per_second(self, name: str) -> float:
        return expected_hours.loaded_per_second(self.facts, name, self.at)


def known(values: Iterator[int | None]) -> int | None:
    """Their sum; None where none is known."""
    found = [value for value in values if value is not None]
    return sum(found) if found else None


def between(parts: list[Text]) -> Text:
    return tuple(piece for number, part in enumerate(parts) for piece in ([APART, part] if number else [part]))


def verdict(view: View) -> list[Text]:
    hours = known(one.hours for one in view.behind().values())
    return ["How far behind is unknown" if hours is None else (many(hours, "hour"), " not in yet")]


def verdict_reasons(view: View) -> list[Text]:
    found = list(view.behind().values())
    if known(one.hours for one in found) is None:
        return ["the broker and the ledger have to answer both"]
    late, unknown = sum(bool(one.hours) for one in found), sum(one.hours is None for one in found)
    parts: list[Text] = [(many(late, "pipeline"), " of ", said("whole", len(found)))]
    reasons = (("lost", " lost records"), ("expiring", " about to expire"), ("failed", " failed"))
    parts += [(many(view.count(state), "hour"), text) for state, text in reasons if view.count(state)]
    return [between(parts + ([("nothing is known of ", many(unknown, "pipeline"))] if unknown else []))]


def tiles(view: View) -> list[Text]:
    found = view.behind().values()
    oldest = min((one.oldest for one in found if one.oldest), default=None)
    taken = min((one.expires_at for one in found if one.expires_at), default=None)
    return [
        said("short", known(one.records for one in found)),
        UNKNOWN if oldest is None else said("span", (view.at - oldest).total_seconds()),
        UNKNOWN if taken is None else ("in ", said("span", (taken - view.at).total_seconds())),
        said("short", sum(hour.dead for _, hour in view.all_hours())),
        STILL if view.facts.has_broker else UNKNOWN,
    ]


def tile_remarks(view: View) -> list[Text]:
    found = view.behind()
    size = known(one.size_bytes for one in found.values())
    about = "about " if any(one.is_estimated for one in found.values()) else ""
    oldest = min((one.oldest, name) for name, one in found.items() if one.oldest) if view.facts.has_broker else None
    taken = min((one.expires_at, name) for name, one in found.items() if one.expires_at) if view.facts.has_broker else None
    with_dead = {name for name, hour in view.all_hours() if hour.dead}
    loaded = sum(view.loaded_per_second(name) for name in view.names)
    return [
        "" if size is None else (about, said("bytes", size)),
        "not known" if oldest is None else oldest[1],
        "not known" if taken is None else f"{taken[1]}, by retention.ms",
        ("in ", many(len(with_dead), "pipeline")),
        ("loaded at ", said("rate", loaded)),
    ]


def route(view: View, name: str) -> str:
    row = view.facts.pipeline(name)
    return name if row["topic"] == row["table_name"] else f"{row['topic']} \u2192 {row['table_name']}"


def beside_name(view: View, name: str) -> Text:
    trouble = view.behind()[name].problem
    if trouble is not None:
        return trouble
    return many(len(view.facts.dags(name)), "Dag") if route(view, name) == name else route(view, name)


def hours_behind(one: Behind) -> Text:
    return "not known" if one.hours is None else many(one.hours, "hour") if one.records or one.hours else "nothing"


def size_behind(one: Behind) -> Text:
    size: Text = (APART, "~" if one.is_estimated else "", said("bytes", one.size_bytes)) if one.size_bytes is not None else ""
    return (said("short", one.records), " rec", size)


def under_hours_behind(one: Behind) -> Text:
    if one.hours is None:
        return "no answer"
    return size_behind(one) if one.hours or one.records else (said("short", one.open_records), " in open hours")


def age(view: View, one: Behind) -> Text:
    return UNKNOWN if one.oldest is None else said("span", (view.at - one.oldest).total_seconds())


def due(view: View, one: Behind) -> Text:
    if one.oldest is None:
        return ""
    return "kept" if one.expires_at is None else ("gone in ", said("span", (one.expires_at - view.at).total_seconds()))


def throughput(view: View, name: str) -> Text:
    nothing_is_made = view.facts.has_broker
    return (STILL if nothing_is_made else UNKNOWN, " in, ", said("rate", view.loaded_per_second(name)), " loaded")


def cell_label(name: str, hour: Hour) -> Text:
    records = () if hour.records is None else (", ", many(hour.records, "record"))
    dead = (", ", many(hour.dead, "dead letter")) if hour.dead else ()
    lost = (", ", many(hour.lost, "record"), " lost") if hour.lost else ()
    return (
        f"{name}, ",
        said("day", hour.start),
        " ",
        said("clock", hour.start),
        f", {LABELS[hour.state]}",
        *records,
        *dead,
        *lost,
    )


def labels_of_the_axis(view: View) -> list[Text]:
    since = view.until - DAY
    first = since + (-(since - datetime(1970, 1, 1, tzinfo=UTC)) % TICK)
    ticks = [at for at in (first + number * TICK for number in range(8)) if (view.until - at) / DAY > 0.08]
    return [said("day" if at.hour == 0 else "clock", at) for at in ticks]


def drawn(view: View, name: str, line: str) -> list[Text]:
    """The points of a line of the sparkline."""
    found = view.facts.kept(f"series {name} {view.until}", lambda: expected_hours.series(view.facts, name, view.until))
    values, top = [one[line] for one in found], max(value for one in found for value in one.values() if value is not None) or 1
    return [Said("lines", (values, top), module="sparkline", number=number) for number in range(unbroken(values))]


def unbroken(values: Sequence[int | None]) -> int:
    """How many lines they make: a gap ends one, and a point alone is none."""
    return sum(is_known and len(list(same)) > 1 for is_known, same in groupby(values, lambda value: value is not None))


def summary(view: View, name: str, start: datetime) -> list[Text]:
    """The tip over an hour."""
    hour = next((one for one in view.hours(name) if one.start == start), None)
    if hour is None:  # it had not begun
        return []
    counts = [("records", hour.records), ("loaded", hour.loaded), ("dead letters", hour.dead), ("lost", hour.lost)]
    shown = [
        (what, count) for what, count in [*counts, ("attempts", hour.attempts)] if count or (what == "records" and count == 0)
    ]
    rows: list[Text] = [text for what, count in shown for text in (what, said("whole", count))]
    head: list[Text] = [name, said("hour", start, start + HOUR), LABELS[hour.state], MEANINGS[hour.state]]
    return [*head, *rows, *([hour.note] if hour.note else [])]
