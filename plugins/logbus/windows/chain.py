"""A pipeline's chain of boundaries in the ledger: what is frozen in each partition, and what is around an instant.

The chain begins at an anchor and has one boundary for each instant that was ever requested. Boundaries are inserted once
and never change; the caller has locked the pipeline's row, so concurrent freezes see each other's boundaries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, insert, select, true, update
from sqlalchemy.dialects.postgresql import insert as insert_if_absent

from logbus.model import Witness
from logbus.windows import schema
from logbus.windows.boundaries import Neighbours
from logbus.windows.rows import WITNESS_COLUMNS, to_witness, witness_values


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainEnd:
    """How far a partition's chain reaches: the offset of its last boundary, or of its anchor, and the record before it."""

    offset: int
    witness: Witness | None = None


@dataclass(frozen=True, slots=True)
class Chain:
    """The boundaries of one pipeline on one topic, seen through one connection."""

    connection: Connection
    pipeline_name: str
    topic_id: str

    def boundary(self, partition: int, at: datetime) -> int | None:
        """B(at) if it is decided. An anchor at or after `at` decides it: no record of the partition comes before its anchor."""
        exact = select(schema.boundary.c.offset).where(*self._boundaries(partition), schema.boundary.c.at == at)
        anchored = self._anchored(partition).where(schema.anchor.c.at >= at)
        for query in (exact, anchored):
            offset: int | None = self.connection.execute(query).scalar_one_or_none()
            if offset is not None:
                return offset
        return None

    def neighbours(self, partition: int, at: datetime) -> Neighbours:
        """The frozen offsets around `at`; the anchor comes before the first boundary."""
        row_of, boundaries = schema.boundary, self._boundaries(partition)
        lower = self.connection.execute(select(func.max(row_of.c.offset)).where(*boundaries, row_of.c.at < at)).scalar_one()
        upper = self.connection.execute(select(func.min(row_of.c.offset)).where(*boundaries, row_of.c.at > at)).scalar_one()
        if lower is not None:
            return Neighbours(lower=lower, upper=upper)
        return Neighbours(lower=self._anchor_offset(partition), upper=upper, lower_is_anchor=True)

    def is_guess(self, partition: int, at: datetime, offset: int) -> bool:
        """Whether a boundary was set where retention had cut the log instead of where its hour began: the window that ends there
        has lost everything it may have had, and no window holds the record before."""
        window, part = schema.window, schema.window_range
        of_partition = (
            window.c.pipeline == self.pipeline_name,
            window.c.topic_id == self.topic_id,
            part.c.partition == partition,
        )
        ranges = select(part.c.window_id).join(window, window.c.id == part.c.window_id).where(*of_partition)
        lossy = ranges.where(window.c.ends_at == at, window.c.head_unknown)
        holding = ranges.where(part.c.start_offset + part.c.lost < offset, part.c.end_offset >= offset)
        return (
            offset > self._anchor_offset(partition)
            and self.connection.execute(select(lossy.exists())).scalar_one()
            and not self.connection.execute(select(holding.exists())).scalar_one()
        )

    def ends(self) -> dict[int, ChainEnd]:
        """The last boundary by partition; offsets never decrease along a chain, so no frozen one is higher."""
        row_of, anchor = schema.boundary, schema.anchor
        same_chain = (row_of.c.pipeline == anchor.c.pipeline, row_of.c.topic_id == anchor.c.topic_id)
        last = (
            select(row_of)
            .where(*same_chain, row_of.c.partition == anchor.c.partition)
            .order_by(row_of.c.at.desc())
            .limit(1)
            .lateral()
        )
        query = select(anchor.c.partition, anchor.c.offset.label("anchored"), last).join(last, true(), isouter=True)
        rows = self.connection.execute(query.where(*self._anchors())).mappings()
        return {
            row[anchor.c.partition]: ChainEnd(
                offset=row["anchored"] if row[last.c.offset] is None else row[last.c.offset],
                witness=to_witness({name: row[last.c[name]] for name in WITNESS_COLUMNS.values()}),
            )
            for row in rows
        }

    def boundaries_of(self, partition: int) -> list[ChainEnd]:
        """The anchor, then all boundaries of a partition in order."""
        row_of = schema.boundary
        rows = self.connection.execute(select(row_of).where(*self._boundaries(partition)).order_by(row_of.c.at)).mappings()
        first = ChainEnd(offset=self.connection.execute(self._anchored(partition)).scalar_one())
        return [first, *(ChainEnd(offset=row["offset"], witness=to_witness(row)) for row in rows)]

    def set_aside(self, former_id: str, kept: Mapping[int, ChainEnd]) -> None:
        """Moves boundaries above each partition's kept end to the former topic's id, and lowers anchors above it to that end."""
        row_of, anchor = schema.boundary, schema.anchor
        for partition, end in kept.items():
            beyond = (*self._boundaries(partition), row_of.c.offset > end.offset)
            self.connection.execute(update(row_of).where(*beyond).values(topic_id=former_id))
            above = (*self._anchors(), anchor.c.partition == partition, anchor.c.offset > end.offset)
            self.connection.execute(update(anchor).where(*above).values(offset=end.offset))

    def go_on(self, at: datetime, ends: Mapping[int, ChainEnd], now: datetime) -> None:
        """Continues the chain at an instant from where it ended before, whatever the timestamps of the records since then."""
        for partition, end in ends.items():
            if self.boundary(partition, at) is None:
                self.freeze(partition, at, end.offset, None, now, end.witness)

    def mark_lost(self, until: datetime, partition: int | None = None) -> None:
        """Records that windows starting before `until` may lack records that are gone, in all partitions or in one."""
        anchors = (*self._anchors(), *(() if partition is None else (schema.anchor.c.partition == partition,)))
        later = func.greatest(schema.anchor.c.lost_until, until)  # greatest() ignores nulls
        self.connection.execute(update(schema.anchor).where(*anchors).values(lost_until=later))

    def lost_until(self) -> datetime | None:
        until: datetime | None = self.connection.execute(
            select(func.max(schema.anchor.c.lost_until)).where(*self._anchors())
        ).scalar_one()
        return until

    def witness_before(self, partition: int, offset: int) -> Witness | None:
        """The record before a frozen boundary at this offset, if one is stored."""
        row_of = schema.boundary
        same = (row_of.c.offset == offset, row_of.c.witness_offset.is_not(None))
        row = self.connection.execute(select(row_of).where(*self._boundaries(partition), *same).limit(1)).mappings().first()
        return None if row is None else to_witness(row)

    def freeze(
        self, partition: int, at: datetime, offset: int, leader_epoch: int | None, now: datetime, witness: Witness | None = None
    ) -> None:
        values = {
            "pipeline": self.pipeline_name,
            "topic_id": self.topic_id,
            "partition": partition,
            "at": at,
            "offset": offset,
            "leader_epoch": leader_epoch,
            "frozen_at": now,
            **witness_values(witness),
        }
        self.connection.execute(insert(schema.boundary).values(values))

    def anchor(self, at: datetime | None, offsets: Iterable[tuple[int, int]], now: datetime) -> None:
        """Begins the chain at `at` (None: before all time) with an offset for each partition; existing anchors stay."""
        common = {"pipeline": self.pipeline_name, "topic_id": self.topic_id, "at": at, "frozen_at": now}
        rows = [{**common, "partition": partition, "offset": offset} for partition, offset in offsets]
        if rows:
            self.connection.execute(insert_if_absent(schema.anchor).on_conflict_do_nothing(), rows)

    def anchor_new(self, partitions: Iterable[int], now: datetime) -> None:
        """A partition seen for the first time begins at offset 0, and belongs to windows after the last one frozen without it."""
        anchored = set(self.connection.execute(select(schema.anchor.c.partition).where(*self._anchors())).scalars())
        self.anchor(self.last_window_end(), [(partition, 0) for partition in partitions if partition not in anchored], now)

    def partitions_before(self, at: datetime) -> set[int]:
        """The partitions whose chain begins before `at`."""
        row_of = schema.anchor
        query = select(row_of.c.partition).where(*self._anchors(), (row_of.c.at.is_(None)) | (row_of.c.at < at))
        return set(self.connection.execute(query).scalars())

    def last_window_end(self) -> datetime | None:
        window = schema.window
        query = select(func.max(window.c.ends_at)).where(window.c.pipeline == self.pipeline_name)
        end: datetime | None = self.connection.execute(query).scalar_one()
        return end

    def _anchor_offset(self, partition: int) -> int:
        offset: int | None = self.connection.execute(self._anchored(partition)).scalar_one_or_none()
        return offset or 0

    def _anchored(self, partition: int) -> Select[Any]:
        return select(schema.anchor.c.offset).where(*self._anchors(), schema.anchor.c.partition == partition)

    def _boundaries(self, partition: int) -> tuple[ColumnElement[bool], ...]:
        row_of = schema.boundary
        return (row_of.c.pipeline == self.pipeline_name, row_of.c.topic_id == self.topic_id, row_of.c.partition == partition)

    def _anchors(self) -> tuple[ColumnElement[bool], ...]:
        return (schema.anchor.c.pipeline == self.pipeline_name, schema.anchor.c.topic_id == self.topic_id)
