"""Running managed retention: read the ledger and the broker, plan each topic, delete, and record it all.

    plan   changes nothing anywhere
    run    one at a time; for each topic: decide and record the intention, DeleteRecords, record the outcome

The broker is asked first and the ledger read last, by a run in the transaction that records the intention: a hold, a policy, a
pipeline or an attempt that came while the broker was asked counts.

A topic that cannot be examined (deleted, broker unreachable) is an alarm; the other topics continue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Engine, delete, func, insert, or_, select, text, update
from sqlalchemy.dialects.postgresql import insert as insert_or_update

from logbus import errors, model
from logbus.kafka import client, topics
from logbus.loads.ledger import Ledger
from logbus.status.retention_plan import DELETE, Deletion, Hold, RetentionPolicy, TopicPlan, TopicState, plan_topic
from logbus.windows import pipeline_chains, schema
from logbus.windows.rows import Row, among, pipeline_rows

POLICY_CHANGED = "its policy was changed or removed while the topic was looked at: nothing is deleted, the next run decides"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionReport:
    """What was planned and, in a run, done. `number` is the run's number in the ledger; None for a plan."""

    plans: tuple[TopicPlan, ...]
    alarms: tuple[str, ...]
    number: int | None = None

    @property
    def records(self) -> int:
        return sum(plan.records for plan in self.plans)

    def summary(self) -> dict[str, Any]:
        """The report as JSON-ready values."""
        topics = [plan.summary() for plan in self.plans]
        return {"run": self.number, "records": self.records, "topics": topics, "alarms": list(self.alarms)}

    def metrics(self) -> list[str]:
        """Lines of Prometheus text, for a log that is scraped: what is held back and for how long."""
        labels = 'topic="{}",partition="{}",pipeline="{}"'
        return [
            f"logbus_retention_held_{name}{{{labels.format(plan.policy.topic, hold.partition, hold.pipeline)}}} {value:.0f}"
            for plan in self.plans
            for hold in plan.holds
            for name, value in (("records", hold.records), ("seconds", (hold.overdue or timedelta(0)).total_seconds()))
        ]


