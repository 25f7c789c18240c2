"""The DAGs of dags/, each with a little data, in the Airflow that the demo left running.

Six hours of page views are backfilled while two DAGs downstream wait for them: one for the events of its hours, one for its
whole span. Then everything else is requested at once, and each test waits for its own part.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from logbus.cli.local_airflow import AirflowApi, ApiDagRun
from logbus.cli.stack import LocalStack
from logbus.expressions import count
from logbus.loads.ledger import Ledger
from logbus.model import Interval, instant_text
from logbus.streams import stream_ledger
from logbus.streams.definition import define_stream
from logbus.waiting import PATIENCE_SECONDS, wait_until
from sqlalchemy import Engine, make_url

from tests.support import airflow_runs
from tests.support.demos import LINEAGE, SecondDemo

pytestmark = pytest.mark.usefixtures("asked")

START = datetime(2015, 5, 17, tzinfo=UTC)
HOURS = 6
VIEWS_PER_HOUR = 5
PAGE_VIEWS, BY_HOUR, BY_DAY, SIZES = "page_views", "page_views_by_hour", "page_views_by_day", "page_views_partition_sizes"
WHOLE_DAY, REST_OF_DAY, LATE = "page_views_proven_day", "page_views_catchup", "late"
VISITS, MAINTENANCE, PER_MINUTE, LIVE = "visits", "logbus_maintenance", "page_views_per_minute", "page_views_live"
SHORT_DAY = Interval(datetime(2015, 3, 28, 23, tzinfo=UTC), datetime(2015, 3, 29, 22, tzinfo=UTC))  # of Berlin: 23 hours
LINK = "Window in the ledger"
Rows = Callable[[str], list[Any]]


def at(hour: float) -> datetime:
    return START + timedelta(hours=hour)


@pytest.fixture(scope="module")
def stack(second: SecondDemo) -> LocalStack:
    return second.stack


@pytest.fixture(scope="module")
def api(stack: LocalStack) -> AirflowApi:
    return stack.airflow.api


@pytest.fixture(scope="module")
def day_report(stack: LocalStack, api: AirflowApi) -> ApiDagRun:
    """A run that waits for the six hours before any of them is loaded."""
    run = airflow_runs.ask_for_run(api, BY_DAY, Interval(at(0), at(HOURS)))
    wait_until(
        lambda: any(task["state"] == "deferred" for task in api.task_instances(run)), what="the deferral of the day's report"
    )
    return run


@pytest.fixture(scope="module")
def backfilled(stack: LocalStack, api: AirflowApi, rows: Rows, day_report: ApiDagRun) -> list[ApiDagRun]:
    """The runs of a backfill of six hours; the watcher of audited hours polled before it began."""
    views = range(VIEWS_PER_HOUR * HOURS)
    airflow_runs.produce_json(
        stack, PAGE_VIEWS, [(at(view / VIEWS_PER_HOUR), {"url": f"/{view}", "visitor": view}) for view in views]
    )
    airflow_runs.unpause_and_read_again(api, BY_HOUR)
    api.unpause(WHOLE_DAY)
    wait_until(lambda: rows("select name from logbus.watcher") == [("page_views/audited",)], what="the watcher")
    airflow_runs.unpause_without_the_hour_that_is_due(api, PAGE_VIEWS)
    span = {"from_date": instant_text(at(0)), "to_date": instant_text(at(HOURS - 1))}
    api.request("POST", "/api/v2/backfills", json={"dag_id": PAGE_VIEWS, **span, "max_active_runs": HOURS})
    runs = airflow_runs.wait_for_runs(api, PAGE_VIEWS, HOURS, kind="backfill")
    api.pause(PAGE_VIEWS)
    return runs


@pytest.fixture(scope="module")
def asked(stack: LocalStack, api: AirflowApi, engine: Engine, backfilled: list[ApiDagRun]) -> dict[str, ApiDagRun]:
    """Runs by their DAGs: an ad hoc program, an hour that never loads, a stream that begins with the first of the six hours, the
    rest of the day, the housekeeping DAGs, and one hour cleared. Beside them a backfill of the day of one of the many topics."""
    second = timedelta(seconds=1)
    visits = (SHORT_DAY.start - second, SHORT_DAY.start, SHORT_DAY.end - second, SHORT_DAY.end)
    airflow_runs.produce_json(stack, VISITS, [(visited, {"visitor": number}) for number, visited in enumerate(visits)])
    day = instant_text(SHORT_DAY.start)
    airflow_runs.unpause_without_the_hour_that_is_due(api, VISITS)
    api.request("POST", "/api/v2/backfills", json={"dag_id": VISITS, "from_date": day, "to_date": day, "max_active_runs": 1})
    runs = {name: airflow_runs.ask_for_run(api, name, Interval(at(0), at(1))) for name in (SIZES, LATE)}
    live = define_stream(LIVE, PAGE_VIEWS, keys=["url"], measures={"count": count()})
    stream_ledger.define(engine, live, datetime.now(UTC), since=at(0))
    runs[LIVE] = api.trigger(LIVE)
    api.unpause(LIVE)
    api.unpause(PER_MINUTE)  # not before the backfill: the audit of the rest of the day starts one run for all that is loaded
    runs[REST_OF_DAY] = api.trigger(REST_OF_DAY, conf={"since": instant_text(at(HOURS)), "until": instant_text(at(24))})
    api.unpause(REST_OF_DAY)
    runs[MAINTENANCE] = api.trigger(MAINTENANCE)
    api.unpause(MAINTENANCE)
    runs[PAGE_VIEWS] = max(backfilled, key=lambda found: found.run_id)
    api.clear_run(PAGE_VIEWS, runs[PAGE_VIEWS].run_id)
    api.unpause(PAGE_VIEWS)
    return runs


def finished(api: AirflowApi, run: ApiDagRun) -> ApiDagRun:
    """The run once it has succeeded; its DAG is paused."""
    ended = api.wait(run, PATIENCE_SECONDS)
    api.pause(run.dag_id)
    return ended


def task_states(api: AirflowApi, run: ApiDagRun) -> dict[str, str]:
    return {task["task_id"]: task["state"] for task in api.task_instances(run)}


def asset_events(api: AirflowApi, uri: str) -> list[dict[str, Any]]:
    [asset] = api.request("GET", "/api/v2/assets", params={"uri_pattern": uri})["assets"]
    return list(api.request("GET", "/api/v2/assets/events", params={"asset_id": asset["id"], "limit": 100})["asset_events"])


def test_a_backfill_of_six_hours_loads_and_audits_every_hour(backfilled: list[ApiDagRun], engine: Engine, rows: Rows) -> None:
    windows = Ledger(engine).windows(PAGE_VIEWS, since=at(0), until=at(HOURS - 1))
    assert [window.interval.start for window in windows] == [at(hour) for hour in range(HOURS)]
    assert all(window.audited_at is not None for window in windows[:-1])  # the last is being reloaded
    views = VIEWS_PER_HOUR * HOURS
    assert rows(f"select count(*), count(distinct visitor) from {PAGE_VIEWS}") == [(views, views)]


def test_a_backfill_of_six_hours_starts_few_spark_applications(backfilled: list[ApiDagRun], rows: Rows) -> None:
    """Windows of one application have attempts that began at the same instant."""
    started = rows(
        "select distinct attempt.began_at, attempt.run_id from logbus.attempt join logbus.window on window_id = id "
        f"where pipeline = '{PAGE_VIEWS}' and starts_at < '2016-01-01Z' and number = 1"
    )
    assert 1 <= len(started) <= 3


def test_all_but_the_first_of_a_backfill_find_their_hour_loaded(backfilled: list[ApiDagRun], api: AirflowApi) -> None:
    last = max(run.run_id for run in backfilled)  # cleared since
    adopted = [api.xcom(run, "load")["adopted"] for run in backfilled if run.run_id != last]
    assert adopted.count(True) >= HOURS - 3


def test_each_audited_hour_is_an_event_that_carries_its_window(backfilled: list[ApiDagRun], api: AirflowApi) -> None:
    parameters = {"source_dag_id": PAGE_VIEWS, "limit": 100}
    events = api.request("GET", "/api/v2/assets/events", params=parameters)["asset_events"]
    windows = [window for event in events for window in event["extra"].get("windows", ())]
    assert {window["start"] for window in windows} >= {instant_text(at(hour)) for hour in range(HOURS)}
    assert all(window["pipeline"] == PAGE_VIEWS and window["state"] == "audited" for window in windows)


def test_every_audited_hour_starts_work_downstream_exactly_once(backfilled: list[ApiDagRun], api: AirflowApi, rows: Rows) -> None:
    end = instant_text(at(HOURS))  # the hour that became due may be there too
    taken = f"select starts_at from logbus.taken_window where starts_at < '{end}' order by starts_at"
    wait_until(lambda: len(rows(taken)) >= HOURS, what="the events of all hours")
    airflow_runs.wait_for_no_run(api, BY_HOUR)
    api.pause(BY_HOUR)
    assert [start for (start,) in rows(taken)] == [at(hour) for hour in range(HOURS)]
    counted: dict[str, int] = {}
    for run in api.runs(BY_HOUR):
        assert run.state == "success", api.story(run)
        states = task_states(api, run)
        hours = api.xcom(run, "count_visitors") if states["count_visitors"] == "success" else {}
        assert not set(hours) & set(counted)
        counted.update(hours)
    asked_for = {start: visitors for start, visitors in counted.items() if start < end}
    assert asked_for == {instant_text(at(hour)): VIEWS_PER_HOUR for hour in range(HOURS)}


def test_a_day_runs_once_when_the_keys_of_all_of_its_hours_are_there(
    asked: dict[str, ApiDagRun], stack: LocalStack, api: AirflowApi
) -> None:
    finished(api, asked[REST_OF_DAY])
    [run] = airflow_runs.wait_for_runs(api, WHOLE_DAY, 1, kind="")
    done = api.xcom(run, "report")
    assert (done["day"], done["views"]) == ("2015-05-17", VIEWS_PER_HOUR * HOURS)
    assert done["complete_until"] >= instant_text(at(HOURS - 1))  # the last hour is loaded again meanwhile


def test_an_aggregate_is_computed_after_loads_and_each_of_its_hours_is_an_event_with_a_key(
    asked: dict[str, ApiDagRun], api: AirflowApi, rows: Rows
) -> None:
    finished(api, asked[REST_OF_DAY])
    airflow_runs.wait_for_runs(api, PER_MINUTE, 1, kind="")
    api.pause(PER_MINUTE)
    views, end = VIEWS_PER_HOUR * HOURS, instant_text(at(HOURS))
    assert rows(f"select count(*), sum(views) from {PER_MINUTE} where window_start < '{end}'") == [(views, views)]
    audited = [run for run in api.runs(PER_MINUTE) if {"audit": "success"}.items() <= task_states(api, run).items()]
    events = asset_events(api, f"x-logbus://aggregate/{PER_MINUTE}/hours")
    assert {event["partition_key"] for event in events} >= {f"{at(hour):%Y-%m-%dT%H:%M:%S}" for hour in range(HOURS)}
    for run in audited:
        keys = sorted(f"{event['partition_key']}Z" for event in events if event["source_run_id"] == run.run_id)
        assert keys == sorted(api.xcom(run, "audit")["hours"]), "one event for each hour that the run touched"


def test_a_stream_counts_what_has_arrived_and_proves_the_hours_that_are_audited(
    asked: dict[str, ApiDagRun], api: AirflowApi, rows: Rows
) -> None:
    finished(api, asked[LIVE])
    views, end = VIEWS_PER_HOUR * HOURS, instant_text(at(HOURS))
    assert rows(f"select count(*), sum(count) from {LIVE} where window_start < '{end}'") == [(views, views)]
    keys = {event["partition_key"] for event in asset_events(api, f"x-logbus://stream/{LIVE}/hours")}
    assert keys >= {f"{at(hour):%Y-%m-%dT%H:%M:%S}" for hour in range(HOURS - 1)}  # the last is loaded again meanwhile
    assert {state for (state,) in rows(f"select state from logbus.stream_hour where stream = '{LIVE}'")} == {"proven"}


def test_the_table_is_an_asset_under_its_own_name(backfilled: list[ApiDagRun], stack: LocalStack, api: AirflowApi) -> None:
    database = make_url(stack.warehouse_url).database
    named = {"uri_pattern": f"postgres://%/{database}/public/{PAGE_VIEWS}"}
    # The scheduler lists an asset as active some time after its DAG was parsed.
    [asset] = wait_until(lambda: api.request("GET", "/api/v2/assets", params=named)["assets"], what="the table's asset")
    events = api.request("GET", "/api/v2/assets/events", params={"asset_id": asset["id"]})["asset_events"]
    assert {start for event in events for start in event["extra"]["starts"]} >= {instant_text(at(hour)) for hour in range(HOURS)}


def test_an_hour_that_is_not_proven_in_time_is_called_late(
    asked: dict[str, ApiDagRun], stack: LocalStack, api: AirflowApi
) -> None:
    sentence = f"The window of {LATE} from 2015-05-17T00:00:00Z on was not proven within 0:00:01 of its end"
    wait_until(
        lambda: any(sentence in path.read_text(errors="replace") for path in stack.home.rglob("*.log")),
        what="the callback of the deadline",
    )
    api.pause(LATE)


def rows_read(event: dict[str, Any]) -> list[int]:
    """0 for an hour that becomes due while the tests run."""
    facets = [dataset.get("inputFacets", {}) for dataset in event["inputs"]]
    return [facet["inputStatistics"]["rowCount"] for facet in facets if "inputStatistics" in facet]


def test_lineage_has_the_rows_of_a_load_their_columns_and_the_verdict_of_the_audit(
    backfilled: list[ApiDagRun], stack: LocalStack
) -> None:
    def completed() -> dict[str, Any]:
        events = [json.loads(line) for line in (stack.home / LINEAGE).read_text().splitlines()]
        ended = [event for event in events if event["eventType"] == "COMPLETE"]
        return {event["job"]["name"]: event for event in ended if 0 not in rows_read(event)}

    load = wait_until(lambda: completed().get(f"{PAGE_VIEWS}.load"), what="the events of lineage", not_yet=FileNotFoundError)
    [topic, audited], [table] = load["inputs"], load["outputs"]
    assert (topic["namespace"], topic["name"]) == (f"kafka://{stack.bootstrap_servers}", PAGE_VIEWS)
    assert (audited["namespace"], audited["name"]) == (table["namespace"], table["name"])
    for dataset in (table, audited):
        columns = {field["name"]: field["type"] for field in dataset["facets"]["schema"]["fields"]}
        assert (columns["url"], columns["visitor"], columns["_offset"]) == ("text", "bigint", "bigint")
    assert topic["inputFacets"]["inputStatistics"]["rowCount"] == VIEWS_PER_HOUR
    assert table["outputFacets"]["outputStatistics"]["rowCount"] == VIEWS_PER_HOUR
    assert audited["inputFacets"]["dataQualityMetrics"]["rowCount"] == VIEWS_PER_HOUR
    [assertion] = audited["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert (assertion["assertion"], assertion["success"]) == ("exact", True)


def test_a_report_waits_for_its_whole_span(backfilled: list[ApiDagRun], day_report: ApiDagRun, api: AirflowApi) -> None:
    assert api.xcom(finished(api, day_report), "count_day") == VIEWS_PER_HOUR * HOURS


def test_a_runs_task_links_to_its_window(backfilled: list[ApiDagRun], stack: LocalStack, api: AirflowApi) -> None:
    run = min(backfilled, key=lambda found: found.run_id)
    path = f"/api/v2/dags/{PAGE_VIEWS}/dagRuns/{run.run_id}/taskInstances"
    url = api.request("GET", f"{path}/load/links")["extra_links"][LINK]
    assert url.startswith(f"{stack.airflow.settings.url}/logbus/windows/{PAGE_VIEWS}/2015-05-17T")
    user = {"Authorization": f"Bearer {api.token()}"}
    window = httpx.get(url, headers=user, timeout=PATIENCE_SECONDS, trust_env=False).raise_for_status().json()
    assert (window["pipeline"], window["state"], window["counts"]["loaded"]) == (PAGE_VIEWS, "audited", VIEWS_PER_HOUR)
    browser = {**user, "Accept": "text/html"}
    page = httpx.get(url, headers=browser, timeout=PATIENCE_SECONDS, trust_env=False, follow_redirects=True)
    assert page.raise_for_status().headers["content-type"].startswith("text/html")
    assert f"pipeline={PAGE_VIEWS}" in str(page.url)


def test_a_clear_is_a_new_asking_so_the_hour_is_loaded_again(
    asked: dict[str, ApiDagRun], api: AirflowApi, engine: Engine, rows: Rows
) -> None:
    run = finished(api, asked[PAGE_VIEWS])
    assert api.xcom(run, "load")["adopted"] is False
    window = Ledger(engine).window(PAGE_VIEWS, at(HOURS - 1))
    assert (window.loaded_attempt or 0) >= 2
    assert window.audited_at is not None
    fingerprints = f"select count(distinct fingerprint) from logbus.attempt where window_id = {window.id}"
    assert rows(fingerprints) == [(1,)]


def test_one_of_many_topics_is_loaded_by_its_own_dag_in_days_of_its_own(api: AirflowApi, engine: Engine, rows: Rows) -> None:
    """Airflow's backfill itself finds the day on which the clocks changed."""
    [run] = airflow_runs.wait_for_runs(api, VISITS, 1, kind="backfill")
    api.pause(VISITS)
    assert (api.xcom(run, "load")["loaded"], api.xcom(run, "load")["audited"]) == (2, 1)
    window = Ledger(engine).window(VISITS, SHORT_DAY.start)
    assert (window.interval, window.record_count, str(window.state)) == (SHORT_DAY, 2, "audited")
    assert rows(f"select visitor from {VISITS} where _window_start = '{instant_text(SHORT_DAY.start)}' order by 1") == [
        (1,),
        (2,),
    ]


