"""Running managed retention: read the ledger and the broker, plan each topic, delete, and record it all.

    plan   changes nothing anywhere
    run    one at a time; for each topic: decide and record the intention, DeleteRecords, record the outcome

The broker is asked first and the ledger read last, by a run in the transaction that records the intention: a hold, a policy, a
pipeline or an attempt that came while the broker was asked counts.

A topic that cannot be examined (deleted, broker unreachable) is an alarm; the other topics continue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Engine

from logbus.errors import LogbusError, UserError
from logbus.kafka.client import LATEST
from logbus.kafka.own_limits import LIMIT_SETTINGS, NO_LIMIT, RETENTION_BYTES, age_kept, deletes, limits_in_force
from logbus.kafka.topics import LogAdmin, TopicFacts
from logbus.ledger.chain_loading import is_settled_and_gone, load_chain
from logbus.ledger.ledger import Ledger
from logbus.ledger.rows import pipeline_rows
from logbus.model import milliseconds, utc
from logbus.retention.decide import plan_topic
from logbus.retention.model import DELETE, Held, RetentionPolicy, TopicPlan, TopicState
from logbus.retention.store import RetentionStore, holds_in_force, policies_by_topic

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
        return [
            f"logbus_retention_held_{name}{labels(plan.policy.topic, one)} {value:.0f}"
            for plan in self.plans
            for one in plan.held
            for name, value in (("records", one.records), ("seconds", (one.overdue or timedelta(0)).total_seconds()))
        ]


def labels(topic: str, held: Held) -> str:
    return f'{{topic="{topic}",partition="{held.partition}",pipeline="{held.pipeline}"}}'


class RetentionRun:
    """The entry point. Nothing is kept in memory; the clock is passed in as `now`."""

    def __init__(self, engine: Engine, log: LogAdmin) -> None:
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
        own = self.log.settings(topic, LIMIT_SETTINGS)
        limits = limits_in_force(own)
        if not deletes(own):
            raise UserError(
                f"topic {topic} is only compacted: the broker deletes nothing of it by age or size, so leave it to the broker"
            )
        if not limits:
            raise UserError(f"topic {topic} has no limit of its own to adopt: `logbus retention set {topic} --hours N` sets one")
        facts = self.log.topic(topic)
        if topic not in {pipeline.topic for pipeline in self.ledger.pipelines()}:
            raise UserError(f"no pipeline reads topic {topic}, so no window says what may go: leave it to the broker")
        policy = RetentionPolicy(
            topic=topic,
            retain=age_kept(own),
            retain_bytes=limits[RETENTION_BYTES] * len(facts.partitions) if RETENTION_BYTES in limits else None,
        )
        self.store.set_policy(policy, now, adopted={name: own[name] for name in limits})
        self.log.change_settings(topic, dict.fromkeys(limits, NO_LIMIT))
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
            except LogbusError as error:
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
        chains = [load_chain(connection, row, state.topic_id, is_settled_and_gone(state.starts)) for row in rows]
        return plan_topic(policy, state, chains, holds_in_force(connection, now, policy.topic), utc(now))

    def _state(self, policy: RetentionPolicy, now: datetime) -> TopicState:
        facts = self.log.topic(policy.topic)
        ends = self.log.end_offsets(facts.name, facts.partitions, LATEST)
        return TopicState(
            topic=facts.name,
            topic_id=facts.topic_id,
            starts=self.log.start_offsets(facts.name, facts.partitions),
            ends=ends,
            young=self._young(policy, facts, ends, now),
            settings=self.log.settings(facts.name, LIMIT_SETTINGS),
        )

    def _young(self, policy: RetentionPolicy, facts: TopicFacts, ends: Mapping[int, int], now: datetime) -> dict[int, int]:
        """By partition, the first record that the policy keeps because of its age."""
        if policy.retain is None:
            return {}
        found = self.log.first_at_or_after(facts.name, facts.partitions, milliseconds(utc(now) - policy.retain))
        return {partition: found[partition].offset if partition in found else end for partition, end in ends.items()}

    def _delete(self, number: int, policy: RetentionPolicy, now: datetime) -> TopicPlan:
        if policy.when_overdue == DELETE:
            self._freeze_overdue(policy, now)
        state = self._state(policy, now)
        plan = self.store.intend(number, policy.topic, lambda connection: self._decide(connection, policy, state, now))
        if not plan.deletions:
            return plan
        starts = None
        try:
            starts = self.log.delete_before(policy.topic, {one.partition: one.end_offset for one in plan.deletions})
        finally:
            self.store.settle(number, policy.topic, starts, now)
        return plan

    def _freeze_overdue(self, policy: RetentionPolicy, now: datetime) -> None:
        """Hours that are about to be given up are frozen first, so that the ledger shows what each of them lost."""
        until = utc(now) - (policy.retain or timedelta(0)) - policy.max_hold
        for pipeline in [one for one in self.ledger.pipelines() if one.topic == policy.topic]:
            waiting = [gap for gap in self.ledger.gaps(pipeline.name, self.log, now) if not gap.is_frozen and not gap.is_empty]
            for interval in (part for gap in waiting for part in gap.parts(pipeline.interval)):
                if interval.end <= until:
                    self.ledger.freeze_or_get(pipeline.name, interval, self.log, now)
