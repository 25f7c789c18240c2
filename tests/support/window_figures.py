"""What the page of an hour must show: `FIGURES` has every figure of it, its place on the page and where the expected value comes from."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote

from logbus.model import HOUR, instant_text

from tests.support import eventful_pipeline as orders
from tests.support import expected_hours, letter_figures
from tests.support.expected_hours import LABELS
from tests.support.platform_facts import Facts, Row
from tests.support.shown_figures import Figure, Text, many, said

UNKNOWN, APART = "\u2013", " \u00b7 "


@dataclass(frozen=True, slots=True)
class View:
    """What an hour's page must show at an instant."""

    facts: Facts
    at: datetime
    window: Row
    query: str = ""  # with which the page was asked for

    def rows(self, table: str, order: str) -> list[Row]:
        return self.facts.of_window(table, self.window, order)

    @property
    def name(self) -> str:
        return str(self.window["pipeline"])

    @property
    def start(self) -> datetime:
        start: datetime = self.window["starts_at"]
        return start

    @property
    def is_loaded(self) -> bool:
        return self.window["loaded_attempt"] is not None

    @property
    def hour(self) -> expected_hours.Hour:
        return expected_hours.window_hour(self.facts, self.window, self.at)


def equation(view: View) -> list[Text]:
    counts = ("read_count", "loaded_count", "dead_lettered_count", "filtered_count")
    return [said("whole", view.window[name]) for name in counts] if view.is_loaded else []


def tick(view: View) -> list[Text]:
    window = view.window
    if not view.is_loaded:
        return []
    assert window["read_count"] == window["loaded_count"] + window["dead_lettered_count"] + window["filtered_count"]
    return ["\u2713adds up, audited" if window["audited_at"] else "\u2713adds up"]


def key(view: View) -> list[Text]:
    if not view.is_loaded:
        return []
    remarks = (
        ("lost_count", lambda count: (many(count, "record"), " lost before they were read")),
        ("late_count", lambda count: (said("whole", count), " stamped before this hour")),
        ("early_count", lambda count: (said("whole", count), " stamped after it")),
    )
    found: list[Text] = ["loaded", "dead-lettered", "filtered"]
    return found + [text(view.window[name]) for name, text in remarks if view.window[name]]


def hours(view: View) -> list[Text]:
    """Nothing, where every record lies in the window of its hour."""
    windows = {one["id"]: one for one in view.facts.windows(view.name)}
    own, others, elsewhere = 0, [], {}
    for one in view.facts.tables["window_hour"]:
        is_here, is_own = one["window_id"] == view.window["id"], view.start <= one["hour"] < view.start + HOUR
        if is_here and is_own:
            own = one["record_count"]
        elif is_here:
            others.append((one["hour"], f"{one['record_count']} with {instant_text(one['hour'])}"))
        elif is_own and one["window_id"] in windows:
            elsewhere[windows[one["window_id"]]["starts_at"]] = one["record_count"]
    where = ", ".join(f"{count} in window {instant_text(at)}" for at, count in sorted(elsewhere.items()))
    found = [f"stamped {instant_text(view.start)}: {own} here, {where}"] if elsewhere else []
    found += [f"here, but stamped otherwise: {', '.join(text for _, text in sorted(others))}"] if others else []
    unstamped = view.window["unstamped_count"]
    found += [f"here, without a usable timestamp: {unstamped}"] if unstamped else []
    return [*found] if view.is_loaded else []


def frozen(view: View) -> list[Text]:
    if view.is_loaded:
        return []
    gone = sum(expected_hours.gone(view.facts, view.window).values())
    rest: Text = (said("whole", gone), " of them can no longer be read.") if gone else "the next attempt reads exactly these."
    return [(many(view.hour.records or 0, "record"), " frozen for this hour; ", rest)]


