"""`logbus retention`: how long topics are kept, what holds them back, what a run deletes and what it deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any

import click

from logbus import errors, waiting
from logbus.cli import options, output
from logbus.cli.topic import existing_topics
from logbus.formatting import many, several
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.status import retention_plan, retention_run

WINDOWS_SHOWN_MAX = 10  # of those that stop being replayable; --json names all
DELETIONS_NAMED_MAX = 5  # of those that had begun before a hold

# A broker deletes records within milliseconds. A run that was killed, or whose broker is down, ends later than anybody who makes
# a hold waits; the hold is in force already, and what is told is that the outcome is not known yet.
UNDER_WAY_SECONDS_MAX = 10.0
UNDER_WAY_PAUSE_SECONDS = 0.2

TOPICS_NAMED_MAX = 3  # where a hold is of one that the ledger does not know
NONE_MANAGED = (
    "no topic is managed: `logbus retention adopt TOPIC` takes over a topic's own limits, "
    "`logbus retention set TOPIC --hours N` gives it others"
)


@click.group("retention")
def command() -> None:
    """Managed retention: a record is deleted when its window is old enough AND every pipeline has loaded and audited it."""


topics_argument = click.argument("topics", nargs=-1, shell_complete=options.complete_topics)


def open_retention(warehouse_url: str, config: Mapping[str, Any]) -> retention_run.RetentionRun:
    client = Client.for_command(config)
    client.metadata()  # a broker that does not answer is one error, not one alarm for each topic
    return retention_run.RetentionRun(options.open_ledger(warehouse_url).engine, Topics(client))


@command.command("plan")
@topics_argument
@options.warehouse_option
@options.with_client
@options.json_option
def plan(topics: Sequence[str], warehouse_url: str, config: Mapping[str, Any], as_json: bool) -> None:
    """Show what a run would delete now from all managed topics or TOPICS, and which windows would no longer be replayable."""
    report = open_retention(warehouse_url, config).plan(options.clock(), list(topics) or None)
    tell(report, as_json)
    if report.plans:
        output.echo_err("nothing was deleted; `logbus retention run --execute` does it")
    fail_on_alarms(report)


@command.command("run")
@topics_argument
@options.warehouse_option
@options.with_client
@options.json_option
@options.execute_option
@click.option("--dry-run", is_flag=True, help="Only show it, as `plan` does; the default.")
def run(
    topics: Sequence[str], warehouse_url: str, config: Mapping[str, Any], as_json: bool, is_executed: bool, dry_run: bool
) -> None:
    """Delete what may be deleted; a dry run unless --execute.

    Exits with status 5 if a pipeline holds records back longer than it may, or records were lost.
    """
    if is_executed and dry_run:
        raise click.UsageError("--execute and --dry-run exclude each other")
    retention, chosen = open_retention(warehouse_url, config), list(topics) or None
    report = retention.run(options.clock(), "command line", chosen) if is_executed else retention.plan(options.clock(), chosen)
    tell(report, as_json)
    if report.plans and not is_executed:
        output.echo_err("dry run: nothing was deleted; --execute does it")
    fail_on_alarms(report)


@command.command("set")
@click.argument("topic", shell_complete=options.complete_topics)
@options.warehouse_option
@options.with_client
@click.option("--hours", type=options.Hours(), help="Keep windows that ended less than this long ago: 36, 36h or 7d.")
@click.option("--bytes", "retain_bytes", type=click.IntRange(min=0), help="Keep this many bytes of the newest records.")
@click.option("--max-hold-hours", type=options.Hours(), help="How long a pipeline may hold records back before an alarm.")
@click.option(
    "--when-overdue",
    type=click.Choice([retention_plan.ALARM, retention_plan.DELETE]),
    help="What to do then: only raise an alarm, or delete what is not loaded.",
)
def set_policy(
    topic: str,
    warehouse_url: str,
    config: Mapping[str, Any],
    hours: float | None,
    retain_bytes: int | None,
    max_hold_hours: float | None,
    when_overdue: str | None,
) -> None:
    """Set how long TOPIC is kept. What is not given stays as it is."""
    require_topic(topic, Client.for_question(config))
    store = retention_run.RetentionStore(options.open_ledger(warehouse_url).engine)
    before = next((policy for policy in store.policies() if policy.topic == topic), None)
    retain, max_hold = (None if count is None else timedelta(hours=count) for count in (hours, max_hold_hours))
    policy = retention_plan.RetentionPolicy(
        topic=topic,
        retain=retain if before is None or retain is not None else before.retain,
        retain_bytes=retain_bytes if before is None or retain_bytes is not None else before.retain_bytes,
        max_hold=max_hold if max_hold is not None else before.max_hold if before else retention_plan.MAX_HOLD_DEFAULT,
        when_overdue=when_overdue or (before.when_overdue if before else retention_plan.ALARM),
    )
    store.set_policy(policy, options.clock())
    output.echo(policy_text(policy))


def require_topic(topic: str, client: Client) -> None:
    """`TopicMissing`, if the broker can be asked: a mistyped name would be managed forever, and every run would fail."""
    try:
        existing_topics(client, [topic])
    except errors.BrokerUnavailable as error:
        output.echo_err(f"note: not checked whether the topic exists: {error}")


@command.command("adopt")
@click.argument("topic", shell_complete=options.complete_topics)
@options.warehouse_option
@options.with_client
def adopt(topic: str, warehouse_url: str, config: Mapping[str, Any]) -> None:
    """Take over TOPIC's own retention.ms and retention.bytes, and set them to -1, so that the broker itself deletes nothing."""
    policy = open_retention(warehouse_url, config).adopt(topic, options.clock())
    output.echo(policy_text(policy))
    then = "schedule `logbus retention run --execute`, or dags/retention.py"
    output.echo(f"the broker no longer deletes anything from {topic} on its own: {then}")


