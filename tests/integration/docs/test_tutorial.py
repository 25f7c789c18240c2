"""The tutorial and the README, as a reader follows them: a fresh directory, every command in order, after `source
.venv/bin/activate`, and the output the pages promise.

Real broker, PostgreSQL and Spark, through the commands alone. What the tutorial has run, up to names, the README's reader does not
run again. Airflow reads the DAG of the last step in tests/e2e/conftest.py; one like it, and `make demo`, run in
tests/e2e/test_demo.py.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.support.demos import processes_of
from tests.support.pages import PROJECT, Block, blocks
from tests.support.reader import Terminal

TUTORIAL = list(blocks(PROJECT / "docs" / "tutorial.md"))
README = list(blocks(PROJECT / "README.md"))
# Run by other tests, or created by the commands run here.
SHOWN_ONLY = {"make demo      # everything on this machine", "the end of the demo", "dag: access_log.py"}
COMMENT = re.compile(r"\s*(#.*)?$")
HOURS = 6


def commands(block: Block) -> list[str]:
    """Its lines, without comments."""
    return [line for line in (COMMENT.sub("", line) for line in block.text.splitlines()) if line]


@pytest.fixture(scope="module")
def followed(terminal: Terminal) -> Terminal:
    """Everything in the tutorial except the Airflow part."""
    for block in TUTORIAL:
        terminal.follow(block)
    return terminal


def test_every_command_does_what_the_tutorial_says(followed: Terminal) -> None:
    marks = [block.mark for block in TUTORIAL]
    assert marks.count("run") >= 10
    assert marks.count("see") >= 8


def test_every_command_of_the_readme_does_what_it_says(followed: Terminal) -> None:
    """The pipeline is `web`, which the tutorial has loaded: its load takes longest, and is the README's up to that name."""
    shown = [block for block in README if block.mark.startswith("run")]
    assert {block.mark or block.text.partition(":")[0] for block in README if block not in shown} == SHOWN_ONLY
    known = {line for block in TUTORIAL for line in commands(block)}
    (followed.directory / "access.log").unlink()
    for block in shown:
        new = [line for line in commands(replace(block, text=block.text.replace("access_log", "web"))) if line not in known]
        followed.run(replace(block, text="\n".join(new)))
    assert "logbus load --pipeline web" in known
    assert followed.printed.count("yes, the same records") == HOURS
    assert "nothing was deleted" in followed.printed


def test_ctrl_c_ends_all_that_was_started_and_what_was_stored_stays(followed: Terminal) -> None:
    up = followed.directory / ".logbus" / "up"
    assert (up / "env").exists()
    assert [other.interrupt() for other in followed.others] == [0]
    assert not (up / "env").exists()
    assert processes_of(followed.directory) == []
    assert (up / "postgres" / "data" / "PG_VERSION").exists()
