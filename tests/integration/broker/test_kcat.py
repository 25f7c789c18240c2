"""kcat, the operators' command line: produce, consume, metadata, offsets by time."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest
from logbus.waiting import PATIENCE_SECONDS

from tests.support.broker import AnyBroker
from tests.support.programs import program_or_skip
from tests.support.topics import create_topic

Kcat = Callable[..., str]


@pytest.fixture
def kcat(broker: AnyBroker) -> Kcat:
    program = program_or_skip("kcat")

    def run(*arguments: str, stdin: str = "") -> str:
        done = subprocess.run(
            [program, "-b", broker.bootstrap, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_lines_are_produced_and_consumed_by_offset(kcat: Kcat, broker: AnyBroker, topic: str) -> None:
    create_topic(broker.bootstrap, topic)
    lines = "".join(f"line {number}\n" for number in range(100))
    kcat("-P", "-t", topic, "-p", "0", stdin=lines)
    assert kcat("-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q") == lines
    assert kcat("-C", "-t", topic, "-p", "0", "-o", "90", "-c", "3", "-q") == "line 90\nline 91\nline 92\n"
    assert kcat("-C", "-t", topic, "-p", "0", "-o", "-2", "-e", "-q") == "line 98\nline 99\n"


def test_keys_headers_and_offsets_come_back(kcat: Kcat, broker: AnyBroker, topic: str) -> None:
    create_topic(broker.bootstrap, topic)
    kcat("-P", "-t", topic, "-p", "0", "-K", ":", "-H", "server=web1", "-z", "snappy", stdin="host:text\n")
    found = kcat("-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-f", "%o %k %s %h\n")
    assert found == "0 host text server=web1\n"


def test_metadata_lists_the_broker_and_the_topics(kcat: Kcat, broker: AnyBroker, topic: str) -> None:
    create_topic(broker.bootstrap, topic, partitions=2)
    metadata = json.loads(kcat("-L", "-J"))
    assert [node["name"] for node in metadata["brokers"]] == [broker.bootstrap]
    (listed,) = [one for one in metadata["topics"] if one["topic"] == topic]
    assert [one["partition"] for one in listed["partitions"]] == [0, 1]


def test_an_offset_is_found_by_time(kcat: Kcat, broker: AnyBroker, topic: str) -> None:
    create_topic(broker.bootstrap, topic)
    kcat("-P", "-t", topic, "-p", "0", stdin="one\n")
    assert kcat("-Q", "-t", f"{topic}:0:0").strip() == f"{topic} [0] offset 0"