def ranges(view: View) -> list[Text]:
    gone = expected_hours.gone(view.facts, view.window)
    letters = [one["partition"] for one in view.rows("dead_letter", "offset")]
    found: list[Text] = []
    for one in view.rows("window_range", "partition"):
        part = one["partition"]
        count = one["end_offset"] - one["start_offset"] - one["lost"]
        loaded, dead = (loaded_of(view, part), letters.count(part)) if view.is_loaded else (None, None)
        found += [str(part), str(one["start_offset"]), str(one["end_offset"])]
        found += [said("whole", value) for value in (count, loaded, dead, one["lost"] + gone.get(part, 0))]
    return found


def loaded_of(view: View, part: int) -> int:
    """Rows in the pipeline's table; what somebody took out of it behind the ledger's back was loaded all the same."""
    spoilt = view.name == orders.NAME and view.window["audit_problems"] and part == 0
    return view.facts.rows[view.window["id"], part] + bool(spoilt)


def redrives(view: View) -> list[Text]:
    found: list[Text] = []
    for one in view.rows("redrive", "id"):
        counts = [said("whole", one[name]) for name in ("tried_count", "loaded_count", "dead_lettered_count")]
        found += [said("moment", one["redriven_at"]), *counts, one["run_id"]]
    return found


def attempts(view: View) -> list[Row]:
    """The newest first."""
    return view.rows("attempt", "number")[::-1]


def attempt_line(view: View, one: Row) -> Text:
    state = {"committed": "committed", "failed": "failed", "superseded": "taken over", "running": "at work"}[one["state"]]
    is_current = one["number"] == view.window["loaded_attempt"]
    return f"Attempt {one['number']}{state}{'this is what the table holds' if is_current else ''}"


def attempt_story(view: View, one: Row) -> list[Text]:
    return [attempt_times(view, one), attempt_origin(one)]


def attempt_times(view: View, one: Row) -> Text:
    if one["state"] == "running":
        lasted = said("span", (view.at - one["began_at"]).total_seconds())
        return ("for ", lasted, ", heard of ", said("ago", one["heartbeat_at"], view.at))
    lasted = said("span", (one["ended_at"] - one["began_at"]).total_seconds())
    return (said("moment", one["began_at"]), ", took ", lasted)


def attempt_origin(one: Row) -> Text:
    task = f"{one['dag_id']}{APART}{one['task_id']}" if one["dag_id"] else None
    tries = f"try {one['try_number']}" if one["try_number"] > 1 else None
    parts = APART.join(part for part in (task, one["run_id"], tries) if part)
    counts = (APART, many(one["read_count"], "record"), " read, ", said("whole", one["loaded_count"]), " loaded")
    return (parts, *(counts if one["read_count"] is not None else ()))


def notices(view: View) -> list[Text]:
    found: list[Text] = [f"The audit found a difference{problem}" for problem in view.window["audit_problems"] or ()]
    if view.hour.lost:
        note = view.hour.note or ""
        found += [(many(view.hour.lost, "record"), f" lost{note[0].upper()}{note[1:]}.")]
    head = "Records were gone, or may have been, before they were read; how many were its own is unknown."
    return found + ([f"Records may be missing at its beginning{head}"] if view.window["head_unknown"] else [])


def about(view: View) -> list[Text]:
    window, moments = view.window, ("frozen_at", "loaded_at", "audited_at")
    times = [said("moment", window[name] and instant_text(window[name])) for name in moments]
    dags = ", ".join(view.facts.dags(view.name))
    return [window["fingerprint"] or UNKNOWN, *times, view.facts.pipeline(view.name)["topic"], dags or UNKNOWN]


def beside(view: View) -> list[Text]:
    """The hours before and behind, as addresses."""
    starts = [start for start in (view.start - HOUR, view.start + HOUR) if start <= view.at]
    return [f"window?{view.query}pipeline={view.name}&start={quote(instant_text(start), safe='')}" for start in starts]


