"""One Airflow for all end-to-end tests: starting it costs more than most of them.

The first demo runs as a user runs it (`logbus demo`) and ends; the second runs in the same place from inside and stays up, so that
what it stored can be looked at, and the example DAGs run in its Airflow.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from logbus.collector.sample import write_sample
from logbus.local.demo import Demo, home_of_log
from logbus.local.demo_screen import Screen
from logbus.local.stack import LocalStack, project_directory
from playwright.sync_api import Browser, Page
from rich.console import Console

from tests.support.browsing import PATIENCE_MS, WIDE, browser  # noqa: F401
from tests.support.demos import HOURS, LINES, FirstDemo, SecondDemo, processes_of
from tests.support.pages import blocks

DEMO_SECONDS_MAX = 600.0


@pytest.fixture(scope="session")
def first(tmp_path_factory: pytest.TempPathFactory) -> FirstDemo:
    place = tmp_path_factory.mktemp("demo")
    log, report, home = place / "access.log", place / "report.json", place / "home"
    write_sample(log, lines=LINES, hours=HOURS)
    command = [sys.executable, "-m", "logbus", "demo", "--log", str(log), "--report", str(report), "--home", str(home)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=DEMO_SECONDS_MAX
    )
    assert report.exists(), done.stdout
    return FirstDemo(
        home=home,
        log=log,
        exit_code=done.returncode,
        output=done.stdout,
        report=json.loads(report.read_text()),
        survivors=processes_of(home),
    )


@pytest.fixture(scope="session")
def dags(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's DAGs, and the one that the tutorial has its reader write."""
    folder = tmp_path_factory.mktemp("airflow") / "dags"
    shutil.copytree(project_directory() / "dags", folder, ignore=shutil.ignore_patterns("__pycache__"))
    for block in blocks(project_directory() / "docs" / "tutorial.md"):
        if name := block.file_name("dag"):
            (folder / name).write_text(block.text)
    return folder


@pytest.fixture(scope="session")
def second(first: FirstDemo, dags: Path) -> Iterator[SecondDemo]:
    home = home_of_log(first.home, first.log)
    with LocalStack(home, project=project_directory(), environment=os.environ, dags=dags) as stack:
        yield SecondDemo(stack=stack, result=Demo(stack, first.log, Screen(Console(stderr=True))).run())
    assert processes_of(first.home) == []


@pytest.fixture
def page(browser: Browser, second: SecondDemo) -> Iterator[Page]:  # noqa: F811
    """An empty one, as wide as a desk's, for the addresses of the second demo's Airflow."""
    context = browser.new_context(base_url=second.stack.airflow.settings.url, viewport={"width": WIDE[0], "height": WIDE[1]})
    context.set_default_timeout(PATIENCE_MS)
    yield context.new_page()
    context.close()
