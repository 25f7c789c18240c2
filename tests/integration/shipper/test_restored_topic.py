"""`ship` to a topic whose broker was restored from an older copy: lines missing from the topic are sent again, once."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import OffsetSpec
from logbus.cli import main
from logbus.errors import TopicShortened
from logbus.shipper.ship import ShipReport, ship

from tests.support.restoring import RestorableBroker
from tests.support.topics import delete_before, offset_of, read_topic


def run(restorable: RestorableBroker, directory: Path, *files: Path, **options: bool) -> ShipReport:
    client = {"bootstrap.servers": restorable.server.bootstrap}
    return ship(files, topic="t", client_config=client, state_path=directory / "state.json", accept_times=True, **options)


def append(log: Path, first: int, count: int) -> None:
    with log.open("a") as file:
        for number in range(first, first + count):
            file.write(f"2015-05-17T10:{number // 60:02d}:{number % 60:02d}Z host-{number % 7} line {number} of {log.name}\n")


def values(restorable: RestorableBroker) -> list[bytes]:
    partitions = read_topic(restorable.server.bootstrap, "t").values()
    return sorted(message.value() or b"" for messages in partitions for message in messages)


def ends(restorable: RestorableBroker) -> list[int]:
    return [offset_of(restorable.server.bootstrap, "t", partition, OffsetSpec.latest()) for partition in range(3)]


def lines(*logs: Path) -> list[bytes]:
    return sorted(line for log in logs for line in log.read_bytes().splitlines())


@pytest.fixture
def restored(restorable: RestorableBroker, tmp_path: Path) -> Path:
    """40 shipped lines are in the copy, 60 more are not; the last run ended cleanly."""
    log = tmp_path / "access.log"
    append(log, 0, 40)
    run(restorable, tmp_path, log)
    restorable.back_up()
    append(log, 40, 60)
    run(restorable, tmp_path, log)
    restorable.restore()
    return log


def test_lines_that_a_restored_topic_lost_are_sent_again_and_no_other(restorable: RestorableBroker, restored: Path) -> None:
    append(restored, 100, 5)
    report = run(restorable, restored.parent, restored)
    assert (report.lost, report.lines) == (60, 65)
    assert values(restorable) == lines(restored)
    assert run(restorable, restored.parent, restored).lines == 0


def test_the_loss_is_reported_with_the_files_that_were_not_named(restorable: RestorableBroker, restored: Path) -> None:
    other = restored.with_name("other.log")
    append(other, 0, 3)
    command = ["ship", str(other), "--topic", "t", "--accept-times", "--state", str(restored.parent / "state.json")]
    result = CliRunner().invoke(main, [*command, "--bootstrap-server", restorable.server.bootstrap])
    assert "warning: t had lost 60 records that it had acknowledged" in result.output
    assert f"name these, too: {restored}" in result.output
    assert run(restorable, restored.parent, restored).lines == 60
    assert values(restorable) == lines(restored, other)


def test_where_retention_has_deleted_records_too_nothing_is_sent(restorable: RestorableBroker, restored: Path) -> None:
    for partition, held in read_topic(restorable.server.bootstrap, "t").items():
        if held:
            delete_before(restorable.server.bootstrap, "t", partition, 1)
    before = ends(restorable)
    with pytest.raises(TopicShortened, match="so it is unknown which lines of .* --accept-loss"):
        run(restorable, restored.parent, restored)
    assert ends(restorable) == before
    append(restored, 100, 5)
    assert run(restorable, restored.parent, restored, accept_loss=True).lines == 5
