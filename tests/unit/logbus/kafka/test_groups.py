from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError
from logbus.errors import BrokerNotReady, GroupActive, GroupMissing
from logbus.kafka.groups import GroupMember, GroupReading, Groups, end_offsets_of, group_json, to_group

from tests.support.fake_batches import FakeBatches
from tests.support.fake_log import FakeLog

ENDS = {("t", 0): 100, ("t", 1): 50, ("u", 0): 7}


def member(name: str, *places: tuple[str, int]) -> GroupMember:
    return GroupMember(member_id=f"{name}-1", client_id=name, host="10.0.0.1", assignments=places)


def test_lag_is_reported_by_partition_by_member_and_for_the_group() -> None:
    group = GroupReading(
        name="g",
        state="Stable",
        protocol="range",
        members=(member("a", ("t", 0)), member("b", ("t", 1))),
        committed={("t", 0): 90, ("t", 1): 50, ("u", 0): 3},
    )
    as_json = group_json(group, ENDS)
    lags = [(part["topic"], part["partition"], part["lag"], part["member_id"]) for part in as_json["partitions"]]
    assert lags == [("t", 0, 10, "a-1"), ("t", 1, 0, "b-1"), ("u", 0, 4, None)]
    assert [(member["client_id"], member["lag"]) for member in as_json["members"]] == [("a", 10), ("b", 0)]
    assert (as_json["lag"], as_json["state"], as_json["protocol"]) == (14, "Stable", "range")


def test_the_lag_of_a_group_without_offsets_is_unknown() -> None:
    group = GroupReading(name="g", state="Stable", members=(member("a", ("t", 0)),))
    as_json = group_json(group, ENDS)
    assert (as_json["lag"], as_json["members"][0]["lag"]) == (None, None)
    assert (as_json["partitions"][0]["committed_offset"], as_json["partitions"][0]["end_offset"]) == (None, 100)
    nothing = group_json(GroupReading(name="g", state="Empty"), ENDS)
    assert (nothing["lag"], nothing["partitions"], nothing["members"]) == (None, [], [])


def test_offsets_of_a_topic_that_is_gone_or_was_made_again_are_no_lag() -> None:
    group = GroupReading(name="g", state="Empty", committed={("gone", 0): 5, ("u", 0): 5000})
    as_json = group_json(group, ENDS)
    assert [(part["topic"], part["lag"]) for part in as_json["partitions"]] == [("gone", None), ("u", 0)]
    assert as_json["lag"] == 0


def test_end_offsets_are_those_of_the_partitions_that_a_group_reads_and_that_have_a_leader() -> None:
    log = FakeLog.of("t", [1, 2], [1, 2], [1, 2])
    group = GroupReading(name="g", state="Empty", committed={("t", 0): 1, ("t", 1): 1, ("gone", 0): 5, ("t", 7): 1})
    assert end_offsets_of(FakeBatches(log, [("t", 1)]), [group]) == {("t", 0): 2}


def described(state: str, *members: Any) -> Any:
    node = SimpleNamespace(host="b", port=9092, id=1)
    return SimpleNamespace(state=SimpleNamespace(name=state), partition_assignor="range", coordinator=node, members=members)


def answered(*parts: tuple[str, int, int, Any]) -> Any:
    fields = ("topic", "partition", "offset", "error")
    return SimpleNamespace(topic_partitions=[SimpleNamespace(**dict(zip(fields, part, strict=True))) for part in parts])


def test_a_group_is_described_in_kafkas_words() -> None:
    assignment = SimpleNamespace(topic_partitions=[SimpleNamespace(topic="t", partition=part) for part in (1, 0)])
    members = [SimpleNamespace(member_id=name, client_id="c", host="/10.0.0.1", assignment=assignment) for name in ("z", "a")]
    reading = to_group("g", described("COMPLETING_REBALANCING", *members), answered(("t", 0, 5, None), ("t", 1, -1001, None)))
    assert (reading.state, reading.protocol, reading.coordinator) == ("CompletingRebalance", "range", "b:9092 (1)")
    assert reading.error is None
    assert [(member.member_id, member.address) for member in reading.members] == [("a", "10.0.0.1"), ("z", "10.0.0.1")]
    assert (reading.members[0].assignments, dict(reading.committed)) == ((("t", 0), ("t", 1)), {("t", 0): 5})


def test_a_group_is_active_if_it_has_members_or_is_about_to_get_some() -> None:
    def validate(state: str, *members: Any) -> None:
        client = SimpleNamespace(ask=lambda question, about: {about: described(state, *members)})
        Groups(client).validate_inactive("g")  # type: ignore[arg-type]

    validate("EMPTY")
    validate("DEAD")
    with pytest.raises(GroupActive, match=r"group g is active: it has members \(state PreparingRebalance\)"):
        validate("PREPARING_REBALANCING")
    with pytest.raises(GroupActive, match=r"it has members \(c, d\)"):
        validate("STABLE", SimpleNamespace(client_id="c"), SimpleNamespace(client_id="d"))


def test_what_is_missing_of_a_group_is_explained_by_its_error() -> None:
    assert isinstance(to_group("g", described("DEAD"), answered()).error, GroupMissing)
    gone = to_group("g", GroupMissing("no such group"), answered())
    assert (gone.state, str(gone.error)) == ("Dead", "no such group")
    coming = to_group("g", BrokerNotReady("soon"), answered(("t", 0, 5, None)))
    assert (coming.state, dict(coming.committed), type(coming.error)) == ("Unknown", {("t", 0): 5}, BrokerNotReady)
    refused = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    reading = to_group("g", described("EMPTY"), answered(("t", 0, 5, None), ("u", 0, 5, refused)))
    assert (reading.state, dict(reading.committed)) == ("Empty", {("t", 0): 5})
    assert "did not return all offsets of 'g': this user lacks Describe on topic u" in str(reading.error)
