"""Each figure on the pages against the ledger and a real broker; and what they show when one of the two is down. It is 16:30."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from logbus.cli.maintenance import warehouse_connection
from logbus.expressions import count
from logbus.kafka.client import Client
from logbus.kafka.cluster import log_directories, partition_bytes
from logbus.kafka.topics import Topics
from logbus.loads.commit_checks import freeze_schemas
from logbus.loads.dead_letters import ERROR_CHARACTERS_MAX
from logbus.loads.engine import warehouse_url as parse
from logbus.loads.history import window_history
from logbus.loads.table_audit import HourAudit, Spans, TableReport, record_report
from logbus.model import instant_text
from logbus.parsing.decoders import Schema, reference_to_id
from logbus.status.lag import lag_of
from logbus.streams import hourly_aggregates, stream_ledger
from logbus.streams.aggregate_definition import define_aggregate
from logbus.streams.definition import define_stream
from logbus.waiting import PATIENCE_SECONDS
from logbus.web import topic_records
from logbus.web.app import app as application
from logbus.web.routes import interval_of_run
from sqlalchemy import Engine, text

from tests.support.avro_values import record, written
from tests.support.broker import AnyBroker
from tests.support.cell_columns import cells
from tests.support.fake_log import FakeLog
from tests.support.ledgers import World, at, hour, remember_dag
from tests.support.loads import Loading
from tests.support.real_pipeline import ANY_TIME, RealPipeline
from tests.support.topics import admin, create_topic, delete_topic
from tests.support.ui_client import UiClient

NOW = at(16.5)
NOWHERE = "127.0.0.1:9"
DAY = {"since": instant_text(at(8)), "until": instant_text(at(18))}


def warehouse(url: str) -> str:
    return json.dumps(warehouse_connection(parse(url)))


@pytest.fixture
def places(client: UiClient, warehouse_url: str, broker: AnyBroker, monkeypatch: pytest.MonkeyPatch) -> UiClient:
    """A client with Airflow connections to the real ledger and broker."""
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE_DEFAULT", warehouse(warehouse_url))
    extra = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))
    client.now = NOW
    return client


def load(pipeline: RealPipeline, url: str, number: int, bad: frozenset[int] = frozenset()) -> None:
    """Freezes and loads an hour without Spark; the records at the offsets `bad` do not parse."""
    log = FakeLog()
    log.create(pipeline.name, pipeline.partitions)
    for part, end in pipeline.log.end_offsets(pipeline.name, range(pipeline.partitions), "read_committed").items():
        found = pipeline.log.records(pipeline.name, part, 0, end)
        log.append(pipeline.name, *(record.timestamp_ms for record in found), partition=part)
    world = World(ledger=pipeline.ledger, log=log)
    window = pipeline.ledger.freeze_or_get(pipeline.name, hour(number), pipeline.log, NOW)
    Loading(world=world, url=url, window=window, bad_offsets=bad).load()


def made(broker: AnyBroker, engine: Engine) -> RealPipeline:
    """Hours 10 to 14 hold records: 10 is audited, 11 loaded, 12 frozen, 13 and 14 are not frozen."""
    made, url = RealPipeline(broker.bootstrap, engine), engine.url.render_as_string(hide_password=False)
    for number in range(10, 15):
        made.send([(number + 0.1, b"first"), (number + 0.5, b"second")], partition=0)
        made.send([(number + 0.2, b"third")], partition=1)
    load(made, url, 10)
    load(made, url, 11)
    made.audit(10)
    made.freeze(12)
    return made


@pytest.fixture(scope="module")
def shared(broker: AnyBroker, shared_world: World) -> RealPipeline:
    return made(broker, shared_world.ledger.engine)


@pytest.fixture
def pipeline(places: UiClient, shared: RealPipeline, monkeypatch: pytest.MonkeyPatch) -> RealPipeline:
    """One for all tests that only look; its ledger is Airflow's connection."""
    url = shared.engine.url.render_as_string(hide_password=False)
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE_DEFAULT", warehouse(url))
    return shared


@pytest.fixture
def own(places: UiClient, broker: AnyBroker, engine: Engine) -> RealPipeline:
    """The same for a test that changes it."""
    return made(broker, engine)


def shown(places: UiClient, pipeline: RealPipeline, **parameters: Any) -> dict[str, Any]:
    found = places.json("/api/overview", **{**DAY, **parameters})
    (one,) = [one for one in found["pipelines"] if one["name"] == pipeline.name]
    return dict(one)


def states(one: dict[str, Any]) -> dict[int, str]:
    return {int(cell["start"][11:13]): cell["state"] for cell in cells(one)}


def test_the_heat_map_shows_each_hour_of_the_ledger(places: UiClient, pipeline: RealPipeline) -> None:
    one = shown(places, pipeline)
    assert states(one) == {10: "audited", 11: "loaded", 12: "closed", 13: "closed", 14: "closed", 16: "open"}
    windows = {window.interval.start.hour: window for window in pipeline.ledger.windows(pipeline.name)}
    for cell in cells(one):
        window = windows.get(int(cell["start"][11:13]))
        assert cell["records"] == (window.record_count if window else None)
        assert cell["loaded"] == (window.counts.loaded if window and window.counts else 0)
        assert cell["attempts"] == (window.last_attempt if window else 0)
    assert one["states"] == Counter(states(one).values())
    waiting = sum(one["states"].get(state, 0) for state in ("closed", "failed", "expiring", "loading"))
    assert waiting == one["lag"]["hours_behind"] == 3