class RetentionRun:
    """The entry point. Nothing is kept in memory; the clock is passed in as `now`."""

    def __init__(self, engine: Engine, log: topics.LogAdmin) -> None:
        self.store = RetentionStore(engine)
        self.ledger = Ledger(engine)
        self.log = log

    def plan(self, now: datetime, topics: Sequence[str] | None = None) -> RetentionReport:
        """What a run would do now. `UserError` for a topic without a policy."""
        return self._each(self.store.policies(topics), lambda policy: self._plan(policy, now))

    def run(self, now: datetime, run_id: str, topics: Sequence[str] | None = None) -> RetentionReport:
        """Deletes what may be deleted. Alarms are in the report; `UserError` if another run is in progress."""
        policies = self.store.policies(topics)
        with self.store.only_run(run_id, now) as number:
            try:
                report = self._each(policies, lambda policy: self._delete(number, policy, now), number)
            except Exception as error:
                self.store.end_run(number, [], f"{type(error).__name__}: {error}", now)
                raise
            self.store.end_run(number, report.alarms, None, now)
            return report

    def adopt(self, topic: str, now: datetime) -> RetentionPolicy:
        """Converts the topic's own limits to a policy and sets them to "no limit" at the broker."""
        own = self.log.settings(topic, topics.LIMIT_SETTINGS)
        limits = topics.limits_in_force(own)
        if not topics.deletes(own):
            raise errors.UserError(
                f"topic {topic} is only compacted: the broker deletes nothing of it by age or size, so leave it to the broker"
            )
        if not limits:
            raise errors.UserError(
                f"topic {topic} has no limit of its own to adopt: `logbus retention set {topic} --hours N` sets one"
            )
        facts = self.log.topic(topic)
        if topic not in {pipeline.topic for pipeline in self.ledger.pipelines()}:
            raise errors.UserError(f"no pipeline reads topic {topic}, so no window says what may go: leave it to the broker")
        policy = RetentionPolicy(
            topic=topic,
            retain=topics.age_kept(own),
            retain_bytes=limits[topics.RETENTION_BYTES] * len(facts.partitions) if topics.RETENTION_BYTES in limits else None,
        )
        self.store.set_policy(policy, now, adopted={name: own[name] for name in limits})
        self.log.change_settings(topic, dict.fromkeys(limits, topics.NO_LIMIT))
        return policy

    def give_back(self, topic: str) -> dict[str, str]:
        """Restores the topic's own limits, if they were adopted, and deletes the policy."""
        own = self.store.remove_policy(topic)
        if own:
            self.log.change_settings(topic, own)
        return own

    def _each(self, policies: Iterable[RetentionPolicy], act: Any, number: int | None = None) -> RetentionReport:
        plans: list[TopicPlan] = []
        troubles: list[str] = []
        for policy in policies:
            try:
                plans.append(act(policy))
            except errors.LogbusError as error:
                troubles.append(f"topic {policy.topic}: {error}")
        alarms = [alarm for plan in plans for alarm in plan.alarms]
        return RetentionReport(plans=tuple(plans), alarms=(*alarms, *troubles), number=number)

    def _plan(self, policy: RetentionPolicy, now: datetime) -> TopicPlan:
        state = self._state(policy, now)
        with self.store.engine.connect() as connection:
            return self._decide(connection, policy, state, now)

    def _decide(self, connection: Connection, policy: RetentionPolicy, state: TopicState, now: datetime) -> TopicPlan:
        """The plan by what the ledger says in this transaction."""
        in_force = policies_by_topic(connection).get(policy.topic)
        if in_force != policy:
            return TopicPlan(policy=in_force or policy, notes=(POLICY_CHANGED,))
        rows = [row for row in pipeline_rows(connection) if row["topic"] == policy.topic]
        chains = [
            pipeline_chains.load_chain(connection, row, state.topic_id, pipeline_chains.is_settled_and_gone(state.starts))
            for row in rows
        ]
        return plan_topic(policy, state, chains, _holds_in_force(connection, now, policy.topic), now)

    def _state(self, policy: RetentionPolicy, now: datetime) -> TopicState:
        facts = self.log.topic(policy.topic)
        ends = self.log.end_offsets(facts.name, facts.partitions, client.LATEST)
        return TopicState(
            topic=facts.name,
            topic_id=facts.topic_id,
            starts=self.log.start_offsets(facts.name, facts.partitions),
            ends=ends,
            young=self._young(policy, facts, ends, now),
            settings=self.log.settings(facts.name, topics.LIMIT_SETTINGS),
        )

    def _young(self, policy: RetentionPolicy, facts: topics.TopicFacts, ends: Mapping[int, int], now: datetime) -> dict[int, int]:
        """By partition, the first record that the policy keeps because of its age."""
        if policy.retain is None:
            return {}
        records = self.log.first_at_or_after(facts.name, facts.partitions, model.milliseconds(now - policy.retain))
        return {partition: records[partition].offset if partition in records else end for partition, end in ends.items()}

    def _delete(self, number: int, policy: RetentionPolicy, now: datetime) -> TopicPlan:
        if policy.when_overdue == DELETE:
            self._freeze_overdue(policy, now)
        state = self._state(policy, now)
        plan = self.store.intend(number, policy.topic, lambda connection: self._decide(connection, policy, state, now))
        if not plan.deletions:
            return plan
        starts = None
        try:
            starts = self.log.delete_before(
                policy.topic, {deletion.partition: deletion.end_offset for deletion in plan.deletions}
            )
        finally:
            self.store.settle(number, policy.topic, starts, now)
        return plan

    def _freeze_overdue(self, policy: RetentionPolicy, now: datetime) -> None:
        """Hours that are about to be given up are frozen first, so that the ledger shows what each of them lost."""
        until = now - (policy.retain or timedelta(0)) - policy.max_hold
        for pipeline in [candidate for candidate in self.ledger.pipelines() if candidate.topic == policy.topic]:
            waiting = [gap for gap in self.ledger.gaps(pipeline.name, self.log, now) if not gap.is_frozen and not gap.is_empty]
            for interval in (part for gap in waiting for part in gap.parts(pipeline.grid)):
                if interval.end <= until:
                    self.ledger.freeze_or_get(pipeline.name, interval, self.log, now)


