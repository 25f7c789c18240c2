"""The README, as a reader follows it in an empty folder: every command in order, after `source .venv/bin/activate`.

The rest is tested elsewhere: the result of `make demo` in tests/e2e/test_demo.py, its DAG in the Airflow tests of that folder.
"""

from __future__ import annotations

from tests.support.pages import PROJECT, blocks
from tests.support.reader import Terminal

# Run by other tests, or created by the commands run here.
SHOWN_ONLY = {"make demo      # everything on this machine", "the end of the demo", "dag: access_log.py"}
HOURS = 24


def test_every_command_of_the_readme_does_what_it_says(terminal: Terminal) -> None:
    page = list(blocks(PROJECT / "README.md"))
    followed = [block for block in page if block.mark.startswith("run")]
    left = [block for block in page if block not in followed]
    assert {block.mark or block.text.partition(":")[0] for block in left} == SHOWN_ONLY
    for block in followed:
        terminal.follow(block)
    assert terminal.printed.count("  exact\n") == HOURS
    assert terminal.printed.count("yes, the same records") == HOURS
    assert "nothing was deleted" in terminal.printed
    assert [other.interrupt() for other in terminal.others] == [0]
