"""What a scrape returns, compared with what was done and with what the docs promise."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from logbus_broker.errors import StorageError
from logbus_broker.metrics import collect, health, metrics_page

from tests.support.broker_metrics import METRICS
from tests.support.engine import Harness, batch
from tests.support.wire import Wanted

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(tmp_path)
    yield harness
    harness.close()


def scrape(broker: Harness) -> dict[str, float]:
    lines = b"".join(metrics_page(broker.engine)).decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def produce(broker: Harness, topic: str, *values: bytes) -> int:
    raw = batch(*values)
    broker.bytes_of(broker.produce(raw, topic))
    return len(raw)


def test_what_producers_brought_and_consumers_took_is_counted_by_topic_and_in_all(broker: Harness) -> None:
    broker.create("logs", 2)
    broker.create("other")
    size = produce(broker, "logs", b"one", b"two", b"three")
    produce(broker, "other", b"four")
    broker.flush()
    for _ in range(2):
        broker.bytes_of(broker.fetch(Wanted(topic="logs")))
    found = scrape(broker)
    assert found['kafka_server_brokertopicmetrics_messagesin_total{topic="logs"}'] == 3
    assert found["kafka_server_brokertopicmetrics_messagesin_total"] == 4
    assert found['kafka_server_brokertopicmetrics_bytesin_total{topic="logs"}'] == size
    assert found['kafka_server_brokertopicmetrics_bytesout_total{topic="logs"}'] == 2 * size
    assert found['kafka_log_log_logendoffset{topic="logs",partition="0"}'] == 3
    assert found['kafka_log_log_size{topic="logs",partition="0"}'] == size
    assert found['kafka_log_log_size{topic="logs",partition="1"}'] == 0
    assert found["kafka_server_replicamanager_partitioncount"] == 3
    assert found['kafka_network_requestmetrics_requests_total{request="Fetch"}'] == 2
    assert found['kafka_network_requestmetrics_requests_total{request="CreateTopics"}'] == 2
    assert found["logbus_flush_seconds_count"] == found['logbus_flush_seconds_bucket{le="+Inf"}'] == 2


def test_a_waiting_fetch_is_shown_and_its_bytes_counted_once(broker: Harness) -> None:
    broker.create("logs")
    waiting = broker.fetch(Wanted(topic="logs"), wait_ms=10_000)
    name = 'kafka_server_delayedoperationpurgatory_purgatorysize{delayedOperation="Fetch"}'
    assert scrape(broker)[name] == 1
    size = produce(broker, "logs", b"one")
    broker.bytes_of(waiting)
    assert scrape(broker)[name] == 0
    assert scrape(broker)["kafka_server_brokertopicmetrics_bytesout_total"] == size


def test_totals_never_fall_when_a_topic_is_deleted(broker: Harness) -> None:
    broker.create("logs")
    produce(broker, "logs", b"one", b"two")
    assert broker.delete("logs").error_code == 0
    found = scrape(broker)
    assert found["kafka_server_brokertopicmetrics_messagesin_total"] == 2
    assert not [name for name in found if 'topic="logs"' in name]


def test_a_topic_deleted_while_a_page_is_being_sent_spoils_nothing(broker: Harness) -> None:
    broker.create("logs", 100)
    page = metrics_page(broker.engine)
    text = next(page)
    assert broker.delete("logs").error_code == 0
    text += b"".join(page)
    assert text.count(b"kafka_log_log_size{") == 100


def test_errors_are_counted_by_request_and_code(broker: Harness) -> None:
    produce(broker, "missing", b"one")
    broker.bytes_of(broker.fetch(Wanted(topic="missing")))
    found = scrape(broker)
    assert found['kafka_network_requestmetrics_errors_total{request="Produce",error="UNKNOWN_TOPIC_OR_PARTITION"}'] == 1
    assert found['kafka_network_requestmetrics_errors_total{request="Fetch",error="UNKNOWN_TOPIC_OR_PARTITION"}'] == 1
    assert found["kafka_server_brokertopicmetrics_failedproducerequests_total"] == 1


def test_health_names_what_is_offline(broker: Harness) -> None:
    broker.create("logs", 2)
    assert health(broker.engine) == (True, "ok\n")
    broker.engine.partitions.get("logs", 1).log.abandon("its disk failed")
    assert health(broker.engine) == (False, "1 of 2 partitions are offline\nlogs-1 is offline: its disk failed\n")
    assert scrape(broker)["kafka_controller_kafkacontroller_offlinepartitionscount"] == 1


def test_health_names_what_fails_until_it_works_again(broker: Harness) -> None:
    trouble = broker.engine.health
    trouble.fails("the checkpoint", StorageError("no space left"))
    assert health(broker.engine) == (False, "the checkpoint failed: no space left\n")
    assert scrape(broker)["logbus_troubles"] == 1
    for number in range(30):
        trouble.fails(f"retention of t-{number:02}", StorageError("no space left"))
    healthy, text = health(broker.engine)
    assert (healthy, len(text.splitlines())) == (False, 21)
    assert text.endswith("11 more failures like these: see the log\n")
    for what in list(trouble.troubles):
        trouble.succeeds(what)
    assert health(broker.engine) == (True, "ok\n")


def test_every_family_of_the_catalogue_can_be_collected_and_no_other(broker: Harness) -> None:
    assert set(collect(broker.engine)) == set(METRICS)
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_the_docs_have_every_metric_with_its_kind_labels_and_meaning() -> None:
    rows = re.findall(
        r"^\| `([a-z_]+)` \| (\w+) \| ([^|]*) \| (.*) \|$", DOCS.read_text().partition("## The pipeline side")[0], re.MULTILINE
    )
    documented = {name: (kind, labels, text) for name, kind, labels, text in rows}
    expected = {metric.name: (metric.kind, ", ".join(metric.labels), metric.help) for metric in METRICS}
    assert documented == expected
