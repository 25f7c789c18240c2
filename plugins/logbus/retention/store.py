"""What the ledger stores of managed retention: policies, holds, runs and deletions.

A deletion is recorded before the request to the broker (`intended`), and again after it with the new log start offset
(`deleted`): a crash in between leaves an intention, which the next run finds done or repeats; never a deletion without a
record of it.

An intention is decided in the transaction that records it, under a lock on the topic that holds and policies take too: a hold
made before that transaction prevents the deletion, one made after it finds the intention recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, delete, func, insert, or_, select, text, update
from sqlalchemy.dialects.postgresql import insert as insert_or_update

from logbus.errors import UserError
from logbus.ledger import schema
from logbus.ledger.rows import Row
from logbus.model import FrozenWindow, instant_text, utc
from logbus.retention.model import Deletion, Hold, RetentionPolicy, TopicPlan

INTENDED, DELETED, UNKNOWN = "intended", "deleted", "unknown"

# Keeps two runs from overlapping. Any constant does, provided that all use the same one.
RUN_LOCK = 0x6C6F67627574

# With the topic's name, for what decides about its records: an order to keep them, its policy, an intention to delete them.
TOPIC_LOCK = 0x726574


class RetentionStore:
    """Each method is its own transaction."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def set_policy(self, policy: RetentionPolicy, now: datetime, adopted: Mapping[str, str] | None = None) -> None:
        """From now on the topic has this policy. `adopted` are its own settings, stored so that they can be restored."""
        values = {
            "retain": policy.retain,
            "retain_bytes": policy.retain_bytes,
            "max_hold": policy.max_hold,
            "when_overdue": policy.when_overdue,
            "changed_at": utc(now),
            **({} if adopted is None else {"adopted": dict(adopted)}),
        }
        statement = insert_or_update(schema.retention_policy).values(topic=policy.topic, **values)
        with self.engine.begin() as connection:
            lock_topic(connection, policy.topic)
            connection.execute(statement.on_conflict_do_update(index_elements=["topic"], set_=values))

    def policies(self, topics: Sequence[str] | None = None) -> list[RetentionPolicy]:
        """All policies, or those of some topics, each of which must have one."""
        with self.engine.connect() as connection:
            found = policies_by_topic(connection)
        missing = [topic for topic in topics or () if topic not in found]
        if missing:
            raise UserError(
                f"nothing says how long topic {', '.join(missing)} is kept: `logbus retention adopt` takes over the topic's own "
                "limits, `logbus retention set` sets others"
            )
        return [found[topic] for topic in (found if topics is None else topics)]

    def remove_policy(self, topic: str) -> dict[str, str]:
        """Deletes the policy; returns the topic's own settings as they were before it was adopted."""
        row_of = schema.retention_policy
        self.policies([topic])
        with self.engine.begin() as connection:
            lock_topic(connection, topic)
            statement = delete(row_of).where(row_of.c.topic == topic).returning(row_of.c.adopted)
            return dict(connection.execute(statement).scalar_one() or {})

    def hold(self, topic: str, reason: str, until: datetime | None, now: datetime) -> Hold:
        """From now on no deletion of the topic's records begins. One that a run has already recorded and requested goes on:
        `under_way` lists it."""
        if until is not None and utc(until) <= utc(now):
            raise UserError(f"a hold until {instant_text(until)} would be over already; it is {instant_text(now)} now")
        if not reason.strip():
            raise UserError("a hold needs a reason: who wonders in a year why nothing is deleted shall find it")
        row_of = schema.retention_hold
        values = {"topic": topic, "reason": reason, "until": until and utc(until), "made_at": utc(now)}
        with self.engine.begin() as connection:
            lock_topic(connection, topic)
            row = connection.execute(insert(row_of).values(values).returning(row_of)).mappings().one()
            return to_hold(row)

    def release(self, hold_id: int, now: datetime) -> Hold:
        """Ends a hold early."""
        row_of = schema.retention_hold
        mine = (row_of.c.id == hold_id, row_of.c.released_at.is_(None))
        with self.engine.begin() as connection:
            ended = update(row_of).where(*mine).values(released_at=utc(now)).returning(row_of)
            row = connection.execute(ended).mappings().one_or_none()
        if row is None:
            raise UserError(f"no hold {hold_id} is in force; `logbus retention ls` lists them")
        return to_hold(row)

    def holds(self, now: datetime, topic: str | None = None) -> list[Hold]:
        """The holds in force."""
        with self.engine.connect() as connection:
            return holds_in_force(connection, now, topic)

    @contextmanager
    def only_run(self, run_id: str, now: datetime) -> Iterator[int]:
        """Yields a run's number, while no other run can begin. `UserError` if one is in progress."""
        with self.engine.connect() as lock:
            lock = lock.execution_options(isolation_level="AUTOCOMMIT")
            if not lock.execute(text("select pg_try_advisory_lock(:key)"), {"key": RUN_LOCK}).scalar_one():
                raise UserError("another retention run is under way: wait for it")
            try:
                yield self._begin_run(run_id, now)
            finally:
                lock.execute(text("select pg_advisory_unlock(:key)"), {"key": RUN_LOCK})

    def _begin_run(self, run_id: str, now: datetime) -> int:
        row_of = schema.retention_run
        with self.engine.begin() as connection:
            statement = insert(row_of).values(run_id=run_id, began_at=utc(now)).returning(row_of.c.id)
            number: int = connection.execute(statement).scalar_one()
            return number

    def end_run(self, number: int, alarms: Sequence[str], error: str | None, now: datetime) -> None:
        row_of = schema.retention_run
        values = {"ended_at": utc(now), "alarms": list(alarms), "error": error}
        with self.engine.begin() as connection:
            connection.execute(update(row_of).where(row_of.c.id == number).values(values))

    def intend(self, number: int, topic: str, decide: Callable[[Connection], TopicPlan]) -> TopicPlan:
        """Records the deletions that `decide` finds in the ledger as it is now; no hold, no policy and no window that they cut
        can change before they are recorded. `UserError`, with nothing recorded, if such a window changes at this moment."""
        with self.engine.begin() as connection:
            lock_topic(connection, topic)
            plan = decide(connection)
            if plan.deletions:
                refuse_changed(connection, plan.cut)
                connection.execute(insert(schema.retention_deletion), [deletion_values(number, one) for one in plan.deletions])
            return plan

    def under_way(self, topic: str) -> list[Deletion]:
        """What the last run is about to delete from the topic, has perhaps deleted, and has not recorded the outcome of."""
        row_of, run = schema.retention_deletion, schema.retention_run
        # Runs exclude each other: one that was killed, and never ended, deletes nothing any more once there is a later one.
        last = select(func.max(run.c.id)).scalar_subquery()
        query = select(*[row_of.c[name] for name in Deletion.__slots__]).join(run, run.c.id == row_of.c.run)
        query = query.order_by(row_of.c.partition)
        mine = (row_of.c.topic == topic, row_of.c.state == INTENDED, run.c.id == last, run.c.ended_at.is_(None))
        with self.engine.connect() as connection:
            return [Deletion(**row) for row in connection.execute(query.where(*mine)).mappings()]

    def settle(self, number: int, topic: str, starts: Mapping[int, int] | None, now: datetime) -> None:
        """Records the outcome of a topic's deletions; `starts` None if the broker did not answer."""
        row_of = schema.retention_deletion
        mine = (row_of.c.run == number, row_of.c.topic == topic)
        with self.engine.begin() as connection:
            if starts is None:
                connection.execute(update(row_of).where(*mine).values(state=UNKNOWN))
            for partition, start in (starts or {}).items():
                values = {"state": DELETED, "log_start_offset": start, "deleted_at": utc(now)}
                connection.execute(update(row_of).where(*mine, row_of.c.partition == partition).values(values))

    def deletions(self, limit: int) -> list[dict[str, Any]]:
        """The latest deletions, newest first, as JSON-ready values."""
        row_of, run = schema.retention_deletion, schema.retention_run
        query = select(row_of, run.c.run_id, run.c.began_at).join(run, run.c.id == row_of.c.run)
        query = query.order_by(row_of.c.run.desc(), row_of.c.topic, row_of.c.partition).limit(limit)
        with self.engine.connect() as connection:
            rows = connection.execute(query).mappings().all()
        return [
            {name: instant_text(value) if isinstance(value, datetime) else value for name, value in row.items()} for row in rows
        ]


