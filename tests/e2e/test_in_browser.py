"""Hours and runs in the browser, in a whole Airflow with its scheduler and Spark: what can be done about an hour, Airflow's own list
of a Dag's runs, and our tab on one of them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from logbus.cli.demo import CATCH_UP_DAG, PIPELINE
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.loads.ledger import Ledger
from logbus.model import Interval, Pipeline, instant_text, milliseconds
from logbus.waiting import PATIENCE_SECONDS
from playwright.sync_api import FrameLocator, Page, expect
from sqlalchemy import Engine

from tests.support.airflow_runs import ask_for_run
from tests.support.browsing import ours
from tests.support.demos import SecondDemo
from tests.support.in_process import driver, replace_spark
from tests.support.ledgers import NOW, at

GREEN = "audited"
MENDED = "mended"
STRICT, LAX = r"(?P<word>[a-z]+)", r"(?P<word>\S+)"
BY_HAND = "by_hand"  # a pipeline whose hours never become due (conftest.py)


def open_window(page: Page, pipeline: str, start: str) -> FrameLocator:
    page.goto(f"/plugin/logbus-ingestion/logbus/ui/window?pipeline={pipeline}&start={start}")
    return ours(page)


@pytest.fixture(scope="module")
def by_hand(second: SecondDemo, engine: Engine) -> list[Interval]:
    """Three hours of the pipeline by_hand, of a record each, that are frozen and not loaded. The hour before them is: a Dag that has
    never run says nothing about how long its hours are."""
    topics, ledger, api = Topics(Client(second.stack.client_config)), Ledger(engine), second.stack.airflow.api
    topics.create(BY_HAND, partitions=1, settings={"retention.ms": "-1"})
    first, *others = (Interval.hour(at(hour)) for hour in range(4))
    producer = Producer(second.stack.client_config)
    for hour in (first, *others):
        producer.produce(BY_HAND, b"a line", timestamp=milliseconds(hour.start))
    assert producer.flush(PATIENCE_SECONDS) == 0
    api.wait(ask_for_run(api, BY_HAND, first), PATIENCE_SECONDS)
    for hour in others:
        ledger.freeze_or_get(BY_HAND, hour, topics, NOW)
    return others


def confirm(frame: FrameLocator, label: str) -> None:
    frame.get_by_role("button", name=label).click()
    frame.get_by_role("dialog").get_by_role("button", name=label).click()


def test_an_hour_is_rerun_and_turns_green(by_hand: list[Interval], engine: Engine, page: Page) -> None:
    hour = by_hand[0]
    frame = open_window(page, BY_HAND, instant_text(hour.start))
    expect(frame.locator("#state")).to_have_attribute("data-state", "closed")
    confirm(frame, "Load this hour again")
    expect(frame.locator("#state")).to_have_attribute("data-state", GREEN)
    expect(frame.get_by_text("Done", exact=True)).to_be_visible()
    window = Ledger(engine).window(BY_HAND, hour.start)
    assert window.loaded_attempt == 1
    assert window.audited_at is not None
    frame.get_by_role("link", name="Task log in Airflow").click()
    page.wait_for_url(re.compile(rf"/dags/{BY_HAND}/runs/.+/tasks/load"))


def test_hours_chosen_on_the_map_are_loaded_together(by_hand: list[Interval], engine: Engine, page: Page) -> None:
    hours = by_hand[1:]
    until = instant_text(hours[-1].end)
    page.goto(f"/plugin/logbus-ingestion/logbus/ui/ingestion?pipeline={BY_HAND}&hours=24&until={until}")
    frame = ours(page)
    cells = [frame.locator(f'.cell[aria-label*=" {hour.start:%H:%M}, "]').last for hour in hours]
    for cell in cells:
        expect(cell).to_have_class(re.compile("s-closed"))
    cells[0].click(modifiers=["Control"])
    cells[1].click(modifiers=["Shift"])
    confirm(frame, "Load 2 hours")
    expect(frame.get_by_role("region", name="Chosen hours")).to_contain_text("2 runs requested")
    for cell in cells:
        expect(cell).to_have_class(re.compile(f"s-{GREEN}"))
    assert all(Ledger(engine).window(BY_HAND, hour.start).audited_at is not None for hour in hours)


def test_a_dead_letter_is_redriven_and_its_hour_turns_green(
    second: SecondDemo, engine: Engine, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_spark(monkeypatch)
    start = load_with_a_dead_letter(second, engine)
    register(second, engine, LAX)
    frame = open_window(page, MENDED, start)
    expect(frame.locator("#state")).to_have_attribute("data-state", "dead_letters")
    expect(frame.locator("#dead-letters pre")).to_have_text("4711")
    second.stack.airflow.api.unpause("logbus_redrive")
    confirm(frame, "Redrive its dead letters")
    expect(frame.locator("#state")).to_have_attribute("data-state", GREEN)
    expect(frame.get_by_text("1 of 1 parse now and are rows")).to_be_visible()
    expect(frame.locator("#dead-letters")).to_have_count(0)
    expect(frame.locator(".equation .term b")).to_have_text(["3", "3", "0", "0"])


def register(second: SecondDemo, engine: Engine, pattern: str) -> None:
    pipeline = Pipeline(name=MENDED, topic=MENDED, table=MENDED, parse="regex", settings={"pattern": pattern})
    Ledger(engine).register(pipeline, Topics(Client(second.stack.client_config)), NOW)


def load_with_a_dead_letter(second: SecondDemo, engine: Engine) -> str:
    """An audited hour of three records, one of which the parser rejected; returns the hour's start."""
    config, ledger, hour = second.stack.client_config, Ledger(engine), Interval.hour(at(10))
    Topics(Client(config)).create(MENDED, partitions=1, settings={"retention.ms": "-1"})
    producer = Producer(config)
    for value in (b"alpha", b"4711", b"omega"):
        producer.produce(MENDED, value, timestamp=milliseconds(hour.start))
    assert producer.flush(PATIENCE_SECONDS) == 0
    register(second, engine, STRICT)
    ledger.freeze_or_get(MENDED, hour, Topics(Client(config)), NOW)
    (attempt,) = ledger.begin_attempts(MENDED, [hour.start], "by hand", 1, NOW)
    (outcome,) = driver(ledger, Topics(Client(config)), config).load(MENDED, [attempt.token])
    assert outcome.error is None
    return instant_text(hour.start)


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
