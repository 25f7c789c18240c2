"""The pages as people use them: inside Airflow's own, served below a path, as real users, at two widths and in both themes, by
mouse and by keyboard."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from logbus.loads.table_audit import HourAudit, Spans, TableReport, record_report
from logbus.model import HOUR, instant_text
from logbus.status.ledger_facts import MICROSECOND, micros
from logbus.web.cells import Cell, CellState, columns_of
from playwright.sync_api import FrameLocator, Page, expect

from tests.support.api_server import BASE_PATH, ApiServer
from tests.support.browsing import PHONE, THEMES, WIDE, Open, answered_with, ours, show_in
from tests.support.seeded_platform import PARTITIONS, SCRIPT, SeededPlatform

ALONE = "logbus/ui"  # the page itself, which is cheaper than with Airflow's around it
IN_AIRFLOW = "plugin/logbus-ingestion"
SEEDED = [
    ("clickstream", 21, "lost"),
    ("clickstream", 20, "expiring"),
    ("clickstream", 3, "closed"),
    ("payments", 3, "failed"),
    ("app_events", 4, "loading"),
    ("access_log", 5, "dead_letters"),
    ("access_log", 2, "audited"),
    ("access_log", 1, "loaded"),
]
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
CELL_STATES = """elements => Object.fromEntries(elements.map(one =>
    [one.pipeline.name + ' ' + one.cell.start, [...one.classList].find(name => name.startsWith('s-')).slice(2)]))"""
NAMELESS = """() => [...document.querySelectorAll('a[href], button, input, select, [role=gridcell][tabindex], [role=img]')]
    .filter(one => one.checkVisibility() && !(one.getAttribute('aria-label') || one.textContent.trim()
        || document.getElementById(one.getAttribute('aria-labelledby'))))
    .map(one => one.outerHTML)"""


def light_of(frame: FrameLocator | Page) -> float:
    """How light the page's background is, 0 to 1."""
    colour = frame.locator("body").evaluate("body => getComputedStyle(body).backgroundColor")
    return sum(int(part) for part in re.findall(r"\d+", colour)[:3]) / 765


def window_path(platform: SeededPlatform, pipeline: str, hours_ago: int) -> str:
    return f"{ALONE}/window?pipeline={pipeline}&start={instant_text(platform.start(hours_ago))}"


def held(platform: SeededPlatform, topic: str) -> list[int]:
    """Records of each partition."""
    partitions = list(range(PARTITIONS))
    starts = platform.log.start_offsets(topic, partitions)
    return [end - starts[part] for part, end in platform.log.end_offsets(topic, partitions, "read_uncommitted").items()]


def cell(frame: FrameLocator | Page, platform: SeededPlatform, pipeline: str, hours_ago: int) -> Any:
    at = platform.start(hours_ago)
    return frame.locator(f'.cell[aria-label^="{pipeline}, {at:%a} {at.day} {at:%b} {at:%H:%M}"]')


PAGES = {
    "ingestion": ("ingestion", ".row .cell"),
    "topics": ("topics", "tr.one"),
    "window": ("access_log 5", ".equation"),
    "waiting": ("clickstream 2", "#waiting-title"),
    "pipeline": ("pipeline?pipeline=payments", ".trend"),
    "empty": ("ingestion?warehouse_conn_id=warehouse_empty", ".empty .commands"),
}


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
@pytest.mark.parametrize(("path", "content"), PAGES.values(), ids=PAGES)
def test_every_page_fits_its_screen_in_both_themes(
    path: str, content: str, size: tuple[int, int], open_page: Open, platform: SeededPlatform
) -> None:
    name, _, hours_ago = path.partition(" ")
    address = window_path(platform, name, int(hours_ago)) if hours_ago else f"{ALONE}/{path}"
    page = open_page("admin", address, size)
    expect(page.locator(content).first).to_be_visible()
    expect(page.locator("#fresh")).to_have_text(re.compile("^updated"))
    for theme in THEMES:
        show_in(page, theme)
        assert (light_of(page) < 0.5) == (theme == "dark")
        assert page.evaluate(OVERFLOW) <= 0
    assert page.evaluate(NAMELESS) == []
    assert page.locator("h1").count() == 1
    not_frozen = [one for one in page.errors if "404" in one]  # type: ignore[attr-defined]
    assert page.errors == not_frozen  # type: ignore[attr-defined]
    assert len(not_frozen) == (path == "clickstream 2")


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_every_state_of_an_hour_is_on_the_map_and_in_the_legend(
    size: tuple[int, int], open_page: Open, platform: SeededPlatform
) -> None:
    frame = open_page("admin", f"{ALONE}/ingestion", size)
    expect(frame.locator(".cell").first).to_be_visible()
    found = frame.locator(".cell").evaluate_all(CELL_STATES)
    assert {f"{name} {instant_text(platform.start(hours))}": state for name, hours, state in SEEDED}.items() <= found.items()
    newest = max(hour for hour in found if hour.startswith("search "))
    # Not always the hour of now: it may have turned since the platform was seeded, and the server keeps an answer for seconds.
    assert platform.start(0) <= datetime.fromisoformat(newest.removeprefix("search ")) <= datetime.now(UTC)
    assert found[newest] == "open"
    shown = list(found.values())
    states = ["open", *(state for _, _, state in SEEDED)]
    counts = {state: int(frame.locator(f'[data-state="{state}"] b').inner_text().replace(",", "")) for state in states}
    assert counts == {state: shown.count(state) for state in counts}


