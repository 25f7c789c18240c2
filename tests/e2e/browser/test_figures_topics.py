"""Each figure of the page of topics and groups against the broker, as the stock client and its files on the disk have it.
tests/support/topic_figures.py has the table of them, and nothing else on the page may look like a figure. A topic without records and a
group without offsets are among them; with the broker down nobody knows anything, and nothing is shown as nought.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Route, expect

from tests.support.platform_facts import Facts
from tests.support.shown_figures import Figure, said, unaccounted, wrong_figures
from tests.support.topic_figures import FIGURES, GROUPS, TOPICS, UNKNOWN, View

pytestmark = pytest.mark.timeout(600)

Open = Callable[..., Page]


def open_all(page: Page) -> None:
    expect(page.locator(f"{GROUPS} .opener").first).to_be_visible()
    expect(page.locator(f"{TOPICS} .opener").first).to_be_visible()
    page.evaluate(
        "() => { for (const name of [...document.querySelectorAll('.opener')].map(one => one.dataset.key))"
        ' document.querySelector(`[data-key="${name}"]`).click(); }'
    )


def test_each_figure_of_topics_and_groups_is_what_the_broker_says(open_page: Open, facts: Facts) -> None:
    page = open_page("admin", "logbus/ui/topics")
    open_all(page)
    assert {"crashes", "notebook"} <= {*facts.topics, *facts.groups}
    assert sum(one.end for one in facts.topics["crashes"].values()) == 0
    assert facts.groups["notebook"].committed == {}
    assert wrong_figures(page, FIGURES, [View(facts)]) == {}
    assert unaccounted(page, FIGURES) == []


def test_with_the_warehouse_down_topics_and_groups_are_what_the_broker_says(open_page: Open, facts: Facts) -> None:
    page = open_page("admin", "logbus/ui/topics?warehouse_conn_id=warehouse_nowhere")
    open_all(page)
    assert wrong_figures(page, FIGURES, [View(facts.without_warehouse(), has_warehouse=False)]) == {}
    assert unaccounted(page, FIGURES) == []


def test_with_the_broker_down_no_topic_and_no_group_is_not_nought(open_page: Open) -> None:
    page = open_page("admin", "logbus/ui/topics?kafka_conn_id=kafka_nowhere")
    expect(page.locator("#notices")).to_contain_text("The broker does not answer")
    expect(page.locator(".totals span")).to_have_text(
        [f"{UNKNOWN}{what}" for what in (" topics", " records", "", " coming in", " groups")]
    )
    expect(page.get_by_text("Not known yet.")).to_have_count(2)


RATE = 1.5  # a second, of the first topic; the second has twice as much, and so on


def test_rates_are_shown_and_added_up(open_page: Open, facts: Facts) -> None:
    """That the server's rates are the broker's is tests/integration/ui/test_routes.py's, where the clock stands still."""
    page = open_page("admin", "about:blank")

    def with_rates(route: Route) -> None:
        answer = route.fetch().json()
        for number, topic in enumerate(answer["topics"], start=1):
            topic["produced_per_second"] = number * RATE
        route.fulfill(json=answer)

    page.route("**/logbus/api/topics*", with_rates)
    page.goto("logbus/ui/topics")
    expect(page.locator(f"{TOPICS} .opener").first).to_be_visible()
    numbers = range(1, len(facts.topics) + 1)
    figures = [
        Figure(
            name="rates",
            place=f"{TOPICS} tr.one td:nth-child(5)",
            source="what the server was made to say",
            expected=lambda view: [said("rate", number * RATE) for number in numbers],
        ),
        Figure(
            name="their sum",
            place=".totals span:nth-child(4)",
            source="what the server was made to say",
            expected=lambda view: [(said("rate", sum(numbers) * RATE), " coming in")],
        ),
    ]
    assert wrong_figures(page, figures, [None]) == {}
    page.unroute_all(behavior="wait")  # the page asks again by itself: an answer on its way must not outlive it
