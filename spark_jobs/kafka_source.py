"""Reading the offsets of a task's plan, exactly, with the stock Python client: no jars.

Whatever is missing raises (see `logbus.kafka.exact_reader`), so a task that ends well has read its ranges to the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from logbus.kafka.exact_reader import exact_consumer, read_lists

from spark_jobs.packing import TaskPlan
from spark_jobs.records import Records, of_messages


def read_plan(plan: TaskPlan, client_config: Mapping[str, Any], topic: str, isolation_level: str) -> Iterator[Records]:
    """All records of a plan, in chunks of one partition of one window."""
    with exact_consumer(client_config, isolation_level) as consumer:
        for run in plan.runs:
            for messages, offsets in read_lists(consumer, topic, run.partition, run.start_offset, run.end_offset):
                yield from of_messages(messages, offsets, run)
