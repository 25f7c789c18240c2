from __future__ import annotations

import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, DeadlineAlert, DeadlineReference, SyncCallback
from logbus.assets import proven_hours_asset, stream_asset, table_alias, table_asset, windows_asset
from logbus.errors import UserError
from logbus.model import Grid
from logbus.operators.load_window import IngestWindowOperator
from logbus.pipelines import (
    Connections,
    Pipeline,
    catch_up,
    count,
    define_pipeline,
    hourly_ingest,
    ingest,
    joined,
    live_rows,
    many_topics,
    sum_of,
    windowed_aggregate,
    windowed_counts,
)
from logbus.timetable import WindowEnd, WindowTimetable

DAGS = Path(__file__).parents[3] / "dags"
CLICKS = Pipeline(name="clicks", topic="web.clicks", table="clicks", parse="json", lateness=timedelta(minutes=20))


def order_of(dag: DAG) -> list[list[str]]:
    return [[task.task_id, *sorted(task.downstream_task_ids)] for task in dag.topological_sort()]


def test_the_hourly_dag_freezes_loads_and_audits_in_one_task() -> None:
    dag = hourly_ingest(CLICKS)
    assert dag.dag_id == "clicks"
    assert order_of(dag) == [["load"]]
    assert isinstance(dag.get_task("load"), IngestWindowOperator)
    assert dag.catchup is False


def test_a_driver_stays_only_if_the_author_says_for_how_long() -> None:
    assert ingest(CLICKS).get_task("load").driver_idle_timeout is None
    [dag] = many_topics(["clicks"], parse="json", driver_idle_timeout=timedelta(minutes=10))
    assert dag.get_task("load").driver_idle_timeout == timedelta(minutes=10)
    with pytest.raises(UserError, match="driver_idle_timeout is a timedelta of more than 0, not 600"):
        hourly_ingest(CLICKS, driver_idle_timeout=600)  # type: ignore[arg-type]


def test_a_run_is_due_as_long_after_its_hour_as_the_pipeline_allows() -> None:
    assert hourly_ingest(CLICKS).timetable == WindowTimetable(lateness=timedelta(minutes=20))


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
    dags = many_topics(["orders", "shop.public.orders", CLICKS], parse="json", lateness=timedelta(minutes=1))
    assert [dag.dag_id for dag in dags] == ["orders", "shop.public.orders", "clicks"]
    assert [dag.timetable.lateness for dag in dags] == [timedelta(minutes=number) for number in (1, 1, 20)]
    dags = many_topics(["orders", CLICKS], parse="json", fill_gaps=False, dag_arguments={"tags": ["web"]})
    assert [(dag.get_task("load").fill_gaps, dag.tags) for dag in dags] == [(False, {"web"})] * 2, (
        "a Pipeline has options of its own"
    )
    with pytest.raises(UserError, match=r"many_topics\(\['orders'\]\)"):
        many_topics("orders", parse="json")


def test_the_audits_success_is_an_event_of_the_pipelines_asset() -> None:
    for task in (hourly_ingest(CLICKS).get_task("load"), catch_up(CLICKS).get_task("audit")):
        assert task.outlets == [table_asset("clicks"), windows_asset("clicks"), table_alias("clicks")]


def test_a_stream_counts_by_the_clock_and_after_audits_and_its_proof_is_an_event() -> None:
    dag = windowed_aggregate(CLICKS, name="live", keys=["url"], measures={"bytes": sum_of("size")})
    assert (dag.dag_id, order_of(dag)) == ("live", [["once", "prove"], ["prove"]])
    assert list(dag.timetable.asset_condition.objects) == [table_asset("clicks")]
    assert dag.get_task("prove").outlets == [stream_asset("live"), proven_hours_asset("live")]
    once = dag.get_task("once")
    assert (once.stream.pipeline, once.stream.content.measures, once.pool) == (
        "clicks",
        {"bytes": sum_of("size")},
        "logbus_load",
    )


def test_a_continuous_stream_is_looked_after_and_proven_whether_or_not_it_is_well() -> None:
    dag = windowed_counts("clicks", name="live", continuous=True, schedule="0 * * * *")
    assert order_of(dag) == [["prove"], ["healthy"]] or order_of(dag) == [["healthy"], ["prove"]]
    assert (dag.get_task("healthy").timeout, dag.get_task("healthy").retries) == (600, 0)
    assert dag.get_task("prove").stream.content.measures == {"count": count()}


def test_rows_and_both_sides_of_a_join_are_streams_whose_proofs_are_events() -> None:
    dag = live_rows(CLICKS, name="rows", columns=["url"], indexed=["url"])
    assert (dag.dag_id, order_of(dag)) == ("rows", [["once", "prove"], ["prove"]])
    assert dag.get_task("once").stream.content.columns == ("url",)
    dag = joined("paid", left=CLICKS, right="payments", on="url", within="1d")
    assert sorted(order_of(dag)) == [
        ["join", "once_left", "once_right"],
        ["once_left", "prove_left"],
        ["once_right", "prove_right"],
        ["prove_left"],
        ["prove_right"],
    ]
    assert {*dag.timetable.asset_condition.objects} == {table_asset("clicks"), table_asset("payments")}
    assert dag.get_task("prove_right").outlets == [stream_asset("paid_right"), proven_hours_asset("paid_right")]
    assert dag.get_task("join").join.within == timedelta(days=1)
    dag = joined("paid", left=CLICKS, right="payments", on="url", continuous=True)
    assert dag.get_task("join").downstream_task_ids == {"prove_left", "healthy_left", "prove_right", "healthy_right"}


