"""One seeded platform, its api-server and one browser for all tests of the pages. They have package scope, so that they end with
the last test of this folder: while a browser runs, so does its event loop in this thread, where no other test could start one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from logbus.loads import roles
from logbus.loads.embedded import EmbeddedPostgres
from logbus.loads.engine import connect
from logbus.provider import PAGES_WAREHOUSE_VARIABLE
from playwright.sync_api import Browser, BrowserContext, Page

from tests.support.api_server import BASE_PATH, DAGS, ApiServer
from tests.support.broker import LogbusBroker
from tests.support.browsing import PATIENCE_MS, WIDE, chromium, errors_of
from tests.support.eventful_pipeline import tell
from tests.support.postgres import postgres_server, server_directory  # noqa: F401
from tests.support.seeded_platform import STORIES, SeededPlatform, seeded

HOURS = 26  # a little more than the day that a small screen shows
GROUPS_SETTLE_AT_ONCE = {"group.initial.rebalance.delay.ms": "0"}
NOWHERE = "127.0.0.1:9"


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogbusBroker]:
    with LogbusBroker(tmp_path_factory.mktemp("pages") / "broker", settings=GROUPS_SETTLE_AT_ONCE) as running:
        yield running


@pytest.fixture(scope="package")
def places(
    browser: Browser,
    broker: LogbusBroker,
    postgres_server: EmbeddedPostgres,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[SeededPlatform, ApiServer]]:
    """The platform is seeded while Airflow starts."""
    home = tmp_path_factory.mktemp("pages")
    administrator = connect(postgres_server.create_database("pages"))
    roles.prepare(administrator)
    administrator.dispose()
    postgres_server.create_database("pages_empty")
    with ThreadPoolExecutor(1) as background:
        server = ApiServer(
            home=home / "airflow",
            postgres=postgres_server,
            warehouse="pages",
            bootstrap=broker.bootstrap,
            base_path=BASE_PATH,
            dags={"pipelines.py": DAGS.format(pipelines={story.name: story.parse for story in STORIES})},
            settings={PAGES_WAREHOUSE_VARIABLE: postgres_server.url("pages", roles.UI)},
            more_connections={
                "kafka_nowhere": {"conn_type": "kafka", "extra": {"bootstrap.servers": NOWHERE}},
                "warehouse_nowhere": {"conn_type": "logbus_warehouse", "host": "127.0.0.1", "port": 9, "schema": "pages"},
                "warehouse_empty": {
                    "conn_type": "logbus_warehouse",
                    "host": str(postgres_server.socket_directory),
                    "login": "postgres",
                    "schema": "pages_empty",
                },
            },
        )
        starting = background.submit(server.__enter__)
        try:
            with seeded(broker.bootstrap, postgres_server.url("pages", roles.LOADER), hours=HOURS, more=tell) as platform:
                yield platform, starting.result()
        finally:
            starting.result().__exit__(None, None, None)


@pytest.fixture(scope="package")
def platform(places: tuple[SeededPlatform, ApiServer]) -> SeededPlatform:
    return places[0]


@pytest.fixture(scope="package")
def airflow(places: tuple[SeededPlatform, ApiServer]) -> ApiServer:
    return places[1]


@pytest.fixture(scope="package")
def sessions(browser: Browser, airflow: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """By user, the browser's storage state after a login through Airflow's form."""
    folder = tmp_path_factory.mktemp("sessions")

    def session(user: str) -> Path:
        path = folder / f"{user}.json"
        if not path.exists():
            page = browser.new_page()
            page.goto(f"{airflow.url}/")
            page.get_by_label("Username").fill(user)
            page.get_by_label("Password").fill(user)
            page.get_by_role("button", name="Sign in").click()
            page.wait_for_url(lambda url: "/auth/" not in url, timeout=PATIENCE_MS)
            page.context.storage_state(path=path)
            page.context.close()
        return path

    return session


@pytest.fixture(scope="package")
def contexts(
    browser: Browser, airflow: ApiServer, sessions: Callable[[str], Path]
) -> Iterator[Callable[[str | None, int], BrowserContext]]:
    """Browsers by user and number. Tests share the first one of a user: Airflow's scripts are megabytes, loaded and compiled once."""
    made: dict[tuple[str | None, int], BrowserContext] = {}

    def context(user: str | None, number: int) -> BrowserContext:
        if (user, number) not in made:
            options: dict[str, Any] = {"storage_state": sessions(user)} if user else {}
            made[user, number] = browser.new_context(base_url=f"{airflow.url}/", **options)
            made[user, number].set_default_timeout(PATIENCE_MS)
        return made[user, number]

    yield context
    for one in made.values():
        one.close()


@pytest.fixture
def open_page(contexts: Callable[[str | None, int], BrowserContext]) -> Iterator[Callable[..., Page]]:
    """Opens a path below Airflow's base URL as a user, at a size; what pages remember is forgotten with the test.
    A test that ends a session or cuts the network takes another `browser_number`."""
    opened: list[Page] = []

    def open_as(user: str | None, path: str, size: tuple[int, int] = WIDE, browser_number: int = 1) -> Page:
        page = contexts(user, browser_number).new_page()
        opened.append(page)
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.errors = errors_of(page)  # type: ignore[attr-defined]
        page.goto(path.lstrip("/"))  # below Airflow, which is not at the root
        return page

    yield open_as
    for page in opened:
        page.unroute_all(behavior="ignoreErrors")
        page.evaluate("localStorage.clear(); sessionStorage.clear()")
        page.close()
