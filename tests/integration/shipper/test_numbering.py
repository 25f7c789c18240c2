"""The numbers `ship` gives to records, against a running broker and the stock client's own partitioner."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Producer
from logbus.loads.read_tally import Numbers, count_sent
from logbus.shipper.sample import write_sample
from logbus.shipper.ship import ship
from logbus.shipper.shipment import partition_of
from logbus.waiting import PATIENCE_SECONDS

from tests.support.broker import AnyBroker
from tests.support.topics import create_topic, read_topic


def test_the_stock_client_sends_a_key_where_we_do(broker: AnyBroker) -> None:
    create_topic(broker.bootstrap, "keyed", partitions=7)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"})
    for length in range(1, 60):
        producer.produce("keyed", key=bytes(range(200, 200 + length % 56)) + b"x" * length)
    assert producer.flush(PATIENCE_SECONDS) == 0
    for partition, messages in read_topic(broker.bootstrap, "keyed").items():
        assert {partition_of(message.key() or b"", 7) for message in messages} <= {partition}


@pytest.mark.parametrize("options", [{}, {"producer_config": {"partitioner": "random"}}])
def test_each_run_numbers_what_it_sends_to_each_partition_without_a_hole(
    broker: AnyBroker, tmp_path: Path, options: dict[str, dict[str, str]]
) -> None:
    topic = f"numbered-{len(options)}"
    log = tmp_path / "access.log"
    for seed in (1, 2):
        with log.open("a") as file:
            file.write(sample(tmp_path / str(seed), seed))
        config = {"bootstrap.servers": broker.bootstrap}
        ship([log], topic=topic, client_config=config, state_path=tmp_path / "state", accept_times=True, **options)  # type: ignore[arg-type]
    sent = [counted(messages) for messages in read_topic(broker.bootstrap, topic).values()]
    if options:  # a partitioner other than ours decides: nothing is numbered
        assert not any(sent)
        return
    streams = {name: numbers for part in sent for name, numbers in part.items()}
    assert len(streams) == 2 * len(sent) == 6
    assert all(numbers == Numbers(count=numbers.count, runs=[(1, numbers.count)]) for numbers in streams.values())
    assert sum(numbers.count for numbers in streams.values()) == len(log.read_text().splitlines())


def counted(messages: list[object]) -> dict[str, Numbers]:
    sent: dict[str, Numbers] = {}
    count_sent(sent, [message.headers() or [] for message in messages])  # type: ignore[attr-defined]
    return sent


def sample(path: Path, seed: int) -> str:
    write_sample(path, lines=300, seed=seed, end=datetime(2015, 5, 21, tzinfo=UTC))
    return path.read_text()
