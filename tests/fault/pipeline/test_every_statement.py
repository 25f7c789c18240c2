"""A load killed, or cut off from its warehouse, after every statement and every commit it makes.

From registering the pipeline to the audit, over two hours. Each time the table is either as before the load or as it must be
after it, never anything else; the ledger records which; and repeating the same run loads the same records.
"""

from __future__ import annotations

import pytest
from logbus.loads.engine import connect

from tests.support.cutting import Cut, kill, lose
from tests.support.examples import TIMES
from tests.support.hourly import HOURS, Hourly, cut_at, cut_engine

pytestmark = pytest.mark.usefixtures("without_spark")

STRIDE = 1 if TIMES > 1 else 60


def points_of(url: str, hourly: Hourly) -> list[int]:
    """The points of an undisturbed run: after each commit and every `STRIDE`th statement; all of them in a long run."""
    cut = Cut(kill)
    hourly.run(cut_engine(url, cut))
    assert len(cut.passed) > 100
    return [point for point, what in enumerate(cut.passed) if what == "after commit" or point % STRIDE == 0]


def test_a_run_killed_behind_any_statement_leaves_whole_hours_and_can_be_repeated(warehouse_url: str) -> None:
    engine = connect(warehouse_url)
    Hourly.make(warehouse_url, engine, "first").settle()
    for point in points_of(warehouse_url, Hourly.make(warehouse_url, engine, "counted")):
        hourly = Hourly.make(warehouse_url, engine, f"p{point}")
        cut_at(warehouse_url, hourly, kill, point)
        hourly.check()
        hourly.settle()
    engine.dispose()


def test_a_rerun_that_loses_its_connection_behind_any_statement_keeps_the_hours_and_says_what_became_of_them(
    warehouse_url: str,
) -> None:
    engine = connect(warehouse_url)
    hourly = Hourly.make(warehouse_url, engine, "loaded")
    hourly.settle()
    for point in points_of(warehouse_url, hourly):
        what = cut_at(warehouse_url, hourly, lose, point)
        assert hourly.check() == set(HOURS), f"what was loaded is gone behind {what}"
        hourly.settle()
    engine.dispose()
