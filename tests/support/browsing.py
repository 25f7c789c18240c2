"""A real browser for tests: the system's Chromium, driven headless.

In a conftest.py: `from tests.support.browsing import browser  # noqa: F401`
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from logbus.waiting import PATIENCE_SECONDS
from playwright.sync_api import Browser, BrowserContext, FrameLocator, Page, Route, expect, sync_playwright

Open = Callable[..., Page]  # a path as a user, at a size
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")

# Chromium has no sandbox for root; most of the others keep a headless browser from contacting its vendor's hosts.
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_MS = PATIENCE_SECONDS * 1000
WIDE, PHONE = (1440, 900), (390, 844)
THEMES = ("light", "dark")
PAGE = "iframe[title=Ingestion]"  # ours, in Airflow's

expect.set_options(timeout=PATIENCE_MS)


def program() -> str | None:
    return next((found for name in PROGRAMS if (found := shutil.which(name)) is not None), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    path = program()
    if path is None:
        pytest.skip("there is no Chromium here (Debian: apt-get install chromium-headless-shell)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Closed after the module that uses it: until then its event loop runs in this thread, where no other could start."""
    with chromium() as running:
        yield running


def log_in_by_token(context: BrowserContext, url: str, token: str) -> None:
    """As the user of a token of the Airflow at `url`, without its form."""
    context.add_cookies([{"name": "_token", "value": token, "url": url}])


def ours(page: Page) -> FrameLocator:
    """Our page, inside Airflow's frame."""
    return page.frame_locator(PAGE)


def answered_with(page: Page, what: str, change: Callable[[dict[str, Any]], None]) -> None:
    """The page gets the server's answers of this name as modified by `change`."""

    def changed(route: Route) -> None:
        answer = route.fetch().json()
        change(answer)
        route.fulfill(json=answer)

    page.route(f"**/logbus/api/{what}*", changed)


def show_in(page: Page, theme: str) -> None:
    """Shows one of our pages, outside Airflow's, in a theme, and without motion: pulsing colours have none that could be measured."""
    page.emulate_media(reduced_motion="reduce", color_scheme=theme)
    page.wait_for_function("theme => document.documentElement.classList.contains('dark') === (theme === 'dark')", arg=theme)


def errors_of(page: Page) -> list[str]:
    """The page's errors from now on: uncaught ones, and those that our own scripts log."""
    found: list[str] = []
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on(
        "console", lambda said: found.append(said.text) if said.type == "error" and "/logbus/" in said.location["url"] else None
    )
    return found
