from __future__ import annotations

from types import SimpleNamespace

import pytest
from logbus_spark.session import context_of, has_own_jvm


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"PYSPARK_GATEWAY_PORT": "4711"}, True),
        ({"PYSPARK_GATEWAY_PORT": "4711", "SPARK_REMOTE": "sc://spark:15002"}, False),
        ({"PYSPARK_GATEWAY_PORT": "4711", "SPARK_CONNECT_MODE_ENABLED": "1"}, False),
        ({"SPARK_REMOTE": "sc://spark:15002"}, False),
        ({}, False),
    ],
    ids=["spark-submit", "a server, from below spark-submit", "a session that is a server's", "a server", "a user's own program"],
)
def test_a_driver_does_without_a_session_only_beside_a_jvm_of_its_own(environ: dict[str, str], expected: bool) -> None:
    assert has_own_jvm(environ) is expected


def test_jobs_run_in_the_context_wherever_there_is_one() -> None:
    context = SimpleNamespace(parallelize=list)
    assert context_of(context) is context
    assert context_of(SimpleNamespace(sparkContext=context)) is context
    assert context_of(SimpleNamespace(mapInArrow=list)) is None
