"""Whether everybody can use the pages, as far as a program can judge: axe-core over each of them, in both themes and both widths.

A page is opened once per width, which decides what it shows, and switches its theme while open. Axe checks contrasts, names,
roles and structure. What it cannot check is tested separately: the keyboard, the order of the focus.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from logbus.model import instant_text
from playwright.sync_api import Page, expect

from tests.support import eventful_pipeline as orders
from tests.support.browsing import PHONE, THEMES, WIDE, show_in
from tests.support.seeded_platform import SeededPlatform

Open = Callable[..., Page]
RULES = {
    "runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]},
    "resultTypes": ["violations"],
}
OPEN_ALL = "() => document.querySelectorAll('.opener').forEach(one => one.click())"


def violations(page: Page) -> list[str]:
    """What axe finds on the page as it is, in each theme."""
    found = []
    for theme in THEMES:
        show_in(page, theme)
        rules = Axe().run(page, options=RULES).response["violations"]
        found += [
            f"{theme}: {one['id']}: {one['help']}: {node['html']} {node['failureSummary']}"
            for one in rules
            for node in one["nodes"]
        ]
    return found


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_no_page_breaks_a_rule_of_accessibility(size: tuple[int, int], open_page: Open, platform: SeededPlatform) -> None:
    page = open_page("admin", "logbus/ui/ingestion", size)
    expect(page.locator(".cell").first).to_be_visible()
    found = {"ingestion": violations(page)}
    page.goto("logbus/ui/topics")
    expect(page.locator(".opener").first).to_be_visible()
    page.evaluate(OPEN_ALL)
    found["topics"] = violations(page)
    page.goto("logbus/ui/pipeline?pipeline=access_log")
    expect(page.get_by_role("heading", name="What it is")).to_be_visible()
    found["pipeline"] = violations(page)
    page.goto("logbus/ui/records?topic=app_events")
    expect(page.locator(".record").first).to_be_visible()
    found["records"] = violations(page)
    for hours_ago in (orders.MANY_DEAD, orders.REDRIVEN):
        page.goto(f"logbus/ui/window?pipeline={orders.NAME}&start={instant_text(platform.start(hours_ago))}")
        expect(page.locator("#state")).to_be_visible()
        found[f"window {hours_ago}"] = violations(page)
    page.goto(f"logbus/ui/window?pipeline=clickstream&start={instant_text(platform.start(2))}")
    expect(page.get_by_role("heading", name="No load has begun")).to_be_visible()
    found["window that waits"] = violations(page)
    page.goto("logbus/ui/ingestion?warehouse_conn_id=warehouse_empty")
    expect(page.get_by_role("heading", name="No pipeline yet")).to_be_visible()
    found["no pipeline"] = violations(page)
    page.goto(f"logbus/ui/window?pipeline={orders.NAME}&start={instant_text(platform.start(orders.REDRIVEN))}")
    page.get_by_role("button", name="What would a replay do?").click()
    expect(page.locator("dialog .plan")).to_be_visible()
    found["dialog"] = violations(page)
    assert found == {name: [] for name in found}
