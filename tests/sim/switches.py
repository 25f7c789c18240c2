"""The broker's rules, one by one, and how to switch each off: the simulation must notice when one is missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from logbus_broker.api import produce
from logbus_broker.log.flusher import Flusher, FlushTicket
from logbus_broker.log.high_watermark import HighWatermark
from logbus_broker.log.partition import Partition
from logbus_broker.log.partition_log import PartitionLog
from logbus_broker.log.recovery import LogOpener

from tests.sim.single import draw_story
from tests.sim.stage import Played, Story


def nothing(*arguments: Any, **named: Any) -> None:
    """The step is skipped."""


def yes(*arguments: Any) -> bool:
    return True


def no(*arguments: Any) -> bool:
    return False


def shown_when_written(
    high_watermark: HighWatermark, flusher: Flusher, init: Callable[..., None] = HighWatermark.__init__
) -> None:
    """Consumers see what is written but not flushed."""
    init(high_watermark, flusher)

    def written(partition: Partition, byte_count: int) -> None:
        flusher.appended(partition, byte_count)
        partition.visible_offset = partition.log.end_offset
        high_watermark._advance(partition, byte_count)

    high_watermark.written = written


def flushed_to_the_end(log: PartitionLog, ticket: FlushTicket, finish: Callable[..., None] = PartitionLog.finish_flush) -> None:
    """A flush also counts for what was written while it ran."""
    finish(log, ticket)
    if not log.offline_reason:
        log.flushed_offset = log.end_offset


def flushed_without_names(ticket: FlushTicket, run: Callable[..., None] = FlushTicket.run) -> None:
    """The name of a new segment is not synced."""
    ticket._directory = None
    run(ticket)


def recovered_without_flush(
    opener: LogOpener, *arguments: Any, apply: Callable[..., None] = LogOpener._apply, **named: Any
) -> None:
    """Consumers see whatever a start has found, even if it is only in the page cache."""
    with opener.filesystem.syncing(-1):  # type: ignore[attr-defined]
        apply(opener, *arguments, **named)


@dataclass(frozen=True)
class Switch:
    """`by` replaces `name`. `story`: histories in which the rule is needed. Its absence is noticed within `within` histories from
    seed `first` on, which noticed it when this was written: most others do not need the rule."""

    name: str
    by: Any
    story: Callable[[int], Story]
    first: int = 0
    within: int = 60
    too: tuple[str, Any] | None = None  # another rule with the same effect, switched off with it

    def off(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(self.name, self.by)
        if self.too is not None:
            patch.setattr(*self.too)

    def is_noticed(self, play: Callable[[Story], Played]) -> bool:
        return any(play(self.story(seed)).kind for seed in range(self.first, self.first + self.within))


def faults(*kinds: str) -> Callable[[int], Story]:
    """Histories of faults of these kinds, at any time."""
    return lambda seed: draw_story(seed, kinds)


POWER = faults("power cut", "power cut within", "slow disk", "kill within")
SWITCHES: dict[str, Switch] = {
    "visible is flushed": Switch("logbus_broker.log.high_watermark.HighWatermark.__init__", shown_when_written, POWER),
    "acknowledged when flushed": Switch("logbus_broker.api.produce._finish_when_safe", produce._complete, POWER, first=6),
    "a flush counts to where it began": Switch(
        "logbus_broker.log.partition_log.PartitionLog.finish_flush", flushed_to_the_end, POWER, first=47
    ),
    "new names are flushed": Switch("logbus_broker.log.flusher.FlushTicket.run", flushed_without_names, POWER),
    "what a start finds is flushed": Switch(
        "logbus_broker.log.recovery.LogOpener._apply",
        recovered_without_flush,
        faults("kill", "kill within", "power cut", "power cut within"),
        first=217,
    ),
    "a start writes again what a flush may have lost": Switch(
        "logbus_broker.log.recovery.LogOpener._rewrite",
        nothing,
        faults("failing sync", "kill", "power cut", "power cut within"),
        first=110,
    ),
    "a start checks checksums": Switch("logbus_broker.log.recovery.checksum_matches", yes, POWER, first=25),
    "a start keeps what is whole": Switch(
        "logbus_broker.log.recovery.checksum_matches", no, faults("kill", "kill within", "stop")
    ),
    "producers are remembered": Switch(
        "logbus_broker.log.producer_state.ProducerSnapshots.restore",
        nothing,
        faults("kill", "kill within", "pause", "reset clients"),
        first=11,
    ),
    "numbers are checked": Switch(
        "logbus_broker.log.producer_state.ProducerStates.check", nothing, faults("reset clients", "pause"), first=57
    ),
}
