"""A dozen figures of the pages against what ledger, warehouse, broker and disk hold, read without the pages (platform_facts.py).

These are the figures on which operators decide: how many hours wait, since when, what is lost, whether an hour adds up, how far
a group lags. Wording and placement are the pages' own matter: a figure is found by its place and compared as a number, so a page
can be redesigned without rewriting this test. The oracle (expected_hours.py) shares no code with the pages.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from logbus.model import HOUR, instant_text
from playwright.sync_api import Page, expect

from tests.support import eventful_pipeline as orders
from tests.support import expected_hours
from tests.support.expected_hours import LABELS, Behind, Hour, hour_of
from tests.support.platform_facts import Facts, Group, Row
from tests.support.seeded_platform import SeededPlatform

Open = Callable[..., Page]
DAY = timedelta(hours=24)
SECOND = timedelta(seconds=1)
SHARED_SECONDS = timedelta(seconds=60)  # the server's data may be a minute old: all viewers share it
UNKNOWN = "\u2013"
EVENTFUL = (
    *(("access_log", 5), ("access_log", 1), ("payments", 3), ("app_events", 4), ("clickstream", 21)),
    *((orders.NAME, hour) for hour in (orders.CUT, orders.MANY_DEAD, orders.REDRIVEN, orders.TWICE, orders.SPOILT)),
)


def texts(page: Page, place: str, attribute: str | None = None) -> list[str]:
    read = "(all, name) => all.map(one => (name ? one.getAttribute(name) : one.textContent).replace(/\\s+/g, ' ').trim())"
    found: list[str] = page.locator(place).evaluate_all(read, attribute)
    return found


def formatted(page: Page, function: str, values: list[Any]) -> list[str]:
    """As formatted by the pages' own format.js, which has its own tests."""
    call = f"async values => {{ const format = await import('../static/format.js'); return values.map(format.{function}); }}"
    found: list[str] = page.evaluate(call, values)
    return found


def number(text: str, what: str = "") -> int:
    """The number before `what` in a text, 0 if there is none."""
    match = re.search(rf"([\d,]+){what}", text)
    return int(match[1].replace(",", "")) if match else 0


def instants(before: datetime) -> list[datetime]:
    """Each second that the page may refer to, if it was requested after `before` and shows its answer now."""
    first = before - SHARED_SECONDS
    return [first + count * SECOND for count in range(int((datetime.now(UTC) - first) / SECOND) + 2)]


# -- the map of hours ------------------------------------------------------------------------------------------------------------


def behind_of(facts: Facts, at: datetime) -> dict[str, Behind]:
    return facts.kept(f"behind {hour_of(at)}", lambda: {one: expected_hours.behind(facts, one, at) for one in facts.pipelines})


def hours_shown(facts: Facts, at: datetime) -> list[tuple[str, Hour]]:
    until = hour_of(at) + HOUR
    return [(name, one) for name in facts.pipelines for one in expected_hours.hours_of(facts, name, until - DAY, until, at)]


def as_labelled(name: str, hour: Hour) -> tuple[str, str, int, int, int]:
    return name, LABELS[hour.state], hour.records or 0, hour.dead, hour.lost


def labelled(text: str) -> tuple[str, str, int, int, int]:
    """From a cell's name for screen readers: pipeline, state, records, dead letters, lost."""
    name, _, state, *rest = text.split(", ")
    counts = ", ".join(rest)
    records = number(counts, " records?(?! lost)")
    return name, state, records, number(counts, " dead letter"), number(counts, " records? lost")


def open_map(open_page: Open, query: str = "") -> Page:
    page = open_page("admin", f"logbus/ui/ingestion?hours=24{query}")
    page.get_by_role("columnheader", name="Trouble first").get_by_role("button").click()
    expect(page.get_by_role("columnheader", name="Pipeline")).to_be_visible()
    return page


def test_the_hours_of_the_map_and_what_waits_are_what_ledger_and_records_say(open_page: Open, facts: Facts) -> None:
    before = datetime.now(UTC)
    page = open_map(open_page)
    shown = {
        "hours that wait, of all": number(texts(page, ".verdict h1")[0]),
        "hours that wait": [number(one) if one != "not known" else None for one in texts(page, "[data-label=Behind] b")],
        "records that wait": texts(page, "[data-label=Behind] small"),
        "when the oldest expires": texts(page, "[data-label='Oldest waiting'] small"),
        "states": [number(one) for one in texts(page, ".legend button b")],
        "cells": [labelled(one) for one in texts(page, ".cell", "aria-label")],
    }
    assert texts(page, ".row .name b") == facts.pipelines
    expected = [expected_figures(page, facts, at) for at in instants(before)]
    assert {name: value for name, value in shown.items() if all(one[name] != value for one in expected)} == {}


