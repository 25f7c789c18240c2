"""Each figure of the page of an hour against the ledger, the pipeline's own table and the broker. tests/support/window_figures.py has the
table of them, and nothing else on the page may look like a figure. Looked at in hours to which something has happened each (`HOURS`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from logbus.model import instant_text
from playwright.sync_api import Page, expect

from tests.support import eventful_pipeline as orders
from tests.support.platform_facts import Facts, Row
from tests.support.seeded_platform import SeededPlatform
from tests.support.shown_figures import Figure, seconds, unaccounted, wrong_figures
from tests.support.window_figures import FIGURES, RANGES, TABLE, View, plan

pytestmark = pytest.mark.timeout(600)

Open = Callable[..., Page]
HOURS = (
    *(
        (name, number)
        for name, number in [("access_log", 5), ("access_log", 1), ("payments", 3), ("app_events", 4), ("clickstream", 21)]
    ),
    *(
        (orders.NAME, hour)
        for hour in (orders.CUT, orders.MANY_DEAD, orders.REDRIVEN, orders.TWICE, orders.ODD_TIMES, orders.SPOILT)
    ),
)
PLANS = (("access_log", 5), ("clickstream", 21), ("payments", 3))


def window_of(facts: Facts, platform: SeededPlatform, name: str, hours_ago: int) -> Row:
    window = facts.window(name, platform.start(hours_ago))
    assert window is not None
    return window


def address(name: str, start: datetime, **values: str) -> str:
    more = "".join(f"&{key}={value}" for key, value in values.items())
    return f"logbus/ui/window?pipeline={name}&start={instant_text(start)}{more}"


def wrong(page: Page, facts: Facts, window: Row, before: datetime, query: str = "") -> Mapping[str, Any]:
    expect(page.locator("#state")).to_be_visible()
    return wrong_figures(page, FIGURES, [View(facts, at, window, query) for at in seconds(before, datetime.now(UTC))])


def test_each_figure_of_an_hour_is_what_ledger_and_broker_say(open_page: Open, facts: Facts, platform: SeededPlatform) -> None:
    page, found = open_page("admin", "about:blank"), {}
    for name, hours_ago in HOURS:
        before = datetime.now(UTC)
        page.goto(address(name, platform.start(hours_ago)))
        found[name, hours_ago] = (
            wrong(page, facts, window_of(facts, platform, name, hours_ago), before),
            unaccounted(page, FIGURES),
        )
    assert found == {hour: ({}, []) for hour in HOURS}


def test_with_the_broker_down_an_hour_shows_what_the_ledger_knows(
    open_page: Open, facts: Facts, platform: SeededPlatform
) -> None:
    page = open_page("admin", "about:blank")
    for name, hours_ago in [("clickstream", 21), ("access_log", 5)]:
        before = datetime.now(UTC)
        page.goto(address(name, platform.start(hours_ago), kafka_conn_id="kafka_nowhere"))
        window, query = window_of(facts, platform, name, hours_ago), "kafka_conn_id=kafka_nowhere&"
        assert wrong(page, facts.without_broker(), window, before, query) == {}
        expect(page.locator("#notices")).to_contain_text("The broker does not answer")


def test_with_the_warehouse_down_an_hour_shows_no_figure(open_page: Open, platform: SeededPlatform) -> None:
    start = platform.start(5)
    page = open_page("admin", address("access_log", start, warehouse_conn_id="warehouse_nowhere"))
    expect(page.locator("#notices")).to_contain_text("does not answer")
    assert page.locator("#state").count() == 0


def test_the_plan_of_a_replay_has_the_figures_of_ledger_and_log(open_page: Open, facts: Facts, platform: SeededPlatform) -> None:
    page, found = open_page("admin", "about:blank"), {}
    for name, hours_ago in PLANS:
        page.goto(address(name, platform.start(hours_ago)))
        page.get_by_role("button", name="What would a replay do?").click()
        expect(page.locator("dialog .plan")).to_be_visible()
        expected = plan(facts, window_of(facts, platform, name, hours_ago))
        figure = Figure(
            name="plan",
            place="dialog .plan dt, dialog .plan dd",
            source=f"{RANGES}; {TABLE}",
            expected=lambda view, expected=expected: expected,
        )
        found[name] = wrong_figures(page, [figure], [None])
    assert found == {name: {} for name, _ in PLANS}
