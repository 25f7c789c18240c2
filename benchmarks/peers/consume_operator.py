"""The Kafka provider's own way of loading a topic: its ConsumeFromTopicOperator with a function that inserts what it is given.

    python -m benchmarks.peers.consume_operator TOPIC TABLE MESSAGES

A thousand messages per call (the operator's default), parsed by the same library and inserted with SQLAlchemy, one transaction
per call. The broker is Airflow's connection `kafka_default`, the warehouse's URL is in LOGBUS_BENCH_URL. Prints how long
`execute` took.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any


def main() -> None:
    from airflow.providers.apache.kafka.operators.consume import ConsumeFromTopicOperator

    topic, table, messages = sys.argv[1], sys.argv[2], int(sys.argv[3])
    operator = ConsumeFromTopicOperator(
        task_id="consume",
        topics=[topic],
        apply_function_batch=inserting(os.environ["LOGBUS_BENCH_URL"], table),
        max_messages=messages,
        poll_timeout=5,
    )
    started = time.monotonic()
    operator.execute({})
    print(f"SECONDS {time.monotonic() - started}", flush=True)


def inserting(url: str, table: str) -> Any:
    """A function for the operator, as in the examples of its documentation."""
    import orjson
    from sqlalchemy import MetaData, Table, create_engine, insert

    engine = create_engine(url)
    target = Table(table, MetaData(), autoload_with=engine)

    def insert_batch(messages: Sequence[Any]) -> None:
        rows = [
            {"_partition": message.partition(), "_offset": message.offset(), **orjson.loads(message.value())}
            for message in messages
        ]
        with engine.begin() as connection:
            connection.execute(insert(target), rows)

    return insert_batch


if __name__ == "__main__":
    main()
