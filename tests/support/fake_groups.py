"""Consumer groups in memory; checked against real brokers by tests/contract/test_group_offsets.py."""

from __future__ import annotations

from collections.abc import Mapping

from logbus.kafka.client import PartitionId
from logbus.kafka.groups import active


class FakeGroups:
    """Committed offsets by group; tests set the `members`."""

    def __init__(self) -> None:
        self.offsets: dict[str, dict[PartitionId, int]] = {}
        self.members: dict[str, tuple[str, ...]] = {}
        self.notes: list[str] = []

    def validate_inactive(self, name: str) -> None:
        if members := self.members.get(name):
            raise active(name, ", ".join(members))

    def committed(self, group: str) -> dict[PartitionId, int]:
        return dict(self.offsets.get(group, {}))

    def commit(self, group: str, offsets: Mapping[PartitionId, int], note: str = "") -> None:
        if self.members.get(group):
            raise active(group, "")
        self.offsets.setdefault(group, {}).update(offsets)
        self.notes.append(note)