def expected_figures(page: Page, facts: Facts, at: datetime) -> Mapping[str, Any]:
    behind, hours = behind_of(facts, at), hours_shown(facts, at)
    counts = Counter(hour.state for _, hour in hours)
    left = [(one.expires_at - at).total_seconds() if one.expires_at else 0 for one in behind.values()]
    spans = formatted(page, "span", left)
    records = formatted(page, "short", [one.records if one.records else one.open_records for one in behind.values()])
    sizes = formatted(page, "bytes", [one.size_bytes for one in behind.values()])
    return {
        "hours that wait, of all": sum(one.hours or 0 for one in behind.values()),
        "hours that wait": [one.hours for one in behind.values()],
        "records that wait": [
            waiting(one, count, size) for one, count, size in zip(behind.values(), records, sizes, strict=True)
        ],
        "when the oldest expires": [
            f"gone in {span}" if one.expires_at else "kept" if one.oldest else ""
            for one, span in zip(behind.values(), spans, strict=True)
        ],
        "states": [counts[state] for state in LABELS],
        "cells": [as_labelled(name, hour) for name, hour in hours],
    }


def waiting(one: Behind, records: str, size: str) -> str:
    if one.hours is None:
        return ""
    if not one.hours and not one.records:
        return f"{records} in open hours"
    return f"{records} rec \u00b7 {'~' if one.is_estimated else ''}{size}" if one.size_bytes is not None else f"{records} rec"


def test_with_the_broker_down_the_map_shows_the_ledgers_part_and_no_number_of_what_waits(open_page: Open, facts: Facts) -> None:
    before = datetime.now(UTC)
    page = open_map(open_page, "&kafka_conn_id=kafka_nowhere")
    expect(page.locator("#notices")).to_contain_text("The broker does not answer")
    assert set(texts(page, "[data-label=Behind] b")) == {"not known"}
    shown = [labelled(one) for one in texts(page, ".cell", "aria-label")]
    alone = facts.without_broker()
    assert shown in [[as_labelled(name, hour) for name, hour in hours_shown(alone, at)] for at in instants(before)]


def test_with_the_warehouse_down_the_map_shows_no_figure(open_page: Open) -> None:
    page = open_page("admin", "logbus/ui/ingestion?hours=24&warehouse_conn_id=warehouse_nowhere")
    expect(page.get_by_text("Hours are not known")).to_be_visible()
    assert page.locator(".cell, .tile .value, .row").count() == 0


# -- an hour ---------------------------------------------------------------------------------------------------------------------


def window_of(facts: Facts, platform: SeededPlatform, name: str, hours_ago: int) -> Row:
    window = facts.window(name, platform.start(hours_ago))
    assert window is not None
    return window


def expected_window(facts: Facts, window: Row, at: datetime) -> Mapping[str, Any]:
    is_loaded = window["loaded_attempt"] is not None
    counts = [window[name] for name in ("read_count", "loaded_count", "dead_lettered_count", "filtered_count")]
    letters = facts.of_window("dead_letter", window, "offset")
    attempts = facts.of_window("attempt", window, "number")[::-1]
    return {
        "state": [LABELS[expected_hours.window_hour(facts, window, at).state]],
        "equation": counts if is_loaded else [],
        "ranges": [cell for one in facts.of_window("window_range", window, "partition") for cell in row_of(facts, window, one)],
        "dead letters": Counter(one["error_class"] for one in letters),
        "attempts": [one["number"] for one in attempts],
        "fingerprint": window["fingerprint"] or UNKNOWN,
    }


def row_of(facts: Facts, window: Row, one: Row) -> list[str]:
    """Partition, offsets, records, loaded, dead letters, lost."""
    part, is_loaded = one["partition"], window["loaded_attempt"] is not None
    letters = [row for row in facts.of_window("dead_letter", window, "offset") if row["partition"] == part]
    # A row deleted from the table without the ledger's knowledge had still been loaded.
    spoilt = window["pipeline"] == orders.NAME and window["audit_problems"] and part == 0
    gone = expected_hours.gone(facts, window).get(part, 0)
    loaded = f"{facts.rows[window['id'], part] + bool(spoilt):,}" if is_loaded else UNKNOWN
    return [
        *(str(part), str(one["start_offset"]), str(one["end_offset"])),
        f"{one['end_offset'] - one['start_offset'] - one['lost']:,}",
        loaded,
        f"{len(letters):,}" if is_loaded else UNKNOWN,
        f"{one['lost'] + gone:,}",
    ]


def shown_window(page: Page) -> Mapping[str, Any]:
    names, counts = texts(page, ".errors .one b"), texts(page, ".errors .one .number")
    return {
        "state": texts(page, "#state"),
        "equation": [number(one) for one in texts(page, ".equation .term b")],
        "ranges": texts(page, "tr:has(td.range-bar) td:not(.range-bar)"),
        "dead letters": Counter(dict(zip(names, map(number, counts), strict=True))),
        "attempts": [number(one) for one in texts(page, ".attempts .line")],
        "fingerprint": texts(page, ".facts dd")[0],
    }


