from __future__ import annotations

import pyarrow as pa
import pytest
from logbus.errors import UserError

from spark_jobs.connector import java_options, layers, of_connector, runs_of, whole
from spark_jobs.packing import PlanSlice, Run, TaskPlan


def part(window_id: int, partition: int, start: int, end: int) -> PlanSlice:
    return PlanSlice(window_id=window_id, partition=partition, start_offset=start, end_offset=end)


def plan(*slices: PlanSlice) -> TaskPlan:
    return TaskPlan(runs=tuple(Run(partition=one.partition, slices=(one,)) for one in slices))


def test_slices_that_touch_are_one_range_whatever_task_they_were_planned_for() -> None:
    runs = runs_of([plan(part(1, 0, 0, 5), part(2, 0, 9, 12)), plan(part(1, 0, 5, 9), part(1, 1, 3, 4))])
    assert {partition: [(run.start_offset, run.end_offset) for run in some] for partition, some in runs.items()} == {
        0: [(0, 12)],
        1: [(3, 4)],
    }


def test_ranges_with_gaps_between_them_are_read_in_layers() -> None:
    runs = runs_of([plan(part(1, 0, 0, 5), part(3, 0, 9, 12), part(1, 1, 3, 4))])
    spans = [{partition: (run.start_offset, run.end_offset) for partition, run in layer.items()} for layer in layers(runs)]
    assert spans == [{0: (0, 5), 1: (3, 4)}, {0: (9, 12)}]


def batch(*places: tuple[int, int]) -> pa.RecordBatch:
    size = len(places)
    return pa.RecordBatch.from_pydict(
        {
            "partition": [partition for partition, _ in places],
            "offset": [offset for _, offset in places],
            "stamp_ms": [7] * size,
            "key": [None] * size,
            "value": [b"v"] * size,
            "headers": [[{"key": "h", "value": b"x"}]] + [None] * (size - 1),
        }
    )


def test_a_batch_is_taken_apart_by_partition_and_window() -> None:
    runs = {
        0: whole(0, [Run(partition=0, slices=(part(1, 0, 0, 5), part(2, 0, 5, 9)))]),
        1: Run(partition=1, slices=(part(1, 1, 3, 9),)),
    }
    found = list(of_connector(batch((0, 3), (0, 4), (0, 6), (1, 3), (1, 8), (0, 1)), runs))
    assert [(one.window_id, one.partition, list(one.offsets)) for one in found] == [
        (1, 0, [3, 4]),
        (2, 0, [6]),
        (1, 1, [3, 8]),
        (1, 0, [1]),
    ]
    assert found[0].headers == [[("h", b"x")], []]
    assert found[1].headers is None


def test_the_clients_configuration_is_said_in_javas_words() -> None:
    config = {
        "bootstrap.servers": "h:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "PLAIN",
        "sasl.username": "u",
        "sasl.password": 'p"w',
        "ssl.ca.location": "/ca.pem",
        "socket.timeout.ms": 5,
    }
    assert java_options(config) == {
        "kafka.bootstrap.servers": "h:9093",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p\\"w";',
        "kafka.ssl.truststore.location": "/ca.pem",
        "kafka.ssl.truststore.type": "PEM",
    }


@pytest.mark.parametrize("config", [{"ssl.key.location": "/key"}, {"sasl.password": "p", "sasl.mechanism": "GSSAPI"}])
def test_security_that_has_no_words_there_is_refused(config: dict[str, str]) -> None:
    with pytest.raises(UserError, match="connector"):
        java_options(config)
