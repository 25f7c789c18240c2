"""For a person who sees the page Ingestion for the first time, or is on call: find the data, what is wrong, and what to type."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from logbus.model import HOUR, Grid, instant_text
from playwright.sync_api import expect

from tests.support import eventful_pipeline as orders
from tests.support.browsing import PHONE, Open, answered_with
from tests.support.seeded_platform import SeededPlatform

INGESTION = "logbus/ui/ingestion?hours=24"


def test_the_map_goes_to_a_chosen_day_to_where_the_records_are_and_back_to_now(open_page: Open) -> None:
    page = open_page("admin", INGESTION)
    expect(page.locator(".cell").first).to_be_visible()
    today = page.get_by_label("Last day shown, in UTC")
    expect(page.get_by_role("button", name="Latest data")).to_have_count(0)
    today.fill(f"{datetime.now(UTC) - timedelta(days=40):%Y-%m-%d}")
    expect(page.get_by_role("button", name="Latest data")).to_be_visible()
    expect(page.locator(".cell")).to_have_count(0)
    page.get_by_role("button", name="Latest data").click()
    expect(page.locator(".cell").first).to_be_visible()
    page.get_by_role("button", name="Now").click()
    expect(page.locator(".axis .now")).to_be_visible()


def test_tiles_say_of_which_span_they_speak(open_page: Open) -> None:
    page = open_page("admin", INGESTION)
    dead = page.locator(".tile", has_text="Dead letters")
    expect(dead.locator(".label")).to_have_text("Dead letters in 24 hours")
    page.get_by_role("button", name="7 days").click()
    expect(dead.locator(".label")).to_have_text("Dead letters in 7 days")


def test_the_size_of_all_that_waits_is_not_shown_if_a_part_of_it_is_unknown(open_page: Open) -> None:
    page = open_page("admin", "about:blank")
    unknown: list[str] = []

    def some_are_unknown(answer: dict[str, Any]) -> None:
        for one in answer["pipelines"]:
            if one["name"] in unknown:
                one["lag"]["bytes_behind"] = None
            elif not unknown and one["lag"] and one["lag"]["records_behind"]:
                one["lag"]["bytes_behind"] = 4096

    answered_with(page, "overview", some_are_unknown)
    page.goto(INGESTION)
    size = page.locator(".tile", has_text="Records behind").locator(".more")
    expect(size).to_have_text(re.compile(r"\d.* [KM]i?B$"))
    unknown.append("payments")  # some of its hours wait
    page.reload()
    expect(size).to_have_text("\u00a0")


def test_what_waits_is_one_click_from_what_loads_it(open_page: Open) -> None:
    page = open_page("admin", INGESTION)
    page.get_by_text(re.compile(r"^Load \d+ hours$")).click()
    listed = page.locator(".todo li", has_text="payments")
    expect(listed.locator("code")).to_have_text("logbus load --pipeline payments --only-missing")
    expect(listed.get_by_role("link", name="payments")).to_have_attribute("href", re.compile(r"/dags/payments$"))
    expect(page.locator(".todo li", has_text=orders.NAME)).to_have_count(0)  # its lag is unknown
    listed.get_by_role("button", name=re.compile("^Copy")).click()
    expect(listed.get_by_role("button")).to_have_text(re.compile("Copied|Selected"))


def test_where_nobody_knows_how_far_behind_it_says_why(open_page: Open) -> None:
    """There is only one pipeline, and a timestamp among its records hides where its hours end."""
    page = open_page("admin", "about:blank")

    def only_orders(answer: dict[str, Any]) -> None:
        answer["pipelines"] = [one for one in answer["pipelines"] if one["name"] == orders.NAME]

    answered_with(page, "overview", only_orders)
    page.goto(INGESTION)
    expect(page.get_by_role("heading", level=1)).to_have_text("How far behind is unknown")
    expect(page.locator(".verdict .more")).to_contain_text("timestamp is in the future")


@pytest.mark.parametrize("lateness", [timedelta(minutes=5), timedelta(minutes=45)])
def test_an_hour_that_has_just_closed_is_no_alarm_and_one_that_closed_long_ago_is(lateness: timedelta, open_page: Open) -> None:
    page = open_page("admin", "about:blank")
    hour = Grid().floor(datetime.now(UTC)) - HOUR
    paused: list[str] = []
    late: dict[str, Any] = {"hours_behind": 1, "oldest_hour": instant_text(hour), "problem": None}

    def only_the_last_hour(answer: dict[str, Any]) -> None:
        answer["now"] = instant_text(hour + HOUR + lateness + timedelta(minutes=1))
        for one in answer["pipelines"]:
            one["states"], one["lateness_seconds"] = {}, lateness.total_seconds()
            one["lag"] |= {"hours_behind": 0, "problem": None} if one["name"] != "search" else late
        answer["paused_dag_ids"] = paused

    answered_with(page, "overview", only_the_last_hour)
    page.goto(INGESTION)
    expect(page.locator(".verdict h1")).to_have_text("Every hour is in but the last")
    expect(page.locator(".todo")).to_have_count(0)
    search = page.locator(".row", has_text="search").locator(".figure b").first
    expect(search).to_have_text("1 hour")
    expect(search).not_to_have_class("bad")
    paused.append("search")  # no run will load it
    page.reload()
    expect(page.locator(".todo li")).to_contain_text("its Dag search is paused: switch it on")
    paused.clear()
    late["oldest_hour"] = instant_text(hour - 3 * HOUR)
    page.reload()
    expect(page.locator(".verdict h1")).to_have_text("1 hour not in yet")
    expect(search).to_have_class("bad")
    page.unroute_all(behavior="wait")


def test_an_hour_of_which_much_did_not_parse_stands_out_and_its_pipeline_comes_first(open_page: Open) -> None:
    page = open_page("admin", "about:blank")

    def search_has_a_wrong_parser(answer: dict[str, Any]) -> None:
        for one in answer["pipelines"]:
            one["states"], one["lag"]["problem"] = {}, None
            one["cells"]["dead_lettered"] = {"1": 7, "2": 1} if one["name"] == "search" else {}

    answered_with(page, "overview", search_has_a_wrong_parser)
    page.goto(INGESTION)
    expect(page.locator(".row .name b").first).to_have_text("search")
    expect(page.locator(".cell.heavy")).to_have_count(1)
    page.unroute_all(behavior="wait")


def test_commands_are_code_that_can_be_copied_and_no_page_shows_a_backtick(open_page: Open, platform: SeededPlatform) -> None:
    page = open_page("admin", "about:blank")
    hours = [("clickstream", 21), ("payments", 3), (orders.NAME, orders.MANY_DEAD), (orders.NAME, orders.SPOILT)]
    addresses = [f"logbus/ui/window?pipeline={name}&start={instant_text(platform.start(ago))}" for name, ago in hours]
    for address in [INGESTION, "logbus/ui/topics", *addresses]:
        page.goto(address)
        expect(page.locator("#fresh")).to_have_text(re.compile("^updated"))
        assert "`" not in page.locator("body").inner_text(), address
    by_hand = page.locator(".actions .one", has_text="no Dag loads this pipeline").locator("code")
    expect(by_hand).to_have_text(re.compile(rf"^logbus replay run --pipeline {orders.NAME} --window \S+$"))
    page.get_by_role("button", name="What would a replay do?").click()
    expect(page.locator("dialog .plan code")).to_have_text(re.compile(r"^logbus replay run --pipeline orders --window \S+$"))


TOP = "one => one.getBoundingClientRect().top"


def test_on_a_phone_the_hour_comes_first_then_what_can_be_done_then_the_details(
    open_page: Open, platform: SeededPlatform
) -> None:
    page = open_page("admin", f"logbus/ui/window?pipeline=access_log&start={instant_text(platform.start(5))}", PHONE)
    panels = [page.locator(".equation"), page.get_by_role("region", name="What can be done"), page.locator("#dead-letters")]
    expect(panels[-1]).to_be_visible()
    tops = [panel.evaluate(TOP) for panel in panels]
    assert tops == sorted(tops)


def test_on_a_phone_a_topics_name_stays_in_one_piece(open_page: Open) -> None:
    page = open_page("admin", "logbus/ui/topics", PHONE)
    name = page.locator(".opener", has_text="access_log").first
    expect(name).to_be_visible()
    lines = "one => one.getBoundingClientRect().height / parseFloat(getComputedStyle(one).lineHeight)"
    assert name.evaluate(lines) < 1.5


REPORTS = """async attempts => {
    const { attemptsPanel } = await import('../static/attempts.js');
    return [...attemptsPanel({ now: '2026-11-23T10:00:00Z', attempts }).querySelectorAll('li')].map(one => one.lastChild.textContent);
}"""


def test_a_failure_that_repeats_is_told_once(open_page: Open) -> None:
    page = open_page("admin", "logbus/ui/topics")
    began = {"began_at": "2026-11-23T09:00:00Z", "ended_at": "2026-11-23T09:01:00Z", "state": "failed", "run_id": "r"}
    attempts = [{**began, "number": number + 1, "error": error} for number, error in enumerate(["disk", "heap", "heap"])]
    assert page.evaluate(REPORTS, attempts) == ["heap", "the same error as in attempt 3", "disk"]


LABELS = """async spans => {
    const { ticks } = await import('../static/heatmap.js');
    return spans.map(([start, end]) => ticks({ start, end }).map(one => one.text));
}"""


def test_the_newest_day_is_named_at_every_hour_and_no_label_lies_on_another(open_page: Open) -> None:
    page = open_page("admin", "logbus/ui/topics")
    ends = [datetime(2026, 11, 23, hour, tzinfo=UTC) for hour in (1, 9, 20)]
    named = page.evaluate(LABELS, [[instant_text(end - timedelta(days=7)), instant_text(end)] for end in ends])
    assert [labels[-1] for labels in named] == ["Mon 23 Nov"] * 3
    (hours,) = page.evaluate(LABELS, [[instant_text(ends[1] - timedelta(days=1)), instant_text(ends[1])]])
    assert hours[hours.index("Mon 23 Nov") + 1] == "06:00"


def test_a_phone_has_the_days_to_choose_from_too(open_page: Open) -> None:
    page = open_page("admin", INGESTION, PHONE)
    expect(page.get_by_label("Last day shown, in UTC")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
