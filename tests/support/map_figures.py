"""Every figure of the page Ingestion: its place on the page, where the expected value comes from, and what must stand there
(map_texts.py)."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.expected_hours import LABELS, Behind
from tests.support.map_texts import (
    View,
    age,
    beside_name,
    cell_label,
    drawn,
    due,
    hours_behind,
    labels_of_the_axis,
    route,
    size_behind,
    throughput,
    tile_remarks,
    tiles,
    under_hours_behind,
    verdict,
    verdict_reasons,
)
from tests.support.shown_figures import Figure, Text, said

LEDGER, RECORDS = "windows, ranges and attempts of the ledger", "the ledger's ranges over the records of the log, read one by one"
SETTINGS, CLOCK = "the stamps of the records, retention.ms of the topic, the clock", "the clock"
SHAPE = "the pipeline's row and its Dags in the ledger; what the broker says of the topic"


def each(text: Callable[[View, str], Text]) -> Callable[[View], list[Text]]:
    """Of each pipeline, in the order of their names."""
    return lambda view: [text(view, name) for name in view.names]


def each_behind(text: Callable[[Behind], Text]) -> Callable[[View], list[Text]]:
    return lambda view: [text(one) for one in view.behind().values()]


FIGURES = (
    Figure(name="hours that are not in", place=".verdict h1", source=RECORDS, expected=verdict),
    Figure(name="why", place=".verdict .more", source=RECORDS, expected=verdict_reasons),
    Figure(name="tiles", place=".tile .value", source=f"{RECORDS}; {SETTINGS}", expected=tiles),
    Figure(name="below the tiles", place=".tile:not(.verdict) .more", source=f"{RECORDS}; {SETTINGS}", expected=tile_remarks),
    Figure(
        name="below the tiles, in full",
        place=".tile:not(.verdict) .more",
        attribute="title",
        source=RECORDS,
        expected=tile_remarks,
    ),
    Figure(
        name="legend",
        place=".legend button b",
        source=f"{LEDGER}; {SETTINGS}",
        expected=lambda view: [said("whole", view.count(state)) for state in LABELS],
    ),
    Figure(
        name="spans", place=".choice button", source="what can be chosen", expected=lambda view: ["24 hours", "3 days", "7 days"]
    ),
    Figure(name="axis", place=".axis span:not(.now)", source=CLOCK, expected=labels_of_the_axis),
    Figure(name="now", place=".axis .now", source=CLOCK, expected=lambda view: [(said("clock", view.at), " UTC")]),
    Figure(
        name="axis, read out",
        place=".axis",
        attribute="aria-label",
        source=CLOCK,
        expected=lambda view: [("Hours in UTC, up to ", said("clock", view.at))],
    ),
    Figure(name="pipelines", place=".row .name b", source="the ledger's pipelines", expected=lambda view: list(view.names)),
    Figure(name="beside their names", place=".row .name small", source=SHAPE, expected=each(beside_name)),
    Figure(
        name="beside their names, in full",
        place=".row .name",
        attribute="title",
        source=SHAPE,
        expected=each(lambda view, name: f"{route(view, name)}; {', '.join(view.facts.dags(name)) or 'no Dag yet'}"),
    ),
    Figure(name="hours behind", place="[data-label=Behind] b", source=RECORDS, expected=each_behind(hours_behind)),
    Figure(name="records behind", place="[data-label=Behind] small", source=RECORDS, expected=each_behind(under_hours_behind)),
    Figure(
        name="records behind, in full",
        place="[data-label=Behind] small[title]",
        attribute="title",
        source=RECORDS,
        expected=lambda view: [
            (said("short", one.records), " records", *([size_behind(one)[2]] if one.size_bytes is not None else []))
            for one in view.behind().values()
            if one.hours or one.records
        ],
    ),
    Figure(
        name="age of the oldest",
        place="[data-label='Oldest waiting'] b",
        source=SETTINGS,
        expected=lambda view: [age(view, one) for one in view.behind().values()],
    ),
    Figure(
        name="when retention takes it",
        place="[data-label='Oldest waiting'] small",
        source=SETTINGS,
        expected=lambda view: [due(view, one) for one in view.behind().values()],
    ),
    Figure(name="throughput", place="[data-label=Throughput] small", source=f"{LEDGER}; {CLOCK}", expected=each(throughput)),
    *(
        Figure(name=f"throughput, {how}", place=place, attribute=attribute, source=LEDGER, expected=each(throughput))
        for how, place, attribute in (("in full", "[data-label=Throughput] small", "title"), ("read out", ".spark", "aria-label"))
    ),
    Figure(
        name="what was loaded, drawn",
        place=".spark .out",
        attribute="points",
        source="ledger: rows by the hour in which they became public",
        expected=lambda view: [text for name in view.names for text in drawn(view, name, "loaded")],
    ),
    Figure(
        name="what the hours held, drawn",
        place=".spark .in",
        attribute="points",
        source="ledger: ranges by the hour of their window",
        expected=lambda view: [text for name in view.names for text in drawn(view, name, "produced")],
    ),
    Figure(
        name="hours",
        place=".cell",
        attribute="aria-label",
        source=f"{LEDGER}; {SETTINGS}",
        expected=lambda view: [cell_label(name, hour) for name, hour in view.all_hours()],
    ),
)
