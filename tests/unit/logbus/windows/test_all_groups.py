from __future__ import annotations

from logbus.windows.all_groups import GroupReading, Member, group_json

ENDS = {("t", 0): 100, ("t", 1): 50, ("u", 0): 7}


def member(name: str, *places: tuple[str, int]) -> Member:
    return Member(member_id=f"{name}-1", client_id=name, host="10.0.0.1", assignments=places)


def test_lag_is_told_of_each_partition_each_member_and_the_group() -> None:
    group = GroupReading(
        name="g",
        state="Stable",
        protocol="range",
        members=(member("a", ("t", 0)), member("b", ("t", 1))),
        committed={("t", 0): 90, ("t", 1): 50, ("u", 0): 3},
    )
    found = group_json(group, ENDS)
    assert [(one["topic"], one["partition"], one["lag"], one["member_id"]) for one in found["partitions"]] == [
        ("t", 0, 10, "a-1"),
        ("t", 1, 0, "b-1"),
        ("u", 0, 4, None),
    ]
    assert [(one["client_id"], one["lag"]) for one in found["members"]] == [("a", 10), ("b", 0)]
    assert (found["lag"], found["state"], found["protocol"]) == (14, "Stable", "range")


def test_a_group_without_offsets_has_a_lag_that_nobody_knows() -> None:
    group = GroupReading(name="g", state="Stable", members=(member("a", ("t", 0)),))
    found = group_json(group, ENDS)
    assert (found["lag"], found["members"][0]["lag"]) == (None, None)
    assert (found["partitions"][0]["committed_offset"], found["partitions"][0]["end_offset"]) == (None, 100)
    nothing = group_json(GroupReading(name="g", state="Empty"), ENDS)
    assert (nothing["lag"], nothing["partitions"], nothing["members"]) == (None, [], [])


def test_offsets_of_a_topic_that_is_gone_or_was_made_again_are_no_lag() -> None:
    group = GroupReading(name="g", state="Empty", committed={("gone", 0): 5, ("u", 0): 5000})
    found = group_json(group, ENDS)
    assert [(one["topic"], one["lag"]) for one in found["partitions"]] == [("gone", None), ("u", 0)]
    assert found["lag"] == 0