def test_lag_is_what_the_command_line_says(places: UiClient, pipeline: RealPipeline) -> None:
    lag = shown(places, pipeline)["lag"]
    alone = lag_of(pipeline.engine, Topics(Client(pipeline.client_config)), pipeline.name, NOW).summary(NOW)
    for name in ("hours_behind", "oldest_hour", "records_behind", "records_open", "records_lost", "age_seconds", "problem"):
        assert lag[name] == alone[name], name
    assert (lag["hours_behind"], lag["records_behind"], lag["oldest_unloaded_at"]) == (3, 9, alone["oldest_record_at"])
    read = pipeline.ledger.windows(pipeline.name)[:2]
    each = sum(one.counts.bytes for one in read if one.counts) / sum(one.counts.read for one in read if one.counts)
    assert (lag["bytes_behind"], lag["bytes_are_estimated"]) == (round(9 * each), True)


def test_throughput_is_seen_at_the_second_look(places: UiClient, own: RealPipeline) -> None:
    first, span = shown(places, own)["throughput"], places.json("/api/overview", **DAY)["span"]
    assert first["produced_per_second"] is None
    assert (span["series_start"], span["series_step_seconds"]) == (instant_text(at(8)), 3600)
    assert {8 + place: count for place, count in enumerate(first["series"]["produced"]) if count} == {10: 3, 11: 3, 12: 3}
    own.send([(15, b"more")] * 20)
    places.now = at(16.5 + 10 / 3600)
    assert shown(places, own)["throughput"]["produced_per_second"] == pytest.approx(2.0)


def test_a_look_just_behind_the_turn_of_the_hour_shows_one_hour_and_not_two(places: UiClient, pipeline: RealPipeline) -> None:
    """A reading from before the hour is shared for some seconds: span, clock and cells are all of that instant."""
    places.now = at(17) - timedelta(seconds=1)
    before = places.json("/api/overview", hours=8)
    places.now = at(17) + timedelta(seconds=1)
    shared = places.get("/api/overview", params={"hours": 8}).json()
    assert shared == before
    assert (shared["now"], shared["span"]["end"]) == (instant_text(at(17) - timedelta(seconds=1)), instant_text(at(17)))
    after = places.json("/api/overview", hours=8)
    assert (after["now"], after["span"]["end"]) == (instant_text(places.now), instant_text(at(18)))
    for found, open_hours in ((shared, [16]), (after, [16, 17])):  # records of 16 may arrive for some minutes more
        (one,) = [one for one in found["pipelines"] if one["name"] == pipeline.name]
        assert [number for number, state in states(one).items() if state == "open"] == open_hours


def test_a_window_says_what_the_ledger_knows(places: UiClient, pipeline: RealPipeline) -> None:
    found = places.json(f"/api/windows/{pipeline.name}/{instant_text(at(10))}")
    history = window_history(pipeline.engine, pipeline.name, at(10))
    assert found["fingerprint"] == history.window.fingerprint
    assert found["equation"] == {"read": 3, "loaded": 3, "dead_lettered": 0, "filtered": 0, "holds": True}
    assert [(one["partition"], one["count"], one["loaded"]) for one in found["ranges"]] == [(0, 2, 2), (1, 1, 1)]
    assert [one["number"] for one in found["attempts"]] == [1]
    assert (found["stamped_hours"]["own"], found["stamped_hours"]["sentences"]) == (3, [])
    assert found["audit"]["audited_at"] is not None
    assert {one["name"]: one["allowed"] for one in found["actions"]} == {"rerun": False, "redrive": False, "replay_plan": True}
    plan = places.json(f"/api/windows/{pipeline.name}/{instant_text(at(10))}/replay_plan")
    assert (plan["records"], plan["rows_replaced"]) == (3, 3)


def test_an_hour_that_is_not_frozen_says_whether_it_waits_is_open_or_holds_nothing(
    places: UiClient, pipeline: RealPipeline
) -> None:
    def waiting(number: int) -> dict[str, Any]:
        return places.json(f"/api/windows/{pipeline.name}/{instant_text(at(number))}/waiting")

    found = waiting(13)
    assert (found["is_frozen"], found["is_open"], found["cell"]["state"]) == (False, False, "closed")
    (action,) = found["actions"]
    assert (action["name"], action["allowed"]) == ("load", False)
    assert found["command"] == f"logbus load --pipeline {pipeline.name} --only-missing"
    assert found["command"] in action["why_not"]
    assert [(waiting(number)["is_open"], waiting(number)["cell"]) for number in (9, 15)] == [(False, None)] * 2
    now = waiting(16)
    assert (now["is_open"], now["cell"]["state"], now["actions"]) == (True, "open", [])
    assert waiting(12)["is_frozen"]
    assert places.get(f"/api/windows/{pipeline.name}/{instant_text(at(17))}/waiting").status_code == 404