# What the ledger stores of managed retention: policies, holds, runs and deletions.
#
# A deletion is recorded before the request to the broker (`intended`), and again after it with the new log start offset
# (`deleted`): a crash in between leaves an intention, which the next run finds done or repeats; never a deletion without a
# record of it.
#
# An intention is decided in the transaction that records it, under a lock on the topic that holds and policies take too: a hold
# made before that transaction prevents the deletion, one made after it finds the intention recorded.


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
            "changed_at": now,
            **({} if adopted is None else {"adopted": dict(adopted)}),
        }
        statement = insert_or_update(schema.retention_policy).values(topic=policy.topic, **values)
        with self.engine.begin() as connection:
            lock_topic(connection, policy.topic)
            connection.execute(statement.on_conflict_do_update(index_elements=["topic"], set_=values))

    def policies(self, topics: Sequence[str] | None = None) -> list[RetentionPolicy]:
        """All policies, or those of some topics, each of which must have one."""
        with self.engine.connect() as connection:
            policies = policies_by_topic(connection)
        missing = [topic for topic in topics or () if topic not in policies]
        if missing:
            raise errors.UserError(
                f"nothing says how long topic {', '.join(missing)} is kept: `logbus retention adopt` takes over the topic's own "
                "limits, `logbus retention set` sets others"
            )
        return [policies[topic] for topic in (policies if topics is None else topics)]

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
        if until is not None and until <= now:
            raise errors.UserError(
                f"a hold until {model.instant_text(until)} would already be over: it is {model.instant_text(now)} now"
            )
        if not reason.strip():
            raise errors.UserError("a hold needs a reason, for whoever wonders in a year why nothing is deleted")
        row_of = schema.retention_hold
        values = {"topic": topic, "reason": reason, "until": until, "made_at": now}
        with self.engine.begin() as connection:
            lock_topic(connection, topic)
            row = connection.execute(insert(row_of).values(values).returning(row_of)).mappings().one()
            return _to_hold(row)

    def release(self, hold_id: int, now: datetime) -> Hold:
        """Ends a hold early."""
        row_of = schema.retention_hold
        condition = (row_of.c.id == hold_id, row_of.c.released_at.is_(None))
        with self.engine.begin() as connection:
            ended = update(row_of).where(*condition).values(released_at=now).returning(row_of)
            row = connection.execute(ended).mappings().one_or_none()
        if row is None:
            raise errors.UserError(f"no hold {hold_id} is in force; `logbus retention ls` lists them")
        return _to_hold(row)

    def holds(self, now: datetime, topic: str | None = None) -> list[Hold]:
        """The holds in force."""
        with self.engine.connect() as connection:
            return _holds_in_force(connection, now, topic)

    @contextmanager
    def only_run(self, run_id: str, now: datetime) -> Iterator[int]:
        """Yields a run's number, while no other run can begin. `UserError` if one is in progress."""
        with self.engine.connect() as lock:
            lock = lock.execution_options(isolation_level="AUTOCOMMIT")
            if not lock.execute(text("select pg_try_advisory_lock(:key)"), {"key": RUN_LOCK}).scalar_one():
                raise errors.UserError("another retention run is under way: wait for it")
            try:
                yield self._begin_run(run_id, now)
            finally:
                lock.execute(text("select pg_advisory_unlock(:key)"), {"key": RUN_LOCK})

    def _begin_run(self, run_id: str, now: datetime) -> int:
        row_of = schema.retention_run
        with self.engine.begin() as connection:
            statement = insert(row_of).values(run_id=run_id, began_at=now).returning(row_of.c.id)
            number: int = connection.execute(statement).scalar_one()
            return number

    def end_run(self, number: int, alarms: Sequence[str], error: str | None, now: datetime) -> None:
        row_of = schema.retention_run
        values = {"ended_at": now, "alarms": list(alarms), "error": error}
        with self.engine.begin() as connection:
            connection.execute(update(row_of).where(row_of.c.id == number).values(values))

    def intend(self, number: int, topic: str, decide: Callable[[Connection], TopicPlan]) -> TopicPlan:
        """Records the deletions that `decide` finds in the ledger as it is now; no hold, no policy and no window that they cut
        can change before they are recorded. `UserError`, with nothing recorded, if such a window changes at this moment."""
        with self.engine.begin() as connection:
            lock_topic(connection, topic)
            plan = decide(connection)
            if plan.deletions:
                validate_unchanged(connection, plan.cut)
                connection.execute(
                    insert(schema.retention_deletion), [_deletion_values(number, deletion) for deletion in plan.deletions]
                )
            return plan

    def under_way(self, topic: str) -> list[Deletion]:
        """What the last run is about to delete from the topic, has perhaps deleted, and has not recorded the outcome of."""
        row_of, run = schema.retention_deletion, schema.retention_run
        # Runs exclude each other: one that was killed, and never ended, deletes nothing any more once there is a later one.
        last = select(func.max(run.c.id)).scalar_subquery()
        query = select(*[row_of.c[name] for name in Deletion.__slots__]).join(run, run.c.id == row_of.c.run)
        query = query.order_by(row_of.c.partition)
        condition = (row_of.c.topic == topic, row_of.c.state == INTENDED, run.c.id == last, run.c.ended_at.is_(None))
        with self.engine.connect() as connection:
            return [Deletion(**row) for row in connection.execute(query.where(*condition)).mappings()]

    def settle(self, number: int, topic: str, starts: Mapping[int, int] | None, now: datetime) -> None:
        """Records the outcome of a topic's deletions; `starts` None if the broker did not answer."""
        row_of = schema.retention_deletion
        condition = (row_of.c.run == number, row_of.c.topic == topic)
        with self.engine.begin() as connection:
            if starts is None:
                connection.execute(update(row_of).where(*condition).values(state=UNKNOWN))
            for partition, start in (starts or {}).items():
                values = {"state": DELETED, "log_start_offset": start, "deleted_at": now}
                connection.execute(update(row_of).where(*condition, row_of.c.partition == partition).values(values))

    def deletions(self, limit: int) -> list[dict[str, Any]]:
        """The latest deletions, newest first, as JSON-ready values."""
        row_of, run = schema.retention_deletion, schema.retention_run
        query = select(row_of, run.c.run_id, run.c.began_at).join(run, run.c.id == row_of.c.run)
        query = query.order_by(row_of.c.run.desc(), row_of.c.topic, row_of.c.partition).limit(limit)
        with self.engine.connect() as connection:
            rows = connection.execute(query).mappings().all()
        return [
            {name: model.instant_text(value) if isinstance(value, datetime) else value for name, value in row.items()}
            for row in rows
        ]


