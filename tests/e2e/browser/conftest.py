"""One seeded platform, one api-server over it and one browser for all tests of the pages. The folder is a package for their sake,
so they end with its last test: while a browser runs, its loop runs in this thread, where no other could be started."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from logbus.warehouse.embedded import EmbeddedPostgres
from playwright.sync_api import Browser, Page

from tests.support.api_server import BASE_PATH, DAGS, ApiServer
from tests.support.broker import LogbusBroker
from tests.support.browsing import PATIENCE_MS, WIDE, chromium, errors_of
from tests.support.eventful_pipeline import tell
from tests.support.platform_facts import Facts, read_facts
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
    warehouse = postgres_server.create_database("pages")
    postgres_server.create_database("pages_empty")
    with ThreadPoolExecutor(1) as background:
        server = ApiServer(
            home=home / "airflow",
            postgres=postgres_server,
            warehouse="pages",
            bootstrap=broker.bootstrap,
            base_path=BASE_PATH,
            dags={"pipelines.py": DAGS.format(pipelines={story.name: story.parse for story in STORIES})},
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
            with seeded(broker.bootstrap, warehouse, hours=HOURS, more=tell) as platform:
                yield platform, starting.result()
        finally:
            starting.result().__exit__(None, None, None)


@pytest.fixture(scope="package")
def platform(places: tuple[SeededPlatform, ApiServer]) -> SeededPlatform:
    return places[0]


@pytest.fixture(scope="package")
def facts(platform: SeededPlatform, broker: LogbusBroker) -> Facts:
    """The actual data, read without the pages. No test here changes it."""
    return read_facts(platform.engine, platform.bootstrap, broker.data)


@pytest.fixture(scope="package")
def airflow(places: tuple[SeededPlatform, ApiServer]) -> ApiServer:
    return places[1]


@pytest.fixture(scope="package")
def sessions(browser: Browser, airflow: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """By user, the browser storage after logging in through Airflow's own form."""
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


@pytest.fixture
def open_page(browser: Browser, airflow: ApiServer, sessions: Callable[[str], Path]) -> Iterator[Callable[..., Page]]:
    """Opens an address below Airflow's root as a given user, at a size and in a theme."""
    opened: list[Page] = []

    def open_as(user: str | None, path: str, size: tuple[int, int] = WIDE, theme: str = "light") -> Page:
        options: dict[str, Any] = {"storage_state": sessions(user)} if user else {}
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme=theme, base_url=f"{airflow.url}/", **options
        )
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.errors = errors_of(page)  # type: ignore[attr-defined]
        page.goto(path.lstrip("/"))  # below Airflow, which is not at the root
        opened.append(page)
        return page

    yield open_as
    for page in opened:
        page.context.close()