def test_the_theme_follows_airflows_switch_live(open_page: Open) -> None:
    page = open_page("admin", IN_AIRFLOW)
    frame = ours(page)
    expect(frame.locator(".cell").first).to_be_visible()
    page.evaluate("document.documentElement.classList.replace('light', 'dark')")
    expect(frame.locator("html")).to_have_class("dark")
    page.evaluate("document.documentElement.classList.replace('dark', 'light')")
    expect(frame.locator("html")).not_to_have_class("dark")


def test_the_legend_and_the_search_choose(open_page: Open) -> None:
    frame = open_page("admin", f"{ALONE}/ingestion")
    frame.locator('[data-state="failed"]').click()
    expect(frame.locator(".row .name b")).to_have_text(["payments"])
    expect(frame.locator('[data-state="failed"]')).to_have_attribute("aria-pressed", "true")
    frame.locator('[data-state="failed"]').click()
    frame.get_by_label("Find a pipeline").fill("sear")
    expect(frame.locator(".row .name b")).to_have_text(["search"])
    frame.get_by_label("Find a pipeline").fill("nobody")
    expect(frame.get_by_text("No pipeline matches")).to_be_visible()


def test_keys_reach_the_page_as_soon_as_airflow_shows_it(open_page: Open) -> None:
    page = open_page("admin", IN_AIRFLOW)
    frame = ours(page)
    expect(frame.locator(".cell").first).to_be_visible()
    page.keyboard.press("?")
    expect(frame.get_by_role("dialog")).to_contain_text("from hour to hour")


def test_hours_are_chosen_by_mouse_and_by_keyboard_and_what_is_refused_says_why(
    open_page: Open, platform: SeededPlatform
) -> None:
    page = open_page("admin", f"{ALONE}/ingestion")
    bar = page.get_by_role("region", name="Chosen hours")
    selected = page.locator('.cell[aria-selected="true"]')
    cell(page, platform, "payments", 6).click(modifiers=["Control"])
    cell(page, platform, "payments", 3).click(modifiers=["Shift"])
    expect(selected).to_have_count(4)
    expect(bar).to_contain_text("4 hours of payments")
    page.get_by_role("button", name="Choose hours").click()
    cell(page, platform, "access_log", 5).click()
    expect(bar).to_contain_text("5 hours of payments, access_log")
    page.keyboard.press("Space")
    expect(selected).to_have_count(4)
    page.keyboard.press("Shift+ArrowRight")
    expect(selected).to_have_count(6)
    page.keyboard.press("Escape")
    expect(bar).to_be_hidden()
    expect(selected).to_have_count(0)
    cell(page, platform, "payments", 3).click()
    cell(page, platform, "payments", 4).click()
    page.get_by_role("button", name="Load 2 hours").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("payments: 2 hours; the rows of 1 are replaced")
    dialog.get_by_role("button", name="Load 2 hours").click()
    expect(bar).to_contain_text("2 hours not requested")
    expect(bar).to_contain_text("the Dag payments is paused")
    expect(selected).to_have_count(2)


