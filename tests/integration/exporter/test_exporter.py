"""The exporter as a process: its figures against ledger and broker, and which remain when one of the two is down."""

from __future__ import annotations

import signal
import socket
import threading
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from click.testing import CliRunner
from logbus.cli import main
from logbus.errors import UserError
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.loads.engine import connect
from logbus.status.lag import lag_of
from logbus.waiting import PATIENCE_SECONDS, wait_until
from logbus.web.exporter import SCRAPES_MAX, MetricsServer
from logbus.web.metrics import CATALOG
from prometheus_client import CollectorRegistry, generate_latest

from tests.support.broker import LogbusBroker
from tests.support.exported import CLOSED_HOURS, GROUP, RETENTION_DAYS, Exported, Platform, make_platform
from tests.support.exporting import HASTY, fetch, label_names, registry, running_exporter, samples, scrape, value
from tests.support.topics import create_topic, delete_topic

UNREACHABLE = "127.0.0.1:1"


def test_lag_is_what_the_ledger_and_the_broker_say(exported: Exported) -> None:
    made, found = exported.platform, exported.found
    labels = {"pipeline": made.name, "topic": made.name}
    engine = connect(made.url)
    lag = lag_of(engine, Topics(Client({"bootstrap.servers": made.bootstrap})), made.name, made.now)
    engine.dispose()
    assert value(found, "logbus_hours_behind", **labels) == lag.hours_behind == 2
    assert value(found, "logbus_records_behind", **labels) == lag.records == 6
    assert value(found, "logbus_records_open", **labels) == lag.records_open == 1
    assert value(found, "logbus_records_lost", **labels) == 0
    assert value(found, "logbus_pipeline_up", **labels, reason="ok") == 1
    age = value(found, "logbus_oldest_unloaded_age_seconds", **labels)
    assert age is not None
    assert age >= (made.now - made.at(2.1)).total_seconds()
    taken = value(found, "logbus_retention_takes_oldest_seconds", **labels, expires_by="retention.ms")
    assert taken is not None
    assert taken + age == pytest.approx(RETENTION_DAYS * 86400, abs=0.01)


def test_windows_and_work_are_those_of_the_ledger(exported: Exported) -> None:
    made, found = exported.platform, exported.found
    labels = {"pipeline": made.name, "topic": made.name}

    def by(name: str, label: str, *values: str) -> dict[str, float | None]:
        return {one: value(found, name, **labels, **{label: one}) for one in values}

    states = by("logbus_windows", "state", "frozen", "loading", "loaded", "audited")
    assert states == {"frozen": 1, "loading": 0, "loaded": 1, "audited": 1}
    assert value(found, "logbus_windows_failed", **labels) == 1
    assert value(found, "logbus_windows_audit_failed", **labels) == 0
    outcomes = by("logbus_records_total", "outcome", "loaded", "dead_lettered", "filtered")
    assert outcomes == {"loaded": 5, "dead_lettered": 1, "filtered": 0}
    attempts = by("logbus_attempts_total", "state", "committed", "failed", "superseded")
    assert attempts == {"committed": 2, "failed": 1, "superseded": 0}
    assert value(found, "logbus_dead_letters", **labels) == 1
    assert value(found, "logbus_loaded_until_timestamp_seconds", **labels) == made.at(2).timestamp()
    assert value(found, "logbus_last_audit_timestamp_seconds", **labels) == pytest.approx(made.now.timestamp(), abs=0.001)
    assert value(found, "logbus_retention_alarms") == 1


def test_topics_and_groups_are_those_of_the_broker_in_both_spellings(exported: Exported) -> None:
    name, found = exported.platform.name, exported.found
    assert value(found, "kafka_brokers") == 1
    assert value(found, "kafka_topic_partitions", topic=name) == 2
    ends = [value(found, "kafka_topic_partition_current_offset", topic=name, partition=str(number)) for number in range(2)]
    assert ends == [2 * CLOSED_HOURS + 1, CLOSED_HOURS]
    assert value(found, "kafka_partition_latest_offset", topic=name, partition="0", cluster_name="test") == ends[0]
    assert value(found, "kafka_consumergroup_lag", consumergroup=GROUP, topic=name, partition="0") == 6
    assert value(found, "kafka_consumergroup_group_lag", group=GROUP, topic=name, partition="0", cluster_name="test") == 6
    assert value(found, "kafka_consumergroup_members", consumergroup=GROUP) == 0
    assert value(found, "kafka_consumergroup_group_lag_seconds", group=GROUP, partition="1") == 0
    assert value(found, "kafka_consumergroup_group_lag_seconds", group=GROUP, partition="0") is None, "nobody saw it come"