def test_dead_letters_are_counted_by_error_and_sampled(
    places: UiClient, broker: AnyBroker, engine: Engine, warehouse_url: str
) -> None:
    bad = RealPipeline(broker.bootstrap, engine)
    bad.send([(10.1 + n / 10, b"record") for n in range(4)] + [(11.1, b"record"), (11.2, b"record")])
    load(bad, warehouse_url, 10, bad=frozenset({1, 3}))
    load(bad, warehouse_url, 11, bad=frozenset({4}))
    (kind,) = places.json(f"/api/pipelines/{bad.name}")["dead_letters"]
    assert (kind["count"], kind["windows"], kind["last"]) == (3, 2, instant_text(at(11)))
    found = places.json(f"/api/windows/{bad.name}/{instant_text(at(10))}")
    history = window_history(engine, bad.name, at(10))
    assert {one["error_class"]: one["count"] for one in found["dead_letters"]["by_error"]} == dict(history.dead_letters)
    (shape,) = found["dead_letters"]["shapes"]
    assert found["dead_letters"]["total"] == shape["count"] == len(shape["samples"]) == 2
    values = {one["offset"]: (one["value"], one["value_base64"]) for one in shape["samples"]}
    assert values == {1: (None, "/w=="), 3: (None, "/w==")}
    assert (found["ranges"][0]["loaded"], found["ranges"][0]["dead_lettered"]) == (2, 2)
    assert states(shown(places, bad))[10] == "dead_letters"


def test_dead_letters_that_fail_alike_are_one_shape(
    places: UiClient, broker: AnyBroker, engine: Engine, warehouse_url: str
) -> None:
    bad = RealPipeline(broker.bootstrap, engine)
    bad.send([(10.1 + n / 20, b"record") for n in range(9)])
    load(bad, warehouse_url, 10, bad=frozenset(range(8)))
    errors = [f"line {n} column 7: 'record {n}'" for n in range(5)] + [
        "member 'a' is not a valid bigint: '\"x\"'",
        "member 'a' is not a valid bigint: 'y'",
        "a parser of the user's own: " + "'x" * 1_000_000,  # a search for what belongs to the record would never end
    ]
    with engine.begin() as connection:
        for offset, error in enumerate(errors):
            statement = "update logbus.dead_letter d set error = :error from logbus.window w where d.window_id = w.id "
            place = {"error": error, "offset": offset, "name": bad.name}
            connection.execute(text(statement + 'and w.pipeline = :name and d."offset" = :offset'), place)
    found = places.json(f"/api/windows/{bad.name}/{instant_text(at(10))}")["dead_letters"]
    assert [(one["error"], one["count"], [sample["offset"] for sample in one["samples"]]) for one in found["shapes"]] == [
        ("line N column N", 5, [0, 1, 2]),
        ("member 'a' is not a valid bigint", 2, [5, 6]),
        (errors[-1][:ERROR_CHARACTERS_MAX], 1, [7]),
    ]
    assert found["total"] == 8


def test_a_pipeline_shows_what_it_is_how_its_hours_went_and_who_tried(places: UiClient, pipeline: RealPipeline) -> None:
    found = places.json(f"/api/pipelines/{pipeline.name}")
    assert {name: found["pipeline"][name] for name in ("name", "topic", "table", "parse", "sink", "settings")} == {
        **dict.fromkeys(("name", "topic", "table"), pipeline.name),
        **{"parse": "lines", "sink": "postgres", "settings": {}},
    }
    windows = {window.interval.start: window for window in pipeline.ledger.windows(pipeline.name)}
    assert found["hours"]["start"] == [instant_text(at(10)), instant_text(at(11))]
    counts = [windows[at(number)].counts for number in (10, 11)]
    assert [found["hours"][name] for name in ("read", "late", "dead_lettered")] == [
        [getattr(one, name) for one in counts] for name in ("read", "late", "dead_lettered")
    ]
    assert all(seconds >= 0 for seconds in found["hours"]["seconds"])
    attempts = [(one["start"], one["state"]) for one in found["attempts"]]
    assert attempts == [(instant_text(at(11)), "committed"), (instant_text(at(10)), "committed")]
    assert found["lag"] == shown(places, pipeline)["lag"]
    assert (found["dead_letters"], found["dag_ids"]) == ([], [])
    assert (found["aggregates"], found["streams"]) == ([], [])


def test_the_page_of_a_pipeline_shows_what_is_computed_from_it(places: UiClient, own: RealPipeline) -> None:
    by_hour = define_aggregate("by_hour", own.name, keys=[], measures={"count": count()})
    hourly_aggregates.define(own.engine, by_hour, NOW)
    hourly_aggregates.bring_up_to_date(own.engine, "by_hour", "test", lambda: NOW)
    stream_ledger.define(own.engine, define_stream("live", own.name, keys=[], measures={"count": count()}), NOW)
    page = places.json(f"/api/pipelines/{own.name}")
    [aggregate], [stream] = page["aggregates"], page["streams"]
    assert [aggregate[name] for name in ("name", "verdict", "hours", "wrong", "behind")] == ["by_hour", "not audited", 2, 0, 0]
    assert [stream[name] for name in ("name", "state", "epochs", "proven", "different", "behind")] == ["live", "new", 0, 0, 0, 0]
    assert (stream["lag_records"], stream["lag_seconds"]) == (6, None), "it begins after hour 12, and has counted nothing"
    assert stream["words"] == "count count() by 1 min of _timestamp"


def offsets_of(found: dict[str, Any]) -> list[tuple[int, int]]:
    return [(one["partition"], one["offset"]) for one in found["records"]]


def test_a_look_at_a_topic_shows_its_last_records_those_of_a_time_and_those_of_an_offset(
    places: UiClient, pipeline: RealPipeline
) -> None:
    path = f"/api/topics/{pipeline.name}/records"
    assert offsets_of(places.json(path, count=4)) == [(0, 7), (0, 8), (1, 4), (0, 9)]
    assert offsets_of(places.json(path, since=instant_text(at(13)), count=3)) == [(0, 6), (1, 3), (0, 7)]
    found = places.json(path, offset=2, partition=0, count=2)
    assert (offsets_of(found), found["is_whole"]) == ([(0, 2), (0, 3)], True)
    assert offsets_of(places.json(path, offset=999)) == []
    assert [(one["partition"], one["end_offset"]) for one in found["partitions"]] == [(0, 10), (1, 5)]
    assert found["partitions"][0]["newest_at"] == instant_text(at(14.5))