def test_an_hour_that_is_late_is_a_deadline_of_the_dag_beside_those_of_its_author() -> None:
    mine = DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, timedelta(hours=9), SyncCallback("builtins.print"))
    late = {"proven_within": timedelta(hours=1), "dag_arguments": {"deadline": mine}}
    [dag, other] = many_topics([CLICKS, "orders"], parse="json", **late)
    assert [alert.interval for alert in dag.deadline] == [timedelta(hours=1), timedelta(hours=9)]
    assert (dag.deadline[0].callback.path, dag.deadline[0].callback.kwargs["pipeline"]) == ("logbus.timetable.log_late", "clicks")
    assert other.deadline[0].reference == WindowEnd()
    given = SyncCallback("builtins.print")
    assert hourly_ingest(CLICKS, proven_within=timedelta(hours=1), on_late_callback=given).deadline[0].callback is given
    assert hourly_ingest(CLICKS).deadline is None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"proven_within": timedelta(minutes=20)}, r"more than the lateness \(0:20:00\), which clicks waits"),
        ({"proven_within": 3600}, "a timedelta of more than"),
        ({"proven_within": timedelta(hours=1), "on_late_callback": print}, r"AsyncCallback\(\.\.\.\) or SyncCallback"),
    ],
)
def test_a_deadline_that_no_hour_could_keep_or_that_calls_nothing_is_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        hourly_ingest(CLICKS, **arguments)


def test_arguments_for_the_dag_itself_are_taken_over_and_defaults_kept() -> None:
    began = datetime(2026, 11, 1, tzinfo=UTC)
    dag = hourly_ingest(
        CLICKS, dag_arguments={"tags": ["web"], "default_args": {"owner": "me"}, "catchup": True, "start_date": began}
    )
    assert (dag.tags, dag.catchup, dag.default_args["owner"], dag.default_args["retries"]) == ({"web"}, True, "me", 2)
    assert dag.start_date == began
    dag = catch_up(CLICKS, dag_arguments={"params": {"since": "2026-11-20T10:00:00Z", "mine": 1}})
    assert dict(dag.params) == {"since": "2026-11-20T10:00:00Z", "until": None, "mine": 1}


def test_a_start_date_among_the_default_args_is_the_dags() -> None:
    began = datetime(2026, 11, 1, tzinfo=UTC)
    assert hourly_ingest(CLICKS, dag_arguments={"default_args": {"start_date": began}, "catchup": True}).start_date == began


def test_catchup_without_a_start_date_is_refused_and_does_not_begin_with_our_own() -> None:
    with pytest.raises(UserError, match="start_date"):
        hourly_ingest(CLICKS, dag_arguments={"catchup": True})


def test_another_topics_name_in_the_place_of_connections_is_refused() -> None:
    with pytest.raises(UserError, match=r"Connections\(\.\.\.\), not 'web\.clicks'; topic= is the topic"):
        hourly_ingest("clicks", "web.clicks", parse="json")  # type: ignore[arg-type]


def test_how_many_hours_an_application_takes_can_be_chosen() -> None:
    assert hourly_ingest(CLICKS, max_windows_per_application=1).get_task("load").max_windows_per_application == 1


def test_hours_that_nobody_loaded_are_filled_unless_said_otherwise() -> None:
    assert hourly_ingest(CLICKS).get_task("load").fill_gaps is True
    assert hourly_ingest(CLICKS, fill_gaps=False).get_task("load").fill_gaps is False


def test_how_many_windows_a_catch_up_may_begin_can_be_chosen() -> None:
    assert catch_up(CLICKS).get_task("freeze").max_windows == 1_000
    assert catch_up(CLICKS, max_windows=50_000).get_task("freeze").max_windows == 50_000


def test_windows_of_other_lengths_are_ingested_and_are_no_hourly_ingest() -> None:
    quarters = ingest("q", parse="json", every="15m", lateness=timedelta(minutes=1))
    days = define_pipeline("d", parse="json", every="1d", timezone="Europe/Berlin")
    assert quarters.get_task("load").pipeline.grid == Grid(timedelta(minutes=15))
    assert quarters.timetable == WindowTimetable("*/15 * * * *", lateness=timedelta(minutes=1))
    assert ingest(days).timetable == WindowTimetable("0 0 * * *", "Europe/Berlin")
    assert ingest("h", parse="json").timetable == hourly_ingest("h", parse="json").timetable
    assert "each window of 1d in Europe/Berlin" in str(ingest(days).description)
    assert [dag.timetable for dag in many_topics(["q"], parse="json", every=timedelta(hours=6))] == [
        WindowTimetable("0 */6 * * *")
    ]
    for options in ({"pipeline": days}, {"pipeline": "q", "parse": "json", "every": "15m"}):
        with pytest.raises(UserError, match=r"load it by ingest\(\.\.\.\), not hourly_ingest"):
            hourly_ingest(**options)


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