def test_an_audited_table_shows_what_it_lacks(exported: Exported) -> None:
    table = {"table": "theirs", "topic": exported.platform.name}
    assert value(exported.found, "logbus_table_hours", verdict="wrong", **table) == 1
    assert value(exported.found, "logbus_table_missing_records", **table) == 1
    assert value(exported.found, "logbus_table_foreign_rows", **table) == 2
    assert value(exported.found, "logbus_table_foreign_rows_in_hours", **table) == 1


def test_what_is_computed_from_a_pipeline_is_what_the_ledger_and_the_broker_say(exported: Exported) -> None:
    name, found = exported.platform.name, exported.found
    by_hour, live = {"aggregate": f"{name}_by_hour", "pipeline": name}, {"stream": f"{name}_live", "pipeline": name}
    assert value(found, "logbus_aggregate_hours", **by_hour) == 2
    assert (
        value(found, "logbus_aggregate_windows_behind", **by_hour) == value(found, "logbus_aggregate_hours_wrong", **by_hour) == 0
    )
    assert value(found, "logbus_stream_epochs_total", **live) == value(found, "logbus_stream_state", **live) == 1
    assert value(found, "logbus_stream_lag_records", **live) == 3, "one more of hour 3, one ahead, one of the other partition"
    lag, heartbeat = (
        value(found, "logbus_stream_lag_seconds", **live),
        value(found, "logbus_stream_heartbeat_age_seconds", **live),
    )
    assert lag is not None
    assert lag == heartbeat > 0
    assert value(found, "logbus_stream_hours", **live, state="behind") == 0


def test_every_family_is_in_the_catalogue_with_its_labels_and_nothing_is_nan(exported: Exported) -> None:
    documented = {metric.name: set(metric.labels) for metric in CATALOG}
    shown = {name: labels for name, labels in label_names(exported.found).items() if not name.startswith("process_")}
    assert set(shown) <= set(documented)
    assert all(labels == documented[name] for name, labels in shown.items())
    assert "nan" not in exported.text.lower()
    assert set(documented) == set(shown), "the platform has something in every family"


def test_without_a_broker_the_ledgers_part_is_shown_and_the_reason(platform: Platform) -> None:
    shown = registry(platform.url, UNREACHABLE, HASTY)
    found = samples(generate_latest(shown).decode())
    assert value(found, "logbus_up", target="broker") == value(found, "logbus_up", target="lag") == 0
    assert not {"logbus_hours_behind", "kafka_brokers"} & {name for name, _ in found}
    assert value(found, "logbus_up", target="ledger", reason="ok") == 1
    assert value(found, "logbus_windows", state="audited") == 1


def test_without_a_warehouse_topics_and_groups_are_shown_and_no_password(
    platform: Platform, caplog: pytest.LogCaptureFixture
) -> None:
    found = scrape("postgresql://u:hidden@127.0.0.1:1/d", platform.bootstrap)
    assert value(found, "logbus_up", target="ledger", reason="unreachable") == 0
    assert value(found, "kafka_consumergroup_lag_sum", consumergroup=GROUP) == 6
    assert not {name for name, _ in found} & {"logbus_windows", "logbus_hours_behind"}
    assert "hidden" not in str(found) + caplog.text


def test_a_broker_that_comes_back_is_shown_again(platform: Platform, tmp_path: Path) -> None:
    mine = LogbusBroker(tmp_path)
    shown = registry(platform.url, mine.bootstrap, HASTY)

    def is_up() -> bool:
        return value(samples(generate_latest(shown).decode()), "logbus_up", target="broker") == 1

    assert not is_up()
    with mine:
        wait_until(is_up, what="the exporter that reaches its sources")


def test_a_warehouse_without_a_ledger_is_told_from_one_that_is_down(empty_warehouse_url: str, broker: LogbusBroker) -> None:
    found = scrape(empty_warehouse_url, broker.bootstrap)
    assert value(found, "logbus_up", target="ledger", reason="no_ledger") == 0
    assert value(found, "logbus_up", target="lag", reason="no_ledger") == 0


def test_a_topic_that_is_gone_hides_nobody_elses_lag(broker: LogbusBroker, warehouse_url: str) -> None:
    for name in ("gone", "there"):
        make_platform(broker, warehouse_url, name)
    delete_topic(broker.bootstrap, "gone")
    found = scrape(warehouse_url, broker.bootstrap, topic_filter="there")
    assert value(found, "logbus_pipeline_up", pipeline="gone", reason="topic_missing") == 0
    assert value(found, "logbus_hours_behind", pipeline="gone") is None
    assert value(found, "logbus_hours_behind", pipeline="there") == 2
    assert value(found, "kafka_topic_partitions", topic="there") == 2
    assert value(found, "kafka_topic_partitions", topic="clicks") is None, "the filter"


def requests(broker: LogbusBroker, kind: str) -> float:
    address = broker.settings["logbus.metrics.listener"]
    return value(samples(fetch(f"{address}/metrics")), "kafka_network_requestmetrics_requests_total", request=kind) or 0


