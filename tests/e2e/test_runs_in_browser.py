"""Runs of Dags in a whole Airflow, in the browser: Airflow's own list of them, and our tab on one of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from logbus.cli.demo import CATCH_UP_DAG, PIPELINE
from logbus.model import instant_text
from playwright.sync_api import Page, expect

from tests.support.browsing import ours
from tests.support.demos import SecondDemo

OF_RUN = "elements => elements.map(one => [one.pipeline.name, one.cell.start])"


@pytest.fixture
def resting(second: SecondDemo) -> Iterator[None]:
    """No run starts or changes: otherwise one is created when the hour turns, and loads it some minutes later."""
    api = second.stack.airflow.api
    api.pause(PIPELINE)
    api.give_up_active_runs(PIPELINE)
    yield
    api.unpause(PIPELINE)


@pytest.mark.usefixtures("resting")
@pytest.mark.parametrize("dag_id", [PIPELINE, CATCH_UP_DAG])
def test_airflows_page_of_a_dags_runs_lists_each_with_its_state(dag_id: str, second: SecondDemo, page: Page) -> None:
    runs = second.stack.airflow.api.runs(dag_id)
    assert "success" in {run.state for run in runs}
    page.goto(f"/dags/{dag_id}/runs")
    rows = page.locator("table tbody tr")
    expect(rows).to_have_count(len(runs))
    for run in runs:
        row = rows.filter(has=page.locator(f'a[href*="{run.run_id}"]'))
        expect(row).to_have_count(1)
        expect(row).to_contain_text(run.state, ignore_case=True)


def test_the_tab_of_a_run_outlines_the_hours_that_it_loaded_and_no_other(second: SecondDemo, page: Page) -> None:
    start = second.reloaded.interval.start
    (run,) = second.stack.airflow.api.runs(PIPELINE, logical_date=start.isoformat())
    page.goto(f"/dags/{PIPELINE}/runs/{run.run_id}/plugin/logbus-run")
    frame = ours(page)
    expect(frame.locator(".row .name b")).to_have_text([PIPELINE])
    expect(frame.locator(".scope")).to_have_text(f"Only this run of {PIPELINE}")
    assert frame.locator(".of-run").evaluate_all(OF_RUN) == [[PIPELINE, instant_text(start)]]
