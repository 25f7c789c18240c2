"""The tutorial, as a reader follows it: a fresh directory, every command in order, and the output the page promises.

Real broker, PostgreSQL and Spark, through the commands alone. The DAG of its last step runs in tests/e2e/test_tutorial_dag.py.
"""

from __future__ import annotations

import pytest

from tests.support.demos import processes_of
from tests.support.pages import PROJECT, blocks
from tests.support.reader import Terminal

PAGE = PROJECT / "docs" / "tutorial.md"


@pytest.fixture(scope="module")
def followed(terminal: Terminal) -> Terminal:
    """Everything in the tutorial except the Airflow part."""
    for block in blocks(PAGE):
        terminal.follow(block)
    return terminal


def test_every_command_does_what_the_tutorial_says(followed: Terminal) -> None:
    marks = [block.mark for block in blocks(PAGE)]
    assert marks.count("run") >= 10
    assert marks.count("see") >= 8


def test_ctrl_c_ends_all_that_was_started_and_what_was_stored_stays(followed: Terminal) -> None:
    up = followed.directory / ".logbus" / "up"
    assert (up / "env").exists()
    assert [other.interrupt() for other in followed.others] == [0]
    assert not (up / "env").exists()
    assert processes_of(followed.directory) == []
    assert (up / "postgres" / "data" / "PG_VERSION").exists()