def test_a_record_is_shown_with_its_key_its_headers_and_bytes_that_are_no_text(places: UiClient, broker: AnyBroker) -> None:
    name = "looked_at"
    create_topic(broker.bootstrap, name, config=ANY_TIME)
    places.connections.add("kafka_default")
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(name, b'{"a": 1}', b"key", headers=[("trace", b"x"), ("none", None)], timestamp=1_000)
    producer.produce(name, b"\xff", timestamp=2_000)
    producer.produce(name, None, b"gone", timestamp=253_402_300_800_000)  # after the year 9999
    producer.produce(name, b"x" * 30_000, timestamp=4_000)
    producer.flush(PATIENCE_SECONDS)
    text_, raw, large, tombstone = places.json(f"/api/topics/{name}/records")["records"]
    assert (text_["value"], text_["key"], text_["headers"]) == ('{"a": 1}', "key", [["trace", "x"], ["none", None]])
    assert (text_["timestamp"], text_["timestamp_type"]) == ("1970-01-01T00:00:01Z", "create")
    assert (raw["value"], raw["value_base64"]) == (None, "/w==")
    assert (tombstone["value"], tombstone["value_bytes"], tombstone["key"], tombstone["timestamp"]) == (None, None, "gone", None)
    assert (len(large["value"]), large["value_is_cut"], large["value_bytes"]) == (20_000, True, 30_000)


def steps(places: UiClient, path: str, **wish: Any) -> list[dict[str, Any]]:
    """A search to its end, as a page continues it."""
    answers = [places.json(path, **wish)]
    while (search := answers[-1]["search"])["next_offsets"]:
        go_on = {"starting_offsets": search["next_offsets"], "ending_offsets": search["ending_offsets"]}
        kept = {name: value for name, value in wish.items() if name in ("text", "key", "header", "count")}
        answers.append(places.json(path, **kept, **go_on))
    return answers


def test_values_that_name_a_frozen_schema_are_shown_as_json(places: UiClient, engine: Engine, broker: AnyBroker) -> None:
    order = record(("id", "long"), ("at", {"type": "long", "logicalType": "timestamp-millis"}))
    frozen = Schema(reference=reference_to_id(7), type="AVRO", text=json.dumps(order))
    pipeline = RealPipeline(broker.bootstrap, engine, partitions=1, parse="avro", settings={"registry": "http://127.0.0.1:9"})
    with engine.begin() as connection:
        freeze_schemas(connection, pipeline.ledger.pipeline(pipeline.name), {frozen.reference: frozen}, NOW)
    pipeline.send([(10, written(7, order, {"id": 1, "at": at(10)})), (10, written(8, order, {"id": 1, "at": at(10)}))])
    for view in ("records", "tail"):
        known, unknown = places.json(f"/api/topics/{pipeline.name}/{view}")["records"]
        assert json.loads(known["value"]) == {"id": 1, "at": at(10).isoformat()}
        assert unknown["value_base64"]


