"""`logbus cluster`: brokers, leaders, what is wrong, and where replicas are moved, for any Kafka cluster; `plan`, `move` and
`drain` take replicas to other brokers, in kafka-reassign-partitions' file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from logbus import errors, waiting
from logbus.cli import monitoring, options, output, topic
from logbus.formatting import many, several
from logbus.kafka import client, cluster
from logbus.kafka.client import Client, PartitionId
from logbus.kafka.reassignments import ReassignmentFile, Reassignments
from logbus.status import checks, cluster_checks, replica_moves
from logbus.status.replica_moves import Assignment, ChangedReplicas

NAMED_MAX = 5
SIZE_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
RATE_MAX = 10**15  # faster than any disk, and an integer of Kafka's
SHOWN_BYTES = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


class BytesPerSecond(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """Bytes a second, as a number or with a unit: `52428800`, `50MB`, `50MiB/s`."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*?)(?:/s)?", value.strip().lower())
        if match is not None and match[2] in SIZE_UNITS and 1 <= (rate := float(match[1]) * SIZE_UNITS[match[2]]) <= RATE_MAX:
            return int(rate)
        self.fail(f"{value!r} is not a number of bytes a second; write it like 50MB or 52428800", param, ctx)


class BrokerIds(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """`1,2,3`."""

    name = "ids"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        if not re.fullmatch(r"\d+(,\d+)*", value):
            self.fail(f"{value!r} names no brokers; write their ids like 1,2,3", param, ctx)
        return tuple(dict.fromkeys(map(int, value.split(","))))


def of_plans(function: Callable[..., None]) -> Callable[..., None]:
    """Which brokers and topics a plan is for."""
    brokers = click.option(
        "--brokers", type=BrokerIds(), metavar="1,2,3", help="Who is to have replicas; by default all brokers that are there."
    )
    topics = click.option(
        "--topic",
        "topics",
        multiple=True,
        metavar="NAME",
        shell_complete=options.complete_topics,
        help="Only this topic; may be repeated.",
    )
    return brokers(topics(function))


throttle_option: options.Decorator = click.option(
    "--throttle",
    "rate",
    type=BytesPerSecond(),
    metavar="50MB",
    help="Bytes a second that each broker copies at most; by default no limit.",
)
wait_option: options.Decorator = click.option(
    "--wait", "is_watched", is_flag=True, help="Show the bytes left until the end. Ctrl-C ends the watching, not the move."
)


def opened(config: Mapping[str, Any]) -> Reassignments:
    return Reassignments(Client.for_question(config))


@click.command("plan")
@of_plans
@throttle_option
@click.option(
    "--out", "path", type=click.Path(path_type=Path, dir_okay=False), help="Write it here, as kafka-reassign-partitions reads it."
)
@options.with_broker
@options.json_option
def plan(
    brokers: Sequence[int] | None,
    topics: Sequence[str],
    rate: int | None,
    path: Path | None,
    config: Mapping[str, Any],
    as_json: bool,
) -> None:
    """Propose how to level replicas and leaders over brokers and racks, moving as little as possible. Changes nothing."""
    facts = opened(config).facts(topics)
    on_disk = sizes(facts)
    planned = replica_moves.changes(facts, replica_moves.proposal(facts, brokers, topics, on_disk), on_disk)
    replica_moves.validate(facts, planned)
    if path is not None and planned:
        path.write_text(file_of(planned).to_json() + "\n")
    show_planned(facts, planned, rate, as_json, is_executed=False)
    if not planned:
        output.echo_err("nothing to move: replicas and leaders are level")
    elif path is not None:
        output.echo_err(f"written to {path}: `logbus cluster move {path} --execute` does it")


@click.command("move")
@click.argument("path", metavar="[FILE]", required=False, type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--from-plan", "is_planned", is_flag=True, help="Move what `logbus cluster plan` proposes now.")
@of_plans
@throttle_option
@click.option("--cancel", "is_cancelled", is_flag=True, help="Return what is moving to the replicas that it had.")
@options.execute_option
@wait_option
@options.with_broker
@options.json_option
def move(
    path: Path | None,
    is_planned: bool,
    brokers: Sequence[int] | None,
    topics: Sequence[str],
    rate: int | None,
    is_cancelled: bool,
    is_executed: bool,
    is_watched: bool,
    config: Mapping[str, Any],
    as_json: bool,
) -> None:
    """Move replicas as FILE says, one of kafka-reassign-partitions, or as a plan does. A dry run unless --execute.

    Without a FILE and a plan it looks on at what is moving. At the end the throttle is removed and preferred leaders are elected:
    by this command with --wait, else by running it again.
    """
    if path is not None and is_planned:
        raise click.UsageError("either a FILE or --from-plan")
    if (brokers or topics) and not is_planned:
        raise click.UsageError("--brokers and --topic belong to --from-plan")
    cluster_moves = opened(config)
    targets: Assignment = {} if path is None else ReassignmentFile.from_json(path.read_text(errors="replace")).targets
    facts = cluster_moves.facts(topics or {topic for topic, _ in targets})
    if is_planned:
        targets = replica_moves.proposal(facts, brokers, topics, sizes(facts))
    raise_if_unknown(facts, targets)
    if is_cancelled:
        cancel(cluster_moves, facts, targets, is_executed)
        return
    planned = replica_moves.changes(facts, targets, sizes(facts))
    replica_moves.validate(facts, planned)
    show_planned(facts, planned, rate, as_json, is_executed=is_executed)
    scope = tuple(targets)
    if not is_executed:
        show_progress(replica_moves.progress(facts, scope))
        output.echo_err("dry run: nothing was moved; --execute does it")
        return
    if planned or rate is not None:
        replica_moves.ReplicaMoves(cluster_moves).begin(facts, {part.partition_id: part.after for part in planned}, rate)
    finish(cluster_moves, scope, is_watched)


@click.command("drain")
@click.argument("broker", type=click.IntRange(0))
@throttle_option
@options.execute_option
@wait_option
@options.with_broker
@options.json_option
def drain(broker: int, rate: int | None, is_executed: bool, is_watched: bool, config: Mapping[str, Any], as_json: bool) -> None:
    """Take all leads, then all replicas away from BROKER, so that it can be removed. A dry run unless --execute.

    Other replicas stay where they are. Refused if too few brokers would be left, or too few replicas in sync.
    """
    cluster_moves = opened(config)
    facts = cluster_moves.facts()
    topics = {part.topic for part in facts.partitions if broker in part.replicas}
    facts = cluster_moves.facts(topics)
    planned = replica_moves.changes(facts, replica_moves.drainage(facts, broker), sizes(facts))
    replica_moves.validate(facts, planned)
    show_planned(facts, planned, rate, as_json, is_executed=is_executed)
    scope = tuple(part.partition_id for part in facts.partitions if broker in part.replicas)
    if not is_executed:
        show_progress(replica_moves.progress(facts, scope))
        output.echo_err("dry run: nothing was moved; --execute does it")
        return
    moves = replica_moves.ReplicaMoves(cluster_moves)
    for key, why in moves.give_leads_away(facts, broker).items():
        output.echo_err(f"{replica_moves.name_of(key)}: broker {broker} leads it until it has moved: {why}")
    if planned or rate is not None:
        moves.begin(facts, {part.partition_id: part.after for part in planned}, rate)
    finish(cluster_moves, scope, is_watched)
    facts = cluster_moves.facts()
    left = sum(broker in part.replicas for part in facts.partitions)
    if left:
        output.echo_err(f"broker {broker} has {many(left, 'replica')} left: the same command looks on")
    elif broker not in (live.broker_id for live in facts.brokers):
        output.echo_err(f"broker {broker} is gone, and nothing is missing without it")
    else:
        output.echo_err(
            f"broker {broker} has no replica any more. Stop it now (SIGTERM): as long as it runs, new topics may be placed on "
            "it. Then take its address out of the clients' bootstrap.servers; its data directory can be deleted"
        )


# What the commands share


def sizes(facts: cluster.ClusterFacts) -> Mapping[PartitionId, int]:
    return cluster.partition_bytes(list(facts.directories))


def raise_if_unknown(facts: cluster.ClusterFacts, targets: Assignment) -> None:
    existing = {part.partition_id for part in facts.partitions}
    unknown = [replica_moves.name_of(key) for key in targets if key not in existing]
    if unknown:
        raise errors.UserError(f"the cluster has no partition {several(unknown, NAMED_MAX)}: leave it out of the file")


def cancel(cluster_moves: Reassignments, facts: cluster.ClusterFacts, targets: Assignment, is_executed: bool) -> None:
    moving = [part.partition_id for part in facts.moving if not targets or part.partition_id in targets]
    names = several([replica_moves.name_of(key) for key in moving], NAMED_MAX)
    if not moving:
        output.echo_err("nothing is moving")
    if not is_executed:
        output.echo_err(f"dry run: {many(len(moving), 'move')} would be cancelled; --execute does it")
        return
    if moving:
        replica_moves.ReplicaMoves(cluster_moves).cancel(moving)
        output.echo(f"cancelled: {names}")
    finish(cluster_moves, tuple(moving), is_watched=bool(moving))


def finish(cluster_moves: Reassignments, scope: Sequence[PartitionId], is_watched: bool) -> None:
    """Look on if that is wanted, and clean up if there is nothing left to look at."""
    moves = replica_moves.ReplicaMoves(cluster_moves, say=waiting.on_stderr)
    if is_watched:
        moves.watch(changes_only(), scope)
    cleared = moves.clear(scope)
    if cleared is None:
        show_progress(replica_moves.progress(cluster_moves.facts(), scope))
        output.echo_err("moving: `logbus cluster move --execute --wait` looks on, and removes the throttle at the end")
        return
    for key, why in cleared.other_leaders.items():
        output.echo_err(f"{replica_moves.name_of(key)} keeps its leader for now: {why}")
    if cleared.throttles:
        brokers, topics = many(len(cleared.throttles.brokers), "broker"), many(len(cleared.throttles.topics), "topic")
        output.echo_err(f"throttle removed: {brokers}, {topics}")
    output.echo_err("done" if scope else "nothing is moving")


def changes_only() -> Callable[[replica_moves.MoveProgress], None]:
    """Shows progress where it is another than the last."""
    last: list[tuple[int, int, int | None]] = []

    def show(now: replica_moves.MoveProgress) -> None:
        figures = (len(now.moving), now.replicas_left, now.bytes_left)
        if last != [figures]:
            last[:] = [figures]
            show_progress(now)

    return show


def show_progress(now: replica_moves.MoveProgress) -> None:
    if now.moving:
        left = "" if now.bytes_left is None else f", {shown_bytes(now.bytes_left)} left"
        output.echo_err(f"moving: {many(len(now.moving), 'partition')}, {many(now.replicas_left, 'replica')} to copy{left}")


def file_of(planned: Sequence[ChangedReplicas]) -> ReassignmentFile:
    return ReassignmentFile(targets={part.partition_id: part.after for part in planned})


def show_planned(
    facts: cluster.ClusterFacts, planned: Sequence[ChangedReplicas], rate: int | None, as_json: bool, *, is_executed: bool
) -> None:
    """What changes by partition, what that means for each broker, and how long it takes."""
    of_brokers = replica_moves.shares(facts, planned)
    has_sizes = bool(facts.directories)
    seconds = replica_moves.seconds_at(rate, of_brokers) if rate is not None and has_sizes else None
    if as_json:
        output.show_json(
            {
                "executed": is_executed,
                "partitions": [plan_summary(part) for part in planned],
                "brokers": [share_summary(share, has_sizes) for share in of_brokers],
                "seconds": seconds,
            }
        )
        return
    if planned:
        output.show(plan_table(planned))
        output.show(share_table(of_brokers, has_sizes))
        if seconds is not None:
            output.echo_err(f"at {shown_bytes(rate or 0)} a second at each broker: {shown_seconds(seconds)}")


def plan_table(planned: Sequence[ChangedReplicas]) -> output.Table:
    table = output.Table("partition", "replicas", "to", "bytes to copy", numbers_from=3)
    for part in planned:
        copied = "-" if part.size_bytes is None else shown_bytes(part.size_bytes * len(part.added))
        table.add_row(replica_moves.name_of(part.partition_id), replica_ids(part.before), replica_ids(part.after), copied)
    return table


def share_table(of_brokers: Sequence[replica_moves.BrokerShare], has_sizes: bool) -> output.Table:
    table = output.Table("broker", "replicas", "leads", "bytes in", "bytes out", numbers_from=1)
    for share in of_brokers:
        copied = [shown_bytes(count) if has_sizes else "-" for count in (share.bytes_in, share.bytes_out)]
        table.add_row(str(share.broker_id), arrow(share.replicas), arrow(share.leads), *copied)
    return table


def plan_summary(part: ChangedReplicas) -> dict[str, Any]:
    return {
        "topic": part.topic,
        "partition": part.partition,
        "before": list(part.before),
        "after": list(part.after),
        "size_bytes": part.size_bytes,
    }


def share_summary(share: replica_moves.BrokerShare, has_sizes: bool) -> dict[str, Any]:
    return {
        "broker": share.broker_id,
        "replicas": list(share.replicas),
        "leads": list(share.leads),
        "bytes_in": share.bytes_in if has_sizes else None,
        "bytes_out": share.bytes_out if has_sizes else None,
    }


def replica_ids(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers))


def arrow(counts: tuple[int, int]) -> str:
    return str(counts[0]) if counts[0] == counts[1] else f"{counts[0]} -> {counts[1]}"


def shown_bytes(count: int) -> str:
    return next((f"{count / size:.1f} {unit}" for size, unit in SHOWN_BYTES if count >= size), f"{count} B")


def shown_seconds(seconds: float) -> str:
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


# `logbus cluster`: brokers, leaders, what is wrong, and where replicas are moved, for any Kafka cluster.


SHOW = "show"


class ShowingGroup(click.Group):
    """`logbus cluster` alone, or with options, is `logbus cluster show`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_named = bool(args) and (args[0] in self.commands or not args[0].startswith("-") or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if is_named else [SHOW, *args])


@click.group("cluster", cls=ShowingGroup)
def command() -> None:
    """Brokers and their replicas: show them, say whether all is well, move replicas, empty a broker. Alone it is show."""


for subcommand in (plan, move, drain):
    command.add_command(subcommand)


@command.command(SHOW)
@click.option("--all", "shows_all", is_flag=True, help="Every partition, not only those with a replica out of sync or moving.")
@options.with_broker
@options.json_option
def show(config: Mapping[str, Any], shows_all: bool, as_json: bool) -> None:
    """Show brokers, the controller, and partitions that are offline, under-replicated or moving.

    Exits with status 5 if a broker or the controller is missing, or a partition has no leader, or a replica that is not in sync.
    """
    facts = cluster.cluster_facts(client.Client.for_question(config))
    reading = cluster_checks.ClusterReading(facts=facts)
    findings = list(cluster_checks.cluster_findings(reading, without=("disk",)))
    if as_json:
        output.show_json(summary(facts, findings))
    else:
        output.show(broker_table(facts))
        rows = facts.partitions if shows_all else [partition for partition in facts.partitions if is_noteworthy(partition)]
        if rows:
            output.show(partition_table(rows))
        output.echo_err(
            f"cluster {topic.text(facts.cluster_id)}: {many(len(facts.brokers), 'broker')}, "
            f"{many(len(facts.partitions), 'partition')}"
        )
    for finding in findings:
        output.echo_err(f"{finding.severity}: {finding.message}")
        output.echo_err(f"    {finding.advice}")
    cluster_checks.raise_if_unwell(reading, findings)


@command.command("health")
@options.with_broker
@options.json_option
def health(config: Mapping[str, Any], as_json: bool) -> None:
    """One line for each matter: controller, brokers, leaders, acks=all, ZooKeeper, disks, throttles left behind, and more.

    Exits with status 5 if a line is an error, or a replica is not in sync; so a script waits with it between two restarts.
    """
    reading = cluster_checks.read_cluster(client.Client.for_question(config))
    findings = cluster_checks.by_matter(reading)
    monitoring.tell_findings(findings, as_json)
    cluster_checks.raise_if_unwell(reading, findings)


def is_noteworthy(partition: cluster.PartitionReplicas) -> bool:
    return partition.is_offline or partition.is_under_replicated or partition.is_moving


def broker_table(facts: cluster.ClusterFacts) -> output.Table:
    table = output.Table(
        "broker", "address", "rack", "controller", "replicas", "leads", "out of sync", "disk free", numbers_from=4
    )
    free = {directory.broker_id: directory.usable_share for directory in facts.directories}
    rows = [(broker.broker_id, f"{broker.host}:{broker.port}", broker.rack) for broker in facts.brokers]
    for broker_id, address, rack in sorted([*rows, *((broker_id, "gone", None) for broker_id in facts.gone)]):
        is_controller = "yes" if broker_id == facts.controller else ""
        share = free.get(broker_id)
        counts = map(str, facts.counts(broker_id))
        room = "-" if share is None else f"{share:.0%}"
        table.add_row(str(broker_id), address, topic.text(rack), is_controller, *counts, room)
    return table


def partition_table(rows: Iterable[cluster.PartitionReplicas]) -> output.Table:
    table = output.Table("topic", "partition", "leader", "replicas", "isr", "offline", "eligible", "adding", "removing")
    for partition in rows:
        lists = (
            partition.replicas,
            partition.in_sync,
            partition.offline,
            partition.eligible,
            partition.adding,
            partition.removing,
        )
        table.add_row(partition.topic, str(partition.partition), topic.text(partition.leader), *map(ids, lists))
    return table


def ids(brokers: Sequence[int] | None) -> str:
    return "-" if brokers is None else ",".join(map(str, brokers))


def summary(facts: cluster.ClusterFacts, findings: Sequence[checks.Finding]) -> dict[str, Any]:
    """As JSON-ready values; every partition."""
    brokers = []
    for broker in facts.brokers:
        replicas, leads, behind = facts.counts(broker.broker_id)
        brokers.append(
            {
                "broker": broker.broker_id,
                "host": broker.host,
                "port": broker.port,
                "rack": broker.rack,
                "is_controller": broker.broker_id == facts.controller,
                "replicas": replicas,
                "leads": leads,
                "out_of_sync": behind,
            }
        )
    return {
        "cluster_id": facts.cluster_id,
        "controller": facts.controller,
        "brokers": brokers,
        "gone": facts.gone,
        "findings": [finding.summary() for finding in findings],
        "offline": len(facts.offline),
        "below_min_insync": len(facts.below_insync_min),
        "under_replicated": len(facts.under_replicated),
        "moving": len(facts.moving),
        "partitions": [partition_summary(partition) for partition in facts.partitions],
    }


def partition_summary(partition: cluster.PartitionReplicas) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "leader": partition.leader,
        "replicas": list(partition.replicas),
        "isr": list(partition.in_sync),
        "offline_replicas": list(partition.offline),
        "eligible": None if partition.eligible is None else list(partition.eligible),
        "adding": list(partition.adding),
        "removing": list(partition.removing),
        "is_offline": partition.is_offline,
        "is_under_replicated": partition.is_under_replicated,
    }