def test_a_cell_leads_to_its_hour_and_airflows_address_goes_with_it(open_page: Open, platform: SeededPlatform) -> None:
    page = open_page("admin", IN_AIRFLOW)
    frame = ours(page)
    chosen = cell(frame, platform, "access_log", 5)
    chosen.hover()
    expect(frame.locator(".tip")).to_contain_text("Dead letters")
    chosen.click()
    expect(frame.locator("#state")).to_have_attribute("data-state", "dead_letters")
    page.wait_for_url(re.compile(rf"{BASE_PATH}/plugin/logbus-ingestion{BASE_PATH}/logbus/ui/window\?pipeline=access_log"))
    frame.get_by_role("link", name="Later").click()
    expect(frame.locator("#state")).to_have_attribute("data-state", "audited")
    frame.get_by_role("navigation", name="Pages").get_by_role("link", name="Ingestion").click()
    expect(frame.locator(".cell").first).to_be_visible()


def test_an_hour_that_is_not_frozen_says_so_and_is_loaded_from_its_page(
    open_page: Open, platform: SeededPlatform, airflow: ApiServer
) -> None:
    page = open_page("admin", f"{ALONE}/ingestion")
    cell(page, platform, "clickstream", 2).click()
    expect(page.get_by_role("heading", name="No load has begun")).to_be_visible()
    expect(page.locator("#state")).to_have_attribute("data-state", "closed")
    button = page.get_by_role("button", name="Load this hour")
    expect(button).to_have_accessible_description(re.compile("the Dag clickstream is paused: switch it on"))
    expect(page.get_by_role("button", name="Copy logbus load --pipeline clickstream --only-missing")).to_be_visible()
    with unpaused(airflow, "clickstream"):
        page.reload()
        button.click()
        page.get_by_role("dialog").get_by_role("button", name="Load this hour").click()
        expect(page.locator("#said")).to_contain_text(
            "clickstream --only-missing"
        )  # its Dag never ran: which hours a run takes is unknown
    page.get_by_role("link", name="Earlier").click()
    page.get_by_role("link", name="How clickstream stands").click()
    expect(page.get_by_role("heading", name="clickstream", level=1)).to_be_visible()


def test_a_row_offers_to_load_its_hours_or_to_switch_its_dag_on(
    open_page: Open, platform: SeededPlatform, airflow: ApiServer
) -> None:
    page = open_page("admin", f"{ALONE}/ingestion")
    switch_on = page.get_by_role("link", name="Switch on the Dag of payments")
    expect(switch_on).to_have_attribute("href", re.compile(r"/dags/payments$"))
    with unpaused(airflow, "payments"):
        page.reload()
        page.get_by_role("button", name="Load the waiting hours of payments").click()
        expect(page.get_by_role("button", name=re.compile(r"^Load \d+ hours$"))).to_be_focused()
        selected = page.locator('.cell[aria-selected="true"]')
        expect(cell(page, platform, "payments", 3)).to_have_attribute("aria-selected", "true")
        names = [str(one.get_attribute("aria-label")) for one in selected.all()]
        assert len(names) >= 3  # more if the hour has turned since they were made
        assert all(re.match("payments, .*(Failed|Closed)", name) for name in names)
        page.keyboard.press("Escape")
        expect(page.locator('.cell[aria-selected="true"]')).to_have_count(0)


def test_links_to_airflows_own_pages_lead_out_of_the_frame(open_page: Open, platform: SeededPlatform) -> None:
    page = open_page("admin", f"{IN_AIRFLOW}{BASE_PATH}/{window_path(platform, 'access_log', 5)}")
    ours(page).get_by_role("link", name="access_log", exact=True).last.click()
    expect(page).to_have_url(re.compile(rf"\d{BASE_PATH}/dags/access_log"))
    page.go_back()
    ours(page).get_by_role("link", name="Task log in Airflow").click()
    expect(page).to_have_url(re.compile(rf"\d{BASE_PATH}/dags/access_log/runs/scheduled__.+/tasks/load"))


def test_the_link_that_a_task_writes_leads_to_its_hour_inside_airflow(open_page: Open, platform: SeededPlatform) -> None:
    page = open_page("admin", f"logbus/windows/access_log/{instant_text(platform.start(5))}")
    expect(page).to_have_url(
        re.compile(rf"\d{BASE_PATH}/plugin/logbus-ingestion{BASE_PATH}/logbus/ui/window\?pipeline=access_log")
    )
    expect(ours(page).locator("#state")).to_have_attribute("data-state", "dead_letters")


