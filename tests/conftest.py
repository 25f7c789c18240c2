"""For the whole suite: temporary homes, and which tests run in parallel when workers share it.

Workers take tests in groups that stay together: tests that need the one Airflow, the one Spark session or the one Apache Kafka
form one group each, because starting those costs more than most tests; otherwise each file is a group, because of its fixtures.
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

from tests.parts import holds_first, is_first, is_rest
from tests.support.examples import ALWAYS_THE_SAME, examples

TESTS = Path(__file__).parent

# Folders and files whose tests are one group.
GROUPS = {
    "e2e": "airflow",
    "e2e/browser": "pages",
    "e2e/test_plain_airflow.py": "plain",  # environments of its own, one after the other
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

# Airflow reads its home when it is first imported, and some tests import it: never the developer's, never another worker's.
AIRFLOW_HOME = tempfile.mkdtemp(prefix="logbus-airflow-")
os.environ["AIRFLOW_HOME"] = AIRFLOW_HOME
os.environ.setdefault("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
os.environ.setdefault("AIRFLOW__CORE__UNIT_TEST_MODE", "False")

# A suite run in the background inherits that SIGINT is ignored; programs under test must start as from a terminal.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No property is timed: a machine that is busy with something else must not fail one.
settings.register_profile("logbus", deadline=None, derandomize=ALWAYS_THE_SAME, max_examples=examples(100, at_least=100))
settings.load_profile("logbus")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part", choices=["first", "rest"], help="first: what `make test` runs; rest: what it leaves (tests/parts.py)"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if config.getoption("part") == "first" and not holds_first(collection_path, TESTS.parent) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part = config.getoption("part")
    if part is not None:
        belongs = is_first if part == "first" else is_rest
        config.hook.pytest_deselected(items=[item for item in items if not belongs(item.nodeid)])
        items[:] = [item for item in items if belongs(item.nodeid)]


def pytest_unconfigure() -> None:
    shutil.rmtree(AIRFLOW_HOME, ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The scheduler that assigns groups to the workers, in the order of the command line."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(TESTS.parent / nodeid.partition("::")[0])

    return Groups(config, log)


def group_of(path: Path) -> str:
    """The group of a test file: its own, or that of the innermost folder that has one."""
    places = [place.relative_to(TESTS).as_posix() for place in (path, *path.parents) if place.is_relative_to(TESTS)]
    return next((GROUPS[place] for place in places if place in GROUPS), places[0])
