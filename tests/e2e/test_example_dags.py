"""The DAGs of dags/examples, each with a little data, in the Airflow that the demo left running."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from logbus.local.stack import LocalStack
from logbus.warehouse.engine import connect
from logbus.windows.ledger import Ledger
from logbus.windows.model import instant_text
from sqlalchemy import Engine, text

from tests.support.airflow_runs import produce_json, wait_for
from tests.support.demos import SecondDemo

pytestmark = pytest.mark.timeout(900)

START = datetime(2015, 5, 17, tzinfo=UTC)
HOURS = 12


def at(hour: float) -> datetime:
    return START + timedelta(hours=hour)


@pytest.fixture(scope="module")
def stack(second: SecondDemo) -> LocalStack:
    return second.stack


@pytest.fixture(scope="module")
def engine(stack: LocalStack) -> Iterator[Engine]:
    made = connect(stack.warehouse_url)
    yield made
    made.dispose()


def rows(engine: Engine, query: str) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.execute(text(query)))


@pytest.fixture(scope="module")
def backfilled(stack: LocalStack) -> str:
    """The pipeline `page_views` after a backfill of its twelve hours."""
    api, name = stack.airflow.api, "page_views"
    produce_json(stack, name, [(at(hour / 5), {"url": f"/{hour}", "visitor": hour}) for hour in range(5 * HOURS)])
    api.unpause(name)
    span = {"from_date": instant_text(at(0)), "to_date": instant_text(at(HOURS - 1))}
    api.request("POST", "/api/v2/backfills", json={"dag_id": name, **span, "max_active_runs": HOURS})
    wait_for(api, name, HOURS, run_type="backfill")
    api.pause(name)
    return name


def test_a_backfill_of_twelve_hours_loads_and_audits_every_hour(backfilled: str, engine: Engine) -> None:
    windows = Ledger(engine).windows(backfilled, since=at(0), until=at(HOURS - 1))
    assert [window.interval.start for window in windows] == [at(hour) for hour in range(HOURS)]
    assert all(window.audited_at is not None for window in windows)
    assert rows(engine, "select count(*), count(distinct visitor) from page_views") == [(5 * HOURS, 5 * HOURS)]


def test_a_backfill_of_twelve_hours_starts_few_spark_applications(backfilled: str, engine: Engine) -> None:
    """An application's windows have attempts that began at one instant."""
    started = rows(
        engine,
        "select distinct attempt.began_at, attempt.run_id from logbus.attempt join logbus.window on window_id = id "
        f"where pipeline = '{backfilled}' and starts_at < '2016-01-01Z'",
    )
    assert 1 <= len(started) <= 3