def test_a_rerun_is_asked_of_the_airflow_around_us(open_page: Open, platform: SeededPlatform, airflow: ApiServer) -> None:
    start, end = (instant_text(platform.start(hours)) for hours in (9, 8))
    run = {"logical_date": start, "data_interval_start": start, "data_interval_end": end, "run_after": end}
    airflow.api("POST", "dags/access_log/dagRuns", json=run)
    frame = open_page("admin", window_path(platform, "access_log", 9))
    button = frame.get_by_role("button", name="Load this hour again")
    expect(button).to_be_disabled()
    expect(button).to_have_accessible_description(re.compile("the Dag access_log is paused: switch it on"))
    with unpaused(airflow, "access_log"):
        frame.reload()
        button.click()
        frame.get_by_role("dialog").get_by_role("button", name="Load this hour again").click()
        expect(frame.locator("main")).to_contain_text("is queued: wait until it has ended, then rerun it")


@contextmanager
def unpaused(airflow: ApiServer, dag_id: str) -> Iterator[None]:
    airflow.api("PATCH", f"dags/{dag_id}", json={"is_paused": False})
    yield
    airflow.api("PATCH", f"dags/{dag_id}", json={"is_paused": True})


def test_the_hours_are_walked_by_keyboard(open_page: Open, platform: SeededPlatform) -> None:
    page = frame = open_page("admin", f"{ALONE}/ingestion")
    frame.get_by_role("columnheader", name="Trouble first").get_by_role("button").click()
    cell(frame, platform, "access_log", 4).focus()
    page.keyboard.press("ArrowLeft")
    expect(cell(frame, platform, "access_log", 5)).to_be_focused()
    expect(frame.locator(".tip")).to_contain_text("Dead letters")
    page.keyboard.press("ArrowDown")
    expect(cell(frame, platform, "app_events", 5)).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(cell(frame, platform, "app_events", 4)).to_be_focused()
    assert frame.locator('.cell[tabindex="0"]').count() == 1
    page.keyboard.press("?")
    expect(frame.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    cell(frame, platform, "app_events", 4).focus()
    page.keyboard.press("Enter")
    expect(frame.locator("#state")).to_have_attribute("data-state", "loading")


def test_an_hour_shows_where_every_record_went(open_page: Open, platform: SeededPlatform) -> None:
    window = platform.ledger.window("access_log", platform.start(5))
    assert window.counts is not None
    frame = open_page("admin", window_path(platform, "access_log", 5))
    terms = [window.counts.read, window.counts.loaded, window.counts.dead_lettered, window.counts.filtered]
    expect(frame.locator(".equation .term b")).to_have_text([f"{count:,}" for count in terms])
    expect(frame.locator(".equation .tick")).to_contain_text("adds up, audited")
    expect(frame.get_by_text(str(window.fingerprint))).to_be_visible()
    expect(frame.locator("#dead-letters pre").filter(has_text="script").first).to_have_text(SCRIPT)
    offsets = [[str(part.start_offset), str(part.end_offset)] for part in window.ranges]
    shown = frame.locator("table tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.querySelectorAll('.mono')].map(one => one.textContent))"
    )
    assert [row for row in shown if row] == offsets


def test_an_attempt_that_failed_says_why(open_page: Open, platform: SeededPlatform) -> None:
    frame = open_page("admin", window_path(platform, "payments", 3))
    expect(frame.locator(".attempts .failed pre")).to_contain_text("Task 3 in stage 0.0 failed 4 times")
    expect(frame.get_by_role("heading", name="Nothing is loaded: attempt 1 failed")).to_be_visible()
    expect(frame.locator(".cause")).to_have_text(
        "SparkException: Job aborted due to stage failure: Task 3 in stage 0.0 failed 4 times"
    )
    frame.locator(".crumbs").get_by_role("link", name="payments").click()
    frame.get_by_role("link", name="Its hours").click()
    expect(frame.get_by_role("searchbox")).to_have_value("payments")
    expect(frame.locator(".row", has_text="access_log")).to_have_count(0)


def test_topics_and_groups_sort_and_open(open_page: Open, platform: SeededPlatform) -> None:
    hour = HourAudit(start=platform.start(2), records=3, missing=Spans(count=2))
    report = TableReport(table="shop.payments", topic="payments", hours=[hour], foreign=0, problems=(), notes=())
    record_report(platform.ledger.engine, report, platform.start(0))
    frame = open_page("admin", f"{ALONE}/topics")
    topics = frame.get_by_role("table", name="Topics")
    topics.get_by_role("button", name="Records").click()
    records = {story.name: sum(held(platform, story.name)) for story in platform.stories}
    expect(topics.locator(".opener").first).to_have_text(max(records, key=lambda name: records[name]))
    topics.get_by_role("button", name="app_events").click()
    ends = [str(offset) for offset in platform.log.end_offsets("app_events", [0, 1], "read_uncommitted").values()]
    opened = topics.locator("tr.inner tbody tr").evaluate_all(
        "rows => rows.map(row => row.cells[3].textContent.replace(',', ''))"
    )
    assert opened == ends
    topics.get_by_role("button", name="payments").click()
    expect(topics.get_by_role("row", name="shop.payments").locator("td")).to_contain_text(["shop.payments", "0", "1", "0", "2"])
    groups = frame.get_by_role("table", name="Groups")
    expect(groups.get_by_role("row", name="notebook")).to_contain_text("no offsets")
    groups.get_by_role("button", name="billing-exporter").click()
    expect(groups.locator("tr.inner")).to_contain_text("billing-exporter-1")


def test_a_dags_tab_shows_what_the_dag_loads(open_page: Open) -> None:
    frame = ours(open_page("admin", "dags/payments/plugin/logbus-dag"))
    expect(frame.locator(".row .name b")).to_have_text(["payments"])
    expect(frame.locator(".scope")).to_have_text("Only payments")


def test_a_viewer_sees_all_and_is_told_why_he_may_not_act(open_page: Open, platform: SeededPlatform) -> None:
    frame = open_page("vic", window_path(platform, "access_log", 5))
    rerun = frame.get_by_role("button", name="Load this hour again")
    expect(rerun).to_be_disabled()
    expect(frame.locator("#why-rerun")).to_contain_text("you may not")
    expect(frame.get_by_role("button", name="Redrive its dead letters")).to_be_disabled()
    frame.get_by_role("button", name="What would a replay do?").click()
    expect(frame.get_by_role("dialog")).to_contain_text("records to read")


def test_a_session_that_ended_says_so_and_keeps_what_was_known(open_page: Open) -> None:
    page = frame = open_page("vic", f"{ALONE}/ingestion", browser_number=2)
    expect(frame.locator(".cell").first).to_be_visible()
    page.context.clear_cookies()
    frame.get_by_role("button", name="24 hours").click()
    expect(frame.get_by_role("alert")).to_contain_text("Your session has ended")
    expect(frame.locator("#fresh")).to_contain_text("not answering")
    expect(frame.locator(".cell").first).to_be_visible()


def test_a_server_that_does_not_answer_says_so_and_keeps_what_was_known(open_page: Open) -> None:
    page = frame = open_page("vic", f"{ALONE}/ingestion", browser_number=3)
    expect(frame.locator(".cell").first).to_be_visible()
    page.context.set_offline(True)
    frame.get_by_role("button", name="24 hours").click()
    expect(frame.get_by_role("alert")).to_contain_text("The server does not answer")
    expect(frame.locator(".cell").first).to_be_visible()
    page.context.set_offline(False)
    frame.get_by_role("button", name="24 hours").click()
    expect(frame.locator("#fresh")).to_have_text(re.compile("^updated"))


SAID = """async () => {
    const [format, map, choices, figures] =
        await Promise.all(['format', 'heatmap', 'choices', 'figures'].map(name => import(`../static/${name}.js`)));
    const byHand = {name: 'p', topic: 'p', table: 'p', dag_ids: []};
    const flow = {produced_per_second: 5, loaded_per_second: 2, series: {produced: [1, 2], loaded: [1, 2]}};
    const span = {start: '2026-11-21T10:00:00Z', end: '2026-11-21T12:00:00Z', step_seconds: 3600};
    const place = (start, end, interval) => map.placeOf({start: `2026-11-21T${start}:00Z`, end: `2026-11-21T${end}:00Z`}, span, interval);
    return {
        spans: [0, 59, 61, 3600, 5400, 86400, 90000, 950400, null, NaN].map(format.span),
        bytes: [0, 1023, 1536, 5 * 1024 ** 3, null].map(format.bytes),
        numbers: [0, 9999, 12345, 1234567, undefined].map(format.short),
        rates: [0, 0.05, 4.25, 1200, null].map(format.rate),
        hour: format.hour('2026-11-21T23:00:00Z', '2026-11-22T00:00:00Z'),
        places: [place('10:00', '11:00', 3600), place('10:15', '10:30', 900), place('09:00', '11:00', 3600), place('12:00', '13:00', 3600)],
        units: [[3600], [86400, 86400], [900], [3600, 86400], []].map(all => format.unitOf(all.map(one => ({ interval_seconds: one })))),
        runs: ['scheduled__2026-11-23T10:05:00+00:00', 'manual__2026-11-23T10:05:00+01:00_a7', 'by hand', null].map(format.runOf),
        name: figures.pipelineName(byHand).querySelector('small').textContent,
        flow: figures.figures({...byHand, throughput: flow}).at(-1).querySelector('svg').getAttribute('aria-label'),
        trouble: [{states: {lost: 1}}, {states: {expiring: 2}}, {lag: {hours_behind: 900}}, {states: {}}].map(choices.troubleOf),
    };
}"""


CELLS = """async pipeline => {
    const { cellsOf } = await import('../static/columns.js');
    return cellsOf(pipeline);
}"""


def test_the_cells_are_read_out_of_their_columns(open_page: Open) -> None:
    length = HOUR // MICROSECOND
    one, two, four = (micros(datetime(2026, 11, 21, number, tzinfo=UTC)) for number in (1, 2, 4))
    cells = [
        Cell(one, one + length, CellState.AUDITED, 10, 10, 0, 0, 1),
        Cell(two, two + length, CellState.DEAD_LETTERS, 10, 7, 2, 1, 3, "a note", True),
        Cell(four, four + length // 2, CellState.CLOSED, None, note="not frozen yet"),
    ]
    pipeline = {"interval_seconds": 3600, "cells": columns_of(cells, HOUR)}
    said = open_page("admin", f"{ALONE}/topics").evaluate(CELLS, pipeline)
    assert said == [cell.summary() for cell in cells]


def test_numbers_times_and_places_are_as_people_read_them(open_page: Open) -> None:
    said = open_page("admin", f"{ALONE}/topics").evaluate(SAID)
    assert said["spans"] == ["0 s", "59 s", "1 min 1 s", "1 h", "1 h 30 min", "1 d", "1 d 1 h", "11 d", "\u2013", "\u2013"]
    assert said["bytes"] == ["0 B", "1023 B", "1.5 KiB", "5.0 GiB", "\u2013"]
    assert said["numbers"] == ["0", "9,999", "12.3 k", "1.2 M", "\u2013"]
    assert said["rates"] == ["0/s", "0.05/s", "4.3/s", "1,200/s", "\u2013"]
    assert said["hour"] == "Sat 21 Nov 2026, 23:00 to 00:00 UTC"
    assert said["places"] == [{"column": 1, "width": 1}, {"column": 2, "width": 1}, {"column": 1, "width": 1}, None]
    assert said["units"] == ["hour", "day", "window", "window", "hour"]
    assert said["runs"] == ["scheduled, Mon 23 Nov 10:05", "manual, Mon 23 Nov 09:05", "by hand", "\u2013"]
    assert said["name"] == "no Dag: loaded by hand"
    assert said["flow"] == "the last 24 hours shown; now 5.0/s in, 2.0/s loaded"
    assert said["trouble"] == sorted(said["trouble"], reverse=True)


DOWN = [
    ("ingestion?warehouse_conn_id=warehouse_nowhere", "The warehouse does not answer", "Hours are not known"),
    ("ingestion?warehouse_conn_id=warehouse_empty", "", "logbus pipeline register access_log"),
    ("ingestion?warehouse_conn_id=warehouse_empty", "", "dag = hourly_ingest("),
    ("topics?warehouse_conn_id=warehouse_nowhere", "The warehouse does not answer", "clickstream"),
    ("window?pipeline=access_log&start=2001-01-01T00:00:00Z", "", "Nothing to load"),
    ("window?pipeline=access_log&start=2001-01-01T00:30:00Z", "", "There is no such hour"),
    ("window?pipeline=access_log", "", "No hour was asked for"),
]


@pytest.mark.parametrize(("page", "problem", "shown"), DOWN)
def test_what_is_away_is_said_and_the_rest_is_shown(page: str, problem: str, shown: str, open_page: Open) -> None:
    frame = open_page("admin", f"{ALONE}/{page}")
    expect(frame.locator("main")).to_contain_text(shown)
    if problem:
        expect(frame.locator("#notices")).to_contain_text(problem)
    else:
        expect(frame.locator("#notices")).to_be_empty()


def test_a_total_that_nobody_knows_is_not_shown_as_nothing(open_page: Open) -> None:
    page = open_page("admin", "about:blank")

    def without_rates(answer: dict[str, Any]) -> None:
        for topic in answer["topics"]:
            topic["produced_per_second"] = None

    answered_with(page, "topics", without_rates)
    page.goto(f"{ALONE}/topics")
    expect(page.get_by_text("– coming in")).to_be_visible()
    page.unroute_all(behavior="wait")  # the page polls: an answer in flight must not outlive it
