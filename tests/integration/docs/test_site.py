"""The documentation site as `make docs` builds it: nothing is missing, and its pages load nothing from other hosts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from logbus.waiting import PATIENCE_SECONDS
from playwright.sync_api import expect

from tests.support.browsing import chromium
from tests.support.pages import PROJECT

# For these elements browsers fetch what the attribute names; a link that a reader may click is not fetched.
FETCHED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src", "object": "data"}
NOT_FETCHED = {"canonical", "next", "prev", "author", "license", "edit"}
IN_STYLES = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""")


class Fetched(HTMLParser):
    """Collects what a page makes a browser fetch from other hosts."""

    def __init__(self) -> None:
        super().__init__()
        self.elsewhere: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        target = values.get(FETCHED.get(tag, "")) or ""
        if target.startswith(("http:", "https:", "//")) and values.get("rel") not in NOT_FETCHED:
            self.elsewhere.append(target)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site")
    write = [sys.executable, "-m", "scripts.site", "build/pages"]
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(place)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    for command in (write, build):
        done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        assert done.returncode == 0, done.stderr
    return place


def test_every_page_of_docs_is_a_page_of_the_site(site: Path) -> None:
    pages = [page.relative_to(PROJECT / "docs").with_suffix(".html") for page in (PROJECT / "docs").rglob("*.md")]
    pages = [page.with_name("index.html") if page.stem == "README" else page for page in pages]
    assert [str(page) for page in pages if not (site / page).exists()] == []


def test_reading_the_site_fetches_nothing_from_elsewhere(site: Path) -> None:
    found = {}
    for page in site.rglob("*.html"):
        reader = Fetched()
        reader.feed(page.read_text())
        found[page.name] = reader.elsewhere
    assert {name: urls for name, urls in found.items() if urls} == {}
    assert [url for style in site.rglob("*.css") for url in IN_STYLES.findall(style.read_text())] == []


def test_the_search_works_in_pages_that_are_opened_from_the_folder(site: Path, tmp_path: Path) -> None:
    """Browsers let no file:// page fetch anything, so the index has to be loaded as a script."""
    with chromium() as running:
        page = running.new_page()
        page.goto((site / "index.html").as_uri())
        page.get_by_role("textbox", name="Search").click()
        page.keyboard.type("boundary")
        expect(page.locator(".md-search-result__link").first).to_be_visible()
        assert page.locator(".md-search-result__link", has_text="boundary").count() > 0


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("index.html", "make demo"),
        ("reference/commands.html", "logbus retention adopt"),
        ("reference/pipelines.html", "max_error_rate"),
        ("reference/operators.html", "credentials_in_environment"),
        ("reference/sensors.html", "WindowLoadedSensor"),
        ("reference/triggers.html", "WindowEventTrigger"),
        ("reference/hooks.html", "client_config"),
        ("reference/broker-settings.html", "log.segment.bytes"),
        ("reference/ledger-tables.html", "loaded_attempt"),
        ("reference/errors.html", "TopicRecreated"),
        ("decisions/index.html", "The site is built by MkDocs 1"),
        ("source/dags/examples/backfill.py.html", "page_views"),
    ],
)
def test_what_is_made_from_code_is_there(site: Path, page: str, said: str) -> None:
    text = re.sub(r"<[^>]*>", "", (site / page).read_text())
    assert said in text


def test_no_directive_is_left_unread(site: Path) -> None:
    assert [str(page) for page in (site / "reference").glob("*.html") if re.search(r"<p>\s*:::", page.read_text())] == []
