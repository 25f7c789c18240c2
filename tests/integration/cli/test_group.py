"""`logbus group` against a real broker; its columns are compared with Kafka's own tool where Java and Maven are installed."""

from __future__ import annotations

import pytest

from tests.support.broker import AnyBroker
from tests.support.commands import Run, Shown
from tests.support.consumers import GroupMember, poll_until
from tests.support.kafka_peer import JvmTools, jvm_tools_or_skip

GROUP_COMMAND = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


@pytest.fixture
def group(run: Run, topic: str) -> str:
    """A group that has read three of four records from partition 0, and nothing from partition 1."""
    run("topic", "create", topic, "--partitions", "2")
    run("produce", topic, "-p", "0", stdin="a\nb\nc\nd\n")
    name = f"group-of-{topic}"
    run("consume", topic, "-G", name, "-c", "3")
    return name


def test_lag_is_the_end_less_what_was_committed(run: Run, shown: Shown, group: str, topic: str) -> None:
    described = run("group", "describe", group)
    assert described.stderr == f"Consumer group '{group}' has no active members.\n"
    header, row = (line.split() for line in described.stdout.splitlines())
    assert " ".join(header) == "GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG CONSUMER-ID HOST CLIENT-ID"
    assert row == [group, topic, "0", "3", "4", "1", "-", "-", "-"]
    (found,) = shown("group", "offsets", "--group", group)
    assert (found["current_offset"], found["log_end_offset"], found["lag"], found["consumer_id"]) == (3, 4, 1, None)


def test_members_and_what_they_hold_are_shown_and_protect_the_group(
    run: Run, shown: Shown, broker: AnyBroker, group: str, topic: str
) -> None:
    member = GroupMember(broker.bootstrap, [topic], group=group, client_id="the-member")
    poll_until(lambda: len(member.records) == 1, member)
    try:
        (found,) = shown("group", "members", group, "--verbose")
        assert (found["client_id"], len(found["assignments"])) == ("the-member", 2)
        rows = [line.split() for line in run("group", "describe", group).stdout.splitlines()[1:]]
        assert [row[2:6] for row in rows] == [["0", "3", "4", "1"], ["1", "-", "0", "-"]]
        assert all(row[-1] == "the-member" and row[-2] == found["host"] for row in rows)
        (state,) = shown("group", "describe", group, "--state")
        assert (state["state"], state["members"]) == ("Stable", 1)
        assert {"group": group, "state": "Stable"} in shown("group", "ls")
        assert "has members: stop them first" in run("group", "delete", group, "--execute", status=1).stderr
    finally:
        member.close()


def test_deleting_is_a_dry_run_until_it_is_told_otherwise(run: Run, shown: Shown, group: str) -> None:
    assert run("group", "delete", group).stdout == f"would be deleted: group {group}, Empty, offsets of 1 partition\n"
    assert group in run("group", "ls").stdout
    gone = {"group": group, "state": "Empty", "partitions": 1}
    assert shown("group", "delete", group) == {"executed": False, "groups": [gone]}
    assert shown("group", "delete", group, "--execute") == {"executed": True, "groups": [gone]}
    assert f"has no group '{group}'" in run("group", "describe", group, status=3).stderr


def test_all_groups_are_those_that_are_there_and_a_missing_one_is_an_error_of_its_own(
    run: Run, shown: Shown, group: str, topic: str
) -> None:
    rows = [(one["group"], one["topic"], one["lag"]) for one in shown("group", "describe", "--all-groups")]
    assert (group, topic, 1) in rows
    assert group in [one["group"] for one in shown("group", "describe", "--all-groups", "--state")]
    assert "has no group 'nobody'" in run("group", "describe", group, "nobody", status=3).stderr


@pytest.fixture(scope="module")
def tools() -> JvmTools:
    return jvm_tools_or_skip()


def test_the_columns_and_figures_are_those_of_kafkas_own_tool(tools: JvmTools, run: Run, broker: AnyBroker, group: str) -> None:
    theirs = tools.run(GROUP_COMMAND, "--bootstrap-server", broker.bootstrap, "--describe", "--group", group)
    ours = run("group", "describe", group).stdout
    lines = [line.split() for line in theirs.splitlines() if line.startswith(("GROUP", group))]
    assert [line.split() for line in ours.splitlines()] == lines
