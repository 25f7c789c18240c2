"""The same flags for kafka-consumer-groups and `logbus group seek`: the same new offsets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from logbus.cli import main
from logbus.kafka.client import Client
from logbus.kafka.groups import Groups
from logbus.kafka.topics import Topics
from logbus.model import milliseconds

from tests.support.broker import AnyBroker
from tests.support.jvm_session import TOOLS, run_tools
from tests.support.kafka_peer import JvmTools, jvm_tools_or_skip
from tests.support.topics import create_topic, send

GROUP_COMMAND = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
GROUP, TOPIC = "seekers", "sought"
FIRST = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=5)
STAMP = FIRST.strftime("%Y-%m-%dT%H:%M:%S.000")

FLAGS = (
    ("--to-earliest",),
    ("--to-latest",),
    ("--to-current",),
    ("--to-offset", "7"),
    ("--to-offset", "99"),
    ("--to-offset", "0"),
    ("--shift-by", "3"),
    ("--shift-by", "-99"),
    ("--to-datetime", STAMP),
    ("--by-duration", "PT2H30M"),
    ("--by-duration", "P9D"),
)


@pytest.fixture(scope="module")
def tools() -> JvmTools:
    return jvm_tools_or_skip()


@pytest.fixture
def filled(broker: AnyBroker) -> str:
    """Ten records half an hour apart in each of two partitions, starting five hours ago; in one, the first two are deleted."""
    create_topic(broker.bootstrap, TOPIC, partitions=2)
    stamps = [milliseconds(FIRST + timedelta(minutes=30 * number)) for number in range(10)]
    send(broker.bootstrap, TOPIC, [{"value": b"", "partition": part, "timestamp": at} for at in stamps for part in (0, 1)])
    config = {"bootstrap.servers": broker.bootstrap}
    Topics(Client(config)).delete_before(TOPIC, {1: 2})
    Groups(Client(config)).commit(GROUP, {(TOPIC, 0): 4, (TOPIC, 1): 5})
    return broker.bootstrap


def new_offsets(table: str) -> dict[int, int]:
    rows = [line.split() for line in table.splitlines() if line.startswith(f"{GROUP} ")]
    return {int(row[2]): int(row[3]) for row in rows}


def test_every_flag_means_what_kafkas_own_tool_means_by_it(tools: JvmTools, filled: str, tmp_path: Path) -> None:
    listed = tmp_path / "offsets.csv"
    listed.write_text(f"{TOPIC},0,3\n{TOPIC},1,8\n")
    common = ("--bootstrap-server", filled, "--group", GROUP)
    asked = [(*flags, "--topic", TOPIC) for flags in FLAGS]
    asked += [("--to-latest", "--topic", f"{TOPIC}:1"), ("--to-earliest", "--all-topics"), ("--from-file", str(listed))]
    theirs = run_tools(tools, [(GROUP_COMMAND, *common, "--reset-offsets", "--dry-run", *flags) for flags in asked])
    ours = [CliRunner().invoke(main, ["group", "seek", *common, "--dry-run", *flags]).stdout for flags in asked]
    for flags, kafka, logbus in zip(asked, theirs, ours, strict=True):
        assert new_offsets(logbus) == new_offsets(kafka.output) != {}, flags
