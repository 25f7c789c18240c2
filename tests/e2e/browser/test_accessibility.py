"""Whether everybody can use the pages, as far as a program can judge: axe-core over each of them, in both themes and both widths.

A page is opened once per width, which decides what it shows, and switches its theme while open. Axe checks contrasts, names,
roles and structure. What it cannot check is tested separately: the keyboard, the order of the focus.
"""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from logbus.model import instant_text
from playwright.sync_api import Locator, Page, expect

from tests.support import eventful_pipeline as orders
from tests.support.browsing import PHONE, THEMES, WIDE, Open, show_in
from tests.support.seeded_platform import SeededPlatform

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
    page = open_page("admin", "about:blank", size)

    def heading(name: str) -> Locator:
        return page.get_by_role("heading", name=name)

    def window(pipeline: str, hours_ago: int) -> str:
        return f"window?pipeline={pipeline}&start={instant_text(platform.start(hours_ago))}"

    found = {}
    for path, content in (
        ("ingestion", page.locator(".cell").first),
        ("topics", page.locator(".opener").first),
        ("pipeline?pipeline=access_log", heading("What it is")),
        ("records?topic=app_events", page.locator(".record").first),
        ("records?topic=access_log&partition=0&offset=0", page.locator(".trace dl")),
        ("connection", page.locator(".opener").first),
        (window("clickstream", 2), heading("No load has begun")),
        ("ingestion?warehouse_conn_id=warehouse_empty", heading("No pipeline yet")),
        (window(orders.NAME, orders.MANY_DEAD), page.locator("#state")),
        (window(orders.NAME, orders.REDRIVEN), page.locator("#state")),
    ):
        page.goto(f"logbus/ui/{path}")
        expect(content).to_be_visible()
        page.evaluate(OPEN_ALL)
        found[path] = violations(page)
    page.get_by_role("button", name="What would a replay do?").click()
    expect(page.locator("dialog .plan")).to_be_visible()
    found["dialog"] = violations(page)
    assert found == {name: [] for name in found}