def test_a_scrape_asks_no_more_for_a_hundred_partitions_than_for_one(empty_warehouse_url: str, broker: LogbusBroker) -> None:
    create_topic(broker.bootstrap, "wide", partitions=100)
    before = requests(broker, "ListOffsets")
    found = scrape(empty_warehouse_url, broker.bootstrap)
    assert value(found, "kafka_topic_partition_current_offset", topic="wide", partition="99") == 0
    assert requests(broker, "ListOffsets") - before == 2


def test_other_addresses_say_where_to_look_and_one_scraper_too_many_is_told_so() -> None:
    server, stop = MetricsServer("127.0.0.1", 0, CollectorRegistry(), lambda: "broker: ok\n"), threading.Event()
    serving = threading.Thread(target=server.run_until, args=(stop,))
    serving.start()
    base = server.url.removesuffix("/metrics")
    assert fetch(f"{base}/healthz") == "ok\nbroker: ok\n"
    assert "/metrics" in fetch(f"{base}/")
    assert refusal(f"{base}/nothing") == (404, "nothing here; /metrics is for Prometheus\n")
    for _ in range(SCRAPES_MAX):
        # A handler releases its slot after sending its response, so the responses above may arrive before their slots are free.
        assert server.slots.acquire(timeout=PATIENCE_SECONDS)
    assert refusal(server.url) == (503, "too many concurrent scrapes\n")
    stop.set()
    serving.join()


def test_half_requests_take_few_threads_and_no_place_for_long() -> None:
    server, stop = MetricsServer("127.0.0.1", 0, CollectorRegistry(), lambda: "broker: ok\n"), threading.Event()
    serving = threading.Thread(target=server.run_until, args=(stop,))
    before = threading.active_count()
    serving.start()
    with ExitStack() as opened:
        for _ in range(200):
            half = opened.enter_context(socket.create_connection(("127.0.0.1", server.server_port)))
            with suppress(OSError):  # one too many is closed at once
                half.sendall(b"GET /met")
        assert threading.active_count() - before < 40
        # Each try takes the place of one that has been silent for a second.
        healthy = wait_until(lambda: fetch(f"http://127.0.0.1:{server.server_port}/healthz"), what="a place", not_yet=OSError)
        assert healthy == "ok\nbroker: ok\n"
    stop.set()
    serving.join()


def test_a_name_that_a_website_could_have_is_not_answered_to() -> None:
    server = MetricsServer("127.0.0.1", 0, CollectorRegistry(), str)
    server.server_close()
    assert [
        name for name in ("localhost:9308", "127.0.0.1", "", "[::1]:9308", "rebound.example.net") if server.answers_to(name)
    ] == [*("localhost:9308", "127.0.0.1", "", "[::1]:9308")]


def test_an_address_that_others_can_reach_needs_the_words() -> None:
    with pytest.raises(UserError, match="--host 0.0.0.0 can be reached by others.*--allow-unauthenticated"):
        MetricsServer("0.0.0.0", 0, CollectorRegistry(), str)
    MetricsServer("0.0.0.0", 0, CollectorRegistry(), str, allow_unauthenticated=True).server_close()


def refusal(url: str) -> tuple[int, str]:
    with pytest.raises(urllib.error.HTTPError) as refused:
        fetch(url)
    return refused.value.code, refused.value.read().decode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_at_once_also_while_a_scrape_waits_for_a_broker_that_hangs(
    platform: Platform, tmp_path: Path, number: signal.Signals
) -> None:
    with running_exporter(tmp_path, platform.url, UNREACHABLE, "--deadline", "300") as (process, address):
        waiting = threading.Thread(target=swallow, args=(f"{address}/metrics",), daemon=True)
        waiting.start()
        wait_until(lambda: "ledger: ok" in fetch(f"{address}/healthz"), what="the answer of the ledger")
        process.send_signal(number)
        assert process.wait(240) == 0  # a scrape would be answered after 300 s
    assert "Traceback" not in (tmp_path / "exporter.log").read_text()


def swallow(url: str) -> None:
    try:
        fetch(url)
    except OSError:  # the exporter ended during the request, as the test intends
        return


def test_a_port_in_use_is_a_sentence(platform: Platform) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = ["exporter", "--port", str(port), "--warehouse", platform.url, "--bootstrap-server", platform.bootstrap]
        result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert f"port {port} of 127.0.0.1 is in use" in result.output


def test_a_filter_that_is_no_pattern_is_a_sentence() -> None:
    result = CliRunner().invoke(main, ["exporter", "--warehouse", "postgresql://h/d", "--topic-filter", "["])
    assert result.exit_code == 1
    assert "'[' is not a pattern of names" in result.output