def test_an_ad_hoc_spark_program_reads_exactly_the_hour(asked: dict[str, ApiDagRun], stack: LocalStack, api: AirflowApi) -> None:
    run = finished(api, asked[SIZES])
    assert api.xcom(run, "sizes")["windows"][0]["records"] == VIEWS_PER_HOUR
    log = "\n".join(path.read_text(errors="replace") for path in logs_of(stack, SIZES))
    assert "PARTITION_SIZES" in log
    said = json.loads(log.split("PARTITION_SIZES ", 1)[1].split("}}}")[0].replace('\\"', '"') + "}}}")
    assert sum(part["records"] for part in said["partitions"].values()) == VIEWS_PER_HOUR
    assert "bootstrap.servers" not in log


def logs_of(stack: LocalStack, dag_id: str) -> list[Path]:
    return sorted((stack.home / "airflow" / "logs").rglob(f"dag_id={dag_id}/**/*.log"))


def test_what_keeps_house_runs(asked: dict[str, ApiDagRun], api: AirflowApi) -> None:
    assert finished(api, asked[MAINTENANCE]).state == "success"


@pytest.mark.parametrize("conn_id", ["kafka_default", "warehouse_default"])
def test_the_connections_can_be_tried_from_their_forms(conn_id: str, stack: LocalStack, api: AirflowApi) -> None:
    fields = stack._connections()[conn_id]
    body = {"connection_id": conn_id, **fields, "extra": json.dumps(fields.get("extra", {}))}
    answer = api.request("POST", "/api/v2/connections/test", json=body)
    assert answer["status"] is True, answer["message"]
