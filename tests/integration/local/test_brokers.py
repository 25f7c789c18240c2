"""The brokers of a local stack as `logbus up --brokers 3` starts them."""

from __future__ import annotations

import os
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from logbus.local.brokers import LocalBrokers
from logbus.local.processes import ReservedPorts
from logbus.waiting import PATIENCE_SECONDS


def test_a_topic_of_three_replicas_can_be_made_at_any_broker_as_soon_as_they_are_up(tmp_path: Path) -> None:
    with ReservedPorts(LocalBrokers.ports_needed(3)) as reserved:
        brokers = LocalBrokers(tmp_path, count=3, environment=os.environ, ports=reserved.numbers)
        try:
            brokers.start()
            for number, port in enumerate(reserved.numbers[:3]):
                topic = NewTopic(f"t{number}", num_partitions=1, replication_factor=3)
                client = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
                client.create_topics([topic], operation_timeout=PATIENCE_SECONDS)[topic.topic].result(PATIENCE_SECONDS)
        finally:
            brokers.stop()
