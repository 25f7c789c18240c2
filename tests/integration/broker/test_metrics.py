"""The metrics port of a running broker: it shows what stock clients did, and nothing sent to it disturbs the broker."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from logbus.waiting import PATIENCE_SECONDS
from logbus_broker.network.http import EXCHANGES_MAX

from tests.support.broker import LogbusBroker
from tests.support.scraping import get, metrics_port, metrics_settings, scrape
from tests.support.topics import create_topic, read_partition


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogbusBroker]:
    with LogbusBroker(tmp_path_factory.mktemp("broker"), settings=metrics_settings()) as running:
        yield running


def knock(broker: LogbusBroker) -> socket.socket:
    return socket.create_connection(("127.0.0.1", metrics_port(broker)), PATIENCE_SECONDS)


def test_what_clients_did_is_shown_under_the_names_of_kafkas_dashboards(ours: LogbusBroker, topic: str) -> None:
    create_topic(ours.bootstrap, topic)
    producer = Producer({"bootstrap.servers": ours.bootstrap})
    for number in range(1000):
        producer.produce(topic, b"%d" % number)
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert len(read_partition(ours.bootstrap, topic)) == 1000
    found = scrape(ours)
    assert found[f'kafka_server_brokertopicmetrics_messagesin_total{{topic="{topic}"}}'] == 1000
    assert found[f'kafka_log_log_logendoffset{{topic="{topic}",partition="0"}}'] == 1000
    size = found[f'kafka_log_log_size{{topic="{topic}",partition="0"}}']
    assert size == found[f'kafka_server_brokertopicmetrics_bytesin_total{{topic="{topic}"}}']
    assert size == found[f'kafka_server_brokertopicmetrics_bytesout_total{{topic="{topic}"}}']
    assert found['kafka_network_requestmetrics_requests_total{request="Produce"}'] > 0
    assert found["kafka_log_logflushstats_logflushrateandtimems_count"] > 0
    assert 10 << 20 < found["process_resident_memory_bytes"] < 500 << 20
    assert found["process_open_fds"] > 5


def test_health_is_ok_while_all_partitions_are_online(ours: LogbusBroker) -> None:
    assert get(ours, "/health") == "ok\n"


def test_scrapers_that_do_not_read_or_do_not_ask_keep_nobody_from_producing(ours: LogbusBroker, topic: str) -> None:
    """They occupy the few slots until they time out; records are produced in the meantime."""
    create_topic(ours.bootstrap, topic, partitions=300)
    before = ours.rss_bytes()
    with contextlib.ExitStack() as stack:
        stuck = [stack.enter_context(knock(ours)) for _ in range(2 * EXCHANGES_MAX)]
        for sock in stuck[::2]:
            with contextlib.suppress(ConnectionError):
                sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        producer = Producer({"bootstrap.servers": ours.bootstrap})
        producer.produce(topic, b"record", partition=0)
        assert producer.flush(PATIENCE_SECONDS) == 0
        assert len(read_partition(ours.bootstrap, topic)) == 1
        assert ours.rss_bytes() - before < 16 << 20
    assert get(ours, "/health") == "ok\n", "their places are free again"