def test_an_hours_state_sum_ranges_and_attempts_are_what_ledger_and_table_say(
    open_page: Open, facts: Facts, platform: SeededPlatform
) -> None:
    page, wrong = open_page("admin", "about:blank"), {}
    for name, hours_ago in EVENTFUL:
        start = instant_text(platform.start(hours_ago))
        page.goto(f"logbus/ui/window?pipeline={name}&start={start}")
        expect(page.locator("#state")).to_be_visible()
        shown = shown_window(page)
        expected = expected_window(facts, window_of(facts, platform, name, hours_ago), datetime.now(UTC))
        wrong[name, hours_ago] = {key: (shown[key], value) for key, value in expected.items() if shown[key] != value}
    assert wrong == {hour: {} for hour in EVENTFUL}


def test_with_the_warehouse_down_an_hour_shows_no_figure(open_page: Open, platform: SeededPlatform) -> None:
    start = instant_text(platform.start(5))
    page = open_page("admin", f"logbus/ui/window?pipeline=access_log&start={start}&warehouse_conn_id=warehouse_nowhere")
    expect(page.locator("#notices")).to_contain_text("does not answer")
    assert page.locator("#state, .equation").count() == 0


@pytest.mark.parametrize(("name", "hours_ago"), [("access_log", 5), ("clickstream", 21)])
def test_the_plan_of_a_replay_counts_what_log_and_table_hold(
    name: str, hours_ago: int, open_page: Open, facts: Facts, platform: SeededPlatform
) -> None:
    page = open_page("admin", f"logbus/ui/window?pipeline={name}&start={instant_text(platform.start(hours_ago))}")
    page.get_by_role("button", name="What would a replay do?").click()
    expect(page.locator("dialog .plan")).to_be_visible()
    window, topic = window_of(facts, platform, name, hours_ago), facts.topics[name]
    ranges = facts.of_window("window_range", window, "partition")
    is_cut = any(one["start_offset"] < topic[one["partition"]].start for one in ranges)  # then none of it is read again
    records = 0 if is_cut else sum(one["end_offset"] - one["start_offset"] for one in ranges)
    rows = 0 if is_cut else sum(count for (number, _), count in facts.rows.items() if number == window["id"])
    assert [number(one) for one in texts(page, "dialog .plan dt")] == [1, records, rows, int(is_cut)]


# -- topics and groups -----------------------------------------------------------------------------------------------------------

TOPICS, GROUPS = "table[aria-label=Topics]", "table[aria-label=Groups]"


def lag_of(facts: Facts, group: Group) -> int | None:
    known = [facts.topics[topic][part].end - offset for (topic, part), offset in group.committed.items()]
    return sum(known) if known else None


def test_records_and_sizes_of_topics_and_the_lag_of_groups_are_what_the_broker_says(open_page: Open, facts: Facts) -> None:
    page = open_page("admin", "logbus/ui/topics")
    expect(page.locator(f"{GROUPS} .opener").first).to_be_visible()
    expect(page.locator(f"{TOPICS} .opener").first).to_be_visible()
    names = sorted(facts.topics)
    parts = {name: facts.topics[name].values() for name in names}
    columns = {place: texts(page, f"{TOPICS} tr.one td:nth-child({place})") for place in (1, 2, 3, 4)}
    assert columns[1] == names
    assert columns[2] == [str(len(parts[name])) for name in names]
    assert columns[3] == formatted(page, "short", [sum(one.end - one.start for one in parts[name]) for name in names])
    assert columns[4] == formatted(page, "bytes", [sum(one.size_bytes for one in parts[name]) for name in names])
    lags = dict(zip(*(texts(page, f"{GROUPS} tr.one td:nth-child({place})") for place in (1, 4)), strict=True))
    expected = {name: lag_of(facts, group) for name, group in facts.groups.items()}
    assert lags == {name: "no offsets" if lag is None else f"{lag:,}" for name, lag in expected.items()}
    assert {expected["notebook"], sum(one.end for one in parts["crashes"])} == {None, 0}  # both kinds of zero are on the page


def test_with_the_broker_down_no_topic_and_no_group_is_not_nought(open_page: Open) -> None:
    page = open_page("admin", "logbus/ui/topics?kafka_conn_id=kafka_nowhere")
    expect(page.locator("#notices")).to_contain_text("The broker does not answer")
    expect(page.locator(".totals span")).to_have_text(
        [f"{UNKNOWN}{what}" for what in (" topics", " records", "", " coming in", " groups")]
    )
    expect(page.get_by_text("Not known yet.")).to_have_count(2)
