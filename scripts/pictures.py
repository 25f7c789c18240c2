"""Takes docs/pictures of the running pages in a real browser: the demo's result, and a seeded week. `make pictures`.

Needs Chromium; with the typeface Inter, which Airflow requests, they look as on most machines (Debian: fonts-inter).
"""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
from confluent_kafka import Producer
from logbus.cli.local_airflow import AirflowApi
from logbus.loads.embedded import EmbeddedPostgres
from logbus.model import instant_text
from playwright.sync_api import Browser, BrowserContext, Page

from tests.support.api_server import DAGS, ApiServer
from tests.support.broker import LogbusBroker
from tests.support.browsing import PATIENCE_MS, chromium, log_in_by_token, ours
from tests.support.postgres import FAST
from tests.support.seeded_platform import STORIES, SeededPlatform, seeded

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
HOURS = 7 * 24
SCALE = 1.2  # relative to the records that tests produce
PAGE = "/plugin/logbus-ingestion/logbus/ui"
SETTLED_MS = 12_000  # Airflow's own parts are loaded, and the page has refreshed once
DEMO_IS_UP = b"Everything stays up"
RATES_KNOWN_MS = 25_000  # the server has seen the topics grow twice
RECORDS_EACH_TURN = {"access_log": 9, "app_events": 16, "payments": 3, "clickstream": 24, "search": 2}

# name: page, width, height, theme
PICTURES = {
    "ingestion-light": ("ingestion", 1440, 600, "light"),
    "ingestion-dark": ("ingestion?hours=168", 1920, 580, "dark"),
    "window": ("window?pipeline=access_log&start={dead}", 1440, 900, "light"),
    "pipeline": ("pipeline?pipeline=access_log", 1440, 760, "light"),
    "topics": ("topics", 1440, 640, "light"),
    "records": ("records?topic=app_events", 1440, 700, "dark"),
    "phone": ("ingestion", 390, 844, "dark"),
}
DEMO = ("demo", 1440, 460, "light")
SWITCHED_ON = ("access_log", "logbus_redrive")


@contextmanager
def traffic(platform: SeededPlatform) -> Iterator[None]:
    """Sends records to the topics the whole time."""
    over = threading.Event()

    def send() -> None:
        producer = Producer(platform.client_config)
        while not over.wait(1.0):
            for topic, count in RECORDS_EACH_TURN.items():
                for number in range(count):
                    producer.produce(topic, json.dumps({"n": number}).encode(), partition=number % 2)
            producer.flush()

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        over.set()
        sender.join()


def log_in(browser: Browser, airflow: ApiServer) -> Path:
    page = browser.new_page()
    page.goto(f"{airflow.url}/")
    page.get_by_label("Username").fill("admin")
    page.get_by_label("Password").fill("admin")
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(lambda url: "/auth/" not in url, timeout=PATIENCE_MS)
    path = airflow.home / "session.json"
    page.context.storage_state(path=path)
    return path


def switch_on(airflow: ApiServer) -> None:
    for dag_id in SWITCHED_ON:
        httpx.patch(
            f"{airflow.url}/api/v2/dags/{dag_id}",
            json={"is_paused": False},
            headers={"Authorization": f"Bearer {airflow.token('admin')}"},
            trust_env=False,
        ).raise_for_status()


def take(browser: Browser, airflow: ApiServer, session: Path, name: str, values: dict[str, str]) -> None:
    path, width, height, theme = PICTURES[name]
    context = browser.new_context(storage_state=session, viewport={"width": width, "height": height}, color_scheme=theme)
    shoot(context, f"{airflow.url}{PAGE}/{path.format(**values)}", name)


def shoot(context: BrowserContext, address: str, name: str) -> None:
    context.set_default_timeout(PATIENCE_MS)
    page: Page = context.new_page()
    page.goto(address)
    ours(page).locator(".cell, tr.one, .equation, .trend, .record").first.wait_for()
    page.wait_for_timeout(SETTLED_MS)
    page.screenshot(path=FOLDER / f"{name}.png")
    context.close()


def take_demo() -> None:
    """The page after the demo. The demo stays up only on a terminal, so it is given one."""
    name, width, height, theme = DEMO
    reading, terminal = pty.openpty()
    with tempfile.TemporaryDirectory(prefix="logbus-demo-", ignore_cleanup_errors=True) as home:
        command = [sys.executable, "-m", "logbus", "demo", "--home", home]
        process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True)
        os.close(terminal)
        try:
            said = b""
            while DEMO_IS_UP not in said:
                said += os.read(reading, 4096)
            found = re.search(r"(http://[\d.]+:\d+)/dags/.*password (\w+)", said.decode(), re.DOTALL)
            assert found is not None, f"the demo names no Airflow:\n{said.decode()}"
            url, password = found.groups()
            with chromium() as browser:
                context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
                log_in_by_token(context, url, AirflowApi(url, password).token())
                shoot(context, f"{url}{PAGE}/ingestion?hours=24", name)
        finally:
            process.send_signal(signal.SIGINT)
            # It keeps printing while it ends; a terminal that is not read would block it.
            with suppress(OSError):
                while os.read(reading, 4096):
                    pass
            process.wait()
            os.close(reading)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    take_demo()
    with (
        tempfile.TemporaryDirectory(prefix="logbus-pictures-", ignore_cleanup_errors=True) as folder,
        EmbeddedPostgres(Path(folder) / "postgres", settings=FAST) as postgres,
        LogbusBroker(Path(folder) / "broker", settings={"group.initial.rebalance.delay.ms": "0"}) as broker,
    ):
        warehouse = postgres.create_database("pages")
        redrive = Path(__file__).parents[1] / "dags" / "redrive.py"
        dags = {
            "pipelines.py": DAGS.format(pipelines={story.name: story.parse for story in STORIES}),
            redrive.name: redrive.read_text(),
        }
        server = ApiServer(
            home=Path(folder) / "airflow", postgres=postgres, warehouse="pages", bootstrap=broker.bootstrap, dags=dags
        )
        with (
            seeded(broker.bootstrap, warehouse, hours=HOURS, scale=SCALE) as platform,
            server as airflow,
            chromium() as browser,
            traffic(platform),
        ):
            switch_on(airflow)
            session = log_in(browser, airflow)
            values = {"dead": instant_text(platform.start(5))}
            for name in ("ingestion-light", "topics"):  # the first visit starts the measuring of rates
                take(browser, airflow, session, name, values)
            browser.new_page().wait_for_timeout(RATES_KNOWN_MS)
            for name in PICTURES:
                take(browser, airflow, session, name, values)


if __name__ == "__main__":
    main()
