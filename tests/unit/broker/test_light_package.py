"""The broker runs nothing of kafka-python, whose clients can be imported in the same process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from broker.light_package import import_lightly


def output_of(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def test_the_broker_starts_without_the_clients() -> None:
    program = """
import sys, broker.node
from broker.protocol.control import request_class, response_class
request_class(3), response_class(3)
print([name for name in sys.modules if name.partition(".")[0] == "kafka"])
"""
    assert output_of(program) == "[]"


@pytest.mark.parametrize(
    "use",
    [
        "from kafka import KafkaProducer as found",
        "import kafka; found = kafka.KafkaProducer",
        "from kafka.admin import KafkaAdminClient as found",
    ],
)
def test_the_clients_can_be_had_behind_the_broker(use: str) -> None:
    assert output_of(f"import broker.node\n{use}\nprint(found.__name__)").startswith("Kafka")


def test_a_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        import_lightly("no_such_package")
