"""What a person on call asks of the page Ingestion, using the roles and names that a screen reader has, with two clicks at most.

Questions are rows of a table: what is clicked on the way, and what the answer is then called.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka.admin import NewTopic
from logbus.kafka.client import Client
from logbus.kafka.producing import produce
from logbus.kafka.topics import Topics
from logbus.loads.embedded import EmbeddedPostgres
from logbus.loads.engine import connect
from logbus.loads.ledger import Ledger
from logbus.model import Pipeline
from logbus.provider import CONNECTION_TYPE
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import Locator, Page, expect

from tests.support.api_server import ApiServer
from tests.support.browsing import Open
from tests.support.secured_kafka import SecuredKafka, secured_kafka  # noqa: F401
from tests.support.seeded_platform import SCRIPT, SeededPlatform
from tests.support.topics import create_topic, send

Find = Callable[[Page], Locator]
CLICKS_MAX = 2
IS_HIDDEN = "one => one.closest('[aria-hidden=true]') !== null"  # text is found there too; roles are not
ANSWER_MS = 120_000


def cell(name: str) -> Find:
    """An hour, by the start and the end of its accessible name: its pipeline, and its state."""
    pipeline, _, state = name.partition(" ")
    return lambda page: page.get_by_role("gridcell", name=re.compile(rf"^{pipeline}, .*{state}")).first


def text(wanted: str) -> Find:
    return lambda page: page.get_by_text(re.compile(wanted)).first


def row(pipeline: str, text: str) -> Find:
    return lambda page: page.get_by_role("row", name=re.compile(rf"^{pipeline}\b")).get_by_text(re.compile(text)).first


def named(role: str, name: str) -> Find:
    return lambda page: page.get_by_role(role, name=re.compile(name)).first  # type: ignore[arg-type]


def within(role: str, name: str, text: str) -> Find:
    return lambda page: page.get_by_role(role, name=re.compile(name)).get_by_text(re.compile(text)).first  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    answer: Find
    clicks: tuple[Find, ...] = ()


CLOSED = cell("clickstream Closed")  # not frozen yet

QUESTIONS = (
    Question("is every hour in?", named("heading", r"^\d+ hours not in yet$")),
    Question("which hour is missing, and of what?", cell("payments Failed")),
    Question("how far behind is it?", row("payments", r"^\d+ hours$")),
    Question("since when does it wait?", row("payments", r"^\d+ h( \d+ min)?$")),
    Question("how long have I got until records are gone?", row("clickstream", r"^gone in ")),
    Question("is anything gone already, and how much?", cell("clickstream \\d+ records lost")),
    Question("does somebody work on it?", cell("app_events Loading")),
    Question("why did it fail?", within("region", "Attempts", "Task 3 in stage 0.0 failed"), (cell("payments Failed"),)),
    Question("who tried, and when?", within("region", "Attempts", r"UTC, took "), (cell("payments Failed"),)),
    Question(
        "what do I type?",
        named("button", "^Copy logbus load --pipeline payments --only-missing$"),
        (text(r"^Load \d+ hours$"),),
    ),
    Question("why does nothing load it?", within("region", "What can be done", "the Dag clickstream is paused"), (CLOSED,)),
    Question("where do I switch that on?", named("link", "^Switch on the Dag of clickstream$")),
    Question("is an hour that waits begun yet?", named("heading", "^No load has begun$"), (CLOSED,)),
    Question(
        "how long is there to load it?",
        text(r"^Retention deletes its first records in \d+ (h|min)"),
        (cell("clickstream Expiring"),),
    ),
    Question("is the last hour over?", named("heading", "^This hour is still open$"), (cell("search Open"),)),
    Question("can I load it again from here?", named("button", "^Load this hour again$"), (cell("payments Failed"),)),
    Question("would the same records be loaded?", named("button", "What would a replay do"), (cell("access_log Audited"),)),
    Question("what did not parse, and how?", named("heading", "^Dead letters"), (cell("access_log Dead letters"),)),
    Question("did other hours fail lately?", named("heading", "^Attempts the last"), (named("link", "^payments$"),)),
    Question("do loads take longer than usual?", named("heading", "^Load took$"), (named("link", "^payments$"),)),
    Question(
        "what does a record look like?", named("list", "^Records"), (named("link", "^payments$"), named("link", "^payments$"))
    ),
    Question("who reads it, and how far?", named("row", "billing-exporter"), (named("link", "Topics and groups"),)),
)


def test_somebody_on_call_finds_each_answer_within_two_clicks(open_page: Open) -> None:
    page, unanswered = open_page("admin", "about:blank"), {}
    for question in QUESTIONS:
        page.goto("logbus/ui/ingestion?hours=24")
        try:
            for click in question.clicks:
                click(page).click(timeout=ANSWER_MS)
            expect(question.answer(page)).to_be_visible(timeout=ANSWER_MS)
            assert not question.answer(page).evaluate(IS_HIDDEN), "screen readers do not get it"
        except (AssertionError, PlaywrightError) as error:
            unanswered[question.text] = str(error)
    assert unanswered == {}


def test_twelve_questions_at_least_are_asked_and_none_takes_more_than_two_clicks() -> None:
    assert len({question.text for question in QUESTIONS}) == len(QUESTIONS) >= 12
    assert max(len(question.clicks) for question in QUESTIONS) <= CLICKS_MAX


def test_the_page_of_a_pipeline_leads_to_its_hours_and_its_dead_letters(open_page: Open) -> None:
    page = open_page("admin", "logbus/ui/pipeline?pipeline=access_log")
    expect(page.get_by_role("heading", name="access_log", level=1)).to_be_visible()
    expect(page.locator(".trend svg")).to_have_count(3)  # none of its records is late
    kinds = page.get_by_role("row", name=re.compile("^NotCombinedLogLine"))
    kinds.get_by_role("link").click()
    expect(page.locator("#dead-letters")).to_be_visible()
    page.go_back()
    page.get_by_role("link", name="Its hours").click()
    expect(page.locator(".row .name b")).to_have_text(["access_log"])


def test_the_name_of_a_pipeline_is_left_of_its_first_hour(open_page: Open) -> None:
    page = open_page("admin", "logbus/ui/ingestion?hours=24")
    page.locator(".row", has_text="payments").locator(".cell").first.focus()
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("link", name="payments", exact=True)).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".row", has_text="payments").locator(".cell").first).to_be_focused()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="payments", level=1)).to_be_visible()


def test_a_pipeline_that_nobody_registered_is_said_to_be_none(open_page: Open) -> None:
    page = open_page("admin", "logbus/ui/pipeline?pipeline=nowhere")
    expect(page.get_by_role("heading", name="There is no such pipeline")).to_be_visible()


def test_records_are_looked_at_from_their_end_from_a_time_and_from_an_offset(open_page: Open) -> None:
    page = open_page("admin", "logbus/ui/records?topic=app_events")
    records = page.locator(".record")
    expect(records).to_have_count(20)
    page.get_by_label("Where to begin").select_option("From an offset")
    expect(records.first).to_contain_text("offset 0")
    page.get_by_label("Partition").select_option("partition 1")
    page.get_by_label("From which offset on").fill("7")
    page.get_by_label("From which offset on").press("Tab")
    expect(records.first).to_contain_text("partition 1, offset 7")
    expect(page.locator(".copyable code")).to_have_text("logbus consume app_events -p 1 -o 7 -c 20")
    records.first.locator("summary").first.click()  # JSON values are collapsible
    expect(records.first.locator(".leaf").first).to_be_hidden()
    page.get_by_label("Where to begin").select_option("From a time (UTC)")
    page.get_by_label("From when on, in UTC").fill("2001-01-01T00:00:00")
    page.get_by_label("From when on, in UTC").press("Tab")
    expect(records.first).to_contain_text("partition 1, offset 0")


def test_a_record_is_found_and_leads_to_its_hour_and_back(open_page: Open) -> None:
    page = open_page("admin", "logbus/ui/records?topic=access_log")
    records, state = page.locator(".record"), page.get_by_role("status").first
    expect(records).to_have_count(20)
    page.get_by_label("Partition", exact=True).select_option("partition 0")  # whose dead letters the page of the hour shows first
    page.get_by_label("Text in the value").fill("not a line of a log")
    page.get_by_label("Text in the value").press("Enter")
    expect(state).to_contain_text(re.compile(r"^Searched: [\d,]+ offsets, .* [1-9]\d* found"))
    expect(records.first).to_contain_text(SCRIPT)
    expect(page.locator(".copyable code")).to_have_text(
        "logbus consume access_log -p 0 -o beginning -c 20 --text 'not a line of a log'"
    )
    name = str(records.first.locator("b").first.text_content())
    records.first.get_by_text("Its hour and its row").click()
    expect(records.first.locator(".trace")).to_contain_text("a dead letter: it did not parse")
    records.first.locator(".trace a").nth(1).click()
    page.locator("#dead-letters").get_by_role("link", name=name, exact=True).click()
    expect(records.first).to_contain_text(SCRIPT)
    expect(records.first.locator(".trace")).to_contain_text("NotCombinedLogLine")  # opened: this one was asked for
    page.go_back()
    page.get_by_role("link", name="those of this hour").click()
    expect(page.get_by_label("Where to begin")).to_have_value("range")
    records.first.get_by_text("Its hour and its row").click()
    expect(records.first.locator(".trace")).to_contain_text("1 row of access_log")
    assert page.errors == []  # type: ignore[attr-defined]


def test_a_topic_is_followed_until_that_is_stopped(open_page: Open, platform: SeededPlatform) -> None:
    topic = "newest"
    create_topic(platform.bootstrap, topic)
    page = open_page("admin", f"logbus/ui/records?topic={topic}")
    page.get_by_role("button", name="Follow", exact=True).click()
    expect(page.get_by_role("status").first).to_have_text("Following: 0 records")
    send(platform.bootstrap, topic, [{"value": "first"}])
    expect(page.locator(".record")).to_contain_text(["first"])
    send(platform.bootstrap, topic, [{"value": "second"}])
    expect(page.locator(".record")).to_contain_text(["second", "first"])
    expect(page.locator(".copyable code")).to_have_text(f"logbus consume {topic} -o end -f")
    page.get_by_role("button", name="Stop following").click()
    expect(page.get_by_text("nothing is read any more")).to_be_visible()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.get_by_role("button", name="Look", exact=True).click()
    expect(page.locator(".record")).to_have_count(2)
    assert [url for url in asked if "/tail" in url] == []


def test_what_the_connection_may_do_is_a_table(open_page: Open) -> None:
    page = open_page("admin", "logbus/ui/connection")
    row = page.get_by_role("table", name="Topics").get_by_role("row", name="access_log")
    expect(row.locator("td")).to_contain_text(["access_log", *["yes"] * 8])
    row.get_by_role("button").click()
    expect(page.get_by_text("Nothing is lacking.")).to_be_visible()


def test_what_a_record_holds_is_text(open_page: Open) -> None:
    page = open_page("admin", "logbus/ui/topics")
    page.get_by_role("button", name="access_log").click()
    page.get_by_role("link", name="Look at its records").click()
    expect(page.locator(".record").first).to_be_visible()
    assert page.locator("main script").count() == 0


@pytest.mark.long  # an Apache Kafka for one look
def test_who_may_only_read_sees_the_lag_what_is_unknown_and_what_is_lacking(
    open_page: Open,
    airflow: ApiServer,
    postgres_server: EmbeddedPostgres,
    secured_kafka: SecuredKafka,  # noqa: F811
) -> None:
    topic, settings, now = "read.browsed", secured_kafka.settings("SASL_SSL", "reader"), datetime.now(UTC)
    admin = secured_kafka.admin()
    for future in admin.create_topics([NewTopic(topic, 1)]).values():
        future.result()
    record = {"value": "{}", "timestamp": now - timedelta(hours=3)}
    produce(secured_kafka.settings("SASL_SSL", "admin"), topic, [record])
    engine = connect(postgres_server.create_database("pages_secured"))
    pipeline = Pipeline(name="orders", topic=topic, table="orders", parse="raw")
    Ledger(engine).register(pipeline, Topics(Client(settings)), now)
    warehouse = {"host": str(postgres_server.socket_directory), "login": "postgres", "schema": "pages_secured"}
    for conn_id, made in (
        ("kafka_secured", {"conn_type": "kafka", "extra": json.dumps(settings)}),
        ("warehouse_secured", {"conn_type": CONNECTION_TYPE, **warehouse}),
    ):
        airflow.api("POST", "connections", json={"connection_id": conn_id, **made})
    named = "kafka_conn_id=kafka_secured&warehouse_conn_id=warehouse_secured"
    page = open_page("admin", f"logbus/ui/ingestion?{named}")
    expect(row("orders", "^kept\\?$")(page)).to_have_attribute("title", re.compile("this user lacks DescribeConfigs"))
    expect(page.locator(".tile", has_text="Next to expire")).to_contain_text("not known")
    page.get_by_role("link", name="orders", exact=True).click()
    expect(page.get_by_role("status").first).to_contain_text("how long they are kept is unknown")
    page.get_by_role("link", name=topic).click()
    expect(page.locator(".record")).to_have_count(1)
    page.get_by_role("link", name="Connection").click()
    rights = page.get_by_role("table", name="Topics").get_by_role("row", name=topic)
    expect(rights.locator("td")).to_have_text([topic, "yes", "yes", *["no"] * 6])
    rights.get_by_role("button").click()
    grant = f"kafka-acls --add --allow-principal User:reader --operation DescribeConfigs --topic {topic}"
    expect(page.get_by_text(grant)).to_be_visible()
    expect(page.get_by_role("table", name="The cluster").locator("td")).to_contain_text(["the cluster", *["no"] * 6])
    assert page.errors == []  # type: ignore[attr-defined]