@command.command("give-back")
@click.argument("topic", shell_complete=options.complete_topics)
@options.warehouse_option
@options.with_client
def give_back(topic: str, warehouse_url: str, config: Mapping[str, Any]) -> None:
    """Leave TOPIC to the broker again, with the limits it had when it was adopted."""
    own = open_retention(warehouse_url, config).give_back(topic)
    settings = ", ".join(f"{name}={value}" for name, value in own.items()) or "its own limits, which were never changed"
    output.echo(f"topic {topic} is the broker's again, with {settings}")


@command.command("hold")
@click.argument("topic", shell_complete=options.complete_topics)
@options.warehouse_option
@click.option("--reason", required=True, help="Why; kept with the hold.")
@click.option("--until", type=options.Instant(), help="When it ends; by default when it is released.")
def hold(topic: str, warehouse_url: str, reason: str, until: datetime | None) -> None:
    """Delete nothing from TOPIC until the hold ends. Waits a moment for a deletion that had begun before it."""
    ledger = options.open_ledger(warehouse_url)
    store = retention_run.RetentionStore(ledger.engine)
    new_hold = store.hold(topic, reason, until, options.clock())
    output.echo(f"topic {topic}: {new_hold}")
    tell_under_way(store, topic)
    managed, read = {policy.topic for policy in store.policies()}, {pipeline.topic for pipeline in ledger.pipelines()}
    # Checked in the ledger, not at the broker: in an emergency a hold has to succeed while the broker is down, too.
    if topic in read - managed:
        output.echo_err(
            f"note: topic {topic} is not managed, so the broker still deletes by the topic's own limits: "
            f"`logbus retention adopt {topic}` takes them over"
        )
    elif topic not in managed:
        topics = sorted(managed | read)
        output.echo_err(
            f"note: topic {topic} is not managed and no pipeline in the ledger reads it, so this hold has no effect; topics it "
            f"knows: {several(get_close_matches(topic, topics) or topics, TOPICS_NAMED_MAX) or 'none'}. If the name is mistyped, "
            f"`logbus retention release {new_hold.id}` removes the hold"
        )


def tell_under_way(store: retention_run.RetentionStore, topic: str) -> None:
    """What a run was deleting when the hold was made, after it has ended that; the hold itself is in force already."""
    began = store.under_way(topic)
    left = began and not has_ended(store, topic)
    if began:
        places = several(
            [f"partition {deletion.partition} up to offset {deletion.end_offset}" for deletion in began], DELETIONS_NAMED_MAX
        )
        what = "it has not recorded the outcome yet" if left else "it has finished, and deletes nothing more"
        output.echo_err(
            f"note: when the hold was made, a run had already begun to delete {places}; {what}: `logbus retention log`"
        )


def has_ended(store: retention_run.RetentionStore, topic: str) -> bool:
    try:
        return waiting.wait_until(
            lambda: not store.under_way(topic),
            what=f"the deletion of records of topic {topic}",
            timeout_seconds=UNDER_WAY_SECONDS_MAX,
            poll_seconds=UNDER_WAY_PAUSE_SECONDS,
        )
    except errors.NotInTime:
        return False


@command.command("release")
@click.argument("new_hold", type=int)
@options.warehouse_option
def release(new_hold: int, warehouse_url: str) -> None:
    """End the hold with this number."""
    ended = retention_run.RetentionStore(options.open_ledger(warehouse_url).engine).release(new_hold, options.clock())
    output.echo(f"topic {ended.topic}: released hold {ended.id} ({ended.reason})")


