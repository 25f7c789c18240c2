from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from airflow.sdk.execution_time.context import OutletEventAccessors
from click.testing import CliRunner
from logbus import assets
from logbus.cli import main
from logbus.errors import AuditMismatch
from logbus.model import HOUR, Interval, Pipeline
from logbus.operators.hourly_aggregate import AuditAggregateOperator
from logbus.pipelines import count, hourly_aggregate

from tests.support.airflow_context import run_context
from tests.support.event_lines import EventLines, Line, LineLoading
from tests.support.ledgers import NOW, World, at
from tests.support.pages import PROJECT, blocks, shows

PAGE = PROJECT / "docs" / "how-to" / "hourly-aggregates.md"


@pytest.fixture
def lines(world: World) -> EventLines:
    """Hour 10 is loaded. Of hour 11, which is not, a line is late by an hour."""
    event_lines = EventLines(world=world)
    event_lines.arrive([Line(arrived=at(hour), time=at(time)) for hour, time in ((10, 10), (10.5, 9.5), (11, 11), (11.5, 10.5))])
    event_lines.register()
    event_lines.load(10)
    return event_lines


def run_dag(dag: Any, run_id: str = "first") -> OutletEventAccessors:
    """Both tasks, one after the other; gives what Airflow would be told."""
    events = OutletEventAccessors()
    for task in dag.topological_sort():
        task.execute({**run_context(), "run_id": run_id, "outlet_events": events})
    return events


def test_each_touched_hour_is_an_event_with_a_key(lines: EventLines) -> None:
    dag = hourly_aggregate("p", name="traffic", keys=["status"], measures={"requests": count()}, event_time="time")
    plain, keyed = dag.get_task("audit").outlets
    assert dag.timetable.asset_condition.objects == (assets.table_asset("p"),)
    assert run_dag(dag)[keyed].partition_keys == {"2015-05-17T09:00:00", "2015-05-17T10:00:00"}
    lines.load(11)
    events = run_dag(dag, "second")
    assert events[keyed].partition_keys == {"2015-05-17T10:00:00", "2015-05-17T11:00:00"}
    assert events[plain].extra == {"aggregate": "traffic", "hours": ["2015-05-17T10:00:00Z", "2015-05-17T11:00:00Z"]}
    assert lines.world.rows("select window_start, requests from traffic order by 1") == [(at(9), 1), (at(10), 2), (at(11), 1)]
    again = OutletEventAccessors()
    dag.get_task("audit").execute({**run_context(), "run_id": "second", "outlet_events": again})
    assert again[keyed].partition_keys == events[keyed].partition_keys, (
        "the first try may have been killed before it told anybody"
    )
    with pytest.raises(AirflowSkipException, match="no hour was written"):
        run_dag(dag, "third")


def test_what_differs_fails_the_audit_until_the_hour_is_written_again(lines: EventLines) -> None:
    dag = hourly_aggregate("p", name="traffic", measures={"requests": count()}, event_time="time")
    dag.get_task("aggregate").execute(run_context())
    lines.world.execute("update traffic set requests = 7 where window_start = '2015-05-17T10:00Z'")
    audit = AuditAggregateOperator(task_id="audit", aggregate="traffic")
    with pytest.raises(AuditMismatch, match="wrong in 1 hour: 2015-05-17T10:00:00Z: .* requests is 7, the rows give 1"):
        audit.execute(run_context())  # type: ignore[arg-type]
    lines.load(11)
    assert run_dag(dag, "second")[assets.hours_asset("traffic")].partition_keys == {"2015-05-17T10:00:00", "2015-05-17T11:00:00"}


def test_another_definition_under_the_same_name_fails_without_a_retry(lines: EventLines) -> None:
    define = partial(hourly_aggregate, "p", name="traffic", event_time="time")
    run_dag(define(measures={"requests": count()}))
    with pytest.raises(AirflowFailException, match="is defined already, as requests"):
        run_dag(define(measures={"hosts": count("host")}))


@pytest.fixture
def clicks(world: World) -> Iterator[Callable[..., None]]:
    """The pipeline of the page; loads an hour of clicks, which happened at these hours."""
    world.log.create("web.clicks")
    columns = {"url": "text", "visitor": "bigint", "at": "timestamptz"}
    pipeline = Pipeline(name="clicks", topic="web.clicks", table="clicks", parse="json", settings={"columns": columns})

    def load(number: int, *happened: float) -> None:
        records = [
            (
                int(at(number).timestamp() * 1_000),
                f'{{"url": "/{time:g}", "visitor": 1, "at": "{at(time).isoformat()}"}}'.encode(),
            )
            for time in happened
        ]
        world.log.append_values("web.clicks", records)
        world.ledger.register(pipeline, world.log, NOW)
        window = world.ledger.freeze_or_get("clicks", Interval(at(number), at(number) + HOUR), world.log, NOW)
        LineLoading(world=world, url=world.url, window=window).load()

    yield load


def test_the_page_is_true(world: World, clicks: Callable[..., None], tmp_path: Path) -> None:
    from airflow.dag_processing.dagbag import DagBag

    [dag_block] = [block for block in blocks(PAGE) if block.file_name("dag")]
    (tmp_path / "dag.py").write_text(dag_block.text)
    [dag] = DagBag(tmp_path, load_op_links=False).dags.values()
    clicks(10, 10.1, 10.2, 10.3)
    clicks(11, 11.1, 11.2, 11.3)
    dag.get_task("aggregate").execute(run_context())
    clicks(12, 12.1, 10.5, 12.2)
    dag.get_task("aggregate").execute(run_context())
    runner, printed = CliRunner(env={"LOGBUS_WAREHOUSE_URL": world.url, "COLUMNS": "200"}), ""
    for block in blocks(PAGE):
        if block.mark == "run":
            printed = runner.invoke(main, block.text.split()[1:], catch_exceptions=False).output
        elif block.mark == "see":
            assert shows(printed, block.text), printed