def lock_topic(connection: Connection, topic: str) -> None:
    """Whoever decides about the topic's records waits for the others, until the transaction ends."""
    connection.execute(text("select pg_advisory_xact_lock(:key, hashtext(:topic))"), {"key": TOPIC_LOCK, "topic": topic})


def refuse_changed(connection: Connection, windows: Sequence[FrozenWindow]) -> None:
    """`UserError` unless the windows are as planned. They stay locked until the transaction ends: no attempt, redrive or rebase
    can change them before that."""
    row_of = schema.window
    names = ("id", "topic_id", "last_attempt", "loaded_attempt", "audited_at")
    query = select(*[row_of.c[name] for name in names]).where(schema.among(row_of.c.id, [one.id for one in windows]))
    rows = connection.execute(query.order_by(row_of.c.id).with_for_update()).all()
    if {tuple(row) for row in rows} != {tuple(getattr(one, name) for name in names) for one in windows}:
        raise UserError("a window changed, or an attempt at it began, while it was planned: the next run decides again")


def holds_in_force(connection: Connection, now: datetime, topic: str | None = None) -> list[Hold]:
    """Of the topic, or of all."""
    row_of = schema.retention_hold
    query = select(row_of).where(row_of.c.released_at.is_(None), or_(row_of.c.until.is_(None), row_of.c.until > utc(now)))
    if topic is not None:
        query = query.where(row_of.c.topic == topic)
    return [to_hold(row) for row in connection.execute(query.order_by(row_of.c.id)).mappings()]


def policies_by_topic(connection: Connection) -> dict[str, RetentionPolicy]:
    row_of = schema.retention_policy
    rows = connection.execute(select(row_of).order_by(row_of.c.topic)).mappings()
    return {row["topic"]: to_policy(row) for row in rows}


def to_policy(row: Row) -> RetentionPolicy:
    names = ("topic", "retain", "retain_bytes", "max_hold", "when_overdue")
    return RetentionPolicy(**{name: row[name] for name in names})


def to_hold(row: Row) -> Hold:
    return Hold(id=row["id"], topic=row["topic"], reason=row["reason"], made_at=row["made_at"], until=row["until"])


def deletion_values(number: int, deletion: Deletion) -> dict[str, Any]:
    return {"run": number, **asdict(deletion), "state": INTENDED}
