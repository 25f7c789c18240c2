"""For the whole suite: private home directories, and which tests share a worker when two run it.

Tests are assigned to workers in groups that stay together: the tests that need the one Airflow, the one Spark session or the one
Apache Kafka form a group each, since starting those costs more than most tests; any other file is a group, to share its fixtures.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.support.examples import ALWAYS_THE_SAME, examples

TESTS = Path(__file__).parent

# Folders and files whose tests form one group.
GROUPS = {
    "e2e": "airflow",
    "e2e/browser": "pages",
    "e2e/test_ui_access.py": "access",
    "e2e/test_compose.py": "compose",
    "contract/readers": "spark",
    "contract/sinks": "spark",
    "fault/pipeline": "spark",
    "integration/pipeline": "spark",
    "integration/exporter": "exporter",
    "contract": "kafka",
    "contract/coordination": "zookeeper",
    "fault/coordination": "zookeeper",
    "fault/cluster": "cluster",
    "integration/cluster": "cluster",
}

# Airflow reads its home on first import, and some tests import it: never the developer's home, never another worker's.
AIRFLOW_HOME = tempfile.mkdtemp(prefix="logbus-airflow-")
os.environ["AIRFLOW_HOME"] = AIRFLOW_HOME
os.environ.setdefault("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
os.environ.setdefault("AIRFLOW__CORE__UNIT_TEST_MODE", "False")

# A suite run in the background inherits an ignored Ctrl-C; programs under test are started as from a terminal.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Nothing here is timed, and a property must not fail on a busy machine.
settings.register_profile("logbus", deadline=None, derandomize=ALWAYS_THE_SAME, max_examples=examples(100))
settings.load_profile("logbus")


def pytest_unconfigure() -> None:
    shutil.rmtree(AIRFLOW_HOME, ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The scheduler that hands the groups to the workers, in the order of the command line."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(TESTS.parent / nodeid.partition("::")[0])

    return Groups(config, log)


def group_of(path: Path) -> str:
    """The group of a test file: its own, or that of the innermost folder that has one."""
    places = [place.relative_to(TESTS).as_posix() for place in (path, *path.parents) if place.is_relative_to(TESTS)]
    return next((GROUPS[place] for place in places if place in GROUPS), places[0])