def lock_topic(connection: Connection, topic: str) -> None:
    """Whoever decides about the topic's records waits for the others, until the transaction ends."""
    connection.execute(text("select pg_advisory_xact_lock(:key, hashtext(:topic))"), {"key": TOPIC_LOCK, "topic": topic})


def validate_unchanged(connection: Connection, windows: Sequence[model.FrozenWindow]) -> None:
    """`UserError` unless the windows are as planned. They stay locked until the transaction ends: no attempt, redrive or rebase
    can change them before that."""
    row_of = schema.window
    names = ("id", "topic_id", "last_attempt", "loaded_attempt", "audited_at")
    query = select(*[row_of.c[name] for name in names]).where(among(row_of.c.id, [window.id for window in windows]))
    rows = connection.execute(query.order_by(row_of.c.id).with_for_update()).all()
    if {tuple(row) for row in rows} != {tuple(getattr(window, name) for name in names) for window in windows}:
        raise errors.UserError("a window changed, or an attempt at it began, while it was planned: the next run decides again")


def _holds_in_force(connection: Connection, now: datetime, topic: str | None = None) -> list[Hold]:
    """Of the topic, or of all."""
    row_of = schema.retention_hold
    query = select(row_of).where(row_of.c.released_at.is_(None), or_(row_of.c.until.is_(None), row_of.c.until > now))
    if topic is not None:
        query = query.where(row_of.c.topic == topic)
    return [_to_hold(row) for row in connection.execute(query.order_by(row_of.c.id)).mappings()]


def policies_by_topic(connection: Connection) -> dict[str, RetentionPolicy]:
    row_of = schema.retention_policy
    rows = connection.execute(select(row_of).order_by(row_of.c.topic)).mappings()
    return {row["topic"]: _to_policy(row) for row in rows}


def _to_policy(row: Row) -> RetentionPolicy:
    names = ("topic", "retain", "retain_bytes", "max_hold", "when_overdue")
    return RetentionPolicy(**{name: row[name] for name in names})


def _to_hold(row: Row) -> Hold:
    return Hold(id=row["id"], topic=row["topic"], reason=row["reason"], made_at=row["made_at"], until=row["until"])


def _deletion_values(number: int, deletion: Deletion) -> dict[str, Any]:
    return {"run": number, **asdict(deletion), "state": INTENDED}