@command.command("ls")
@options.warehouse_option
@options.json_option
def list_policies(warehouse_url: str, as_json: bool) -> None:
    """List the managed topics, those of pipelines that are not, and the holds in force."""
    ledger = options.open_ledger(warehouse_url)
    store = retention_run.RetentionStore(ledger.engine)
    policies, holds = store.policies(), store.holds(options.clock())
    managed = {policy.topic for policy in policies}
    unmanaged = sorted({pipeline.topic for pipeline in ledger.pipelines()} - managed)
    if as_json:
        topics = [policy_json(policy) for policy in policies]
        output.show_json({"topics": topics, "unmanaged": unmanaged, "holds": [str(topic_hold) for topic_hold in holds]})
        return
    table = output.Table("topic", "keeps", "held back at most", "then", "holds")
    for policy in policies:
        own_holds = "; ".join(str(topic_hold) for topic_hold in holds if topic_hold.topic == policy.topic)
        table.add_row(
            policy.topic, str(policy), retention_plan.hours_text(policy.max_hold), policy.when_overdue, own_holds or "-"
        )
    output.show(table)
    for topic in unmanaged:
        advice = f"`logbus retention adopt {topic}`, or `set` if it has no limit"
        output.echo(f"topic {topic} is left to the broker, which deletes records whether they are loaded or not: {advice}")
    for topic_hold in (topic_hold for topic_hold in holds if topic_hold.topic not in managed):
        output.echo(f"topic {topic_hold.topic}: {topic_hold}; it is not managed, so the broker deletes by the topic's own limits")


@command.command("log")
@options.warehouse_option
@options.json_option
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="At most this many deletions.")
def log(warehouse_url: str, as_json: bool, limit: int) -> None:
    """List what was deleted, newest first."""
    deletions = retention_run.RetentionStore(options.open_ledger(warehouse_url).engine).deletions(limit)
    if as_json:
        output.show_json(deletions)
        return
    names = ("began_at", "run_id", "topic", "partition", "start_offset", "end_offset", "state", "reason")
    table = output.Table("run", "by", "topic", "partition", "from", "to", "state", "why")
    for deletion in deletions:
        table.add_row(*(str(deletion[name]) for name in names))
    output.show(table)


def policy_json(policy: retention_plan.RetentionPolicy) -> dict[str, Any]:
    return {
        "topic": policy.topic,
        "retain_hours": None if policy.retain is None else policy.retain / timedelta(hours=1),
        "retain_bytes": policy.retain_bytes,
        "max_hold_hours": policy.max_hold / timedelta(hours=1),
        "when_overdue": policy.when_overdue,
    }


def policy_text(policy: retention_plan.RetentionPolicy) -> str:
    then = (
        "that is an alarm" if policy.when_overdue == retention_plan.ALARM else "it is deleted unloaded, once its hour is frozen"
    )
    hold = retention_plan.hours_text(policy.max_hold)
    return f"topic {policy.topic} keeps {policy}; what is not loaded is held back; after {hold}, {then}"


def tell(report: retention_run.RetentionReport, as_json: bool) -> None:
    """Prints the report. That no topic is managed is only a message, not a failure: there was nothing to do."""
    if not report.plans and not report.alarms:
        output.echo_err(NONE_MANAGED)
    if as_json:
        output.show_json(report.summary())
        return
    for topic_plan in report.plans:
        policy, verb = topic_plan.policy, "goes" if topic_plan.records == 1 else "go"
        output.echo(f"{policy.topic}: keeps {policy}; {many(topic_plan.records, 'record')} {verb}")
        output.show(plan_table(topic_plan))
        for line in remarks(topic_plan):
            output.echo(f"  {line}")


def plan_table(plan: retention_plan.TopicPlan) -> output.Table:
    table = output.Table("partition", "delete from", "up to", "records")
    for deletion in plan.deletions:
        table.add_row(str(deletion.partition), str(deletion.start_offset), str(deletion.end_offset), str(deletion.records))
    return table


def remarks(plan: retention_plan.TopicPlan) -> list[str]:
    """The parts of a plan that are not numbers: held back, no longer replayable, given up, noted."""
    lines = [str(hold) for hold in plan.holds]
    if plan.unreplayable:
        names = [retention_plan.window_name(window) for window in plan.unreplayable]
        shown = several(names, WINDOWS_SHOWN_MAX)
        lines.append(f"no longer replayable: {many(len(names), 'window')}, {plan.bytes:,} bytes: {shown}")
    lines += [f"given up unloaded: {retention_plan.window_name(window)}" for window in plan.given_up]
    return [*lines, *plan.notes]


def fail_on_alarms(report: retention_run.RetentionReport) -> None:
    if report.alarms:
        raise errors.RetentionOverdue("\n".join(report.alarms))
