"""One Airflow for all end-to-end tests: starting it takes longer than most of them.

The demo runs as a user runs it (`logbus demo`) and ends; then the same home is started in this process and stays up, so that
tests can look at what was stored, and the example DAGs run in its Airflow. It ends with the last test of this folder: an idle
Airflow takes a tenth of a core.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from logbus.cli.demo import PIPELINE, home_of_log
from logbus.cli.secure_home import SecureHome
from logbus.cli.stack import LocalStack, project_directory
from logbus.loads.engine import connect
from logbus.loads.ledger import Ledger
from logbus.shipper.sample import write_sample
from playwright.sync_api import Browser, Page
from sqlalchemy import Engine, text

from tests.support.airflow_runs import wait_for_files
from tests.support.browsing import PATIENCE_MS, WIDE, browser, log_in_by_token  # noqa: F401
from tests.support.demos import END, HOURS, LINEAGE, LINES, OTHER_ADDRESS, FirstDemo, SecondDemo, processes_of, run_demo
from tests.support.pages import blocks
from tests.support.postgres import server_directory  # noqa: F401


@pytest.fixture(scope="package")
def first(server_directory: Path) -> FirstDemo:  # noqa: F811
    place = server_directory / "demo"
    place.mkdir()
    log, report, home = place / "access.log", place / "report.json", place / "home"
    write_sample(log, lines=LINES, hours=HOURS, end=END)
    return run_demo(log, report, home)


# An hour of a topic that nobody has, late after a second.
LATE = """from datetime import timedelta
from logbus.pipelines import hourly_ingest

hourly_ingest("late", parse="raw", lateness=timedelta(0), proven_within=timedelta(seconds=1))
"""

# Loaded only when somebody asks: no hour becomes due. A due run would load what a test has just frozen.
BY_HAND = """from datetime import UTC, datetime
from logbus.pipelines import hourly_ingest

hourly_ingest("by_hand", parse="raw", dag_arguments={"end_date": datetime(2016, 1, 1, tzinfo=UTC)})
"""


@pytest.fixture(scope="package")
def dags(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's DAGs, the one that readers of the tutorial write, one over clusters, one that is late, and one by hand."""
    folder = tmp_path_factory.mktemp("airflow") / "dags"
    shutil.copytree(project_directory() / "dags", folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "late.py").write_text(LATE)
    (folder / "by_hand.py").write_text(BY_HAND)
    for block in blocks(project_directory() / "docs" / "tutorial.md"):
        if name := block.file_name("dag"):
            (folder / name).write_text(block.text)
    shutil.copy(Path(__file__).with_name("dag_on_clusters.py"), folder)
    return folder


@pytest.fixture(scope="package")
def second(first: FirstDemo, dags: Path) -> Iterator[SecondDemo]:
    home = home_of_log(first.home, first.log)
    transport = {"TYPE": "file", "LOG_FILE_PATH": str(home / LINEAGE), "APPEND": "true"}
    environment = {**os.environ, **{f"OPENLINEAGE__TRANSPORT__{name}": value for name, value in transport.items()}}
    secured = SecureHome(home, advertised_host=OTHER_ADDRESS)
    with LocalStack(home, project=project_directory(), environment=environment, dags=dags, security=secured) as stack:
        stack.start_storage()
        stack.start_airflow()
        wait_for_files(stack.airflow.api, {path.relative_to(dags).as_posix() for path in dags.rglob("*.py")})
        stack.airflow.api.give_up_active_runs(PIPELINE)  # the demo may have ended while the run that was due was active
        stack.airflow.api.unpause(PIPELINE)  # as the demo has it while it runs
        engine = connect(stack.warehouse_url)
        windows = tuple(Ledger(engine).windows(PIPELINE))[:HOURS]
        engine.dispose()
        yield SecondDemo(stack=stack, windows=windows, reloaded=max(windows, key=lambda window: window.record_count))
    assert processes_of(first.home) == []


@pytest.fixture(scope="package")
def engine(second: SecondDemo) -> Iterator[Engine]:
    """Of the second demo's warehouse."""
    engine = connect(second.stack.warehouse_url)
    yield engine
    engine.dispose()


@pytest.fixture(scope="package")
def rows(engine: Engine) -> Callable[[str], list[Any]]:
    """What a query finds there."""

    def run(query: str) -> list[Any]:
        with engine.connect() as connection:
            return list(connection.execute(text(query)))

    return run


@pytest.fixture
def page(browser: Browser, second: SecondDemo) -> Iterator[Page]:  # noqa: F811
    """An empty page, as wide as on a desktop, for the addresses of the second demo's Airflow."""
    airflow = second.stack.airflow
    context = browser.new_context(base_url=airflow.settings.url, viewport={"width": WIDE[0], "height": WIDE[1]})
    log_in_by_token(context, airflow.settings.url, airflow.api.token())
    context.set_default_timeout(PATIENCE_MS)
    yield context.new_page()
    context.close()