def possible(view: View) -> list[Text]:
    """What an administrator may do, and why not."""
    by_hand = f"`logbus replay run --pipeline {view.name} --window {instant_text(view.start)}` loads it"
    rerun = "Reads the same offsets again and replaces the hour's rows in one transaction."
    redrive = "Parses the dead letters again, with the parser as it is now."
    why_not = "the window has no dead letters" if view.is_loaded else "the window is not loaded: rerun it"
    return [
        rerun if view.facts.dags(view.name) else f"no Dag works on this pipeline; {by_hand}",
        redrive if view.window["dead_lettered_count"] else why_not,
        "Only looks: records, rows that would be replaced, what is still retained.",
    ]


WINDOW, TABLE = "the window's row in the ledger", "rows of the pipeline's own table, counted"
RANGES, ATTEMPTS = "the ledger's ranges; the log's first offsets", "the ledger's attempts"
LEFT = ".two > div:first-child"

FIGURES = (
    Figure(name="hour", place=".crumbs h1", source=WINDOW, expected=lambda view: [said("hour", view.start, view.start + HOUR)]),
    Figure(name="pipeline", place=".crumbs a ~ span:nth-of-type(2)", source=WINDOW, expected=lambda view: [view.name]),
    Figure(name="state", place="#state", source=f"{WINDOW}, {RANGES}", expected=lambda view: [LABELS[view.hour.state]]),
    Figure(name="hours beside it", place=".steps a", attribute="href", source=WINDOW, expected=beside),
    Figure(name="notices", place="#page > .notice", source=f"{WINDOW}, {RANGES}", expected=notices),
    Figure(name="equation", place=".equation .term b", source=WINDOW, expected=equation),
    Figure(name="whether it adds up", place=".equation .tick", source=WINDOW, expected=tick),
    Figure(name="remarks", place=".key > span", source=WINDOW, expected=key),
    Figure(name="hours", place="p.hours", source="the ledger's stamped hours", expected=hours),
    Figure(name="what is frozen", place=f"{LEFT} > section:first-child > p.quiet", source=RANGES, expected=frozen),
    Figure(
        name="ranges",
        place="tr:has(td.range-bar) td:not(.range-bar)",
        source=f"{RANGES}; {TABLE}; {letter_figures.LETTERS}",
        expected=ranges,
    ),
    *letter_figures.FIGURES,
    Figure(
        name="redrives",
        place=f"{LEFT} tbody tr:not(:has(.range-bar)) td",
        source="the ledger's redrives",
        expected=redrives,
    ),
    Figure(
        name="attempts",
        place=".attempts .line",
        source=ATTEMPTS,
        expected=lambda view: [attempt_line(view, one) for one in attempts(view)],
    ),
    Figure(
        name="how they went",
        place=".attempts li > .quiet",
        source=ATTEMPTS,
        expected=lambda view: [text for one in attempts(view) for text in attempt_story(view, one)],
    ),
    Figure(
        name="why they failed",
        place=".attempts pre",
        source=ATTEMPTS,
        expected=lambda view: [" ".join(one["error"].split()) for one in attempts(view) if one["error"]],
    ),
    Figure(name="what can be done", place=".actions small", source=f"{WINDOW}; its pipeline's Dags", expected=possible),
    Figure(name="about the hour", place=".facts dd", source=WINDOW, expected=about),
)


def plan(facts: Facts, window: Row) -> list[Text]:
    """Nothing is read again of an hour that retention has cut."""
    held, topic = facts.of_window("window_range", window, "partition"), facts.topics[window["pipeline"]]
    is_cut = any(one["start_offset"] < topic[one["partition"]].start for one in held)
    records = 0 if is_cut else sum(one["end_offset"] - one["start_offset"] for one in held)
    rows = 0 if is_cut else sum(count for (number, _), count in facts.rows.items() if number == window["id"])
    counts = [
        ("windows", 1),
        ("records to read", records),
        ("rows to replace", rows),
        ("windows that retention has cut", int(is_cut)),
    ]
    return [text for what, count in counts for text in (said("whole", count), what)]
