"""What producers, brokers and clocks do to a pipeline: the rules of a Hypothesis state machine that concern the log.

Whatever is drawn, the log stays one that could be real: records on time, late, early, from 2099 or without a timestamp, holes,
open and aborted transactions, more partitions, deleted records, a recreated topic.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from logbus.errors import TopicRecreated, WindowOverlap
from logbus.ledger.ledger import Ledger
from logbus.model import FrozenWindow, Pipeline, milliseconds
from sqlalchemy import Engine

from tests.support.fake_log import NO_TIMESTAMP, FakeLog
from tests.support.ledgers import at, hour
from tests.support.window_model import FUTURE, LATENESS, ChainModel

FIRST_HOUR, LAST_HOUR = 8, 13
IN_2099 = milliseconds(datetime(2099, 1, 1, tzinfo=UTC))

_numbers = itertools.count(1)

Row = tuple[datetime, int, int, bool]  # window start, partition, offset, whether it is a dead letter


@dataclass
class Window:
    """The model of a frozen window; `rows` are those of its last commit."""

    frozen: FrozenWindow
    newest_attempt: int = 0
    loaded_attempt: int | None = None
    rows: frozenset[Row] = frozenset()


class LogMachine(RuleBasedStateMachine):
    """One pipeline with its own topic, in a database shared with the other examples."""

    def __init__(self, url: str, engine: Engine) -> None:
        super().__init__()
        self.url, self.engine = url, engine
        self.name = f"p{next(_numbers)}"
        self.log = FakeLog()
        self.ledger = Ledger(engine)
        self.now = at(10.5)
        self.windows: dict[datetime, Window] = {}
        self.chain = ChainModel()
        self.cut_off_until: datetime | None = None  # hours that begin before this may have lost records with a former topic

    @initialize(
        partitions=st.integers(1, 2), starts_at=st.sampled_from([None, None, at(10)]), parse=st.sampled_from(["lines", "json"])
    )
    def register(self, partitions: int, starts_at: datetime | None, parse: str) -> None:
        self.log.create(self.name, partitions)
        self.pipeline = Pipeline(
            name=self.name,
            topic=self.name,
            table=self.name,
            parse=parse,
            lateness=LATENESS,
            starts_at=starts_at,
            settings={"offset_gaps": True, "max_error_rate": 1},  # nothing parses once the parser has changed
        )
        self.ledger.register(self.pipeline, self.log, self.now)
        self.chain.anchors = dict.fromkeys(range(partitions), (starts_at, 0))
        self.chain.boundaries = {number: {} for number in range(partitions)}

    @rule(partition=st.integers(0, 2), minutes_ago=st.lists(st.integers(-70, 240), min_size=1, max_size=6))
    def append(self, partition: int, minutes_ago: list[int]) -> None:
        """On time, late, or early by a fast clock."""
        self.send(partition, *(milliseconds(self.now - timedelta(minutes=minutes)) for minutes in minutes_ago))

    @rule(partition=st.integers(0, 2), stamp=st.sampled_from([IN_2099, NO_TIMESTAMP]))
    def append_without_usable_time(self, partition: int, stamp: int) -> None:
        self.send(partition, stamp)

    @rule(partition=st.integers(0, 2))
    def leave_a_hole(self, partition: int) -> None:
        """Like a transaction's marker."""
        self.send(partition, None)

    def send(self, partition: int, *stamps: int | None) -> None:
        self.log.append(self.name, *stamps, partition=partition % len(self.partitions))

    @property
    def partitions(self) -> Any:
        return self.log.topics[self.name]

    @rule(partition=st.integers(0, 2))
    def begin_transaction(self, partition: int) -> None:
        part = self.partitions[partition % len(self.partitions)]
        if part.stable_end is None:
            part.stable_end = len(part.stamps_ms)

    @rule(aborted=st.booleans())
    def end_transactions(self, aborted: bool) -> None:
        for part in self.partitions:
            if part.stable_end is not None:
                if aborted:
                    part.stamps_ms[part.stable_end :] = [None] * (len(part.stamps_ms) - part.stable_end)
                part.stamps_ms.append(None)
                part.stable_end = None

    @rule(hours=st.sampled_from([0.3, 1, 2]))
    def pass_time(self, hours: float) -> None:
        self.now = min(self.now + timedelta(hours=hours), at(LAST_HOUR))

    @precondition(lambda self: len(self.partitions) < 3)
    @rule()
    def add_a_partition(self) -> None:
        self.log.add_partitions(self.name, len(self.partitions) + 1)

    @rule(partition=st.integers(0, 2), share=st.floats(0, 1))
    def retention(self, partition: int, share: float) -> None:
        part = self.partitions[partition % len(self.partitions)]
        part.start_offset = max(part.start_offset, int(share * part.end_offset("read_committed")))

    @precondition(lambda self: len(self.windows) > 1)
    @rule(partitions=st.integers(1, 2))
    def make_the_topic_again(self, partitions: int) -> None:
        self.log.create(self.name, partitions)
        for window in self.missing():
            with pytest.raises(TopicRecreated):
                self.ledger.freeze_or_get(self.name, window.frozen.interval, self.log, self.now)
        with pytest.raises((TopicRecreated, WindowOverlap)):
            self.ledger.freeze_or_get(self.name, hour(FIRST_HOUR - 1), self.log, self.now)
        self.ledger.rebase(self.name, self.log, self.now)
        self.cut_off_until = self.now + FUTURE
        self.chain = ChainModel(anchors={number: (self.last_end(), 0) for number in range(partitions)})
        self.chain.boundaries = {number: {} for number in range(partitions)}

    def missing(self) -> list[Window]:
        return [window for window in self.windows.values() if window.loaded_attempt is None]

    def last_end(self) -> datetime | None:
        return max((window.frozen.interval.end for window in self.windows.values()), default=None)
