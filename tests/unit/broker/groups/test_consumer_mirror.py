"""What is written to the paper's registries about groups: through the engine, with a registry that only records it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.coordination.consumer_registry import ConsumerRegistry, Shown
from broker.groups.consumer_mirror import ConsumerMirror
from broker.groups.subscription import assigned_partitions
from broker.protocol.api import ApiKey
from tests.support.engine import Harness
from tests.support.group_client import SESSION_MS, Client, assignment


class NotedRegistry(ConsumerRegistry):
    """Records the calls, and writes nothing."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Shown | None]] = []
        self.offsets: dict[tuple[str, str, int], int] = {}

    def show(self, group: str, shown: Shown) -> None:
        self.told.append((group, shown))

    def hide(self, group: str) -> None:
        self.told.append((group, None))

    def committed(self, group: str, topic: str, partition: int, offset: int) -> None:
        self.offsets[group, topic, partition] = offset


@pytest.fixture
def registry() -> NotedRegistry:
    return NotedRegistry()


@pytest.fixture
def client(tmp_path: Path, registry: NotedRegistry) -> Iterator[Client]:
    harness = Harness(tmp_path, group_initial_rebalance_delay_ms=0)
    harness.create("clicks")
    harness.engine.context.groups.mirror = ConsumerMirror(registry)
    yield Client(harness)
    harness.close()


def test_a_group_is_shown_when_its_members_know_what_they_read(client: Client, registry: NotedRegistry) -> None:
    joined = client.enter()
    assert registry.told == []
    client.sync(joined, assignment=assignment(clicks=[0, 1]))
    owners = {("clicks", 0): joined.member_id, ("clicks", 1): joined.member_id}
    assert registry.told == [("g", Shown(subscriptions={joined.member_id: ["clicks"]}, owners=owners))]
    client.heartbeat(joined)
    client.sync(joined)
    assert len(registry.told) == 1
    assert client.commit(7, member=joined) == 0
    assert registry.offsets == {("g", "clicks", 0): 7}


def test_it_is_hidden_when_the_last_member_has_left_and_shown_once_again(client: Client, registry: NotedRegistry) -> None:
    joined = client.enter()
    client.sync(joined)
    client.leave((joined.member_id, None))
    assert [shown is None for _, shown in registry.told] == [False, True]
    client.sync(client.enter())
    client.harness.clock.advance_ms(SESSION_MS)
    client.harness.turn()
    assert [shown is None for _, shown in registry.told] == [False, True, False, True]
    assert client.delete("g") == [0]
    assert len(registry.told) == 4


def test_it_is_hidden_when_it_moves_to_another_coordinator(client: Client, registry: NotedRegistry) -> None:
    client.sync(client.enter())
    client.harness.engine.context.groups.lose(lambda group_id: group_id == "g")
    assert [shown is None for _, shown in registry.told] == [False, True]


def test_a_static_member_that_comes_back_is_shown_under_its_new_id(client: Client, registry: NotedRegistry) -> None:
    joined = client.join(instance_id="one")
    client.sync(joined, group_instance_id="one")
    again = client.join(instance_id="one")
    assert again.generation_id == joined.generation_id
    shown = registry.told[-1][1]
    assert shown is not None
    assert list(shown.subscriptions) == [again.member_id]


def test_groups_of_other_kinds_are_not_shown(client: Client, registry: NotedRegistry) -> None:
    joined = client.join(protocol_type="connect", member_id="")
    joined = client.join(joined.member_id, protocol_type="connect")
    client.sync(joined, protocol_type="connect")
    assert client.describe().group_state == "Stable"
    assert registry.told == []


def test_what_is_no_name_of_a_topic_is_not_shown(client: Client, registry: NotedRegistry) -> None:
    joined = client.enter()
    client.sync(joined, assignment=assignment(**{"../../controller": [0], "clicks": [1]}))
    shown = registry.told[-1][1]
    assert shown is not None
    assert list(shown.owners) == [("clicks", 1)]


@pytest.mark.parametrize(
    "raw", [b"", b"0,1", b"\0\1\xff\xff\xff\xff", b"\0\1\0\0\0\1\0\1a\x7f\xff\xff\xff", b"\0\1\0\0\0\1\0\1\xff\0\0\0\0"]
)
def test_what_is_no_assignment_of_a_consumer_names_no_partitions(raw: bytes) -> None:
    assert assigned_partitions(raw) == []


def test_an_offset_that_is_forgotten_stays_where_it_is_shown(client: Client, registry: NotedRegistry) -> None:
    assert client.commit(3) == 0
    assert client.delete_offset("clicks") == (0, [0])
    assert client.ask(ApiKey.LIST_GROUPS, states_filter=[], types_filter=[]).groups == []
    assert registry.offsets == {("g", "clicks", 0): 3}
