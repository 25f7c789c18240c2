"""The demo, run twice in the same place as a user may do: the second run reloads what the first has loaded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from logbus.collector.sample import write_sample
from logbus.ledger.ledger import Ledger
from logbus.local.demo import PIPELINE, home_of_log
from logbus.local.stack import LocalStack, project_directory
from logbus.warehouse.engine import connect
from sqlalchemy import text

from tests.support.demos import END, HOURS, LINES, run_demo

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_800)]


def test_a_second_demo_in_the_same_place_gives_the_same_numbers_and_no_row_twice(server_directory: Path) -> None:
    place = server_directory / "again"
    place.mkdir()
    log, home = place / "access.log", place / "home"
    write_sample(log, lines=LINES, hours=HOURS, end=END)
    runs = [run_demo(log, place / f"report{number}.json", home) for number in (1, 2)]
    assert [run.exit_code for run in runs] == [0, 0], runs[-1].output
    before, after = ({name: value for name, value in run.report.items() if name != "seconds"} for run in runs)
    assert after == before
    assert after["rerun_identical"]
    assert after["audited_hours"] == HOURS
    with LocalStack(home_of_log(home, log), project=project_directory(), environment=os.environ) as stack:
        stack.start_storage()
        engine = connect(stack.warehouse_url)
        windows = Ledger(engine).windows(PIPELINE)[:HOURS]  # an hour of today may have become due
        with engine.connect() as connection:
            query = f"select count(*), count(distinct (_topic, _partition, _offset)) from {PIPELINE}"
            [(count, distinct)] = connection.execute(text(query))
            [(letters,)] = connection.execute(text(f"select count(*) from logbus.dead_letter where topic = '{PIPELINE}'"))
        engine.dispose()
    assert [(window.loaded_attempt or 0) >= 2 for window in windows] == [True] * HOURS
    assert count == distinct
    assert count + letters == LINES