def test_a_search_reads_its_span_in_bounded_steps_and_finds_each_record_once(
    places: UiClient, broker: AnyBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "searched"
    create_topic(broker.bootstrap, name, partitions=2, config=ANY_TIME)
    places.connections.add("kafka_default")
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(2_000):
        headers = [("host", b"web%d" % (number % 3))]
        value = b"status %d" % (500 if number % 100 == 0 else 200)
        producer.produce(name, value, b"%d" % number, partition=number % 2, headers=headers, timestamp=1_000_000 + number)
    producer.flush(PATIENCE_SECONDS)
    monkeypatch.setattr(topic_records, "SECONDS_MAX", PATIENCE_SECONDS)
    path, matches = f"/api/topics/{name}/records", [(0, offset) for offset in range(0, 1_000, 50)]
    (whole,) = steps(places, path, text="status 500", count=100)
    assert (offsets_of(whole), whole["search"]["offsets_read"]) == (matches, 2_000)
    monkeypatch.setattr(topic_records, "SEARCHED_RECORDS_MAX", 300)
    bounded = steps(places, path, text="status 500", count=100)
    assert sorted(place for step in bounded for place in offsets_of(step)) == matches
    searches = [step["search"] for step in bounded]
    assert sum(search["records_read"] for search in searches) == sum(search["offsets_read"] for search in searches) == 2_000
    assert all(search["records_read"] <= 300 + 1_000 for search in searches)  # it looks at its limits after each batch
    assert (len(bounded) > 1, searches[-1]["offsets_left"]) == (True, 0)
    few = steps(places, path, text="status 500", count=3)
    assert [place for step in few for place in offsets_of(step)] == matches
    assert max(len(offsets_of(step)) for step in few) == 3
    places.seconds += 100
    assert offsets_of(places.json(path, key="7", partition=1)) == [(1, 3)]
    since, until = "1970-01-01T00:16:40.300Z", "1970-01-01T00:16:40.600Z"
    span = steps(places, path, since=since, until=until, header="host=web0", text="500")
    assert [place for step in span for place in offsets_of(step)] == [(0, 150)]
    assert sum(step["search"]["offsets_read"] for step in span) == 300
    of_range = places.json(path, starting_offsets="0:4,1:998", ending_offsets="0:6,1:2000")
    assert sorted(offsets_of(of_range)) == [(0, 4), (0, 5), (1, 998), (1, 999)]
    searches_now = application.state.sources.get("warehouse_default", "kafka_default").searches
    for _ in range(topic_records.SEARCHES_MAX):
        searches_now.acquire()
    assert (places.get(path, params={"text": "x"}).status_code, places.get(path).status_code) == (429, 200)


def test_a_tail_shows_what_arrives_to_all_who_follow_and_passes_over_what_is_too_much(
    places: UiClient, broker: AnyBroker
) -> None:
    name = "followed"
    create_topic(broker.bootstrap, name, partitions=2, config=ANY_TIME)
    places.connections.add("kafka_default")
    producer = Producer({"bootstrap.servers": broker.bootstrap})

    def send(count: int, partition: int = 0) -> None:
        for number in range(count):
            producer.produce(name, b"line %d" % number, partition=partition, timestamp=1_000)
        producer.flush(PATIENCE_SECONDS)

    def tail(**wish: Any) -> dict[str, Any]:
        places.seconds += 2
        return dict(places.get(f"/api/topics/{name}/tail", params=wish).raise_for_status().json())

    send(30)
    first = tail()
    assert (offsets_of(first), first["next_offsets"]) == ([(0, offset) for offset in range(10, 30)], "0:30,1:0")
    send(1, partition=1)
    send(2)
    second = tail(next_offsets=first["next_offsets"])
    assert (sorted(offsets_of(second)), second["passed_over"]) == ([(0, 30), (0, 31), (1, 0)], 0)
    late = tail(next_offsets=first["next_offsets"], partition=0, text="line 1")  # another page, of what was read already
    assert (offsets_of(late), late["passed_over"], late["next_offsets"]) == ([(0, 31)], 0, second["next_offsets"])
    send(70)
    third = tail(next_offsets=second["next_offsets"])
    assert (len(third["records"]), offsets_of(third)[-1], third["passed_over"]) == (50, (0, 101), 20)
    send(40)
    places.seconds += 60  # nobody asked: it begins anew, and does not catch up
    after = tail(next_offsets=third["next_offsets"])
    assert (len(after["records"]), after["passed_over"]) == (20, 20)
    delete_topic(broker.bootstrap, name)
    create_topic(broker.bootstrap, name, partitions=2, config=ANY_TIME)
    send(3)
    anew = tail(next_offsets=after["next_offsets"])
    again = tail(next_offsets=anew["next_offsets"])
    assert (offsets_of(anew), anew["next_offsets"], again["records"]) == ([(0, 0), (0, 1), (0, 2)], "0:3,1:0", [])


def test_a_record_leads_to_its_window_and_to_what_became_of_it(places: UiClient, own: RealPipeline, engine: Engine) -> None:
    load(own, engine.url.render_as_string(hide_password=False), 12, bad=frozenset({4}))
    own.freeze(13)
    fates = {}
    for partition, offset in ((0, 0), (1, 2), (0, 4), (0, 6), (0, 9)):
        (trace,) = places.json(f"/api/topics/{own.name}/records/{partition}/{offset}")["pipelines"]
        fates[partition, offset] = (trace["fate"], (trace["window"] or {}).get("start"), len(trace["rows"]))
    assert fates == {
        (0, 0): ("loaded", instant_text(at(10)), 1),
        (1, 2): ("loaded", instant_text(at(12)), 1),
        (0, 4): ("dead letter", instant_text(at(12)), 0),
        (0, 6): ("not loaded yet", instant_text(at(13)), 0),
        (0, 9): ("in no window yet", None, 0),
    }
    (trace,) = places.json(f"/api/topics/{own.name}/records/0/0")["pipelines"]
    assert (trace["rows"][0]["_offset"], trace["rows"][0]["_window_start"]) == (0, instant_text(at(10)))
    with engine.begin() as connection:
        connection.execute(text(f'drop table "{own.name}" cascade'))
    (trace,) = places.json(f"/api/topics/{own.name}/records/0/0")["pipelines"]
    assert (trace["fate"], "does not exist" in trace["problem"]) == ("unknown", True)
    remember_dag(own.ledger, own.name, "secret")
    assert places.json(f"/api/topics/{own.name}/records/0/0")["pipelines"] == []


def test_what_a_connection_may_do_is_for_those_who_may_see_it(
    places: UiClient, own: RealPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = places.get("/api/connection")
    assert (refused.status_code, "kafka_default" in refused.json()["detail"]) == (403, True)
    places.connections.add("kafka_default")
    rights = {(one["kind"], one["name"]): one for one in places.json("/api/connection")["resources"]}
    assert rights["topic", own.name]["operations"]["Delete"] is True  # our broker refuses nobody
    assert (rights["cluster", ""]["lacking"], rights["topic", own.name]["problem"]) == ({}, None)
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": NOWHERE}}))
    places.wait_for_the_broker(1.0)
    away = places.json("/api/connection")
    assert (away["resources"], NOWHERE in away["problem"], NOWHERE in away["broker"]["message"]) == (None, True, False)


def test_a_look_at_large_records_holds_only_so_many_and_says_so(
    places: UiClient, broker: AnyBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_records, "BYTES_MAX", 1_000)
    name = "large_ones"
    create_topic(broker.bootstrap, name, partitions=4, config=ANY_TIME)
    places.connections.add("kafka_default")
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(8):
        producer.produce(name, b"x" * 500_000, partition=number % 4)
    producer.flush(PATIENCE_SECONDS)
    found = places.json(f"/api/topics/{name}/records")
    assert (found["is_whole"], 0 < len(found["records"]) <= 8) == (False, True)


def test_records_are_for_those_who_may_see_a_pipeline_of_the_topic_or_the_connection(
    places: UiClient, own: RealPipeline, broker: AnyBroker
) -> None:
    path, nobodys = f"/api/topics/{own.name}/records", "of_nobody"
    create_topic(broker.bootstrap, nobodys)
    remember_dag(own.ledger, own.name, "secret")
    places.seconds += 100
    for address in (path, f"/api/topics/{nobodys}/records"):
        answer = places.get(address)
        assert (answer.status_code, "kafka_default" in answer.json()["detail"]) == (403, True)
    places.readable.add("secret")
    assert places.get(path).status_code == 200
    assert places.get(f"/api/topics/{nobodys}/records").status_code == 403
    places.connections.add("kafka_default")
    assert places.json(f"/api/topics/{nobodys}/records")["records"] == []
    gone = places.get("/api/topics/nowhere/records")
    assert (gone.status_code, "no longer has a topic of that name" in gone.json()["detail"]) == (409, True)


def test_a_connection_that_is_not_the_default_is_for_those_who_may_see_it(
    places: UiClient, own: RealPipeline, broker: AnyBroker, warehouse_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_PROD", json.dumps({"conn_type": "kafka", "extra": extra}))
    monkeypatch.setenv("AIRFLOW_CONN_TEAM_DB", warehouse(warehouse_url))
    of_hour = f"/api/windows/{own.name}/{instant_text(at(10))}"
    paths = ["/api/overview", f"/api/pipelines/{own.name}", "/api/topics", "/api/groups", of_hour, f"{of_hour}/replay_plan"]
    records = f"/api/topics/{own.name}/records"
    paths += [
        f"{of_hour}/waiting",
        records,
        f"{records}/0/0",
        f"/api/topics/{own.name}/tail",
        "/api/connection",
        f"/windows/{own.name}",
    ]
    for named in ({"kafka_conn_id": "kafka_prod"}, {"warehouse_conn_id": "team_db"}, {"warehouse_conn_id": "nowhere"}):
        for path in paths:
            answer = places.get(path, params=named)
            assert (answer.status_code, *named.values()) == (403, *named.values()), path
            assert next(iter(named.values())) in answer.json()["detail"]
        assert places.ask("POST", f"{of_hour}/rerun", params=named, json={}).status_code == 403
    places.connections = {"kafka_prod", "team_db"}
    for path in paths:
        assert places.json(path, kafka_conn_id="kafka_prod", warehouse_conn_id="team_db")


def test_a_pipeline_of_another_ledger_does_not_open_the_records_of_the_default_broker(
    places: UiClient, own: RealPipeline, warehouse_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner may see that ledger's connection, and has registered a pipeline without a Dag over the topic of others."""
    monkeypatch.setenv("AIRFLOW_CONN_TEAM_DB", warehouse(warehouse_url))
    places.connections.add("team_db")
    path = f"/api/topics/{own.name}/records"
    assert places.get(path, params={"warehouse_conn_id": "team_db"}).status_code == 403
    places.connections.add("kafka_default")
    assert places.get(path, params={"warehouse_conn_id": "team_db"}).status_code == 200


def test_a_pipeline_on_another_cluster_does_not_open_the_topic_of_that_name_on_this_one(
    places: UiClient, own: RealPipeline, engine: Engine
) -> None:
    path = f"/api/topics/{own.name}/records"
    assert places.json(path)["records"]
    with engine.begin() as connection:
        elsewhere = {"topic_id": "another", "cluster_id": "elsewhere", "name": own.name}
        statement = "update logbus.pipeline set topic_id = :topic_id, cluster_id = :cluster_id where name = :name"
        connection.execute(text(statement), elsewhere)
    places.seconds += 100
    assert places.get(path).status_code == 403
    places.connections.add("kafka_default")
    assert places.json(path)["records"]


def test_the_hours_of_a_run_are_for_those_who_may_see_a_pipeline_of_its_dag(
    places: UiClient, own: RealPipeline, engine: Engine
) -> None:
    application.dependency_overrides[interval_of_run] = lambda: None  # there is no Airflow that could know the run
    remember_dag(own.ledger, own.name, "secret")
    with engine.begin() as connection:
        statement = text("update logbus.attempt set dag_id = 'secret', run_id = 'payroll', task_id = 'load'")
        connection.execute(statement)
    hidden, unknown = (places.json("/api/overview", dag_id="secret", run_id=name)["span"] for name in ("payroll", "no_run"))
    assert hidden == unknown
    places.readable.add("secret")
    assert places.json("/api/overview", dag_id="secret", run_id="payroll")["span"]["end"] == instant_text(at(12))


NONSENSE: list[dict[str, Any]] = [
    *({"since": "yesterday"}, {"since": "2015-05-17T10:00:00Z", "offset": 1}, {"partition": 99}),
    *(
        {"count": 0},
        {"count": 5000},
        {"offset": -1},
        {"starting_offsets": "0:1"},
        {"starting_offsets": "0-1", "ending_offsets": "0:1"},
    ),
    {"starting_offsets": "0:1", "ending_offsets": "0:2", "offset": 1},
]


def test_a_look_that_makes_no_sense_is_refused(places: UiClient, pipeline: RealPipeline) -> None:
    answers = [places.get(f"/api/topics/{pipeline.name}/records", params=wish).status_code for wish in NONSENSE]
    assert answers == [400] * len(NONSENSE)


def test_topics_show_what_the_broker_has(places: UiClient, pipeline: RealPipeline) -> None:
    (found,) = [one for one in places.json("/api/topics")["topics"] if one["name"] == pipeline.name]
    log = Topics(Client(pipeline.client_config))
    assert found["topic_id"] == log.topic(pipeline.name).topic_id
    ends = log.end_offsets(pipeline.name, (0, 1), "read_uncommitted")
    assert {one["partition"]: one["end_offset"] for one in found["partition_list"]} == ends
    assert (found["partitions"], found["records"], found["pipelines"]) == (2, sum(ends.values()), [pipeline.name])
    directories = partition_bytes(log_directories(Client(pipeline.client_config)))
    sizes = {part: directories[pipeline.name, part] for part in (0, 1)}
    assert {one["partition"]: one["size_bytes"] for one in found["partition_list"]} == sizes
    assert (found["size_bytes"], found["size_is_estimated"]) == (sum(sizes.values()), False)
    assert found["retention"] == {"ms": None, "bytes": None, "managed": False}


def test_a_topic_shows_audits_of_tables_to_those_who_may_see_the_warehouse(places: UiClient, pipeline: RealPipeline) -> None:
    hours = [HourAudit(start=at(10), records=3, rows=3), HourAudit(start=at(11), records=2, missing=Spans(count=2))]
    report = TableReport(table="shop.orders", topic=pipeline.name, hours=hours, foreign=0, problems=(), notes=())
    record_report(pipeline.ledger.engine, report, NOW)
    places.seconds += 100

    def shown() -> Any:
        return {one["name"]: one["audits"] for one in places.json("/api/topics")["topics"]}[pipeline.name]

    assert shown() == []
    places.connections.add("warehouse_default")
    counts = {"exact": 1, "wrong": 1, "unknown": 0, "missing": 2, "doubled": 0, "foreign": 0, "foreign_in_hours": None}
    assert shown() == [{"table": "shop.orders", "audited_at": instant_text(NOW), **counts}]


def test_groups_show_lag_and_what_nobody_knows(places: UiClient, own: RealPipeline, broker: AnyBroker) -> None:
    name = f"group-{own.name}"
    client = admin(broker.bootstrap)
    offsets = ConsumerGroupTopicPartitions(name, [TopicPartition(own.name, 0, 4)])
    client.alter_consumer_group_offsets([offsets])[name].result(PATIENCE_SECONDS)
    (group,) = [one for one in places.json("/api/groups")["groups"] if one["group_id"] == name]
    assert (group["state"], group["lag"], group["members"]) == ("Empty", 6, [])
    assert group["partitions"] == [
        {"topic": own.name, "partition": 0, "committed_offset": 4, "end_offset": 10, "lag": 6, "member_id": None}
    ]
    delete_topic(broker.bootstrap, own.name)
    gone = [one for one in places.json("/api/groups")["groups"] if one["group_id"] == name]
    assert all(part["lag"] is None and part["end_offset"] is None for one in gone for part in one["partitions"])


def test_a_pipeline_whose_topic_is_gone_says_so(places: UiClient, own: RealPipeline, broker: AnyBroker) -> None:
    delete_topic(broker.bootstrap, own.name)
    one = shown(places, own)
    assert (
        f"is gone: name the right broker, or recreate the topic and `logbus pipeline rebase {own.name}`" in one["lag"]["problem"]
    )
    assert one["lag"]["records_behind"] is None
    assert states(one)[10] == "audited"
    plan = places.get(f"/api/windows/{own.name}/{instant_text(at(10))}/replay_plan")
    assert (plan.status_code, "no longer has a topic of that name" in plan.json()["detail"]) == (409, True)
    create_topic(broker.bootstrap, own.name)
    assert "recreated" in shown(places, own)["lag"]["problem"]


def test_with_the_broker_down_the_ledger_is_shown(
    places: UiClient, pipeline: RealPipeline, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    places.wait_for_the_broker(0.5)
    extra = {"bootstrap.servers": "127.0.0.1:1"}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))
    found = places.json("/api/overview", **DAY)
    assert (found["broker"]["state"], found["warehouse"]["state"]) == ("down", "ok")
    assert "127.0.0.1" not in json.dumps(found)
    one = shown(places, pipeline)
    assert (one["lag"]["hours_behind"], one["lag"]["problem"]) == (None, "the broker does not answer")
    assert states(one)[10] == "audited"
    topics = places.json("/api/topics")
    assert (topics["broker"]["state"], topics["topics"]) == ("down", [])
    assert places.json("/api/groups")["broker"]["state"] == "down"
    refused = [line for line in caplog.messages if "127.0.0.1:1 failed: Connection refused" in line]
    assert len(refused) <= 1, "an open page fills the api-server's log while the broker is down"


def test_with_the_warehouse_down_topics_and_groups_are_shown(
    places: UiClient, pipeline: RealPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = {"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "login": "me", "password": "hush", "schema": "x"}
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE_DEFAULT", json.dumps(secret))
    found = places.json("/api/overview")
    assert (found["warehouse"]["state"], found["broker"]["state"], found["pipelines"]) == ("down", "ok", [])
    assert "hush" not in json.dumps(found)
    topics = places.json("/api/topics")
    assert topics["warehouse"]["state"] == "down"
    assert pipeline.name in [one["name"] for one in topics["topics"]]
    assert places.json("/api/groups")["broker"]["state"] == "ok"
    answer = places.get(f"/api/windows/{pipeline.name}/{instant_text(at(10))}")
    assert (answer.status_code, "127.0.0.1" in answer.text) == (503, False)


def test_a_warehouse_without_a_ledger_says_what_makes_one(
    places: UiClient, empty_warehouse_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE_DEFAULT", warehouse(empty_warehouse_url))
    state = places.json("/api/overview")["warehouse"]
    assert (state["state"], "pipeline register" in state["advice"]) == ("empty", True)
    assert places.get("/windows/p").status_code == 404


def test_a_pipeline_is_seen_by_those_who_may_read_its_dag(places: UiClient, own: RealPipeline) -> None:
    remember_dag(own.ledger, own.name, "secret_dag")
    path = f"/api/windows/{own.name}/{instant_text(at(10))}"
    assert [one["name"] for one in places.json("/api/overview", **DAY)["pipelines"]] == []
    topics = {one["name"]: one for one in places.json("/api/topics")["topics"]}
    assert topics[own.name]["pipelines"] == []
    for unseen in (path, f"{path}/replay_plan", f"/windows/{own.name}", f"/api/pipelines/{own.name}"):
        assert places.get(unseen).status_code == 404
    places.paused = {"secret_dag", "another"}
    assert places.json("/api/overview", **DAY)["paused_dag_ids"] == []
    places.readable = {"secret_dag"}
    assert places.json("/api/overview", **DAY)["paused_dag_ids"] == ["secret_dag"]
    assert list(places.json("/api/overview", **DAY)["dag_ids"].values()) == [["secret_dag"]]
    assert places.json("/api/overview", **DAY, dag_id="another")["pipelines"] == []
    remember_dag(own.ledger, own.name, "another")
    assert list(places.json("/api/overview", **DAY)["dag_ids"].values()) == [["secret_dag"]]
    assert places.json("/api/overview", **DAY, dag_id="another")["pipelines"] == []
    assert places.get(path).json()["dag_ids"] == places.json(f"/api/pipelines/{own.name}")["dag_ids"] == ["secret_dag"]


def test_programs_get_json_and_browsers_are_led_to_the_page(places: UiClient, pipeline: RealPipeline) -> None:
    path, start = f"/windows/{pipeline.name}", instant_text(at(10))
    for path_of_json in (path, f"{path}/{start}", f"/api{path}/{start}"):
        assert places.get(path_of_json).headers["cache-control"] == "no-store", "another user may not see it"
    assert places.get(f"{path}/{start}").json()["fingerprint"] == pipeline.ledger.window(pipeline.name, at(10)).fingerprint
    page = places.get(f"{path}/{start}", headers={"Accept": "text/html,*/*;q=0.8"})
    assert page.status_code == 303
    query = f"pipeline={pipeline.name}&start=2015-05-17T10%3A00%3A00Z&warehouse_conn_id=warehouse_default"
    assert page.headers["location"] == f"/plugin/logbus-ingestion/ui/window?{query}"
    framed = places.get(f"{path}?form=html", headers={"Sec-Fetch-Dest": "iframe"})
    assert framed.headers["location"] == f"/ui/ingestion?pipeline={pipeline.name}&warehouse_conn_id=warehouse_default"
    assert len(places.get(f"{path}?form=json", headers={"Accept": "text/html"}).json()) == 3


THERE_IS_NOT = {
    **dict.fromkeys(("/windows/q", "/windows/{name}/2015-05-17T09:00:00Z", "/api/pipelines/q"), 404),
    **dict.fromkeys(("/api/windows/{name}/2015-05-17T09:00:00Z", "/api/windows/q/2015-05-17T10:00:00Z"), 404),
    "/windows/{name}/yesterday": 400,
    **dict.fromkeys((f"/api/overview?{span}" for span in ("since=no", "hours=0", "since=2015-01-02&until=2015-01-01")), 400),
}


def test_what_there_is_not_and_what_is_no_span_is_said(places: UiClient, pipeline: RealPipeline) -> None:
    answers = {path: places.get(path.format(name=pipeline.name)) for path in THERE_IS_NOT}
    assert {path: answer.status_code for path, answer in answers.items()} == THERE_IS_NOT
    assert all(answer.json()["detail"] for answer in answers.values())


def test_without_a_span_the_last_hours_that_there_are_are_shown(places: UiClient, pipeline: RealPipeline) -> None:
    found = places.json("/api/overview", hours=24)
    shown_span = [found["span"][name] for name in ("start", "end", "step_seconds")]
    assert shown_span == [instant_text(at(-7)), instant_text(at(17)), 3600]
    places.now = at(24 * 400)
    later = places.json("/api/overview", hours=24)
    assert later["span"]["end"] == instant_text(hour(14).end)


def test_a_foreign_page_cannot_act(places: UiClient, pipeline: RealPipeline) -> None:
    path = f"/api/windows/{pipeline.name}/{instant_text(at(10))}/rerun"
    for headers, status in (
        ({"Content-Type": "text/plain"}, 400),
        ({"Content-Type": "application/json", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Type": "application/json", "Origin": "https://evil.example"}, 403),
        ({"Content-Type": "application/json", "Origin": "http://airflow", "Sec-Fetch-Site": "same-origin"}, 409),
    ):
        answer = places.ask("POST", path, headers=headers, content=b"{}")
        assert answer.status_code == status, answer.text
