from __future__ import annotations

import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from airflow.sdk import DAG
from logbus.assets import table_asset
from logbus.errors import UserError
from logbus.pipelines import Connections, Pipeline, catch_up, hourly_ingest, many_topics

DAGS = Path(__file__).parents[3] / "dags"
CLICKS = Pipeline(name="clicks", topic="web.clicks", table="clicks", parse="json", lateness=timedelta(minutes=20))


def order_of(dag: DAG) -> list[list[str]]:
    return [[task.task_id, *sorted(task.downstream_task_ids)] for task in dag.topological_sort()]


def test_the_hourly_dag_waits_freezes_loads_and_audits_in_this_order() -> None:
    dag = hourly_ingest(CLICKS)
    assert dag.dag_id == "clicks"
    assert order_of(dag) == [["closed", "freeze"], ["freeze", "load"], ["load", "audit"], ["audit"]]
    assert dag.catchup is False


def test_the_hourly_schedule_has_intervals_of_an_hour() -> None:
    interval = hourly_ingest(CLICKS).timetable
    assert type(interval).__name__ == "CronDataIntervalTimetable"


def test_the_sensor_waits_as_long_as_the_pipeline_allows() -> None:
    assert hourly_ingest(CLICKS).get_task("closed").lateness == timedelta(minutes=20)


def test_the_catch_up_loads_all_windows_by_one_task() -> None:
    dag = catch_up(CLICKS)
    assert dag.dag_id == "clicks_catchup"
    assert order_of(dag) == [["freeze", "audit", "load"], ["load", "audit"], ["audit"]]
    assert dag.params["since"] is None
    assert dag.params["until"] is None


def test_connections_and_pool_can_be_chosen() -> None:
    mine = Connections(kafka="k", warehouse="w", spark="s", pool="p")
    for dag in (hourly_ingest(CLICKS, mine), catch_up(CLICKS, mine)):
        load = dag.get_task("load")
        assert (load.kafka_conn_id, load.warehouse_conn_id, load._conn_id, load.pool) == ("k", "w", "s", "p")


def test_one_sentence_makes_the_pipeline_too() -> None:
    dag = hourly_ingest(pipeline="clicks", topic="web.clicks", table="clicks", parse="json", max_error_rate=0.01)
    made = dag.get_task("load").pipeline
    assert (dag.dag_id, made.topic, made.table, made.parse) == ("clicks", "web.clicks", "clicks", "json")
    assert made.settings == {"max_error_rate": 0.01}
    assert catch_up("clicks", parse="json").dag_id == "clicks_catchup"


def test_many_topics_are_as_many_dags_with_the_same_options() -> None:
    dags = many_topics(["orders", "refunds", CLICKS], parse="json", lateness=timedelta(minutes=1))
    assert [dag.dag_id for dag in dags] == ["orders", "refunds", "clicks"]
    assert [dag.get_task("closed").lateness for dag in dags] == [timedelta(minutes=number) for number in (1, 1, 20)]


def test_the_audits_success_is_an_event_of_the_pipelines_asset() -> None:
    for dag in (hourly_ingest(CLICKS), catch_up(CLICKS)):
        assert dag.get_task("audit").outlets == [table_asset("clicks")]


def test_arguments_for_the_dag_itself_are_taken_over_and_defaults_kept() -> None:
    dag = hourly_ingest(CLICKS, dag_arguments={"tags": ["web"], "default_args": {"owner": "me"}, "catchup": True})
    assert (dag.tags, dag.catchup, dag.default_args["owner"], dag.default_args["retries"]) == ({"web"}, True, "me", 2)


def test_how_many_hours_an_application_takes_can_be_chosen() -> None:
    assert hourly_ingest(CLICKS, max_windows_per_application=1).get_task("load").max_windows_per_application == 1


def test_a_pipeline_of_other_intervals_is_no_hourly_ingest() -> None:
    daily = Pipeline(name="d", topic="d", table="d", parse="json", interval=timedelta(days=1))
    with pytest.raises(UserError, match="hour"):
        hourly_ingest(daily)


def test_every_dag_file_parses_without_any_io(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.dag_processing.dagbag import DagBag

    def refuse(*arguments: object) -> None:
        raise AssertionError("a DAG file opened a socket")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    bag = DagBag(DAGS, load_op_links=False)
    assert bag.import_errors == {}
    wanted = {"access_log", "access_log_catchup", "page_views", "orders", "payments", "logbus_retention"}
    assert wanted <= set(bag.dags)
    assert all(dag.start_date is not None and dag.start_date < datetime(2015, 1, 1, tzinfo=UTC) for dag in bag.dags.values())
