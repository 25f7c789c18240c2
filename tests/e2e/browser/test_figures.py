"""Each figure of the page Ingestion against the ledger and the broker. tests/support/map_figures.py has the table of them: the page, the
figure, the source; and nothing else on the page may look like a figure. By day, and with the broker or the warehouse down.

The page of an hour (window_figures.py) and that of topics and groups (topic_figures.py) are walked likewise beside this one; the tabs
of Dags and runs show the page Ingestion.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Page, expect

from tests.support.expected_hours import LABELS
from tests.support.map_figures import FIGURES, LEDGER
from tests.support.map_texts import View, summary
from tests.support.platform_facts import Facts
from tests.support.shown_figures import Figure, seconds, unaccounted, wrong_figures

pytestmark = pytest.mark.timeout(600)

Open = Callable[..., Page]
SHARED_SECONDS = timedelta(seconds=60)  # what the server knows may be a minute old: everybody who looks shares it


def by_name(page: Page) -> None:
    """Rows in the order of their names."""
    page.get_by_role("columnheader", name="Trouble first").get_by_role("button").click()
    expect(page.get_by_role("columnheader", name="Pipeline")).to_be_visible()


def views(facts: Facts, before: datetime) -> list[View]:
    """Of each second of which the page may speak, if it was asked for after `before` and shows its answer now."""
    return [View(facts, at) for at in seconds(before - SHARED_SECONDS, datetime.now(UTC))]


def test_each_figure_of_the_map_is_what_ledger_and_broker_say(open_page: Open, facts: Facts) -> None:
    before = datetime.now(UTC)
    page = open_page("admin", "logbus/ui/ingestion?hours=24")
    by_name(page)
    assert wrong_figures(page, FIGURES, views(facts, before)) == {}
    assert unaccounted(page, FIGURES) == []


def test_with_the_broker_down_the_map_shows_the_ledgers_part_and_what_nobody_knows(open_page: Open, facts: Facts) -> None:
    before = datetime.now(UTC)
    page = open_page("admin", "logbus/ui/ingestion?hours=24&kafka_conn_id=kafka_nowhere")
    by_name(page)
    expect(page.locator("#notices")).to_contain_text("The broker does not answer")
    assert wrong_figures(page, FIGURES, views(facts.without_broker(), before)) == {}
    assert unaccounted(page, FIGURES) == []


def test_with_the_warehouse_down_the_map_shows_no_figure(open_page: Open) -> None:
    page = open_page("admin", "logbus/ui/ingestion?hours=24&warehouse_conn_id=warehouse_nowhere")
    expect(page.get_by_text("Hours are not known")).to_be_visible()
    assert page.locator(", ".join(one.place for one in FIGURES)).count() == 0
    assert unaccounted(page, [Figure(name="title", place=".empty h2", source="", expected=lambda view: [])]) == []


TIP = ".tip > b, .tip > .quiet, .tip > .state, .tip dt, .tip dd, .tip > .note"
FIRST_OF_EACH = """states => states.map(state => document.querySelector(`.cell.s-${state}`))
    .map(one => [one.className.match(/s-(\\w+)/)[1], one.pipeline.name, one.cell.start])"""


def test_the_summary_of_an_hour_is_what_ledger_and_broker_say(open_page: Open, facts: Facts) -> None:
    before = datetime.now(UTC)
    page = open_page("admin", "logbus/ui/ingestion?hours=24")
    expect(page.locator(".cell").first).to_be_visible()
    for state, name, start in page.evaluate(FIRST_OF_EACH, list(LABELS)):
        page.locator(f".cell.s-{state}").first.hover()
        expect(page.locator(".tip > b")).to_have_text(name)
        tip = Figure(
            name=state,
            place=TIP,
            source=LEDGER,
            expected=lambda view, name=name, start=start: summary(view, name, datetime.fromisoformat(start)),
        )
        assert wrong_figures(page, [tip], views(facts, before)) == {}
